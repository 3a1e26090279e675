//! A reader of untrusted bytes that can't run past their end.

use crate::FormatError;

/// Reads fields one after the other; every step is checked.
pub struct Cursor<'a> {
    rest: &'a [u8],
    structure: &'static str,
}

impl<'a> Cursor<'a> {
    /// Starts at the beginning of `bytes`; `structure` names them in errors.
    pub fn new(bytes: &'a [u8], structure: &'static str) -> Self {
        Self { rest: bytes, structure }
    }
    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) =
            self.rest.split_at_checked(len).ok_or(FormatError::Truncated { structure: self.structure })?;
        self.rest = rest;
        Ok(head)
    }
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) =
            self.rest.split_first_chunk().ok_or(FormatError::Truncated { structure: self.structure })?;
        self.rest = rest;
        Ok(*head)
    }
    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }
    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }
    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }
    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }
    /// The next `count` four-byte numbers.
    pub fn u32s(&mut self, count: usize) -> Result<impl Iterator<Item = u32> + 'a, FormatError> {
        let bytes = self.bytes(count.saturating_mul(4))?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)))
    }
    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
    /// True when nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    /// The error for a field with an impossible value.
    pub fn field(&self, field: &'static str) -> FormatError {
        FormatError::Field { structure: self.structure, field }
    }
}
