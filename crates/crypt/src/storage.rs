//! The copies of the key record on a device.

use crate::{HEADER_BLOCKS, KeyError, KeyRecord, OVERHEAD_BLOCKS};
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceError, DeviceExt};
use syncline_format::{BLOCK_BYTES, BlockAddr, FormatError, Geometry, superblock};

/// The copies in the header. No other image has anything in these blocks.
const IN_HEADER: [BlockAddr; 2] = [52, 60];

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The key record of a device.
#[derive(Debug)]
pub struct Found {
    /// The newest record.
    pub record: KeyRecord,
    /// The copies that are damaged or older.
    pub stale: Vec<BlockAddr>,
    /// The header has no copy, only the last block of the device.
    pub only_at_the_end: bool,
    /// The last block of the device has no copy of this image. It may be a block of the filesystem, if the device was
    /// made shorter, or have the record of another image.
    lacks_last: bool,
}

/// The blocks of the copies on a device of this size.
pub fn record_places(size_bytes: u64) -> [BlockAddr; 3] {
    let [first, second] = IN_HEADER;
    [first, second, (size_bytes / BLOCK).saturating_sub(1)]
}

/// Reads the key record; `None` if the device is not encrypted. One copy is enough.
pub async fn read_record(device: &Arc<dyn Device>) -> Result<Option<Found>, KeyError> {
    if device.size_bytes() < (OVERHEAD_BLOCKS + Geometry::MIN_BLOCKS) * BLOCK {
        return Ok(None);
    }
    let (mut copies, mut damage) = (Vec::new(), None);
    for place in record_places(device.size_bytes()) {
        let decoded = match device.read_at(place * BLOCK, BLOCK_BYTES).await {
            Ok(block) => KeyRecord::decode(&block),
            Err(error) => {
                tracing::warn!("a copy of the key record: {error}; the others have to do");
                Err(FormatError::Truncated { structure: "key record" })
            }
        };
        if let Err(error) = &decoded {
            // Anything else was never a record.
            let was_one = !matches!(error, FormatError::Magic { .. } | FormatError::Truncated { .. });
            damage = damage.or(was_one.then(|| error.clone()));
        }
        copies.push((place, decoded.ok()));
    }
    let newest = |copies: &[(BlockAddr, Option<KeyRecord>)]| {
        copies.iter().filter_map(|(_, copy)| copy.clone()).max_by_key(|copy| copy.sequence)
    };
    // The end of a device may have the record of an image that was there before.
    let (in_header, last) = copies.split_at(IN_HEADER.len());
    let of_header = newest(in_header);
    let only_at_the_end = of_header.is_none();
    let is_own = |last: &KeyRecord| of_header.as_ref().is_none_or(|first| first.key_id == last.key_id);
    let own = newest(last).filter(is_own);
    let lacks_last = own.is_none();
    let Some(record) = of_header.into_iter().chain(own).max_by_key(|copy| copy.sequence) else {
        return damage.map_or(Ok(None), |error| Err(KeyError::Damaged(error)));
    };
    let stale = copies.into_iter().filter(|(_, copy)| copy.as_ref() != Some(&record));
    Ok(Some(Found { stale: stale.map(|(place, _)| place).collect(), record, only_at_the_end, lacks_last }))
}

impl Found {
    /// Writes the copies that are damaged or older, durably. The filesystem, of `fs_blocks`, must end before the last
    /// block. If the device was made longer, a copy lies where it ended: that is wiped, since it may have keys that were
    /// removed later.
    pub async fn settle(&self, device: &Arc<dyn Device>, fs_blocks: u64) -> Result<(), DeviceError> {
        write_copies(device, &self.record, &self.stale).await?;
        let former = HEADER_BLOCKS + fs_blocks;
        if former < record_places(device.size_bytes())[2] {
            let block = device.read_at(former * BLOCK, BLOCK_BYTES).await?;
            if KeyRecord::decode(&block).is_ok_and(|copy| copy.key_id == self.record.key_id) {
                device.write_at(former * BLOCK, vec![zeros(1)]).await?;
                device.flush_all().await?;
            }
        }
        Ok(())
    }

    /// Writes a record that takes the place of this one, each copy durable before the next: a crash leaves a whole copy
    /// of this one, or of the new one, and then the new one counts. A last block that has no copy stays as it is.
    pub async fn replace(&mut self, device: &Arc<dyn Device>, record: KeyRecord) -> Result<(), KeyError> {
        let places = record_places(device.size_bytes());
        let places = if self.lacks_last { &places[..IN_HEADER.len()] } else { &places };
        let written = write_copies(device, &record, places).await;
        self.record = record;
        written.map_err(KeyError::Incomplete)
    }
}

/// Writes the last copy where it belongs on a device of this size, before the device gets that size.
pub async fn move_last_copy(
    device: &Arc<dyn Device>,
    record: &KeyRecord,
    size_bytes: u64,
) -> Result<(), DeviceError> {
    let [_, _, last] = record_places(size_bytes);
    write_copies(device, record, &[last]).await
}

/// Writes all copies that can be written. Fails with the first error.
async fn write_copies(
    device: &Arc<dyn Device>,
    record: &KeyRecord,
    places: &[BlockAddr],
) -> Result<(), DeviceError> {
    let mut result = Ok(());
    for place in places {
        let written = device.write_at(place * BLOCK, vec![block_of(record)]).await;
        result = result.and(written).and(device.flush_all().await);
    }
    result
}

pub(crate) fn zeros(blocks: u64) -> Bytes {
    AlignedBuf::zeroed((blocks * BLOCK) as usize).into_bytes()
}

pub(crate) fn block_of(record: &KeyRecord) -> Bytes {
    AlignedBuf::copy_from(&record.encode()).into_bytes()
}

/// Makes a device, whose contents are lost, an encrypted one without a filesystem. Nothing of an earlier image is
/// recognized any more.
pub async fn begin(device: &Arc<dyn Device>, record: &KeyRecord) -> Result<(), KeyError> {
    let blocks = device.size_bytes() / BLOCK;
    if blocks < OVERHEAD_BLOCKS + Geometry::MIN_BLOCKS {
        return Err(KeyError::TooSmall);
    }
    for (start, blocks) in [(0, HEADER_BLOCKS), (blocks - Geometry::TAIL_BLOCKS, Geometry::TAIL_BLOCKS)] {
        device.write_at(start * BLOCK, vec![zeros(blocks)]).await?;
    }
    device.flush_all().await?;
    Ok(write_copies(device, record, &record_places(device.size_bytes())).await?)
}

/// The key record of an image that begins with these bytes and ends with this block, if there is one.
pub fn record_of(start: &[u8], last: &[u8]) -> Option<KeyRecord> {
    let block = |place: u64| {
        let at = place as usize * BLOCK_BYTES;
        start.get(at..at + BLOCK_BYTES)
    };
    let in_header = IN_HEADER.iter().filter_map(|place| KeyRecord::decode(block(*place)?).ok());
    in_header.max_by_key(|record| record.sequence).or_else(|| {
        let first = |slot| Geometry::superblock_copies_for(Geometry::MIN_BLOCKS, slot)[0];
        let is_plain = |slot| block(first(slot)).is_some_and(|block| block.starts_with(&superblock::MAGIC));
        KeyRecord::decode(last).ok().filter(|_| !is_plain(0) && !is_plain(1))
    })
}
