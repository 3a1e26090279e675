//! One move: the extents that lie on the same blocks, and the reference counts of these blocks.

use super::{Placed, decode, scattered};
use crate::FsError;
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::AlignedBuf;
use syncline_format::items::extent::Extent;
use syncline_format::items::shared::{SHARED_BLOCKS_MAX, SharedRun, piece_start};
use syncline_format::{BLOCK_BYTES, BlockRun, Key, Kind};
use syncline_store::{Admission, Store, Transaction};

/// Groups extents that overlap, directly or through others, and returns the groups that reach
/// behind `end`, sorted by the key of each group's first extent.
pub(super) fn components(mut extents: Vec<Placed>, end: u64) -> Vec<Vec<Placed>> {
    extents.sort_unstable();
    let mut all: Vec<Vec<Placed>> = Vec::new();
    let (mut open, mut reach): (Vec<Placed>, u64) = (Vec::new(), 0);
    for extent in extents {
        if extent.run.start >= reach {
            keep(&mut all, std::mem::take(&mut open), reach, end);
        }
        reach = reach.max(extent.run.end());
        open.push(extent);
    }
    keep(&mut all, open, reach, end);
    // Sorting by key keeps data that was together in a file together.
    all.sort_unstable_by_key(|component| component[0].key);
    all
}

fn keep(all: &mut Vec<Vec<Placed>>, component: Vec<Placed>, reach: u64, end: u64) {
    if !component.is_empty() && reach > end {
        all.push(component);
    }
}

/// Moves extents that lie on the same blocks; returns the number of these blocks.
pub(super) async fn move_component(store: &Arc<Store>, component: &[Placed]) -> Result<u64, FsError> {
    let _room = store.admit(Admission::Shrink).await?;
    let extents = read_items(store, component).await?;
    let start = component[0].run.start;
    let reach = component.iter().map(|placed| placed.run.end()).max().expect("a component has an extent");
    let whole = BlockRun::new(start, reach - start);
    let contents = read_blocks(store, whole, &extents).await?;
    let mut transaction = Transaction::new();
    match &extents[..] {
        [(key, only)] if only.packed.is_none() => {
            move_plain(store, &mut transaction, *key, only, &contents).await?;
        }
        _ => move_together(store, &mut transaction, whole, &extents, &contents).await?,
    }
    transaction.free(whole);
    store.commit(transaction)?;
    Ok(whole.blocks)
}

async fn read_items(store: &Arc<Store>, component: &[Placed]) -> Result<Vec<(Key, Extent)>, FsError> {
    let mut extents = Vec::with_capacity(component.len());
    for Placed { key, .. } in component {
        let missing = || FsError::corrupt(key.object, "extent", "item");
        let value = store.get(*key).await?.ok_or_else(missing)?;
        extents.push((*key, decode(store, *key, &value)?));
    }
    Ok(extents)
}

/// The contents of all blocks, each verified by the checksum in an extent (promise P4).
async fn read_blocks(
    store: &Arc<Store>,
    whole: BlockRun,
    extents: &[(Key, Extent)],
) -> Result<Bytes, FsError> {
    if let [(key, only)] = extents {
        return Ok(store.read_data(key.object, only.run(), &only.checksums).await?);
    }
    let mut contents = AlignedBuf::zeroed(whole.len_bytes() as usize);
    let mut filled = whole.start;
    for (key, extent) in extents {
        let run = extent.run();
        // Extents come in the order of their blocks, so there is no gap.
        if run.end() > filled {
            let skip = filled.saturating_sub(run.start);
            let rest = BlockRun::new(run.start + skip, run.blocks - skip);
            let bytes = store.read_data(key.object, rest, &extent.checksums[skip as usize..]).await?;
            let at = (rest.start - whole.start) as usize * BLOCK_BYTES;
            contents[at..at + bytes.len()].copy_from_slice(&bytes);
            filled = run.end();
        }
    }
    Ok(contents.into_bytes())
}

/// Moves an uncompressed extent that shares no blocks, in several pieces if necessary.
async fn move_plain(
    store: &Arc<Store>,
    transaction: &mut Transaction,
    key: Key,
    extent: &Extent,
    contents: &Bytes,
) -> Result<(), FsError> {
    let mut room = store.reserve(extent.blocks()).await?;
    let mut at = extent.file_block;
    while at < extent.end() {
        let run = store.allocate(&mut room, extent.end() - at, None)?;
        let from = (at - extent.file_block) as usize * BLOCK_BYTES;
        let bytes = contents.slice(from..from + run.len_bytes() as usize);
        let write = store.write_data(run, vec![bytes]);
        transaction.name_data(&write, run);
        let piece = extent.slice(at, at + run.blocks).expect("it is not empty");
        let piece = Extent { addr: run.start, ..piece };
        transaction.put(Key { offset: at, ..key }, piece.encode());
        at += run.blocks;
    }
    Ok(())
}

/// Moves several extents, or a compressed one, into a single run with their relative positions
/// unchanged.
async fn move_together(
    store: &Arc<Store>,
    transaction: &mut Transaction,
    whole: BlockRun,
    extents: &[(Key, Extent)],
    contents: &Bytes,
) -> Result<(), FsError> {
    let mut room = store.reserve(whole.blocks).await?;
    let run = store.allocate(&mut room, whole.blocks, None)?;
    if run.blocks < whole.blocks {
        store.give_back(run);
        return Err(scattered());
    }
    let write = store.write_data(run, vec![contents.clone()]);
    transaction.name_data(&write, run);
    for (key, extent) in extents {
        let addr = run.start + (extent.addr - whole.start);
        transaction.put(*key, Extent { addr, ..extent.clone() }.encode());
    }
    move_counts(store, transaction, whole, run.start).await
}

/// Moves the reference counts of the blocks.
async fn move_counts(
    store: &Arc<Store>,
    transaction: &mut Transaction,
    whole: BlockRun,
    to: u64,
) -> Result<(), FsError> {
    let key = |block| Key { object: 0, kind: Kind::Shared as u8, offset: block };
    let (from, last) = (key(piece_start(whole.start)), key(whole.end() - 1));
    let most = last.offset - from.offset + 1;
    let chunk = store.scan(from, last, usize::try_from(most).unwrap_or(usize::MAX)).await?;
    for (found, value) in &chunk.items {
        let item = SharedRun::decode(found.offset, value)
            .map_err(|detail| FsError::CorruptCount { block: found.offset, detail })?;
        let (run, count) = (item.run, item.count);
        if run.end() <= whole.start {
            continue;
        }
        transaction.delete(*found);
        let mut put = |start: u64, end: u64| {
            let mut at = start;
            while at < end {
                let blocks = (end - at).min(SHARED_BLOCKS_MAX - at % SHARED_BLOCKS_MAX);
                transaction.put(key(at), SharedRun { run: BlockRun::new(at, blocks), count }.encode());
                at += blocks;
            }
        };
        // The parts of the run outside `whole` keep their counts.
        put(run.start, whole.start.max(run.start));
        put(whole.end().min(run.end()), run.end());
        let (start, end) = (run.start.max(whole.start), run.end().min(whole.end()));
        put(to + (start - whole.start), to + (end - whole.start));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_the_same_blocks_moves_together() {
        let placed = |object, start, blocks| Placed {
            run: BlockRun::new(start, blocks),
            key: Key { object, kind: Kind::Extent as u8, offset: 0 },
        };
        // Two chains, of which the first reaches behind 100; one extent alone in front of it; one
        // behind it, and one that touches that.
        let extents = [
            placed(9, 80, 10),
            placed(2, 85, 10),
            placed(7, 94, 8),
            placed(3, 10, 5),
            placed(4, 12, 5),
            placed(5, 200, 8),
            placed(1, 208, 8),
            placed(6, 90, 1),
        ];
        let found = components(extents.to_vec(), 100);
        let objects: Vec<Vec<u64>> = found
            .iter()
            .map(|component| component.iter().map(|placed| placed.key.object).collect())
            .collect();
        assert_eq!(objects, [vec![1], vec![5], vec![9, 2, 6, 7]]);
    }
}
