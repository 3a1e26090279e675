//! The device under Syncline: reads, writes, flushes and discards, several in flight, and the flush tracker.
//!
//! The device promises exactly this and nothing more: when a flush returns successfully, every write that completed
//! before the flush was *submitted* is persistent. Before that any subset of the writes may be, in any order, torn
//! at any 512-byte boundary.

mod buffer;
mod device;
mod error;
mod tracker;

pub use buffer::AlignedBuf;
pub use device::{Completion, Device, DeviceExt};
pub use error::{DeviceError, Operation};
pub use tracker::{FlushCover, FlushTracker, Ticket, WriteHandle};

/// Alignment of every address, length and buffer that reaches a device.
pub const BLOCK_BYTES: usize = 4096;
