//! Syncline for C. `include/libsyncline.h` documents each call and its requirements on pointers;
//! this crate implements them. The tests compile programs against the header and compare its
//! declarations with those found here.
//!
//! Every call goes through [`failure::answer`], which turns errors into negative errnos, keeps
//! their text for `syncline_last_error`, and lets no panic cross into C.
#![allow(non_camel_case_types, reason = "types are named as C programs name them")]

mod arguments;
mod attributes;
mod directory;
mod failure;
mod file;
mod forks;
mod image;
mod names;
mod snapshots;
mod sync;
mod transaction;
mod xattrs;

pub use attributes::*;
pub use directory::*;
pub use failure::syncline_last_error;
pub use file::*;
pub use forks::*;
pub use image::*;
pub use names::*;
pub use snapshots::*;
pub use sync::*;
pub use transaction::*;
pub use xattrs::*;

#[cfg(test)]
mod layout;
