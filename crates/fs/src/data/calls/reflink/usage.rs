//! How much a file uses, and how much of that it shares.

use crate::FsError;
use crate::data::extents::lookup;
use crate::data::extents::shares::counted;
use crate::data::flush::writeback;
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::types::Ino;
use syncline_format::BlockRun;
use syncline_format::items::extent::FILE_BLOCKS_MAX;

/// Extents looked up at a time.
const EXTENTS_EACH: usize = 1024;

/// The space that a file uses on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Usage {
    /// Bytes of all its blocks, including preallocated ones, and of contents in its inode item.
    pub total_bytes: u64,
    /// Bytes of blocks that other files, or other places of this one, use too: removing the file
    /// does not free them.
    pub shared_bytes: u64,
}

impl Filesystem {
    /// The space that a file uses on the device. Data that is not written yet does not count.
    pub async fn usage(&self, ino: Ino) -> Result<Usage, FsError> {
        let inode = self.inode(ino).await?;
        writeback::place_logged(self, &inode).await?;
        let mut usage = Usage::default();
        {
            let data = &inode.state.lock().data;
            usage.total_bytes += 512 * data.logged.inline_units();
            usage.total_bytes += BLOCK * data.preallocated.blocks();
        }
        let mut first = 0;
        loop {
            let found = lookup::some(&self.store, ino, first, FILE_BLOCKS_MAX, EXTENTS_EACH).await?;
            let mut runs: Vec<BlockRun> = Vec::new();
            for extent in &found.extents {
                let charged = BlockRun::new(extent.addr, extent.charged_blocks());
                usage.total_bytes += charged.len_bytes();
                // All blocks of a compressed unit have one count.
                runs.extend(extent.shared.then_some(charged));
            }
            usage.shared_bytes += self.shared_bytes(runs).await?;
            match found.extents.last() {
                Some(last) if !found.complete => first = last.end(),
                _ => return Ok(usage),
            }
        }
    }

    async fn shared_bytes(&self, mut runs: Vec<BlockRun>) -> Result<u64, FsError> {
        runs.sort_unstable_by_key(|run| run.start);
        let counts = counted(self, &runs).await?;
        let overlap = |one: BlockRun, other: BlockRun| {
            let (start, end) = (one.start.max(other.start), one.end().min(other.end()));
            BlockRun::new(start, end.saturating_sub(start)).len_bytes()
        };
        let shared = runs.iter().map(|run| {
            let first = counts.partition_point(|count| count.run.end() <= run.start);
            let counts = counts[first..].iter().take_while(|count| count.run.start < run.end());
            counts.map(|count| overlap(*run, count.run)).sum::<u64>()
        });
        Ok(shared.sum())
    }
}
