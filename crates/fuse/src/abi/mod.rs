//! The kernel's side of the protocol: the layout of FUSE requests and answers, protocol 7.31 to
//! 7.45.
//!
//! Structures are laid out as in the kernel's public interface: native byte order, natural
//! alignment, all padding in explicit fields. Requests are decoded by copying out of the received
//! bytes, whatever their alignment.

pub mod flags;
mod opcode;
mod replies;
mod requests;
mod ring;

pub use opcode::Opcode;
pub use replies::*;
pub use requests::*;
pub use ring::*;

/// The protocol's major version, unchanged since 2005.
pub const MAJOR: u32 = 7;
/// The oldest minor version served (Linux 5.4). From here on every structure has its present size.
pub const MINOR_MIN: u32 = 31;
/// The newest minor version understood.
pub const MINOR_MAX: u32 = 45;

/// The kernel's number of the root directory, which is also ours.
pub const ROOT_NODE: u64 = 1;
const _: () = assert!(ROOT_NODE == syncline_fs::types::ROOT);

/// Length of the header of every request.
pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
/// Length of the header of every answer.
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// Offset of the payload in a WRITE request.
pub const WRITE_PAYLOAD_OFFSET: usize = IN_HEADER_BYTES + size_of::<WriteIn>();

/// A notification, sent without a request: "your attributes of this inode are out of date".
pub const NOTIFY_INVALIDATE_INODE: i32 = 2;

/// Directory entries are aligned to this.
pub const DIRENT_ALIGN: usize = 8;
