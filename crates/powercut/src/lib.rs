//! Power cuts: a device that records its requests, and every image that a power cut may leave of
//! them. The device assumption of docs/DURABILITY.md ("The device") says which images these are.
//!
//! [`RecordingDevice`] makes the record. [`CrashImages`] walks through it and makes images at any
//! position: at random, or with a chosen [`Fate`] for each write of a [`Cut`].
#![forbid(unsafe_code)]

mod blocks;
mod cut;
mod images;
mod recording;
pub mod tear;

pub use blocks::block_of;
pub use cut::{Cut, Fate};
pub use images::CrashImages;
pub use recording::{Event, RecordingDevice};
pub use tear::SECTOR_BYTES;
