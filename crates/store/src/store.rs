//! The store itself.

use crate::{OpSeq, StoreError, Transaction};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::{BlockAddr, BlockRun, Crc, Geometry, Key, ObjectId};

/// Items of a range, in key order.
pub struct Chunk {
    /// The items.
    pub items: Vec<(Key, Bytes)>,
    /// True when nothing follows in the range that was asked for.
    pub complete: bool,
}

/// What a change is for; decides whether it may draw on the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Adds to the filesystem: refused with `NoSpace` before the reserve is touched.
    Grow,
    /// Releases space or is needed to do so (unlink, truncate, orphan cleanup, attribute changes): draws on the reserve.
    Shrink,
}

/// Space set aside for data that will be allocated later; gives back what was not used when dropped.
pub struct Reservation(());

impl Reservation {
    /// Blocks still set aside.
    pub fn blocks(&self) -> u64 {
        todo!()
    }
    /// Takes over another reservation's blocks.
    pub fn merge(&mut self, _other: Reservation) {
        todo!()
    }
    /// Splits off `blocks` (at most what there is).
    pub fn split(&mut self, _blocks: u64) -> Reservation {
        todo!()
    }
}

/// Keeps the addresses a reader has looked up from being reused (rule R2).
pub struct Pin(());

/// Data on its way to the device, or there. Its buffers are immutable and stay in memory until a successful flush
/// covers a batch that names it (rules R6, R7); until then reads of these blocks are served from memory.
#[derive(Clone)]
pub struct DataWrite(());

impl DataWrite {
    /// Where it is written.
    pub fn run(&self) -> BlockRun {
        todo!()
    }
    /// One checksum a block.
    pub fn checksums(&self) -> &[Crc] {
        todo!()
    }
    /// Waits until the write has completed.
    pub async fn wait(&self) -> Result<(), StoreError> {
        todo!()
    }
}

/// The store: memtable, pending log, tree, space and recovery behind one interface.
pub struct Store(());

impl Store {
    /// Sizes of the image.
    pub fn geometry(&self) -> Geometry {
        todo!()
    }
    /// Seed of the directory name hash.
    pub fn hash_seed(&self) -> [u8; 16] {
        todo!()
    }
    /// A never-used object id.
    pub fn new_object(&self) -> ObjectId {
        todo!()
    }

    /// The value of `key`.
    pub async fn get(&self, _key: Key) -> Result<Option<Bytes>, StoreError> {
        todo!()
    }
    /// The value of `key` if it is known without waiting for the device.
    pub fn try_get(&self, _key: Key) -> Option<Result<Option<Bytes>, StoreError>> {
        todo!()
    }
    /// At most `max_items` items from `from` to `to`, both included, as of one moment.
    pub async fn scan(&self, _from: Key, _to: Key, _max_items: usize) -> Result<Chunk, StoreError> {
        todo!()
    }

    /// Waits until memory and space allow another transaction of this sort. Call before taking leases.
    pub async fn admit(&self, _admission: Admission) -> Result<(), StoreError> {
        todo!()
    }
    /// Applies a transaction: visible at once, in the pending log, durable after a later sync or checkpoint. Never waits.
    pub fn commit(&self, _transaction: Transaction) -> Result<OpSeq, StoreError> {
        todo!()
    }
    /// Position of the newest committed transaction.
    pub fn last_op(&self) -> OpSeq {
        todo!()
    }
    /// True when everything up to `op` survives any crash.
    pub fn is_durable(&self, _op: OpSeq) -> bool {
        todo!()
    }
    /// Makes everything up to `op` survive any crash: group commit. Costs nothing when it is durable already.
    pub async fn sync(self: &Arc<Self>, _op: OpSeq) -> Result<(), StoreError> {
        todo!()
    }
    /// Brings the tree up to date and empties the log.
    pub async fn checkpoint(self: &Arc<Self>) -> Result<(), StoreError> {
        todo!()
    }

    /// Sets aside room for `blocks` data blocks and what naming them costs, if there is room now.
    pub fn try_reserve(self: &Arc<Self>, _blocks: u64) -> Option<Reservation> {
        todo!()
    }
    /// The same, forcing a checkpoint before it answers `NoSpace`.
    pub async fn reserve(self: &Arc<Self>, _blocks: u64) -> Result<Reservation, StoreError> {
        todo!()
    }
    /// Turns reserved blocks into an address range: as one run of up to `want` blocks, perhaps shorter (call again for the
    /// rest). It must be written and named, or abandoned.
    pub fn allocate(
        &self,
        _from: &mut Reservation,
        _want: u64,
        _near: Option<BlockAddr>,
    ) -> Result<BlockRun, StoreError> {
        todo!()
    }
    /// Starts writing `bufs` (multiples of a block, `run.len_bytes()` in all) to freshly allocated blocks.
    pub fn write_data(&self, _run: BlockRun, _bufs: Vec<Bytes>) -> DataWrite {
        todo!()
    }
    /// Gives back `part` of a write that was never named, once it is no longer in flight.
    pub fn abandon(&self, _write: &DataWrite, _part: BlockRun) {
        todo!()
    }
    /// Reads data blocks and checks them; a mismatch is `Corrupt`, counted and logged (promise P4).
    pub async fn read_data(&self, _run: BlockRun, _checksums: &[Crc]) -> Result<Bytes, StoreError> {
        todo!()
    }
    /// Take before looking up addresses that will be read.
    pub fn pin(&self) -> Pin {
        todo!()
    }
}
