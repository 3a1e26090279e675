//! The kernel's side of the conversation: what a FUSE request and its answer look like, protocol 7.31 to 7.45.
//!
//! Structures are laid out as the kernel's public interface has them: native byte order, natural alignment, every
//! padding a field. Requests are decoded by copying out of the received bytes, whatever their alignment.

pub mod flags;
mod opcode;
mod replies;
mod requests;
mod ring;

pub use opcode::Opcode;
pub use replies::*;
pub use requests::*;
pub use ring::*;

/// The major version there has been since 2005.
pub const MAJOR: u32 = 7;
/// The oldest minor version served: every structure has its present size from here on (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// The newest minor version understood.
pub const MINOR_MAX: u32 = 45;

/// The kernel's number of the root directory, which is ours too.
pub const ROOT_NODE: u64 = 1;
const _: () = assert!(ROOT_NODE == syncline_fs::types::ROOT);

/// Length of the header of every request.
pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
/// Length of the header of every answer.
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// Where the payload of a WRITE begins in its request.
pub const WRITE_PAYLOAD_OFFSET: usize = IN_HEADER_BYTES + size_of::<WriteIn>();

/// The message the daemon sends of itself, without a request: "attributes of this inode are no longer what you know".
pub const NOTIFY_INVALIDATE_INODE: i32 = 2;

/// Directory entries start at multiples of this.
pub const DIRENT_ALIGN: usize = 8;
