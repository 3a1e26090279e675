//! Placing data again where the device fails to write it.
//!
//! An fsync names the data that it submits before the data has been written. If it can't be written
//! at its place, its blocks become dirty again, with their contents, and go through background
//! write-back, which names only written blocks. Contents, size and times stay. The items that were
//! put since the last checkpoint tell whose blocks they are: older items name only blocks that a
//! flush has covered.

use super::rewrite::take_up_extent;
use crate::FsError;
use crate::data::extents::lookup;
use crate::data::flush::writeback;
use crate::filesystem::Filesystem;
use crate::types::Ino;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Weak;
use syncline_format::items::extent::Extent;
use syncline_format::{BlockRun, Key, Kind};
use syncline_store::{Relocate, StoreError};

/// How often extents are looked for again: the blocks may become shared meanwhile.
const ROUNDS_MAX: usize = 4;

/// The interface through which a store asks for relocation.
pub(crate) struct Relocation(pub(crate) Weak<Filesystem>);

impl Relocate for Relocation {
    fn relocate(&self, run: BlockRun) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
        Box::pin(async move {
            let gone = || StoreError::Unusable("the filesystem is being closed".into());
            let fs = self.0.upgrade().ok_or_else(gone)?;
            relocate(&fs, run).await.map_err(|error| match error {
                FsError::Store(error) => error,
                other => StoreError::Unusable(format!("data could not be placed again: {other}").into()),
            })
        })
    }
}

async fn relocate(fs: &Filesystem, run: BlockRun) -> Result<(), FsError> {
    for _ in 0..ROUNDS_MAX {
        let found = extents_on(fs, run);
        if found.is_empty() {
            return Ok(());
        }
        for (ino, blocks) in found {
            relocate_range(fs, ino, blocks, run).await?;
        }
    }
    Err(FsError::Store(StoreError::Unusable("others keep using blocks that can't be written".into())))
}

/// The ranges of files that lie on blocks of the run, according to the items in memory.
fn extents_on(fs: &Filesystem, run: BlockRun) -> Vec<(Ino, Range<u64>)> {
    let items = fs.store.recent_items(|key: Key| key.kind == Kind::Extent as u8);
    let extents = items.iter().filter_map(|(key, value)| {
        let extent = Extent::decode(key.offset, value).ok()?;
        overlaps(&extent, run).then_some((key.object, extent.file_block..extent.end()))
    });
    extents.collect()
}

fn overlaps(extent: &Extent, run: BlockRun) -> bool {
    extent.run().start < run.end() && run.start < extent.run().end()
}

async fn relocate_range(fs: &Filesystem, ino: Ino, blocks: Range<u64>, run: BlockRun) -> Result<(), FsError> {
    let inode = fs.regular(ino).await?;
    {
        let _lease = inode.lease.write().await;
        let extents = lookup::all(&fs.store, ino, blocks.start, blocks.end).await?;
        for extent in extents.iter().filter(|extent| overlaps(extent, run)) {
            take_up_extent(fs, &inode, extent).await?;
        }
    }
    writeback::write_back_once(fs, &inode).await.map(|_| ())
}
