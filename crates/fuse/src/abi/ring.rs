//! FUSE over io_uring: the daemon's commands, and the memory that carries a request in and its
//! answer out.

use super::{IN_HEADER_BYTES, OUT_HEADER_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Offers an entry to the kernel: one iovec each for headers and payload.
pub const RING_REGISTER: u32 = 1;
/// Answers the request in an entry and asks for the next one.
pub const RING_COMMIT_AND_FETCH: u32 = 2;

/// The arguments of a command, beyond the fields that every submission has. They fill the beginning
/// of the 80 bytes available.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingCommand {
    pub flags: u64,
    /// The `commit_id` of the request being answered.
    pub commit_id: u64,
    /// The CPU whose requests arrive here.
    pub queue: u16,
    pub padding: [u8; 6],
}
const _: () = assert!(size_of::<RingCommand>() == 24);

/// The headers of an entry. For a request: its [`super::InHeader`], the structure with its first
/// argument, and the length of the rest, which is the payload. For an answer: an
/// [`super::OutHeader`], and the length of everything else, which is the payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingHeaders {
    pub message: [u8; 128],
    pub argument: [u8; 128],
    pub flags: u64,
    /// Identifies the request to the command that answers it.
    pub commit_id: u64,
    pub payload_len: u32,
    pub padding: u32,
    pub reserved: u64,
}
const _: () = assert!(size_of::<RingHeaders>() == 288);
const _: () = assert!(std::mem::offset_of!(RingHeaders, commit_id) == 264);
const _: () = assert!(IN_HEADER_BYTES <= 128 && OUT_HEADER_BYTES <= 128);
