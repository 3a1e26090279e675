//! The lab's part in transactions, the log's form, and the release of blocks.

use super::{Canary, Lab};
use crate::checkpoint::NewTable;
use crate::log::Changes;
use crate::{Store, StoreError, Transaction};
use syncline_device::DeviceExt;
use syncline_format::{Key, Kind};
use syncline_log::{Believed, Chain};
use syncline_space::KeptMap;

impl Lab {
    /// Checks that replay skips: none, unless a canary says so.
    pub(crate) fn believed(&self) -> Believed {
        Believed {
            number: self.breaks(Canary::UnchainedBatch),
            epoch: self.breaks(Canary::StaleEpoch),
            records: self.breaks(Canary::UncheckedPayload),
            segment: self.breaks(Canary::LeadOnce),
        }
    }

    /// The chain, without copies of leads if one is to be all there is.
    pub(crate) fn chain(&self, chain: Chain) -> Chain {
        match self.canary {
            Some(Canary::LeadOnce | Canary::IdleSegment) => chain.bare(),
            _ => chain,
        }
    }
}

impl Store {
    /// The transaction, or the rest of it if a part is to be in a batch of its own.
    pub(crate) fn lab_split(&self, transaction: Transaction) -> Result<Transaction, StoreError> {
        match self.options.lab.canary {
            Some(Canary::SplitTransaction) => self.log_half(transaction),
            Some(Canary::CountInOwnTransaction) => self.log_uncounted(transaction),
            _ => Ok(transaction),
        }
    }

    /// Puts half of the changes into a batch of their own.
    fn log_half(&self, mut transaction: Transaction) -> Result<Transaction, StoreError> {
        let half = transaction.changes.len() / 2;
        let rest = transaction.changes.drain(half..).collect();
        let first = std::mem::replace(&mut transaction.changes, rest);
        self.log_apart(first)?;
        Ok(transaction)
    }

    /// Logs everything but reference counts in a batch of its own, if the transaction has counts
    /// and names no data; returns the rest.
    fn log_uncounted(&self, mut transaction: Transaction) -> Result<Transaction, StoreError> {
        let is_count = |key: &Key| key.kind == Kind::Shared as u8;
        if transaction.named.is_empty() && transaction.changes.iter().any(|(key, _)| is_count(key)) {
            let changes = std::mem::take(&mut transaction.changes).into_iter();
            let (counts, others) = changes.partition(|(key, _)| is_count(key));
            transaction.changes = counts;
            self.log_apart(others)?;
        }
        Ok(transaction)
    }

    fn log_apart(&self, changes: Changes) -> Result<(), StoreError> {
        self.health.writable()?;
        self.log.lab_put(&changes, || _ = self.layers.apply(changes.clone()));
        self.seal().map(drop)
    }

    /// The generation whose superblock makes a block freed now reusable (rule R2): the present one,
    /// or none if blocks are to be reused early.
    pub(crate) fn lab_freed_in(&self, generation: u64) -> u64 {
        if self.breaks(Canary::ReuseEarly) { 0 } else { generation }
    }

    /// The new table of snapshots, or one that seems to add none, so that the blocks of a new
    /// snapshot are not kept.
    pub(crate) fn lab_table(&self, table: NewTable) -> NewTable {
        let forgets = self.breaks(Canary::ForgetSnapshot) && table.adds();
        if forgets { table.lab_only_moved() } else { table }
    }

    /// Releases the blocks that a failed checkpoint's generation freed, if that is to do harm.
    pub(crate) fn lab_release(&self, generation: u64) {
        if self.breaks(Canary::ReleaseAfterFailure) {
            self.room.space().superblock_durable(generation);
        }
    }

    /// Lets the blocks of a fork's base be handed out, if that is wanted.
    pub(crate) fn lab_take_base(&self) {
        if self.breaks(Canary::TakeBase) && self.superblock().is_fork() {
            self.room.space().keep_only(KeptMap::empty(self.geometry()), 0);
            self.room.space().superblock_durable(0);
        }
    }

    /// Releases the blocks that only a deleted snapshot kept, if a superblock without it is not to
    /// be waited for. The `rest` is what others keep.
    pub(crate) fn lab_drop_snapshot(&self, rest: &KeptMap) {
        if self.breaks(Canary::DropSnapshotEarly) {
            self.room.space().keep_only(rest.clone(), 0);
            self.room.space().superblock_durable(0);
        }
    }

    /// Discards freed blocks that the durable superblock still needs, if that is wanted.
    pub(crate) async fn lab_discard(&self) -> Result<(), StoreError> {
        if self.breaks(Canary::DiscardEarly) {
            for run in self.room.space().freed_too_early() {
                self.device().discard_at(run.offset_bytes(), run.len_bytes()).await?;
            }
        }
        Ok(())
    }
}
