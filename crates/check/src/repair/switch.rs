//! Writes the result of a repair to the image.
//!
//! Damaged copies of metadata are written in place first; the other copies are sound, and what the device
//! does not take stays damaged.
//!
//! Then the order, and the state that a crash leaves at each step: (1) everything else but the superblocks
//! goes to blocks that nothing in the image needs, which was checked before; (2) flush, then all of it is read
//! back; (3) a superblock goes to the slot that does not hold the newest good one; (4) flush; (5) a
//! superblock that leads to the same state goes to the other slot; (6) flush. Until (3) is on the
//! device the image is as it was. After it the repaired image counts, and (5) only makes both slots
//! sound.

use crate::error::CheckError;
use crate::repair::flaw::Flaw;
use crate::repair::overlay::Overlay;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use syncline_device::{Device, DeviceError, DeviceExt};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, FormatError, Geometry};
use syncline_store::StoreError;

/// Blocks written or read with one request.
const BLOCKS_EACH: u64 = 64;
/// Requests in flight.
const IN_FLIGHT: usize = 8;

/// Writes mended copies of metadata in place. `mended` has the first block of the copy for each block. Returns
/// the copies that the device did not take.
pub(crate) async fn copies(
    overlay: &Overlay,
    device: &Arc<dyn Device>,
    mended: &BTreeMap<BlockAddr, BlockAddr>,
) -> Result<BTreeMap<BlockAddr, DeviceError>, CheckError> {
    let mut failed = BTreeMap::new();
    for (&block, &copy) in mended {
        let Some(bytes) = overlay.written(block)? else { continue };
        if let Err(error) = device.write_at(BlockRun::new(block, 1).offset_bytes(), vec![bytes]).await {
            failed.insert(copy, error);
        }
    }
    Ok(failed)
}

/// Writes the overlay's `wanted` blocks to the image. `newest` is the slot of the superblock that counts
/// now.
pub(crate) async fn write_out(
    overlay: &Overlay,
    device: &Arc<dyn Device>,
    (geometry, newest): (Geometry, usize),
    wanted: impl Fn(&BlockAddr) -> bool,
    flaw: Option<Flaw>,
) -> Result<(), CheckError> {
    let blocks: Vec<BlockAddr> = overlay.blocks().into_iter().filter(wanted).collect();
    let early = flaw == Some(Flaw::SwitchEarly);
    if early {
        superblocks(overlay, device, geometry, 1 - newest).await?;
    }
    let others = others(&blocks, geometry);
    write(overlay, device, &others).await?;
    device.flush_all().await?;
    read_back(overlay, device, &others).await?;
    if !early {
        superblocks(overlay, device, geometry, 1 - newest).await?;
    }
    superblocks(overlay, device, geometry, newest).await
}

/// All blocks but superblocks, in runs.
fn others(blocks: &[BlockAddr], geometry: Geometry) -> Vec<BlockRun> {
    let is_superblock = |block: &BlockAddr| superblock_blocks(geometry).contains(block);
    let mut runs: Vec<BlockRun> = Vec::new();
    for &block in blocks.iter().filter(|block| !is_superblock(block)) {
        match runs.last_mut() {
            Some(run) if run.end() == block && run.blocks < BLOCKS_EACH => run.blocks += 1,
            _ => runs.push(BlockRun::new(block, 1)),
        }
    }
    runs
}

/// The blocks of the superblock copies.
pub(crate) fn superblock_blocks(geometry: Geometry) -> [BlockAddr; 4] {
    let ([a, b], [c, d]) = (geometry.superblock_copies(0), geometry.superblock_copies(1));
    [a, b, c, d]
}

/// Writes both copies of a slot, each durable before the next, as for any superblock.
async fn superblocks(
    overlay: &Overlay,
    device: &Arc<dyn Device>,
    geometry: Geometry,
    slot: usize,
) -> Result<(), CheckError> {
    let [first, second] = geometry.superblock_copies(slot);
    let written = overlay.blocks();
    for copy in [second, first].into_iter().filter(|copy| written.binary_search(copy).is_ok()) {
        write(overlay, device, &[BlockRun::new(copy, 1)]).await?;
        device.flush_all().await?;
    }
    Ok(())
}

async fn write(overlay: &Overlay, device: &Arc<dyn Device>, runs: &[BlockRun]) -> Result<(), CheckError> {
    let mut under_way = VecDeque::new();
    for run in runs {
        if under_way.len() == IN_FLIGHT
            && let Some(first) = under_way.pop_front()
        {
            let first: syncline_device::DeviceFuture<()> = first;
            first.await?;
        }
        let mut bufs = Vec::with_capacity(run.blocks as usize);
        for block in run.start..run.end() {
            bufs.extend(overlay.written(block)?);
        }
        under_way.push_back(device.write_at(run.offset_bytes(), bufs));
    }
    for write in under_way {
        write.await?;
    }
    Ok(())
}

/// Fails if the device does not return the written bytes: the superblock that leads there must then not
/// be written.
async fn read_back(overlay: &Overlay, device: &Arc<dyn Device>, runs: &[BlockRun]) -> Result<(), CheckError> {
    for run in runs {
        let bytes = device.read_at(run.offset_bytes(), run.len_bytes() as usize).await?;
        for (block, found) in (run.start..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if overlay.written(block)?.is_some_and(|wanted| wanted != found) {
                let detail = FormatError::Checksum { structure: "a block that the repair wrote" };
                return Err(StoreError::Corrupt { addr: block, detail }.into());
            }
        }
    }
    Ok(())
}
