//! Brackets: several commits that come back together after a crash, or not at all.
//!
//! While a bracket is open, nothing is sealed and no checkpoint is cut. So all of its commits, and
//! whatever others commit meanwhile, lie in the pending log together. That log goes into one batch
//! or, if it is too long for one, into the tree by one checkpoint. Both count whole or not at all.
//!
//! Checkpoints are held off before the bracket opens, and from then on nobody waits for room:
//! somebody who did might hold a lease that the holder of the bracket needs. The holder finds the
//! room for everything before.

use super::CheckpointState;
use crate::{Canary, Store, StoreError};
use futures_lite::future::or;
use std::future::Future;
use syncline_sync::Event;
use syncline_sync::asynchronous::{MutexGuard, RwLockWriteGuard};
use syncline_sync::atomic::{AtomicU64, Ordering};

/// Whether checkpoints are held off.
#[derive(Default)]
pub(super) struct HeldOff {
    /// Counts beginnings and ends of holding checkpoints off: while it is odd, no checkpoint begins.
    turns: AtomicU64,
    /// Notified when checkpoints begin to be held off.
    begun: Event,
}

/// While it lives no checkpoint begins, and nobody waits for one to make room.
#[must_use = "checkpoints are held off for as long as this lives"]
pub struct Quiet<'a> {
    store: &'a Store,
    _checkpoint: MutexGuard<'a, CheckpointState>,
}

/// An open bracket. Dropping it without `close` turns the store read-only: a part of the changes is
/// in memory, and must never reach the device.
#[must_use = "commits lie in the bracket for as long as this lives"]
pub struct Bracket<'a> {
    quiet: Quiet<'a>,
    sealing: Option<RwLockWriteGuard<'a, ()>>,
}

impl Store {
    /// Waits until no checkpoint is running. Another may begin at once.
    pub async fn checkpoint_over(&self) {
        drop(self.checkpoint.lock().await);
    }

    /// Holds checkpoints off, if none is running.
    pub fn try_quiet(&self) -> Option<Quiet<'_>> {
        self.checkpoint.try_lock().map(|checkpoint| Quiet::begin(self, checkpoint))
    }

    /// Waits until no checkpoint is running, and holds checkpoints off. The caller holds nothing
    /// that a checkpoint may wait for.
    pub async fn quiet(&self) -> Quiet<'_> {
        Quiet::begin(self, self.checkpoint.lock().await)
    }

    /// True while nobody may wait for a checkpoint.
    pub(crate) fn holds_off_checkpoints(&self) -> bool {
        self.moment().is_none()
    }

    /// A number that is the same twice if checkpoints were not held off in between; `None` if they
    /// are now. While they are, everybody is admitted, whether or not there is room.
    pub fn moment(&self) -> Option<u64> {
        let moment = self.checkpoint.held_off.turns.load(Ordering::Acquire);
        moment.is_multiple_of(2).then_some(moment)
    }

    /// The result of `wait`, unless checkpoints are held off or begin to be.
    pub(super) async fn unless_held_off<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let begun = self.checkpoint.held_off.begun.listen();
        if self.holds_off_checkpoints() {
            return None;
        }
        let held_off = async {
            begun.await;
            None
        };
        or(async { Some(wait.await) }, held_off).await
    }

    /// Holds checkpoints off from now on.
    pub(super) fn hold_off(&self) {
        self.checkpoint.held_off.turns.fetch_add(1, Ordering::AcqRel);
        // Tasks that wait for a checkpoint, or for memory that one frees, go on without.
        self.checkpoint.held_off.begun.notify(usize::MAX);
        self.checkpoint.notify_ended();
        self.log.notify_drained();
    }

    /// Ends that.
    pub(super) fn hold_off_no_more(&self) {
        self.checkpoint.held_off.turns.fetch_add(1, Ordering::AcqRel);
        // The background task put off the checkpoints that became due meanwhile.
        self.wake.notify(usize::MAX);
    }
}

impl<'a> Quiet<'a> {
    fn begin(store: &'a Store, checkpoint: MutexGuard<'a, CheckpointState>) -> Self {
        store.hold_off();
        Self { store, _checkpoint: checkpoint }
    }

    /// Opens the bracket, as soon as nobody is sealing.
    pub async fn open(self) -> Result<Bracket<'a>, StoreError> {
        let sealing = self.store.log.hold_seals().await;
        self.store.health.writable()?;
        Ok(Bracket { quiet: self, sealing: Some(sealing) })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.store.hold_off_no_more();
    }
}

impl Bracket<'_> {
    /// Closes the bracket: its commits are complete, and as durable as others.
    pub fn close(mut self) {
        self.sealing = None;
    }

    /// For the laboratory: seals in the middle of a bracket, if that is to do harm.
    pub fn lab_between(&self) {
        if self.quiet.store.breaks(Canary::TransactionTorn) {
            self.quiet.store.seal().ok();
        }
    }
}

impl Drop for Bracket<'_> {
    fn drop(&mut self) {
        if self.sealing.is_none() {
            return;
        }
        let store = self.quiet.store;
        store.turn_read_only(
            "a transaction could be applied only in part: memory shows that part, the device shows nothing of it; close the image and open it again",
        );
        // A read-only store makes no checkpoint, and a stalled log seals nothing.
        store.log.stall();
    }
}
