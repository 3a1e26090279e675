//! Deduplication: listing a file's blocks, and sharing those that are equal.

use super::take_over::{Blocks, Span, names_of};
use crate::FsError;
use crate::data::calls::read;
use crate::data::extents::lookup;
use crate::data::extents::room::reserve;
use crate::data::flush::transact::SizeChange;
use crate::data::flush::writeback;
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::types::Ino;
use syncline_format::items::extent::Extent;
use syncline_format::{BlockAddr, Crc};

/// Most blocks compared at a time: 4 MiB of each file.
const COMPARED_BLOCKS: u64 = 1024;

/// A block of a file as the device has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedBlock {
    /// Its number in the file.
    pub number: u64,
    /// Its address on the device.
    pub addr: BlockAddr,
    /// CRC32C of its contents.
    pub checksum: Crc,
}

/// The result of deduplicating two ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deduplicated {
    /// This many bytes from the beginning of the ranges share their blocks now; 0 if these ranges
    /// can't.
    Shared(u64),
    /// This many bytes from the beginning of the ranges shared their blocks before.
    Already(u64),
    /// They hold different bytes.
    Differ,
}

impl Filesystem {
    /// At most `max` blocks of a regular file, from block `first` on, that lie on the device
    /// uncompressed; in order, and without dirty data.
    pub async fn logged_blocks(&self, ino: Ino, first: u64, max: usize) -> Result<Vec<LoggedBlock>, FsError> {
        let inode = self.inode(ino).await?;
        writeback::place_logged(self, &inode).await?;
        let _lease = inode.lease.read().await;
        let end = inode.state.lock().attr.size.div_ceil(BLOCK);
        let mut first = first;
        loop {
            let found = lookup::some(&self.store, ino, first, end, max).await?;
            let parts = found.extents.iter().filter_map(|extent| extent.slice(first, end));
            let blocks = parts.filter(|extent| extent.packed.is_none()).flat_map(|extent| {
                let (number, addr) = (extent.file_block, extent.addr);
                let blocks = (0..).zip(extent.checksums);
                blocks.map(move |(at, checksum)| LoggedBlock {
                    number: number + at,
                    addr: addr + at,
                    checksum,
                })
            });
            let blocks: Vec<LoggedBlock> = blocks.take(max).collect();
            match found.extents.last() {
                // No such blocks in this part does not mean that none follow.
                Some(last) if blocks.is_empty() && !found.complete => first = last.end(),
                _ => return Ok(blocks),
            }
        }
    }

    /// Compares a range of a file with one of another file (or of the same) byte by byte and, if
    /// they are equal, makes the second use the blocks of the first. Neither contents nor times
    /// change. To continue, call it again for the range after the bytes that it reports.
    pub async fn dedupe_range(
        &self,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<Deduplicated, FsError> {
        let (source, destination) = (self.inode(from.0).await?, self.inode(to.0).await?);
        let len = len.min(COMPARED_BLOCKS * BLOCK);
        if from.0 == to.0 && from.1 < to.1.saturating_add(len) && to.1 < from.1.saturating_add(len) {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        let span = Span { from: &source, from_offset: from.1, to: &destination, to_offset: to.1, len };
        let _settled = span.settle(self).await?;
        // Deduplication never makes the destination longer.
        let ends = to.1.checked_add(len).is_some_and(|end| end <= destination.state.lock().attr.size);
        // Contents in the inode item have no block that could be compared.
        let inline = destination.state.lock().data.has_inline();
        // A destination that ends before says so before anything is worked out: its offset may be anything.
        let Some(mut blocks) = (ends && !inline).then(|| span.blocks()).flatten() else {
            return Ok(Deduplicated::Shared(0));
        };
        let extents = span.source(self, &mut blocks).await?;
        let old = lookup::all(&self.store, to.0, blocks.to, blocks.to + blocks.count).await?;
        if places(&extents, blocks.from, blocks.count) == places(&old, blocks.to, blocks.count) {
            return Ok(Deduplicated::Already(blocks.bytes));
        }
        if !self.equal(span, &blocks).await? {
            return Ok(Deduplicated::Differ);
        }
        let _names = reserve(self, names_of(&extents)).await?;
        if !span.commit(self, &blocks, extents, SizeChange::Keep).await? {
            return Ok(Deduplicated::Shared(0));
        }
        self.counters.deduplicated_bytes.add(blocks.bytes);
        Ok(Deduplicated::Shared(blocks.bytes))
    }

    /// Compares block by block. Both files are settled.
    async fn equal(&self, span: Span<'_>, blocks: &Blocks) -> Result<bool, FsError> {
        for at in 0..blocks.count {
            let one = read::read_block(self, span.from, blocks.from + at).await?;
            let other = read::read_block(self, span.to, blocks.to + at).await?;
            let zeros = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
            let equal = match (&one, &other) {
                (Some(one), Some(other)) => one == other,
                (Some(bytes), None) | (None, Some(bytes)) => zeros(bytes),
                (None, None) => true,
            };
            if !equal {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The place of each block: its address or, in a compressed unit, the unit's address and which
/// block of the unit it is.
fn places(extents: &[Extent], first: u64, count: u64) -> Vec<(u64, BlockAddr, u64)> {
    let parts = extents.iter().filter_map(|extent| extent.slice(first, first + count));
    parts
        .flat_map(|part| {
            (0..part.blocks())
                .map(move |at| match part.packed {
                    None => (part.file_block - first + at, part.addr + at, 0),
                    Some(packed) => (part.file_block - first + at, part.addr, packed.skip + at),
                })
                .collect::<Vec<_>>()
        })
        .collect()
}
