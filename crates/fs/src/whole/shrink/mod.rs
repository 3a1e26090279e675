//! Making an unmounted filesystem smaller: file data behind the new end moves in front of it.
//!
//! Extents that lie on the same blocks move together, in one transaction, and lie on the same
//! blocks afterwards: shared blocks stay shared, units stay compressed, and reference counts move
//! along. Nothing else of a file changes. The store does the rest.

mod moves;

use crate::FsError;
use crate::filesystem::Filesystem;
use moves::{components, move_component};
use std::sync::Arc;
use syncline_device::{Device, Spawn};
use syncline_format::items::extent::Extent;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Key, Kind};
use syncline_store::{Store, StoreError, StoreOptions};

/// Items scanned at a time.
const ITEMS_AT_ONCE: usize = 4096;
/// Extra room that moving takes, in blocks (1 MiB).
const SLACK_BLOCKS: u64 = 256;

/// An extent that may have to move, ordered by its blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Placed {
    run: BlockRun,
    key: Key,
}

impl Filesystem {
    /// An estimate of the fewest blocks to which the filesystem can be shrunk now: the blocks used
    /// and promised, and those that every filesystem keeps for itself.
    pub fn least_blocks(&self) -> u64 {
        let all = self.statfs();
        let least = all.blocks - all.available.min(all.blocks) + SLACK_BLOCKS;
        // A multiple of 64 KiB.
        least.next_multiple_of(Geometry::TAIL_BLOCKS).max(Geometry::MIN_BLOCKS)
    }
}

/// Makes the filesystem on a device `total_blocks` large, durably. `progress` is called with the
/// number of bytes moved so far. An error or a crash leaves the old size or the new one, and all
/// contents; the next attempt continues.
///
/// [`Filesystem::least_blocks`] tells whether there is room; without enough this ends with
/// `NoSpace`.
pub async fn shrink(
    device: Arc<dyn Device>,
    options: StoreOptions,
    spawn: Arc<dyn Spawn>,
    total_blocks: u64,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<(), FsError> {
    let (store, _) = Store::open_to_shrink(device, options, spawn, total_blocks).await?;
    let end = Geometry { total_blocks, ..store.geometry() }.usable().end();
    let result = match move_data(&store, end, progress).await {
        Ok(()) => store.shrink(total_blocks).await.map_err(FsError::from),
        error => error,
    };
    match store.close().await {
        // Nothing can be written any more; the first error explains that better.
        Err(_) if result.is_err() => result,
        closed => result.and(closed.map_err(FsError::from)),
    }
}

/// Moves all extents that reach behind `end`.
async fn move_data(
    store: &Arc<Store>,
    end: u64,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<(), FsError> {
    let mut moved = 0;
    for component in components(extents(store, end).await?, end) {
        moved += move_component(store, &component).await?;
        progress(moved * BLOCK_BYTES as u64);
    }
    Ok(())
}

/// The extents that reach behind `end`, and all extents that may share blocks with others.
async fn extents(store: &Arc<Store>, end: u64) -> Result<Vec<Placed>, FsError> {
    let (mut found, mut from) = (Vec::new(), Key::MIN);
    loop {
        let chunk = store.scan(from, Key::MAX, ITEMS_AT_ONCE).await?;
        for (key, value) in chunk.items.iter().filter(|(key, _)| key.kind == Kind::Extent as u8) {
            let extent = decode(store, *key, value)?;
            if extent.shared || extent.run().end() > end {
                found.push(Placed { run: extent.run(), key: *key });
            }
        }
        match chunk.items.last().and_then(|(key, _)| key.next()) {
            Some(next) if !chunk.complete => from = next,
            _ => return Ok(found),
        }
    }
}

fn decode(store: &Store, key: Key, value: &[u8]) -> Result<Extent, FsError> {
    let corrupt = || FsError::corrupt(key.object, "extent", "place");
    let extent =
        Extent::decode(key.offset, value).map_err(|detail| FsError::Corrupt { ino: key.object, detail })?;
    if store.geometry().contains(extent.run()) { Ok(extent) } else { Err(corrupt()) }
}

/// The error for extents that lie on the same blocks and can't move.
fn scattered() -> FsError {
    FsError::Store(StoreError::Unusable(
        "the free space in front of the new end is in pieces that are too small; choose a larger size, or delete something".into(),
    ))
}
