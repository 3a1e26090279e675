//! The model of a filesystem: names and attributes, which each call changes or refuses as POSIX says, and
//! all contents that each block of a file ever had. The seeds and the worlds compare recovered images with
//! it, and `fuse` compares what programs find on a mount.

mod change;
mod file;
mod tree;

pub use change::Change;
pub use file::FileHistory;
pub use tree::{Body, Entries, Node, Place, RenameKind, Times, Tree};
