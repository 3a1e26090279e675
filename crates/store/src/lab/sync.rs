//! The lab's part between a commit and its acknowledgement: sealing, waiting for writes, flushing.

use super::{Ablation, Canary, Lab};
use crate::log::{Tickets, Write};
use crate::{Store, StoreError};
use syncline_device::{DeviceError, FlushCover, Flushed, Ticket};
use syncline_format::batch::PAYLOAD_BYTES_MAX;
use syncline_log::Pending;
use syncline_sync::asynchronous::MutexGuard;

/// Stands in for the flush that a canary left out.
const NO_FLUSH: Flushed = Flushed { cover: FlushCover::Elided, flush: 0, through: Ticket(0) };

impl Lab {
    /// Whether `bytes` of pending log are enough to seal it in the background, if the usual limits
    /// do not apply.
    pub(crate) fn is_full(&self, bytes: usize) -> Option<bool> {
        self.ablates(Ablation::DirBulk).then_some(bytes >= PAYLOAD_BYTES_MAX / 2)
    }

    /// True when every flush must be a request of its own, or none may go with a batch.
    pub(crate) fn flushes_apart(&self) -> bool {
        let broken = self.breaks(Canary::SkipFlush) || self.breaks(Canary::FlushEarly);
        broken || self.flushes_anew() || self.ablates(Ablation::WriteThrough)
    }

    /// True when every sync must flush, even if an earlier flush has covered what it waits for.
    fn flushes_anew(&self) -> bool {
        self.ablates(Ablation::FlushElide) || self.ablates(Ablation::FlushGroup)
    }
}

impl Store {
    /// Lets a sync in alone, so that nobody can join its group, if syncs may share no flush.
    pub(crate) async fn lab_alone(&self) -> Option<MutexGuard<'_, ()>> {
        match self.ablates(Ablation::FlushGroup) {
            true => Some(self.log.lab_alone().await),
            false => None,
        }
    }

    /// Fails if the pending log may grow without bound and has become too long for a batch.
    pub(crate) fn lab_refuse(&self, pending: &Pending) -> Result<(), StoreError> {
        if self.breaks(Canary::UnboundedPending) && pending.payload_bytes() > PAYLOAD_BYTES_MAX {
            return Err(StoreError::Unusable("the pending log is too long for a batch".into()));
        }
        Ok(())
    }

    /// Copies the pending log item by item if it is not to count as gathered; returns the number of
    /// copies that sealing takes.
    pub(crate) fn lab_copy(&self, pending: Pending) -> (Pending, u64) {
        match self.ablates(Ablation::DirBulk) {
            true => pending.copied_item_by_item(self.geometry()),
            false => (pending, 1),
        }
    }

    /// Like `settle`, unless the flush is not to wait for the writes.
    pub(crate) async fn lab_settle(&self, seq: u64) -> Result<Tickets, DeviceError> {
        match self.breaks(Canary::FlushEarly) {
            true => Ok(Tickets::default()),
            false => self.settle(seq).await,
        }
    }

    /// Writes again whenever no attempt is in flight, whatever has become of the blocks, if a late
    /// repetition is to do harm.
    pub(crate) fn lab_retry(&self, write: &Write) {
        if self.breaks(Canary::LateRetry) {
            write.lab_retry_late(&self.tracker);
        }
    }

    /// Flushes the writes behind `tickets` in another way than usual, if that is wanted.
    pub(crate) async fn lab_flush(&self, tickets: &Tickets) -> Option<Result<Flushed, StoreError>> {
        match self.options.lab.canary {
            Some(Canary::SkipFlush) => Some(Ok(NO_FLUSH)),
            Some(Canary::FlushEarly | Canary::RedeemFailedFlush) => {
                Some(self.tracker.flush_now().await.map_err(StoreError::from))
            }
            _ if self.options.lab.flushes_anew() => {
                Some(self.confirmed(self.tracker.flush_now().await, tickets))
            }
            _ => None,
        }
    }

    /// Makes durable what a superblock will refer to, unless that is to come too late.
    pub(crate) async fn lab_flush_before_superblock(&self, tickets: Tickets) -> Result<Flushed, StoreError> {
        match self.breaks(Canary::SuperblockEarly) {
            true => Ok(NO_FLUSH),
            false => self.make_durable(tickets).await,
        }
    }
}
