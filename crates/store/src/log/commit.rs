//! Committing: one step makes a transaction visible and adds it to the pending log.

use super::shown::Show;
use super::transaction::DataWrites;
use crate::{DataWrite, OpSeq, Store, StoreError, StoreOptions, Transaction};
use bytes::Bytes;
use syncline_format::Key;
use syncline_log::Pending;
use syncline_sync::atomic::{AtomicU64, Ordering};

/// State that commits change; its one lock makes each commit atomic and puts all commits in one
/// order.
pub(super) struct CommitState {
    /// Changes not sealed yet.
    pub(super) pending: Pending,
    /// Data writes that the pending changes name; the batch depends on them (rule R1).
    pub(super) writes: NamedWrites,
    /// Generation of the active memtable.
    pub(super) generation: u64,
    /// Number of objects that exist.
    pub(super) objects: u64,
}

impl CommitState {
    /// Appends the change of an item.
    pub(super) fn change(&mut self, key: Key, value: Option<&Bytes>) {
        match value {
            Some(value) => self.pending.put(key, value),
            None => self.pending.delete(key),
        }
    }

    /// True when enough is pending to seal it without waiting for an fsync: data stays in memory
    /// until it is sealed and flushed.
    pub(super) fn is_full(&self, options: &StoreOptions) -> bool {
        let (log, data) = (self.pending.payload_bytes(), self.writes.bytes);
        let is_full = log >= options.seal_bytes || data >= options.unflushed_bytes / 4;
        options.lab.is_full(log).unwrap_or(is_full)
    }
}

impl Show for CommitState {
    type Numbers = PendingBytes;

    fn show(&self, numbers: &PendingBytes) {
        numbers.log.store(self.pending.payload_bytes() as u64, Ordering::Release);
        numbers.data.store(self.writes.bytes, Ordering::Release);
    }
}

/// Bytes that are not sealed yet.
#[derive(Default)]
pub(super) struct PendingBytes {
    /// Payload of the pending log.
    pub(super) log: AtomicU64,
    /// Data that the pending log names.
    pub(super) data: AtomicU64,
}

/// Data writes and the number of bytes they hold in memory.
#[derive(Default)]
pub(super) struct NamedWrites {
    writes: DataWrites,
    bytes: u64,
}

impl NamedWrites {
    /// Appends `writes`.
    pub(super) fn extend(&mut self, writes: impl IntoIterator<Item = DataWrite>) {
        let bytes = &mut self.bytes;
        self.writes.extend(writes.into_iter().inspect(|data| *bytes += data.run().len_bytes()));
    }

    /// Takes all writes out.
    pub(super) fn take(&mut self) -> DataWrites {
        self.bytes = 0;
        std::mem::take(&mut self.writes)
    }

    /// The writes, in the order they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = &DataWrite> {
        self.writes.iter()
    }

    /// Bytes that the writes hold in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Store {
    /// Applies a transaction: it is visible at once and in the pending log, and durable after a
    /// later sync or checkpoint. Never waits.
    pub fn commit(&self, transaction: Transaction) -> Result<OpSeq, StoreError> {
        self.commit_measured(transaction).map(|(op, _)| op)
    }

    /// Commits and also returns the number of bytes by which the pending log grew: fewer than the
    /// changes have, where they replaced pending ones.
    pub fn commit_measured(&self, transaction: Transaction) -> Result<(OpSeq, u64), StoreError> {
        let transaction = self.lab_split(transaction)?;
        let Transaction { changes, named, freed, objects_delta, only_places } = transaction;
        self.give_way();
        let mut state = self.log.commit.lock();
        // Checked under the lock, so that nothing is committed after the store turned read-only and
        // a freeze saw it.
        self.health.writable()?;
        let pending_before = state.pending.payload_bytes();
        for (key, value) in &changes {
            debug_assert!(value.as_ref().is_none_or(|v| v.len() <= self.geometry().max_value_bytes()));
            state.change(*key, value.as_ref());
        }
        for (write, part) in &named {
            state.pending.name(part.start, write.checksums_of(*part));
            self.room.space().name(*part);
        }
        for run in &freed {
            state.pending.free(*run);
            self.room.space().unname(*run, self.lab_freed_in(state.generation));
        }
        state.pending.count_objects(objects_delta);
        state.objects = state.objects.saturating_add_signed(objects_delta);
        state.writes.extend(named.into_iter().map(|(write, _)| write));
        let memtable_full = self.layers.apply(changes) >= self.options.memtable_bytes;
        let op = self.log.last_op.fetch_add(1, Ordering::AcqRel) + 1;
        if !only_places {
            self.log.last_change.store(op, Ordering::Release);
        }
        let pending_full = state.is_full(&self.options);
        let log_bytes = (state.pending.payload_bytes() - pending_before) as u64;
        drop(state);
        self.give_way();
        if memtable_full {
            self.ask_for_checkpoint();
        } else if pending_full {
            self.wake.notify(usize::MAX);
        }
        Ok((OpSeq(op), log_bytes))
    }
}
