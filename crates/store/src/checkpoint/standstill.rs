//! A standstill: no change begins, so that what was accepted before can be committed, and a
//! checkpoint can be cut behind it. That makes a snapshot one moment for data and names alike
//! (promise P10).
//!
//! A change passes the gate when it begins, before it takes a lease. Changes that have passed go on:
//! they are neither before the moment nor after it, since nothing that followed one of them has
//! begun. So nobody is waited for, and a change costs one look at a flag.
//!
//! Whoever stands still holds the checkpoint's lock, so no checkpoint is cut in between, and nobody
//! waits for one: he might hold a lease that is needed to commit what was accepted.

use super::CheckpointState;
use crate::{Canary, Store};
use syncline_sync::Event;
use syncline_sync::asynchronous::MutexGuard;
use syncline_sync::atomic::{AtomicBool, Ordering};

/// The gate that every change passes when it begins.
#[derive(Default)]
pub(super) struct Gate {
    closed: AtomicBool,
    opened: Event,
}

/// While it lives, no change begins and no checkpoint but its own. The cut of that checkpoint ends
/// the standstill, and what is left of this keeps only other checkpoints away.
pub(super) struct Standstill<'a> {
    store: &'a Store,
    pub(super) checkpoint: MutexGuard<'a, CheckpointState>,
}

impl Store {
    /// Waits while there is a standstill. Each change comes through here when it begins; its caller
    /// holds no lease. (`admit` does it, unless for `Admission::Remove` and `Finish`.)
    pub async fn pass_gate(&self) {
        while self.is_standing_still() && !self.breaks(Canary::SnapshotOfTwoMoments) {
            let opened = self.checkpoint.gate.opened.listen();
            if self.is_standing_still() {
                opened.await;
            }
        }
    }

    /// True while there is a standstill.
    pub fn is_standing_still(&self) -> bool {
        self.checkpoint.gate.closed.load(Ordering::Acquire)
    }

    /// Begins a standstill.
    pub(super) fn stand_still<'a>(&'a self, checkpoint: MutexGuard<'a, CheckpointState>) -> Standstill<'a> {
        self.hold_off();
        self.checkpoint.gate.closed.store(true, Ordering::Release);
        Standstill { store: self, checkpoint }
    }

    /// Ends the standstill, if there is one. The checkpoint's lock is held.
    pub(super) fn move_on(&self) {
        if self.checkpoint.gate.closed.swap(false, Ordering::AcqRel) {
            self.checkpoint.gate.opened.notify(usize::MAX);
            self.hold_off_no_more();
        }
    }
}

impl Drop for Standstill<'_> {
    fn drop(&mut self) {
        self.store.move_on();
    }
}
