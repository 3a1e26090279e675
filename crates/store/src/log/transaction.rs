//! A set of changes that happens wholly or not at all.

use super::inflight::DataWrite;
use bytes::Bytes;
use smallvec::SmallVec;
use syncline_format::{BlockRun, Key};

/// Position of a committed transaction in the one history of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpSeq(pub u64);

/// Changed items; `None` removes one.
pub(crate) type Changes = SmallVec<[(Key, Option<Bytes>); 4]>;

/// Data writes that a transaction or a batch names: mostly one or two.
pub(super) type DataWrites = SmallVec<[DataWrite; 2]>;

/// Changes to be committed together. Building a transaction changes nothing;
/// [`crate::Store::commit`] applies it at once.
#[derive(Default)]
pub struct Transaction {
    pub(crate) changes: Changes,
    /// Data writes, and the part of each that becomes part of the filesystem.
    pub(crate) named: SmallVec<[(DataWrite, BlockRun); 2]>,
    pub(crate) freed: Vec<BlockRun>,
    pub(crate) objects_delta: i64,
    pub(crate) only_places: bool,
}

impl Transaction {
    /// A transaction without changes.
    pub fn new() -> Self {
        Self::default()
    }
    /// Sets an item. A later change of the same key in this transaction wins.
    pub fn put(&mut self, key: Key, value: impl Into<Bytes>) {
        self.changes.push((key, Some(value.into())));
    }
    /// Removes an item; removing one that does not exist is harmless.
    pub fn delete(&mut self, key: Key) {
        self.changes.push((key, None));
    }
    /// Names `part` of the blocks that `write` is writing or has written. The batch with this
    /// transaction is not acknowledged before the write has completed (rule R1), and replay
    /// verifies the checksums.
    pub fn name_data(&mut self, write: &DataWrite, part: BlockRun) {
        assert!(part.start >= write.run().start && part.end() <= write.run().end(), "a part of the write");
        self.named.push((write.clone(), part));
    }
    /// Frees blocks that committed transactions (or this one) named. Each block may be freed only
    /// once.
    pub fn free(&mut self, run: BlockRun) {
        self.freed.push(run);
    }
    /// Counts an object created (+1) or removed (-1), for statfs.
    pub fn count_objects(&mut self, delta: i64) {
        self.objects_delta += delta;
    }
    /// Says that contents which the log has get a place of their own, and that nothing else changes:
    /// no sync need wait for this. See [`crate::Store::last_change`].
    pub fn only_places(&mut self) {
        self.only_places = true;
    }
    /// True when committing would change nothing.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.named.is_empty() && self.freed.is_empty()
    }
}
