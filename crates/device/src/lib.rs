//! The device under Syncline: reads, writes, flushes and discards, several in flight; the flush
//! tracker; and the threads that all of this runs on.
//!
//! The device promises exactly this and nothing more: when a flush returns successfully, every
//! write that completed before the flush was *submitted* is persistent. Before that any subset of
//! the writes may be, in any order, torn at any 512-byte boundary.
//!
//! There are three layers. [`Device`] is the interface for the engine; [`FileDevice`] and
//! [`MemoryDevice`] are the real ones. [`FlushTracker`] shares flushes. [`Worker`] is a thread with
//! one io_uring that carries the I/O its tasks start, so that a request is served on one CPU
//! without a hand-over. A thread that calls the library carries out its I/O by itself ([`drive`]).
//! I/O of other threads goes to a ring of its own, or, where io_uring is not allowed, to a small pool
//! of threads.

mod aside;
mod buffer;
mod caller;
mod descriptors;
mod device;
mod error;
mod file;
mod mailbox;
mod memory;
mod mounts;
mod oneshot;
mod pool;
mod reactor;
mod request;
mod ring;
mod settle;
mod spawn;
mod threads;
mod tracker;
mod worker;

pub use async_executor::Task;
pub use buffer::{AlignedBuf, Room};
pub use caller::{Moment, block_on, drive, moment};
pub use device::{Claim, Completion, Device, DeviceExt, DeviceFuture};
pub use error::{DeviceError, Operation};
pub use file::{FileDevice, Holder, MountDevice, OpenOptions, Use};
pub use io_uring;
pub use mailbox::Sleep;
pub use memory::MemoryDevice;
pub use mounts::{FILESYSTEM_TYPES, MountEntry, mounts, parse_all as parse_mounts};
pub use settle::{READS_MAX, read_settled, unsettled};
pub use spawn::{Background, Spawn, in_background};
pub use threads::{allowed_cpus, pin_to_cpu};
pub use tracker::{
    Durability, FlushCover, FlushTracker, Flushed, Ticket, TrackerCounters, WriteHandle, WriteHook,
};
pub use worker::{CurrentWorker, Readiness, Worker, WorkerHandle, WorkerOptions};

/// Alignment of every address, length and buffer that reaches a device.
pub const BLOCK_BYTES: usize = 4096;
