//! POSIX meaning over the store: inodes, directories, names, file data, attributes, orphans, limits.
#![forbid(unsafe_code)]

mod data;
mod error;
mod filesystem;
mod inode;
mod options;
mod runtime;
pub mod types;

pub use error::FsError;
pub use filesystem::Filesystem;
pub use options::{AccessTime, Options};
pub use runtime::{Clock, ManualClock, Spawn, SystemClock, Task};
