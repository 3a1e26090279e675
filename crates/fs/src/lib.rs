//! POSIX meaning over the store: inodes, directories, names, file data, attributes, orphans, limits.
#![forbid(unsafe_code)]

mod error;
pub mod types;

pub use error::FsError;
