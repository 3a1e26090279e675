//! A set of changes that happens wholly or not at all.

use crate::DataWrite;
use bytes::Bytes;
use syncline_format::{BlockRun, Crc, Key};

/// Position of a committed transaction in the one history of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpSeq(pub u64);

/// Data blocks that a transaction makes part of the filesystem, with the checksums their contents
/// must have.
#[derive(Clone, Debug)]
pub struct NamedData {
    /// Where the data lies.
    pub run: BlockRun,
    /// One checksum per block.
    pub checksums: Vec<Crc>,
}

/// Changes to be committed together. Building a transaction changes nothing;
/// [`crate::Store::commit`] applies it at once.
#[derive(Default)]
pub struct Transaction {
    pub(crate) changes: Vec<(Key, Option<Bytes>)>,
    pub(crate) named: Vec<NamedData>,
    pub(crate) freed: Vec<BlockRun>,
    pub(crate) writes: Vec<DataWrite>,
    pub(crate) objects_delta: i64,
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
        let first = (part.start - write.run().start) as usize;
        let checksums = write.checksums()[first..first + part.blocks as usize].to_vec();
        self.named.push(NamedData { run: part, checksums });
        self.writes.push(write.clone());
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
    /// True when committing would change nothing.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.named.is_empty() && self.freed.is_empty()
    }
}
