//! Transactions of the library: changes of any files, all or nothing after a crash and for every
//! other call. Stands on all other folders.
//!
//! A transaction is a list of steps that have not been looked at before. A commit goes like this:
//!
//! 1. `room`: finds memory and blocks for everything, as any other change does.
//! 2. It holds off all other calls of the library, and checkpoints.
//! 3. `plan`: resolves the paths and checks each step against what the steps before it leave. All
//!    that can be refused is refused here, and nothing has changed.
//! 4. `apply`: makes the changes one after the other, in a bracket of the store: after a crash they
//!    are all there or none.
//! 5. Others go on and see the whole. One flush makes it durable, or class `ordered` promises one.
//!
//! Only a device that fails at a bad moment can end step 4 half-way. Memory then has a part of the
//! changes and the device none; the store turns read-only.

mod apply;
mod known;
mod plan;
mod room;
mod step;
#[cfg(test)]
mod tests;
mod walk;

pub use room::{STEPS_MAX, TRANSACTION_BYTES_MAX};
pub use step::{Action, NotCommitted, Step};

use crate::filesystem::Filesystem;
use crate::receipt::{Call, Draft, Inodes};
use crate::types::{Caller, Ino};
use crate::{FsError, data};
use plan::{Plan, Planned};
use syncline_store::Quiet;
use syncline_sync::asynchronous::{RwLockReadGuard, RwLockWriteGuard};

/// How often a commit waits for a running checkpoint before it holds off others. It then holds them
/// off even if yet another checkpoint runs.
const CHECKPOINTS_AWAITED: u32 = 4;

/// How often a commit looks for room while others are being applied, before it keeps them from it.
const SEARCHES: u32 = 16;

/// The changes of a transaction: the laboratory compares them with the state after a crash.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Together {
    /// Operations of the store that come back all or none.
    pub ops: std::ops::RangeInclusive<u64>,
    /// The inodes that it made, with their steps.
    pub made: Vec<(usize, Ino)>,
}

impl Filesystem {
    /// The changes of the newest transaction.
    #[doc(hidden)]
    pub fn last_transaction(&self) -> Option<Together> {
        self.last_transaction.lock().clone()
    }

    /// Keeps transactions from being applied for as long as the guard lives. With it, a call sees
    /// all of a transaction or nothing. Its holder must not ask for another one, nor
    /// wait for a commit.
    pub async fn beside_transactions(&self) -> RwLockReadGuard<'_, ()> {
        self.transactions.read().await
    }

    /// Applies all steps, or none, and makes them durable with one flush; if everything that they
    /// touch is of class `ordered`, a flush is promised. Holders of a guard of
    /// [`beside_transactions`](Self::beside_transactions) see all of it or nothing; others may see a
    /// part. The caller holds no such guard.
    pub async fn transact(&self, caller: Caller, steps: &[Step]) -> Result<(), NotCommitted> {
        if steps.is_empty() {
            return Ok(());
        }
        let needs = room::Needs::of(steps)?;
        let mut draft = Draft::begin(Call::Transaction, Inodes::default());
        self.submit_nameless(steps).await.map_err(NotCommitted::unchanged)?;
        let room = self.find_room_beside(&needs).await.map_err(NotCommitted::unchanged)?;
        let (alone, quiet) = self.alone().await;
        let planned = Plan::make(self, steps).await?;
        self.submit_before(&planned).await.map_err(NotCommitted::unchanged)?;
        let bracket = quiet.open().await.map_err(|error| NotCommitted::unchanged(error.into()))?;
        let first = self.store.last_op().0 + 1;
        let (touched, made) = match self.apply(caller, &planned, &bracket, draft.submitted()).await {
            Ok(applied) => applied,
            Err((step, error)) => {
                tracing::error!("a transaction broke off at its step {step}: {error}");
                // Dropping the bracket makes the store read-only.
                drop(bracket);
                return Err(NotCommitted::Broken { step, error });
            }
        };
        *self.last_transaction.lock() = Some(Together { ops: first..=self.store.last_op().0, made });
        bracket.close();
        drop((alone, room));
        self.counters.transactions.add(1);
        data::sync_submitted(self, &touched, caller.uid, draft).await.map_err(NotCommitted::NotDurable)
    }

    /// Finds the room at a time when no other transaction is applied: then everybody is admitted,
    /// whether or not there is room.
    async fn find_room_beside(&self, needs: &room::Needs) -> Result<room::Kept, FsError> {
        for _ in 0..SEARCHES {
            let before = self.store.moment();
            let found = self.find_room_for(needs).await;
            if before.is_some() && self.store.moment() == before {
                return found;
            }
            drop(found);
            drop(self.beside_transactions().await);
        }
        // The others have to wait, though they may be those who could make room.
        let _beside = self.beside_transactions().await;
        self.find_room_for(needs).await
    }

    /// Waits until no other call of the library and no checkpoint is under way, and holds off both.
    async fn alone(&self) -> (RwLockWriteGuard<'_, ()>, Quiet<'_>) {
        for _ in 0..CHECKPOINTS_AWAITED {
            let alone = self.transactions.write().await;
            if let Some(quiet) = self.store.try_quiet() {
                return (alone, quiet);
            }
            // Other calls need not wait for the checkpoint.
            drop(alone);
            self.store.checkpoint_over().await;
        }
        let alone = self.transactions.write().await;
        let quiet = self.store.quiet().await;
        (alone, quiet)
    }

    /// Submits what was written to files that get their first name. It may be much, so others are
    /// not held off meanwhile.
    async fn submit_nameless(&self, steps: &[Step]) -> Result<(), FsError> {
        for step in steps {
            if let Action::Link { ino, .. } = step.action
                && let Ok(inode) = self.inode(ino).await
            {
                data::submit_dirty(self, &inode).await?;
            }
        }
        Ok(())
    }

    /// Submits what was written before to the files that the transaction changes, so that a file
    /// that can't be written is found out now, and the transaction submits its own data only.
    async fn submit_before(&self, planned: &Planned<'_>) -> Result<(), FsError> {
        for inode in &planned.files {
            data::submit_dirty(self, inode).await?;
        }
        Ok(())
    }
}
