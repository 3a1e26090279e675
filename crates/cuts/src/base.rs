//! The image that a recording starts from: its blocks in use, copied into memory.

use crate::CutsError;
use std::sync::Arc;
use syncline_device::{Background, Device, DeviceExt, FlushTracker, MemoryDevice, WorkerOptions, block_on};
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_store::{Store, StoreOptions, kept_by_snapshots, read_superblocks};

/// Most bytes in use that an image may have: they are kept in memory and in the recording.
pub const BASE_BYTES_MAX: u64 = 1 << 30;
/// Blocks read at a time.
const READ_BLOCKS: u64 = 256;

/// A copy of an image in memory.
#[derive(Clone)]
pub struct Base {
    /// The image; blocks that nothing uses are zero.
    pub device: Arc<MemoryDevice>,
    /// Blocks with contents, ascending.
    pub blocks: Vec<u64>,
    /// UUID of the filesystem.
    pub uuid: [u8; 16],
}

/// Copies the blocks in use of a cleanly unmounted image. The image is only read.
pub fn load(image: Arc<dyn Device>) -> Result<Base, CutsError> {
    let superblock = block_on(read_superblocks(&image))?.superblock;
    if !superblock.clean {
        return Err(CutsError::NotClean);
    }
    let geometry = superblock.geometry;
    let mut runs = named_runs(&image)?;
    let copies = [0, 1].into_iter().flat_map(|slot| geometry.superblock_copies(slot));
    runs.extend(copies.map(|addr| BlockRun::new(addr, 1)));
    runs.extend(block_on(kept_by_snapshots(&FlushTracker::new(image.clone()), &superblock))?);
    let runs = joined(runs);
    let used_bytes = runs.iter().map(|run| run.len_bytes()).sum();
    if used_bytes > BASE_BYTES_MAX {
        return Err(CutsError::TooLarge { used_bytes, max_bytes: BASE_BYTES_MAX });
    }
    let device = MemoryDevice::new(image.size_bytes());
    let mut blocks = Vec::new();
    for run in runs.into_iter().flat_map(|run| run.pieces(READ_BLOCKS)) {
        let bytes = block_on(image.read_at(run.offset_bytes(), run.len_bytes() as usize))?;
        let zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let held = bytes.chunks(BLOCK_BYTES).zip(run.start..).filter(|(block, _)| !zero(block));
        blocks.extend(held.map(|(_, addr)| addr));
        block_on(device.write_at(run.offset_bytes(), vec![bytes.into_bytes()]))?;
    }
    Ok(Base { device, blocks, uuid: superblock.uuid })
}

/// Merges runs into ascending, disjoint ones: snapshots share most of their blocks.
fn joined(mut runs: Vec<BlockRun>) -> Vec<BlockRun> {
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        let touches = next.start <= run.end();
        if touches {
            run.blocks = run.end().max(next.end()) - run.start;
        }
        touches
    });
    runs
}

/// The blocks that the space map names: tree, space map and file data. The log of a clean image is
/// empty.
fn named_runs(image: &Arc<dyn Device>) -> Result<Vec<BlockRun>, CutsError> {
    let background = Background::start(WorkerOptions::default());
    let spawn = Arc::new(background.map_err(|error| CutsError::Thread(Arc::new(error)))?);
    let options = StoreOptions { read_only: true, ..StoreOptions::default() };
    let (store, _) = block_on(Store::open(image.clone(), options, spawn))?;
    Ok(store.named_runs())
}
