//! Everything Syncline puts on a device, byte by byte, and nothing else. `docs/FORMAT.md` says the
//! same in prose.
//!
//! All integers are little-endian and of fixed width. Every structure is decoded from untrusted
//! bytes: a decoder checks each value that indexes, sizes or repeats something before it is used.
#![forbid(unsafe_code)]

pub mod batch;
mod checksum;
mod error;
pub mod fork;
pub mod items;
mod key;
mod layout;
pub mod lease;
pub mod node;
pub mod snapshots;
pub mod space;
pub mod superblock;

pub use checksum::{Crc, block_checksums, crc};
pub use error::FormatError;
pub use key::{KEY_BYTES, Key, Kind, OBJECTS_END, ObjectId};
pub use layout::{
    BLOCK_BYTES, BlockAddr, BlockRun, FORMAT_VERSION, Geometry, Metadata, NODE_BYTES_DEFAULT, SharedGeometry,
};

/// Random 128-bit name of one life of the log: mkfs, each recovery and each new start of the log
/// draw one (rule R3).
pub type Epoch = [u8; 16];
