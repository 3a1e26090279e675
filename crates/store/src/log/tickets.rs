//! The tickets of a set of writes that one flush must cover.

use crate::StoreError;
use smallvec::SmallVec;
use std::sync::Arc;
use syncline_device::{DeviceError, FlushTracker, Ticket};

/// The tickets that no flush had covered when they were added.
///
/// All of them are kept: while a batch waits for its last write, one flush may cover the first
/// ticket and another may fail on a later one, so that neither end of the set reveals a loss in the
/// middle (rule R6).
#[derive(Clone, Default, Debug)]
pub(crate) struct Tickets {
    open: SmallVec<[Ticket; 4]>,
}

impl Tickets {
    /// Adds the ticket of a completed write.
    pub(crate) fn add(&mut self, ticket: Ticket, tracker: &FlushTracker) {
        if !tracker.is_durable(ticket) {
            self.open.push(ticket);
        }
    }

    /// The newest ticket, which a flush must cover; the zero ticket, which is always durable, if
    /// there is nothing to cover.
    pub(crate) fn newest(&self) -> Ticket {
        self.open.iter().copied().max().unwrap_or_default()
    }

    /// True when a flush has failed before all of them were covered.
    pub(crate) fn are_lost(&self, tracker: &FlushTracker) -> bool {
        self.open.iter().any(|ticket| tracker.is_lost(*ticket))
    }

    /// Call after a flush that covered the newest ticket: fails if an earlier flush lost any of the
    /// others.
    pub(crate) fn confirm(&self, tracker: &FlushTracker) -> Result<(), StoreError> {
        if self.open.iter().all(|ticket| tracker.is_durable(*ticket)) {
            return Ok(());
        }
        let lost = std::io::Error::other("an earlier flush had failed");
        Err(DeviceError::Poisoned { source: Arc::new(lost) }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use syncline_device::{AlignedBuf, Completion, Device, MemoryDevice, block_on};

    /// A memory device whose flushes fail while `fail` is set.
    struct Failing {
        inner: Arc<MemoryDevice>,
        fail: std::sync::atomic::AtomicBool,
    }

    impl Device for Failing {
        fn size_bytes(&self) -> u64 {
            self.inner.size_bytes()
        }
        fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
            self.inner.read(offset, buf, done);
        }
        fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
            self.inner.write(offset, bufs, done);
        }
        fn flush(&self, done: Completion<()>) {
            if self.fail.load(std::sync::atomic::Ordering::SeqCst) {
                done(Err(DeviceError::Abandoned { operation: syncline_device::Operation::Flush }));
            } else {
                self.inner.flush(done);
            }
        }
        fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
            self.inner.discard(offset, len_bytes, done);
        }
    }

    #[test]
    fn a_loss_in_the_middle_is_noticed() {
        let inner = MemoryDevice::new(1 << 20);
        let device = Arc::new(Failing { inner, fail: false.into() });
        let tracker = FlushTracker::new(device.clone());
        let mut tickets = Tickets::default();
        let write = |tickets: &mut Tickets| {
            let block = AlignedBuf::zeroed(4096).into_bytes();
            let ticket = block_on(tracker.write(0, vec![block]).wait()).unwrap();
            tickets.add(ticket, &tracker);
            ticket
        };
        let first = write(&mut tickets);
        block_on(tracker.make_durable(first)).unwrap();
        let second = write(&mut tickets);
        device.fail.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(block_on(tracker.make_durable(second)).is_err());
        device.fail.store(false, std::sync::atomic::Ordering::SeqCst);
        let third = write(&mut tickets);
        assert_eq!(tickets.newest(), third);
        block_on(tracker.make_durable(third)).unwrap();
        assert!(tickets.confirm(&tracker).is_err());
    }
}
