//! The flush tracker: every completed write takes a ticket, and a flush covers the tickets taken before it started.

use crate::{Device, DeviceError};
use bytes::Bytes;
use std::sync::Arc;

/// Position of a completed write in the order of completions. A flush that was submitted when the newest ticket was
/// `t` makes every ticket up to `t` durable (rule R4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ticket(pub u64);

/// How a ticket became durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushCover {
    /// A flush that had already completed covered it: no device operation.
    Elided,
    /// A flush that another caller had asked for, not yet submitted, covers it.
    Joined,
    /// This caller's own flush.
    Issued,
}

/// A write on its way; clones refer to the same write.
#[derive(Clone)]
pub struct WriteHandle(());

impl WriteHandle {
    /// Waits for the write to complete; its ticket, or why it failed.
    pub async fn wait(&self) -> Result<Ticket, DeviceError> {
        todo!()
    }
    /// The outcome if it is known already.
    pub fn outcome(&self) -> Option<Result<Ticket, DeviceError>> {
        todo!()
    }
    /// Runs `hook` once when the write ends (at once when it already has). It must not block.
    pub fn on_end(&self, _hook: Box<dyn FnOnce(&Result<Ticket, DeviceError>) + Send>) {
        todo!()
    }
}

/// Counts writes and flushes of one device and shares flushes among those who need one.
pub struct FlushTracker(());

impl FlushTracker {
    /// A tracker over `device`; all of the device's writes and flushes must go through it.
    pub fn new(_device: Arc<dyn Device>) -> Arc<Self> {
        todo!()
    }
    /// The device underneath.
    pub fn device(&self) -> &Arc<dyn Device> {
        todo!()
    }
    /// Starts a write.
    pub fn write(&self, _offset: u64, _bufs: Vec<Bytes>) -> WriteHandle {
        todo!()
    }
    /// Ticket of the newest completed write.
    pub fn newest_ticket(&self) -> Ticket {
        todo!()
    }
    /// True when a completed flush covers `ticket`.
    pub fn is_durable(&self, _ticket: Ticket) -> bool {
        todo!()
    }
    /// Returns at once when a completed flush covers `ticket`, joins a flush not yet submitted, or issues one.
    pub async fn make_durable(self: &Arc<Self>, _ticket: Ticket) -> Result<FlushCover, DeviceError> {
        todo!()
    }
}
