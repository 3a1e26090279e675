//! Received requests, and their careful decoding.

use crate::abi::{InHeader, Opcode};
use bytes::Bytes;
use smallvec::SmallVec;
use std::cell::RefCell;
use syncline_device::Room;
use syncline_fs::types::{Caller, Ino};
use zerocopy::FromBytes;

/// The request is invalid; answered with EINVAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Arguments of a request. Only long names and attributes need an allocation.
pub type ArgumentBytes = SmallVec<[u8; 128]>;

/// A request from the kernel, in memory of its own.
#[derive(Debug)]
pub struct Request {
    header: InHeader,
    /// Everything after the header, except the payload.
    arguments: ArgumentBytes,
    /// The data of a WRITE, in memory of its own, aligned to 4096 bytes.
    payload: Bytes,
    /// For a READ that came with such memory: where the answer's data may be put.
    room: RefCell<Option<Room>>,
}

impl Request {
    /// A request whose bytes are in one piece: all but WRITE.
    pub fn new(header: InHeader, arguments: impl Into<ArgumentBytes>) -> Self {
        Self::with_payload(header, arguments, Bytes::new())
    }

    /// A WRITE: the arguments end where the payload begins.
    pub fn with_payload(header: InHeader, arguments: impl Into<ArgumentBytes>, payload: Bytes) -> Self {
        Self { header, arguments: arguments.into(), payload, room: RefCell::default() }
    }

    /// Adds transport memory for the answer's data.
    pub fn with_room(self, room: Room) -> Self {
        self.room.replace(Some(room));
        self
    }

    /// Takes the transport memory for the answer's data, if there is some.
    pub fn take_room(&self) -> Option<Room> {
        self.room.take()
    }

    /// Parses a request out of a whole message; a WRITE's payload is copied. `None` if it is not a
    /// request.
    #[cfg(test)]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (header, rest) = InHeader::read_from_prefix(message).ok()?;
        if header.len as usize != message.len() {
            return None;
        }
        let fixed = crate::abi::WRITE_PAYLOAD_OFFSET - size_of::<InHeader>();
        if header.opcode == Opcode::Write as u32 && rest.len() > fixed {
            let (arguments, payload) = rest.split_at(fixed);
            let payload = syncline_device::AlignedBuf::copy_from(payload).into_bytes().slice(..payload.len());
            return Some(Self::with_payload(header, arguments, payload));
        }
        Some(Self::new(header, rest))
    }

    /// The operation, if it is known.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_number(self.header.opcode)
    }

    /// The number of the operation.
    pub fn opcode_number(&self) -> u32 {
        self.header.opcode
    }

    /// Identifies the request.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// The inode that the request is about.
    pub fn ino(&self) -> Ino {
        self.header.node
    }

    /// The user and group of the caller.
    pub fn caller(&self) -> Caller {
        Caller { uid: self.header.uid, gid: self.header.gid }
    }

    /// The calling thread; 0 if it is not visible in the daemon's pid namespace.
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    /// The memory that the request holds, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.arguments.len() + self.payload.len()
    }

    /// Data of a WRITE.
    pub fn payload(&self) -> Bytes {
        self.payload.clone()
    }

    /// The bytes after the header, to be read in order.
    pub fn arguments(&self) -> Arguments<'_> {
        // We do not ask for extensions (security contexts and the like) at INIT; skip them all the
        // same.
        let extensions = self.header.extensions_len as usize * 8;
        let end = self.arguments.len().saturating_sub(extensions);
        Arguments { rest: &self.arguments[..end] }
    }
}

/// The rest of a request's arguments.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// The next structure.
    pub fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed)?;
        self.rest = rest;
        Ok(value)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The next string, without the NUL that ends it.
    pub fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let string = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(string)
    }

    /// The next string, which must be valid as a name in a directory.
    pub fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
            return Err(Malformed);
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{IN_HEADER_BYTES, LinkIn};
    use zerocopy::IntoBytes;

    fn message(opcode: u32, arguments: &[u8]) -> Vec<u8> {
        let len = (IN_HEADER_BYTES + arguments.len()) as u32;
        let header = InHeader { len, opcode, unique: 4, node: 1, ..InHeader::default() };
        [header.as_bytes(), arguments].concat()
    }

    #[test]
    fn structures_and_names_come_in_order() {
        let arguments = [LinkIn { old_node: 77 }.as_bytes(), b"new\0rest"].concat();
        let request = Request::parse(&message(Opcode::Link as u32, &arguments)).unwrap();
        let mut arguments = request.arguments();
        assert_eq!(arguments.take::<LinkIn>().unwrap().old_node, 77);
        assert_eq!(arguments.name(), Ok(&b"new"[..]));
        assert_eq!(arguments.name(), Err(Malformed));
        assert_eq!(arguments.bytes(4), Ok(&b"rest"[..]));
        assert_eq!(arguments.bytes(1), Err(Malformed));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for bad in [&b"\0"[..], b".\0", b"..\0", b"a/b\0", b"unterminated"] {
            assert_eq!(Arguments { rest: bad }.name(), Err(Malformed), "{bad:?}");
        }
        assert_eq!(Arguments { rest: b"...\0" }.name(), Ok(&b"..."[..]));
        assert_eq!(Arguments { rest: b"\xff\xfe \n\0" }.name(), Ok(&b"\xff\xfe \n"[..]));
    }

    #[test]
    fn messages_of_the_wrong_length_are_none() {
        let mut whole = message(3, &[0; 16]);
        assert!(Request::parse(&whole).is_some());
        whole.push(0);
        assert!(Request::parse(&whole).is_none());
        assert!(Request::parse(&whole[..39]).is_none());
        assert!(Request::parse(&[]).is_none());
    }

    #[test]
    fn the_payload_of_a_write_is_aligned() {
        let arguments = [&[0; 40][..], &[7; 5000]].concat();
        let request = Request::parse(&message(Opcode::Write as u32, &arguments)).unwrap();
        assert_eq!(request.payload().as_ptr() as usize % 4096, 0);
        assert_eq!(request.payload(), vec![7; 5000]);
        assert_eq!(request.len_bytes(), 5040);
    }
}
