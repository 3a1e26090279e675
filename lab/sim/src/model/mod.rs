//! The model of a filesystem: names and attributes, which each call changes or refuses as POSIX says, and
//! all contents that each block of a file ever had. The seeds and the worlds compare recovered images with
//! it, and `fuse` compares what programs find on a mount.

mod change;
mod file;
mod tree;

pub use change::Change;
pub use file::FileHistory;
pub use tree::{Body, Entries, Node, Place, RenameKind, Times, Tree};

/// The errnos of refused calls.
pub mod errno {
    #![expect(missing_docs, reason = "their names say what they are")]

    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EEXIST: i32 = 17;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENOTEMPTY: i32 = 39;
}
