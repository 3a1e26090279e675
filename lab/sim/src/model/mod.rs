//! The model of a filesystem: names and attributes after each transaction, and all contents that each
//! block of a file ever had. The seeds of this crate compare recovered images with it, and `fuse`
//! compares what programs find on a mount.

pub use crate::fs::{Body, Change, FileHistory, Node, Place, Tree};
