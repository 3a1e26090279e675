//! The control channel: questions to a running daemon, asked through the mount itself.
//!
//! A question is an ioctl on any file or directory of the mount. So anyone who can enter the mount
//! can ask, there is no socket path to agree on, and nothing shows up in a directory. Texts (JSON,
//! Prometheus) are named by the program that registers them, and fetched in pages out of a
//! snapshot, so that a long text is consistent.
//!
//! Quotas are set, removed and queried through their directory. Streams come in small parts
//! ([`Transfer`]).
//!
//! [`sync_files`] and [`order_files`] are ioctls of their own, for everybody: fsync2 and fbarrier.
//! So are [`durability`] for everybody and [`set_durability`] for the file's owner and root, and
//! those about a file's blocks: [`usage`] and [`fragments`] for everybody, [`defragment`] for the
//! owner of the file and root.

pub(crate) mod blocks;
mod client;
pub(crate) mod clones;
pub(crate) mod durability;
pub(crate) mod files;
#[cfg(test)]
mod header;
pub(crate) mod label;
mod quotas;
mod receive;
mod resize;
mod server;
pub(crate) mod trim;
pub(crate) mod wire;

pub use blocks::{
    Defragmented, Fragments, Usage, compression, defragment, fragments, rewrite, set_compression, usage,
};
pub use client::{ControlError, command, create_snapshot, delete_snapshot, paths, stats, sync, text};
pub use clones::{Clones, clone_files, show_clones};
pub use durability::{durability, set_durability};
pub use files::{FILES_MAX, order_files, sync_files};
pub use label::{label, set_label};
pub use quotas::{quota, quotas, remove_quota, set_quota};
pub use receive::Transfer;
pub use resize::{Resized, resize};
pub use server::{Asker, Control, Receiver};
pub use trim::trim;
