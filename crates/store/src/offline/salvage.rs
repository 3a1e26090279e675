//! Opens an image that may be damaged anywhere, to save what can be read. Nothing is written.
//!
//! Unlike [`Store::open`], this continues past damage: without the space map if that can't be read,
//! with the log as far as it is whole, and past lost tree nodes. All it needs is one good
//! superblock.

use super::saved::SavedSnapshots;
use crate::checkpoint::{ReadSlots, read_superblocks};
use crate::opening::{Replayed, apply, assemble, unreadable_data};
use crate::{Ignored, RecoveryReport, Snapshot, Store, StoreError, StoreOptions};
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Completion, Device, FlushTracker, Spawn};
use syncline_format::batch::Records;
use syncline_format::space::MAX_BLOCKS;
use syncline_format::superblock::COUNTER_MAX;
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_log::{ReplayError, Window, payload_of, scan, verify_named};
use syncline_space::{PageReader, Space};
pub use syncline_tree::Unreadable;

/// Memory for nodes.
const NODE_CACHE_BYTES: usize = 64 << 20;
/// Fills in for a block that can't be read: neither zeros nor anything with a matching checksum.
const UNREADABLE: u8 = 0xa5;

/// The structures of a salvaged image other than its items.
#[derive(Clone, Debug)]
pub struct Salvaged {
    /// The slot of the newest good superblock. The other slot may be written.
    pub slot: usize,
    /// A generation greater than any that was seen.
    pub generation: u64,
    /// The segments of the log, including the one that its newest batch announces.
    pub segments: Vec<BlockRun>,
    /// Whether the space map could be read.
    pub space_map: bool,
    /// The snapshots that can be saved; `None` if their table can't be read.
    pub snapshots: Option<SavedSnapshots>,
    /// Log records that were left out.
    pub ignored: Ignored,
    /// Why the log was not read to its end, if so.
    pub log_cut: Option<String>,
    /// Why the newest superblock may be lost, if so.
    pub lost_slot: Option<String>,
}

impl Replayed {
    /// Puts numbers right that only a damaged batch can have given. For a log that is given up: nothing
    /// that is written under a new epoch can be taken for a part of it.
    fn forget_impossible(&mut self, slots: &ReadSlots) {
        let superblock = &slots.superblock;
        if self.generation > COUNTER_MAX {
            self.generation = slots.generation_seen.max(superblock.generation) + 2;
        }
        if self.op_seq > COUNTER_MAX {
            self.op_seq = superblock.op_seq + 1;
        }
    }
}

impl Salvaged {
    /// The blocks that snapshots keep.
    pub fn kept(&self) -> &[BlockRun] {
        self.snapshots.as_ref().map_or(&[], |saved| &saved.kept)
    }

    /// The blocks of the table of snapshots, which the space map does not name.
    pub fn table(&self) -> &[BlockRun] {
        self.snapshots.as_ref().map_or(&[], |saved| &saved.table)
    }

    /// The snapshots of which nobody knows which blocks they need.
    pub fn given_up(&self) -> &[Snapshot] {
        self.snapshots.as_ref().map_or(&[], |saved| &saved.given_up)
    }
}

impl Store {
    /// Opens whatever can be read of an image, read-only.
    pub async fn open_to_salvage(
        device: Arc<dyn Device>,
        spawn: Arc<dyn Spawn>,
    ) -> Result<(Arc<Self>, Salvaged), StoreError> {
        let honest = device.clone();
        let device: Arc<dyn Device> = Arc::new(Patient { device });
        let tracker = FlushTracker::new(device.clone());
        let slots = read_superblocks(&device).await?;
        let superblock = slots.superblock.clone();
        let geometry = superblock.geometry;
        if geometry.total_blocks > MAX_BLOCKS {
            return Err(StoreError::Unusable("an image has at most 256 TiB".into()));
        }
        let pages = PageReader::new(tracker.clone());
        let loaded = Space::load(&pages, geometry, superblock.space).await;
        let space_map = loaded.is_ok();
        let space = loaded.unwrap_or_else(|_| Space::format(geometry));
        let found = scan(&device, geometry, superblock.epoch, superblock.log, superblock.clean).await?;
        let mut replayed = Replayed { lenient: true, ..Replayed::before(&slots, &found) };
        let mut report = RecoveryReport::default();
        let mut log_cut = found
            .contradiction
            .map(|later| format!("batch {} is missing, batch {} was there", found.end.seq, later.seq));
        let mut window = Window::new(device.clone());
        for header in &found.batches {
            let Ok(payload) = payload_of(&mut window, header).await else {
                log_cut = Some(format!("batch {} can't be read twice", header.seq));
                break;
            };
            if Records::new(&payload, geometry).any(|record| record.is_err()) {
                log_cut = Some(format!("the records of batch {} make no sense", header.seq));
                break;
            }
            if header.seq > found.durable_seq {
                match verify_named(&honest, geometry, header, &payload).await {
                    Ok(true) => {}
                    // Not a cut: a batch whose data is missing was never acknowledged.
                    Ok(false) => break,
                    // A batch whose data can't be read may have been acknowledged.
                    Err(ReplayError::Device(error)) => {
                        log_cut = Some(unreadable_data(header, &error));
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            apply(&mut replayed, &space, geometry, header, &payload, &mut report)?;
        }
        replayed.forget_impossible(&slots);
        let salvaged = Salvaged {
            snapshots: SavedSnapshots::read(&pages, &superblock).await.ok(),
            ignored: report.ignored,
            slot: slots.slot,
            generation: replayed.generation,
            segments: replayed.segments.clone(),
            space_map,
            log_cut,
            lost_slot: slots.loss(),
        };
        let options =
            StoreOptions { read_only: true, node_cache_bytes: NODE_CACHE_BYTES, ..StoreOptions::default() };
        let segment = superblock.log.segment;
        let store = Arc::new(assemble(tracker, options, spawn, &superblock, space, replayed, segment));
        store.health.end_writing("it is being salvaged");
        Ok((store, salvaged))
    }
}

/// A device whose unreadable blocks read as garbage that matches no checksum, so that a bad sector
/// is treated like any other damage.
struct Patient {
    device: Arc<dyn Device>,
}

impl Device for Patient {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn reads_bypass_caches(&self) -> bool {
        self.device.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let device = self.device.clone();
        let len = buf.len();
        let patient = move |read: Result<AlignedBuf, _>| match read {
            Err(_) if offset.saturating_add(len as u64) <= device.size_bytes() => {
                read_block_by_block(device, offset, AlignedBuf::zeroed(len), 0, done);
            }
            other => done(other),
        };
        self.device.read(offset, buf, Box::new(patient));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.device.write(offset, bufs, done);
    }

    fn flush(&self, done: Completion<()>) {
        self.device.flush(done);
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.device.discard(offset, len_bytes, done);
    }
}

/// Reads the rest of `whole` from block `index` on; a block that fails is filled with garbage.
fn read_block_by_block(
    device: Arc<dyn Device>,
    offset: u64,
    mut whole: AlignedBuf,
    index: usize,
    done: Completion<AlignedBuf>,
) {
    let at = index * BLOCK_BYTES;
    if at >= whole.len() {
        return done(Ok(whole));
    }
    let reader = device.clone();
    let next = move |read: Result<AlignedBuf, _>| {
        let block = &mut whole[at..at + BLOCK_BYTES];
        match read {
            Ok(bytes) => block.copy_from_slice(&bytes),
            Err(_) => block.fill(UNREADABLE),
        }
        read_block_by_block(device, offset, whole, index + 1, done);
    };
    reader.read(offset + at as u64, AlignedBuf::for_read(BLOCK_BYTES), Box::new(next));
}
