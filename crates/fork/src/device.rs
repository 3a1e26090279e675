//! The device of a fork: its own storage, and behind it the base.

use crate::Base;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Claim, Completion, Device, DeviceError, Operation};
use syncline_format::BlockRun;
use syncline_store::{KeptMap, Snapshot};

/// A fork's own storage, in which the blocks that a snapshot of the base keeps are those of the base.
///
/// Which of the two holds a block never changes: the snapshot is in the fork's table, so the fork
/// neither writes nor frees its blocks, and the base changes none of them while it exists.
pub struct Forked {
    own: Arc<dyn Device>,
    base: Arc<dyn Device>,
    /// The blocks that lie in the base.
    kept: KeptMap,
    /// The entry of the base's table that keeps them.
    claimed: Snapshot,
}

impl Forked {
    /// A fork whose own storage is `own`.
    pub(crate) fn new(own: Arc<dyn Device>, base: Base) -> Arc<Self> {
        Arc::new(Self { own, base: base.device, kept: base.kept, claimed: base.claimed })
    }

    /// The name of the hold in the base; `None` of a temporary fork.
    pub fn hold(&self) -> Option<&str> {
        self.claimed.hold().map(|_| self.claimed.name.as_str())
    }

    /// The fork's own storage.
    pub fn own(&self) -> &Arc<dyn Device> {
        &self.own
    }

    /// The base.
    pub fn base(&self) -> &Arc<dyn Device> {
        &self.base
    }

    /// The blocks that lie in the base.
    pub fn kept(&self) -> &KeptMap {
        &self.kept
    }

    /// The parts of a range, in order, and whether the base holds each.
    fn parts(&self, run: BlockRun) -> Vec<(BlockRun, bool)> {
        let mut parts = Vec::new();
        let mut at = run.start;
        for own in self.kept.without(&[run]) {
            parts.extend((at < own.start).then(|| (BlockRun::new(at, own.start - at), true)));
            parts.push((own, false));
            at = own.end();
        }
        parts.extend((at < run.end()).then(|| (BlockRun::new(at, run.end() - at), true)));
        parts
    }

    fn side(&self, is_kept: bool) -> &Arc<dyn Device> {
        if is_kept { &self.base } else { &self.own }
    }
}

/// The blocks that a range touches; the devices refuse a range that isn't made of whole blocks.
fn blocks(offset: u64, len_bytes: u64) -> BlockRun {
    let block = BLOCK_BYTES as u64;
    BlockRun::new(offset / block, len_bytes.div_ceil(block))
}

fn refused(operation: Operation, offset: u64, len_bytes: u64) -> DeviceError {
    let why = io::Error::other(
        "the block lies in the base of the fork, and only the base itself can be repaired: 'syncline check --repair'",
    );
    DeviceError::io(operation, offset, len_bytes, why)
}

impl Device for Forked {
    fn size_bytes(&self) -> u64 {
        self.own.size_bytes()
    }

    fn overhead_bytes(&self) -> u64 {
        self.own.overhead_bytes()
    }

    fn reads_bypass_caches(&self) -> bool {
        self.own.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let run = blocks(offset, buf.len() as u64);
        if self.kept.is_clear_of(run) {
            return self.own.read(offset, buf, done);
        }
        let parts = self.parts(run);
        match parts[..] {
            [(_, is_kept)] => self.side(is_kept).read(offset, buf, done),
            _ => {
                let start = run.start;
                let whole = Whole::new(buf, parts.len(), done);
                for (part, is_kept) in parts {
                    let whole = whole.clone();
                    let at = ((part.start - start) * BLOCK_BYTES as u64) as usize;
                    let piece = AlignedBuf::for_read(part.len_bytes() as usize);
                    let done = Box::new(move |read| whole.put(at, read));
                    self.side(is_kept).read(part.offset_bytes(), piece, done);
                }
            }
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        match self.kept.is_clear_of(blocks(offset, len_bytes)) {
            true => self.own.write(offset, bufs, done),
            false => done(Err(refused(Operation::Write, offset, len_bytes))),
        }
    }

    fn flush(&self, done: Completion<()>) {
        self.own.flush(done);
    }

    fn writes_through(&self) -> bool {
        self.own.writes_through()
    }

    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        match self.kept.is_clear_of(blocks(offset, len_bytes)) {
            true => self.own.write_through(offset, bufs, done),
            false => done(Err(refused(Operation::Write, offset, len_bytes))),
        }
    }

    fn submit(&self) {
        self.own.submit();
        self.base.submit();
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        self.own.enlarge(size_bytes, done);
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.own.claim_snapshot(number, claim)
    }

    fn discards(&self) -> bool {
        self.own.discards()
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        match self.kept.is_clear_of(blocks(offset, len_bytes)) {
            true => self.own.discard(offset, len_bytes, done),
            false => done(Err(refused(Operation::Discard, offset, len_bytes))),
        }
    }
}

/// A buffer that is filled by several reads.
struct Whole(Mutex<Option<Filling>>);

struct Filling {
    buf: AlignedBuf,
    left: usize,
    error: Option<DeviceError>,
    done: Completion<AlignedBuf>,
}

impl Whole {
    fn new(buf: AlignedBuf, left: usize, done: Completion<AlignedBuf>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Filling { buf, left, error: None, done }))))
    }

    /// A part was read, or failed; the last one answers the caller.
    fn put(&self, at: usize, read: Result<AlignedBuf, DeviceError>) {
        let mut state = self.0.lock();
        let Some(filling) = state.as_mut() else { return };
        match read {
            Ok(piece) => filling.buf[at..at + piece.len()].copy_from_slice(&piece),
            Err(error) => filling.error = Some(error),
        }
        filling.left -= 1;
        if filling.left > 0 {
            return;
        }
        let filled = state.take();
        drop(state);
        if let Some(Filling { buf, error, done, .. }) = filled {
            done(error.map_or(Ok(buf), Err));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::{DeviceExt, MemoryDevice, block_on};
    use syncline_format::{Geometry, Metadata};
    use syncline_space::Space;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    /// The first block that can be allocated.
    const FIRST: u64 = 64;

    fn filled(byte: u8) -> Arc<dyn Device> {
        MemoryDevice::from_image(&[byte; 128 * BLOCK_BYTES])
    }

    fn forked(kept: &[BlockRun]) -> Arc<Forked> {
        let space =
            Space::format(Geometry { total_blocks: 4096, node_bytes: 4096, metadata: Metadata::Single });
        kept.iter().for_each(|run| space.name(BlockRun::new(FIRST + run.start, run.blocks)));
        let claimed = Snapshot {
            id: 1,
            created_ns: 0,
            total_blocks: 4096,
            tree: Default::default(),
            space: Default::default(),
            tree_nodes: 0,
            used_blocks: 0,
            objects: 0,
            name: "monday".to_owned(),
        };
        let (own, base, kept) = (filled(1), filled(2), space.named_map());
        Arc::new(Forked { own, base, kept, claimed })
    }

    /// A byte of each block.
    fn bytes(device: &Forked, start: u64, blocks: u64) -> Vec<u8> {
        let read = block_on(device.read_at((FIRST + start) * BLOCK, (blocks * BLOCK) as usize)).unwrap();
        read.chunks(BLOCK_BYTES).map(|block| block[17]).collect()
    }

    #[test]
    fn a_read_takes_each_block_from_where_it_lies() {
        let device = forked(&[BlockRun::new(4, 2), BlockRun::new(9, 1)]);
        assert_eq!(bytes(&device, 0, 4), [1; 4]);
        assert_eq!(bytes(&device, 4, 2), [2; 2]);
        assert_eq!(bytes(&device, 3, 8), [1, 2, 2, 1, 1, 1, 2, 1]);
        assert_eq!(bytes(&device, 9, 2), [2, 1]);
        assert_eq!(bytes(&device, 63, 1), [1]);
        assert!(block_on(device.read_at((FIRST + 60) * BLOCK, 8 * BLOCK_BYTES)).is_err(), "behind the end");
    }

    #[test]
    fn a_block_of_the_base_is_never_changed() {
        let device = forked(&[BlockRun::new(4, 2)]);
        let at = |block: u64| (FIRST + block) * BLOCK;
        let two = || vec![Bytes::from(vec![9; 2 * BLOCK_BYTES])];
        block_on(device.write_at(at(6), two())).unwrap();
        assert!(block_on(device.write_at(at(3), two())).is_err());
        assert!(block_on(device.write_at(at(5), two())).is_err());
        assert!(block_on(device.discard_at(at(5), BLOCK)).is_err());
        block_on(device.discard_at(at(8), BLOCK)).unwrap();
        assert_eq!(bytes(&device, 3, 6), [1, 2, 2, 9, 9, 0]);
        let base = block_on(device.base().read_at(0, 128 * BLOCK_BYTES)).unwrap();
        assert!(base.iter().all(|byte| *byte == 2));
    }
}
