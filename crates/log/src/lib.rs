//! The log: changes gathered in log form, sealed into chained batches, and read back after a crash.
#![forbid(unsafe_code)]

mod chain;
mod pending;
mod replay;
mod search;
mod window;

pub use chain::{Chain, SealedBatch, SegmentSize, Stamp};
pub use pending::{ITEM_KINDS, Pending, PendingCounts, Spare};
pub use replay::{Believed, Reading, ReplayError, Scan, payload_of, scan, scan_believing, verify_named};
pub use window::Window;
