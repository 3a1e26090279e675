//! Superblock slots: two, written in turn, two copies of each, far apart.

use crate::StoreError;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, FlushTracker, read_settled};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, FormatError, Geometry};

/// What the superblock slots of a device hold.
#[derive(Debug)]
pub struct ReadSlots {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The slot it lies in.
    pub slot: usize,
    /// Greatest generation seen in any copy.
    pub generation_seen: u64,
    /// Copies that are damaged: slot, copy, what is wrong. The slot that was never written counts as absent, not as damaged.
    pub damaged: Vec<(usize, usize, FormatError)>,
}

/// Reads all copies and picks the newest superblock.
pub async fn read_superblocks(device: &Arc<dyn Device>) -> Result<ReadSlots, StoreError> {
    let device_blocks = device.size_bytes() / BLOCK_BYTES as u64;
    if device_blocks < Geometry::MIN_BLOCKS {
        return Err(unusable(
            "the image is smaller than the smallest filesystem (16 MiB): it is truncated, or no Syncline image",
        ));
    }
    let mut best: Option<(usize, Superblock)> = None;
    let mut generation_seen = 0;
    let mut damaged = Vec::new();
    for slot in 0..2 {
        let mut one_is_good = false;
        for (copy, addr) in Geometry::superblock_copies_for(device_blocks, slot).into_iter().enumerate() {
            let whole = |block: &[u8]| Superblock::decode(block).is_ok();
            let found = match read_settled(device, addr * BLOCK_BYTES as u64, BLOCK_BYTES, whole).await {
                Ok(block) if block.iter().all(|byte| *byte == 0) => continue,
                Ok(block) => Superblock::decode(&block),
                // A slot counts as durable only when both of its copies are, so the good one tells enough.
                Err(error) if copy == 0 || one_is_good => {
                    tracing::warn!("copy {copy} of superblock {slot}: {error}; the other one has to do");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match found {
                Ok(superblock) => {
                    one_is_good = true;
                    generation_seen = generation_seen.max(superblock.generation);
                    if best.as_ref().is_none_or(|(_, best)| superblock.generation > best.generation) {
                        best = Some((slot, superblock));
                    }
                }
                // Never an older slot instead: what it does not know of would be lost.
                Err(error @ FormatError::Features { .. }) => return Err(unusable(&error.to_string())),
                Err(error) => damaged.push((slot, copy, error)),
            }
        }
    }
    let Some((slot, superblock)) = best else { return Err(no_superblock(&damaged)) };
    if superblock.geometry.total_blocks > device_blocks {
        let (want, have) = (superblock.geometry.total_blocks * 4096, device_blocks * 4096);
        return Err(unusable(&format!(
            "the image is truncated: the filesystem has {want} bytes, the device only {have}; restore the image to its full length"
        )));
    }
    Ok(ReadSlots { superblock, slot, generation_seen, damaged })
}

fn unusable(text: &str) -> StoreError {
    StoreError::Unusable(text.into())
}

/// Why no copy could be used, in the words that help most.
fn no_superblock(damaged: &[(usize, usize, FormatError)]) -> StoreError {
    let errors = || damaged.iter().map(|(_, _, error)| error);
    if let Some(version) = errors().find(|error| matches!(error, FormatError::Version { .. })) {
        return unusable(&version.to_string());
    }
    if errors().any(|error| !matches!(error, FormatError::Magic { .. })) {
        return unusable("every superblock is damaged: restore the image from a backup");
    }
    unusable("not a Syncline image: no superblock found; make one with 'syncline mkfs'")
}

/// Writes both copies of a slot and makes them durable.
///
/// The slot must not be the one that holds the newest durable superblock, and everything the superblock refers to
/// must be durable already. One that could not be read back is refused: a hostile image may have driven a number past
/// its limit, and two such superblocks would make the image unreadable.
pub(crate) async fn write_slot(
    tracker: &Arc<FlushTracker>,
    slot: usize,
    superblock: &Superblock,
) -> Result<(), StoreError> {
    let block = AlignedBuf::copy_from(&superblock.encode()).into_bytes();
    let copies = superblock.geometry.superblock_copies(slot);
    Superblock::decode(&block).map_err(|detail| StoreError::Corrupt { addr: copies[0], detail })?;
    let writes = copies.map(|addr| tracker.write(addr * BLOCK_BYTES as u64, vec![block.clone()]));
    let mut newest = Default::default();
    for write in writes {
        newest = write.wait().await?.max(newest);
    }
    tracker.make_durable(newest).await?;
    Ok(())
}
