//! Reading compressed units: decoding them, and a few decoded ones that stay.
//!
//! A unit is decoded as a whole, and a program that reads a file in small steps needs it again at
//! once. A decoded unit is found by the inode, the address and the newest operation that changed
//! the inode's extents: as long as that operation is the same, the address means the same, so
//! nothing has to be dropped when blocks are freed and reused.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
use bytes::Bytes;
use foldhash::fast::FixedState;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use std::ops::Range;
use syncline_format::items::extent::{Extent, Packed};
use syncline_format::{BLOCK_BYTES, BlockAddr};
use syncline_store::OpSeq;

/// Decoded units that stay in memory: 4 MiB at most.
const DECODED_UNITS: usize = 32;
const DECODED_BYTES: u64 = 4 << 20;

type UnitKey = (Ino, BlockAddr, OpSeq);

/// Decoded units. The hash is the same in every process, so that the units that stay depend
/// only on what was read.
pub(crate) struct Units {
    decoded: Cache<UnitKey, Bytes, Weight, FixedState>,
}

#[derive(Clone)]
struct Weight;

impl Weighter<UnitKey, Bytes> for Weight {
    fn weight(&self, _key: &UnitKey, unit: &Bytes) -> u64 {
        unit.len() as u64
    }
}

impl Default for Units {
    fn default() -> Self {
        let (hash, lifecycle) = (FixedState::default(), DefaultLifecycle::default());
        Self { decoded: Cache::with(DECODED_UNITS, DECODED_BYTES, Weight, hash, lifecycle) }
    }
}

/// Reads the file blocks that a compressed extent covers. The inode's lease is held, and its blocks
/// are pinned.
pub(in crate::data) async fn read(
    fs: &Filesystem,
    inode: &Inode,
    extent: &Extent,
    packed: &Packed,
) -> Result<Bytes, FsError> {
    let key = (inode.ino, extent.addr, inode.state.lock().data.logged.op());
    let from = packed.skip as usize * BLOCK_BYTES;
    let part = from..from + packed.blocks as usize * BLOCK_BYTES;
    if let Some(unit) = fs.data.units.decoded.get(&key).filter(|unit| part.end <= unit.len()) {
        return Ok(cut(&unit, part));
    }
    let stored = fs.store.read_data(inode.ino, extent.run(), &extent.checksums).await?;
    let unit = syncline_codec::unpack(packed, &stored).map_err(|detail| {
        tracing::error!(ino = inode.ino, block = extent.file_block, %detail, "a compressed unit is damaged: 'syncline path DIR INODE' names the file");
        FsError::Undecodable { ino: inode.ino, block: extent.file_block, detail }
    })?;
    fs.counters.units_unpacked.add(1);
    let unit = Bytes::from(unit);
    if part.end < unit.len() {
        // A sequential reader will ask for the rest.
        fs.data.units.decoded.insert(key, unit.clone());
    }
    Ok(cut(&unit, part))
}

/// A part of a unit. A small one is copied: a request of many small parts must not keep many units
/// in memory.
fn cut(unit: &Bytes, part: Range<usize>) -> Bytes {
    if part.len() * 2 < unit.len() { Bytes::copy_from_slice(&unit[part]) } else { unit.slice(part) }
}
