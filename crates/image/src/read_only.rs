//! A device that refuses changes, around one that has to be written for its lease.

use bytes::Bytes;
use std::io;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Claim, Completion, Device, DeviceError, Operation};

/// Reads the device inside, and refuses to change it.
pub(crate) struct ReadOnly<D>(pub(crate) Arc<D>);

fn refused(operation: Operation, offset: u64, len_bytes: u64) -> DeviceError {
    DeviceError::io(operation, offset, len_bytes, io::Error::from_raw_os_error(libc::EROFS))
}

impl<D: Device> Device for ReadOnly<D> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn reads_bypass_caches(&self) -> bool {
        self.0.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.0.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        done(Err(refused(Operation::Write, offset, len_bytes)));
    }

    fn flush(&self, done: Completion<()>) {
        self.0.flush(done);
    }

    fn submit(&self) {
        self.0.submit();
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        done(Err(refused(Operation::Write, self.size_bytes(), size_bytes)));
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.0.claim_snapshot(number, claim)
    }

    fn discards(&self) -> bool {
        false
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        done(Err(refused(Operation::Discard, offset, len_bytes)));
    }
}
