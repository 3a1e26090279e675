//! The messages of NBD's transmission phase, and the numbers of its handshake.
//!
//! Everything that a server sends is untrusted: lengths are checked against the request before anything
//! is read or allocated.

use std::io::{self, Read};

pub(super) const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Flags of the greeting, and the client's answer to them.
pub(super) mod greeting {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

pub(super) mod option {
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
}

/// Kinds of replies to an option.
pub(super) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const ERROR_BIT: u32 = 1 << 31;
    pub(crate) const UNSUPPORTED: u32 = ERROR_BIT + 1;
    pub(crate) const POLICY: u32 = ERROR_BIT + 2;
    pub(crate) const PLATFORM: u32 = ERROR_BIT + 4;
    pub(crate) const TLS_REQUIRED: u32 = ERROR_BIT + 5;
    pub(crate) const UNKNOWN: u32 = ERROR_BIT + 6;
    pub(crate) const SHUTDOWN: u32 = ERROR_BIT + 7;
}

pub(super) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export.
pub(super) mod export {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const FLUSH: u16 = 1 << 2;
    pub(crate) const FUA: u16 = 1 << 3;
    pub(crate) const TRIM: u16 = 1 << 5;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const MULTI_CONN: u16 = 1 << 8;
    pub(crate) const FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request.
pub(super) mod flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Errors of a server.
pub(super) mod error {
    pub(crate) const NOT_SUPPORTED: u32 = 95;
    pub(crate) const SHUTDOWN: u32 = 108;
}

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
const CHUNK_DONE: u16 = 1 << 0;
/// The longest text that comes with an error.
const TEXT_MAX_BYTES: u32 = 4096;

/// Length of a request's header.
pub(super) const REQUEST_BYTES: usize = 28;

/// Kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// A request, without its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) command: Command,
    pub(super) flags: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len_bytes: u32,
}

impl Request {
    pub(super) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&(self.command as u16).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes
    }
}

/// The beginning of a reply. The data of a read follows it in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// All of a reply. If it answers a read without an error, its data follows.
    Simple { cookie: u64, error: u32 },
    /// A part of a reply, and whether it is the last one.
    Chunk { cookie: u64, last: bool, content: Content },
}

/// The content of a part of a structured reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    Nothing,
    /// This many bytes follow, which lie at `offset`.
    Data {
        offset: u64,
        len_bytes: u32,
    },
    Hole {
        offset: u64,
        len_bytes: u32,
    },
    Error(u32),
}

/// A server that breaks the protocol: nothing that follows can be understood.
pub(super) fn violation(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server broke the protocol: {}", what.into()))
}

/// The same error, in words about the server where the system's are about a buffer.
pub(super) fn told(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::UnexpectedEof => io::Error::new(kind, "the server ended the connection"),
        _ => error,
    }
}

/// Reads a reply up to its data.
pub(super) fn read_reply(from: &mut impl Read, structured: bool) -> io::Result<Reply> {
    let mut header = [0; 16];
    from.read_exact(&mut header)?;
    match u32_at(&header, 0) {
        SIMPLE_MAGIC => Ok(Reply::Simple { error: u32_at(&header, 4), cookie: u64_at(&header, 8) }),
        STRUCTURED_MAGIC if structured => {
            let (flags, kind) = (u16_at(&header, 4), u16_at(&header, 6));
            let mut len = [0; 4];
            from.read_exact(&mut len)?;
            let content = read_content(from, kind, u32::from_be_bytes(len))?;
            let last = flags & CHUNK_DONE != 0;
            if content == Content::Nothing && !last {
                return Err(violation("an empty part of a reply is not its last one"));
            }
            Ok(Reply::Chunk { cookie: u64_at(&header, 8), last, content })
        }
        magic => Err(violation(format!("a reply begins with {magic:#010x}"))),
    }
}

fn read_content(from: &mut impl Read, kind: u16, len_bytes: u32) -> io::Result<Content> {
    const NOTHING: u16 = 0;
    const DATA: u16 = 1;
    const HOLE: u16 = 2;
    const ERROR_BIT: u16 = 1 << 15;
    match kind {
        NOTHING if len_bytes == 0 => Ok(Content::Nothing),
        DATA if len_bytes > 8 => {
            let mut offset = [0; 8];
            from.read_exact(&mut offset)?;
            Ok(Content::Data { offset: u64::from_be_bytes(offset), len_bytes: len_bytes - 8 })
        }
        HOLE if len_bytes == 12 => {
            let mut hole = [0; 12];
            from.read_exact(&mut hole)?;
            match u32_at(&hole, 8) {
                0 => Err(violation("a hole of no bytes")),
                len_bytes => Ok(Content::Hole { offset: u64_at(&hole, 0), len_bytes }),
            }
        }
        kind if kind & ERROR_BIT != 0 => read_error(from, len_bytes),
        kind => Err(violation(format!("a part of a reply is of kind {kind} and has {len_bytes} bytes"))),
    }
}

/// Any kind of error counts as one, even an unknown one, if its length is credible.
fn read_error(from: &mut impl Read, len_bytes: u32) -> io::Result<Content> {
    if !(6..=TEXT_MAX_BYTES + 64).contains(&len_bytes) {
        return Err(violation(format!("an error of {len_bytes} bytes")));
    }
    let mut fixed = [0; 6];
    from.read_exact(&mut fixed)?;
    let mut rest = vec![0; len_bytes as usize - fixed.len()];
    from.read_exact(&mut rest)?;
    let text_bytes = usize::from(u16_at(&fixed, 4));
    let text = rest.get(..text_bytes).ok_or_else(|| violation("an error's text is longer than the error"))?;
    match u32_at(&fixed, 0) {
        0 => Err(violation("an error without a number")),
        error => {
            if !text.is_empty() {
                tracing::warn!(
                    error,
                    "the NBD server says: {}",
                    String::from_utf8_lossy(text).escape_debug()
                );
            }
            Ok(Content::Error(error))
        }
    }
}

/// The operating system's error for one of a server's. Unexpected ones count as EINVAL, as the
/// protocol wants it.
pub(super) fn io_error(error: u32) -> io::Error {
    const KNOWN: [u32; 7] = [1, 5, 12, 22, 28, 75, 95];
    let number = if KNOWN.contains(&error) { error as i32 } else { 22 };
    io::Error::from_raw_os_error(number)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk(flags: u16, kind: u16, len: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = STRUCTURED_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn content(kind: u16, len: u32, payload: &[u8]) -> io::Result<Content> {
        read_reply(&mut &chunk(CHUNK_DONE, kind, len, payload)[..], true).map(|reply| match reply {
            Reply::Chunk { cookie: 7, last: true, content } => content,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_request_is_laid_out_as_the_protocol_says() {
        let request = Request {
            command: Command::Write,
            flags: flag::FUA,
            cookie: 0x0102_0304_0506_0708,
            offset: 4096,
            len_bytes: 512,
        };
        let expected = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0,
        ];
        assert_eq!(request.encode(), expected);
    }

    #[test]
    fn replies_are_understood() {
        let mut simple = SIMPLE_MAGIC.to_be_bytes().to_vec();
        simple.extend(28u32.to_be_bytes());
        simple.extend(7u64.to_be_bytes());
        assert_eq!(read_reply(&mut &simple[..], false).unwrap(), Reply::Simple { cookie: 7, error: 28 });
        assert_eq!(content(0, 0, &[]).unwrap(), Content::Nothing);
        let offset = 4096u64.to_be_bytes();
        assert_eq!(content(1, 9, &offset).unwrap(), Content::Data { offset: 4096, len_bytes: 1 });
        let hole = [&offset[..], &512u32.to_be_bytes()].concat();
        assert_eq!(content(2, 12, &hole).unwrap(), Content::Hole { offset: 4096, len_bytes: 512 });
        let error = [&5u32.to_be_bytes()[..], &3u16.to_be_bytes(), b"bad"].concat();
        assert_eq!(content(0x8001, 9, &error).unwrap(), Content::Error(5));
        let error_at = [&error[..], &offset].concat();
        assert_eq!(content(0x8002, 17, &error_at).unwrap(), Content::Error(5));
        assert_eq!(content(0xffff, 9, &error).unwrap(), Content::Error(5), "an unknown kind of error");
        assert_eq!(io_error(28).raw_os_error(), Some(28));
        assert_eq!(io_error(77).raw_os_error(), Some(22));
    }

    #[test]
    fn what_breaks_the_protocol_is_refused_before_anything_is_allocated() {
        let zeros = [0; 64];
        for (kind, len) in [
            (0, 1),
            (1, 8),
            (1, 0),
            (2, 11),
            (2, 12),
            (2, u32::MAX),
            (5, 12),
            (9, 0),
            (0x8001, 5),
            (0x8001, u32::MAX),
        ] {
            let refused = content(kind, len, &zeros).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "kind {kind}, {len} bytes: {refused}");
        }
        let long_text = [&5u32.to_be_bytes()[..], &9u16.to_be_bytes(), b"bad"].concat();
        assert_eq!(content(0x8001, 9, &long_text).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(read_reply(&mut &chunk(0, 0, 0, &[])[..], true).is_err(), "empty and not the last");
        assert!(read_reply(&mut &chunk(1, 0, 0, &[])[..], false).is_err(), "not agreed upon");
        assert!(read_reply(&mut &zeros[..], true).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_end_in_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), simple: bool) {
            let mut stream = (if simple { SIMPLE_MAGIC } else { STRUCTURED_MAGIC }).to_be_bytes().to_vec();
            stream.extend(bytes);
            let _ = read_reply(&mut &stream[..], true);
        }
    }
}
