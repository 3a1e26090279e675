//! Fields of headers and records: little-endian numbers, and names with their lengths.

use crate::StreamError;

/// Reads fields, and notices where they end.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    record: u64,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8], record: u64) -> Self {
        Self { rest: bytes, record }
    }

    fn damaged(&self, what: &'static str) -> StreamError {
        StreamError::Damaged { record: self.record, what }
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], StreamError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(self.damaged("it is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], StreamError> {
        let damaged = self.damaged("it is too short");
        self.take(N)?.try_into().map_err(|_| damaged)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, StreamError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, StreamError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, StreamError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, StreamError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, StreamError> {
        self.array().map(i64::from_le_bytes)
    }

    /// A name: its length in one byte, then as many bytes.
    pub(crate) fn name(&mut self) -> Result<Vec<u8>, StreamError> {
        let length = self.u8()?;
        Ok(self.take(length.into())?.to_vec())
    }

    /// Everything that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// True if nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails if something is left.
    pub(crate) fn end(&self) -> Result<(), StreamError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.damaged("it is too long")) }
    }
}

/// Writes a name, of at most 255 bytes.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    debug_assert!(name.len() <= 255, "names have at most 255 bytes");
    out.push(name.len() as u8);
    out.extend_from_slice(name);
}
