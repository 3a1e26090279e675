//! Requests as they were received, and the careful way to take them apart.

use crate::abi::{InHeader, Opcode};
use bytes::Bytes;
use smallvec::SmallVec;
use std::cell::RefCell;
use syncline_device::Room;
use syncline_fs::types::{Caller, Ino};
use zerocopy::FromBytes;

/// A request that makes no sense; answered with EINVAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Arguments of a request; all but long names and attributes need no memory of their own.
pub type ArgumentBytes = SmallVec<[u8; 128]>;

/// A request of the kernel, on its own memory.
#[derive(Debug)]
pub struct Request {
    header: InHeader,
    /// What follows the header, but for the payload.
    arguments: ArgumentBytes,
    /// Data of a WRITE: in memory of its own, at an address that is a multiple of 4096.
    payload: Bytes,
    /// Where the answer's data may be put, of a READ that came with such memory.
    room: RefCell<Option<Room>>,
}

impl Request {
    /// A request whose bytes lie in one piece: every one but WRITE.
    pub fn new(header: InHeader, arguments: impl Into<ArgumentBytes>) -> Self {
        Self::with_payload(header, arguments, Bytes::new())
    }

    /// A WRITE: the arguments end where the payload begins.
    pub fn with_payload(header: InHeader, arguments: impl Into<ArgumentBytes>, payload: Bytes) -> Self {
        Self { header, arguments: arguments.into(), payload, room: RefCell::default() }
    }

    /// The same with memory of the transport, for data of the answer.
    pub fn with_room(self, room: Room) -> Self {
        self.room.replace(Some(room));
        self
    }

    /// That memory, if there is some.
    pub fn take_room(&self) -> Option<Room> {
        self.room.take()
    }

    /// A request out of a whole message; a WRITE's payload is copied. `None` if it is no request at all.
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

    /// What it asks for, if that is known.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_number(self.header.opcode)
    }

    /// What it asks for, as a number.
    pub fn opcode_number(&self) -> u32 {
        self.header.opcode
    }

    /// Names the request.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// The inode it is about.
    pub fn ino(&self) -> Ino {
        self.header.node
    }

    /// Who asks.
    pub fn caller(&self) -> Caller {
        Caller { uid: self.header.uid, gid: self.header.gid }
    }

    /// The thread that asks; 0 where the daemon's namespace does not have it.
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    /// Memory that it holds.
    pub fn len_bytes(&self) -> usize {
        self.arguments.len() + self.payload.len()
    }

    /// Data of a WRITE.
    pub fn payload(&self) -> Bytes {
        self.payload.clone()
    }

    /// What follows the header, to be read from its beginning.
    pub fn arguments(&self) -> Arguments<'_> {
        // Extensions (security contexts and the like) are asked for at INIT, which we don't; skip them all the same.
        let extensions = self.header.extensions_len as usize * 8;
        let end = self.arguments.len().saturating_sub(extensions);
        Arguments { rest: &self.arguments[..end] }
    }
}

/// What is left to read of a request.
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

    /// The next string, which must be able to name something in a directory.
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
