//! Syncline as a mounted filesystem: turns the kernel's FUSE requests into calls of
//! [`syncline_fs::Filesystem`].
//!
//! [`operations`](mod@operations) is the one table of requests;
//! [`transport`](mod@transport) carries requests and answers; [`Serve`] is the interface between
//! them; [`Session::mount`] puts the two together; [`control`] asks a running daemon questions
//! through its mount.

#[expect(missing_docs, reason = "fields have the names of the kernel's public interface")]
pub mod abi;
pub mod control;
mod counters;
mod done;
mod error;
mod last_request;
mod mount;
mod negotiate;
mod operations;
mod options;
mod own_table;
mod page_cache;
mod processes;
mod reply;
mod request;
mod serve;
mod session;
#[cfg(test)]
#[path = "../tests/support/filesystem.rs"]
mod test_filesystem;
mod transport;
mod uring_switch;

pub use counters::RequestCounters;
pub use error::MountError;
pub use mount::{
    Elsewhere, KernelOptions, MountEntry, daemon_has_gone, is_connected, is_frozen_for_sleep,
    mounted_elsewhere, mounts, namespace_outlives_us, remount, require_mountable,
};
pub use negotiate::Negotiated;
pub use options::{DirectIo, MountOptions, SyncObserver, Synced, Synchronous, Transport};
pub use reply::Reply;
pub use request::{Arguments, Malformed, Request};
pub use serve::Serve;
pub use session::{Mounted, Prepared, Session, SyncReach, Unmounter};
pub use uring_switch::{URING_SWITCH, switch_uring_on};
