//! The two copies of a fork's record.

use crate::ForkError;
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt};
use syncline_format::fork::{ForkRecord, RECORD_AT};
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_store::{StoreError, read_superblocks};

/// The record of a fork; `None` if there is another image on this storage, or none.
pub async fn record_of(own: &Arc<dyn Device>) -> Result<Option<ForkRecord>, ForkError> {
    match read_superblocks(own).await {
        Ok(slots) if slots.superblock.is_fork() => {}
        Err(error @ StoreError::Device(_)) => return Err(error.into()),
        // Opening the image reports what is wrong with it.
        _ => return Ok(None),
    }
    let mut copies = Vec::new();
    for at in RECORD_AT {
        // One copy is enough.
        let read = own.read_at(BlockRun::new(at, 1).offset_bytes(), BLOCK_BYTES).await;
        copies.push(read.map(|block| block.to_vec()).unwrap_or_default());
    }
    ForkRecord::newest([&copies[0], &copies[1]]).map(Some).map_err(ForkError::Record)
}

/// Writes both copies of a new record, durably, to follow a record of the sequence number `last`. Nobody else
/// has the fork. The first write spares the copy of the last record, and the second one is made when the
/// first is durable: a crash leaves one of the two whole.
pub async fn replace_record(own: &Arc<dyn Device>, last: u64, record: ForkRecord) -> Result<(), ForkError> {
    for step in 1..=RECORD_AT.len() as u64 {
        write_copy(own, &ForkRecord { sequence: last.wrapping_add(step), ..record.clone() }).await?;
        own.flush_all().await?;
    }
    Ok(())
}

/// Writes the copy that has the place of this sequence number.
pub(crate) async fn write_copy(own: &Arc<dyn Device>, record: &ForkRecord) -> Result<(), ForkError> {
    let block = record.encode().ok_or(ForkError::Path)?;
    let block: Bytes = AlignedBuf::copy_from(&block).into_bytes();
    Ok(own.write_at(BlockRun::new(record.place(), 1).offset_bytes(), vec![block]).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::{MemoryDevice, block_on};
    use syncline_format::superblock::{SpaceRoot, TreeRoot};

    fn record(base: &str) -> ForkRecord {
        let (tree, space) = (TreeRoot::default(), SpaceRoot::default());
        ForkRecord { sequence: 0, fork_id: 1, hold: 2, tree, space, base: base.into() }
    }

    fn copies(own: &Arc<dyn Device>) -> [Vec<u8>; 2] {
        RECORD_AT.map(|at| block_on(own.read_at(at * BLOCK_BYTES as u64, BLOCK_BYTES)).unwrap().to_vec())
    }

    /// Whichever of them rots.
    #[test]
    fn each_copy_tells_of_the_new_base() {
        let own: Arc<dyn Device> = MemoryDevice::from_image(&[0; 64 * BLOCK_BYTES]);
        let mut last = 0;
        for base in ["/one", "/two", "/three"] {
            block_on(replace_record(&own, last, record(base))).unwrap();
            let [first, second] = copies(&own);
            let (newest, nothing) = (ForkRecord::newest([&first, &second]).unwrap(), [0; BLOCK_BYTES]);
            assert_eq!(newest.sequence, last + 2);
            last = newest.sequence;
            for copies in [[&first[..], &nothing], [&nothing, &second]] {
                assert_eq!(ForkRecord::newest(copies).unwrap().base.to_str(), Some(base));
            }
        }
    }

    /// A copy that is damaged is written first.
    #[test]
    fn the_newest_copy_is_written_last() {
        let own: Arc<dyn Device> = MemoryDevice::from_image(&[0; 64 * BLOCK_BYTES]);
        block_on(replace_record(&own, 0, record("/one"))).unwrap();
        let before = copies(&own);
        let new = ForkRecord { sequence: 3, ..record("/two") };
        block_on(write_copy(&own, &new)).unwrap();
        let after = copies(&own);
        assert_eq!(after[0], before[0], "the copy of sequence number 2");
        assert_ne!(after[1], before[1]);
    }
}
