//! A device that flushes behind a write, as Linux does for a disk without FUA: one request, whose
//! two parts go to the device below one after the other.

use bytes::Bytes;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Completion, Device, DeviceError};

/// Passes all operations on, and offers [`Device::write_through`].
pub struct ThroughDevice(Arc<dyn Device>);

impl ThroughDevice {
    /// Wraps `inner`, which does not offer write-through.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self(inner))
    }
}

impl Device for ThroughDevice {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.0.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.0.write(offset, bufs, done);
    }

    fn writes_through(&self) -> bool {
        true
    }

    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let inner = self.0.clone();
        let then = move |result: Result<(), DeviceError>| match result {
            Ok(()) => inner.flush(done),
            Err(error) => done(Err(error)),
        };
        self.0.write(offset, bufs, Box::new(then));
    }

    fn flush(&self, done: Completion<()>) {
        self.0.flush(done);
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.0.discard(offset, len_bytes, done);
    }
}
