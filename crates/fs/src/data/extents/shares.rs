//! Keeps reference counts of shared blocks unchanged from their lookup until the transaction that
//! changes them.
//!
//! Only extents with the mark can have blocks that others use too, so a change of extents
//! without it looks nothing up and takes no lock (mechanism S5). The lock is the last asynchronous
//! one to be taken: its holder waits for nothing but the device.

mod counts;

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::types::Ino;
use counts::Counts;
pub(crate) use counts::TooMany;
use std::time::Instant;
use syncline_format::items::extent::Extent;
use syncline_format::items::shared::{SharedRun, piece_start};
use syncline_format::{BlockRun, Key, Kind};
use syncline_store::{Ablation, Transaction};
use syncline_sync::asynchronous::MutexGuard;

/// Most items taken from the store at once.
const SCAN_ITEMS: usize = 1024;
/// Runs closer to each other than this many blocks are looked up together.
const SCAN_GAP_BLOCKS: u64 = 1024;

/// The reference counts of some blocks, which only the holder may change, until its transaction is
/// committed.
#[derive(Default)]
pub(crate) struct Shares<'a> {
    counts: Counts,
    /// Extents to be marked, and the files that they belong to.
    marked: Vec<(Ino, Extent)>,
    /// The lock that keeps others from changing counts.
    still: Option<MutexGuard<'a, ()>>,
}

/// Looks up and locks the counts that a change of these extents needs: none, unless an extent has
/// the mark, or is compressed and may be divided.
pub(crate) async fn hold<'a>(
    fs: &'a Filesystem,
    extents: impl IntoIterator<Item = &Extent>,
) -> Result<Shares<'a>, FsError> {
    let every = fs.store.ablates(Ablation::ReflinkMark);
    let (mut runs, mut packed) = (Vec::new(), false);
    for extent in extents {
        packed |= extent.packed.is_some();
        runs.extend((every || extent.shared).then(|| extent.run()));
    }
    let mut shares = if runs.is_empty() { Shares::default() } else { hold_runs(fs, runs).await? };
    if packed {
        // Without the mark there is nothing to look up, but the change may create counts.
        shares.hold_still(fs).await;
    }
    Ok(shares)
}

async fn still(fs: &Filesystem) -> MutexGuard<'_, ()> {
    if let Some(still) = fs.data.shared_counts.try_lock() {
        return still;
    }
    let since = Instant::now();
    let still = fs.data.shared_counts.lock().await;
    fs.counters.shared_wait_ns.add(since.elapsed().as_nanos() as u64);
    still
}

async fn hold_runs(fs: &Filesystem, mut runs: Vec<BlockRun>) -> Result<Shares<'_>, FsError> {
    let still = still(fs).await;
    runs.sort_unstable_by_key(|run| run.start);
    let items = counted(fs, &runs).await?;
    Ok(Shares { counts: Counts::new(items), marked: Vec::new(), still: Some(still) })
}

/// The counts of all blocks of these runs (in the order of their addresses), and perhaps of some
/// blocks between them.
pub(crate) async fn counted(fs: &Filesystem, runs: &[BlockRun]) -> Result<Vec<SharedRun>, FsError> {
    let mut found: Vec<SharedRun> = Vec::new();
    let mut rest = runs;
    while let Some(first) = rest.first() {
        let (mut end, mut together) = (first.end(), 1);
        while together < rest.len() && rest[together].start <= end + SCAN_GAP_BLOCKS {
            end = end.max(rest[together].end());
            together += 1;
        }
        // The last count found may reach into this range, and must not be included twice.
        let from = found.last().map_or(0, |last| last.run.end()).max(piece_start(first.start));
        scan(fs, from, end, &mut found).await?;
        rest = &rest[together..];
    }
    Ok(found)
}

async fn scan(fs: &Filesystem, from: u64, end: u64, found: &mut Vec<SharedRun>) -> Result<(), FsError> {
    if from >= end {
        return Ok(());
    }
    fs.counters.shared_lookups.add(1);
    let (mut from, to) = (Key::new(0, Kind::Shared, from), Key::new(0, Kind::Shared, end - 1));
    loop {
        let chunk = fs.store.scan(from, to, SCAN_ITEMS).await?;
        for (key, value) in &chunk.items {
            let shared = SharedRun::decode(key.offset, value)
                .map_err(|detail| FsError::CorruptCount { block: key.offset, detail })?;
            if found.last().is_some_and(|last| last.run.end() > shared.run.start) {
                return Err(FsError::CorruptCount { block: key.offset, detail: OVERLAP });
            }
            found.push(shared);
        }
        match chunk.items.last().and_then(|(key, _)| key.next()) {
            Some(next) if !chunk.complete && next <= to => from = next,
            _ => return Ok(()),
        }
    }
}

const OVERLAP: syncline_format::FormatError =
    syncline_format::FormatError::Field { structure: "reference count", field: "overlap" };

impl<'a> Shares<'a> {
    /// Locks the counts even if none had to be looked up.
    pub(crate) async fn hold_still(&mut self, fs: &'a Filesystem) {
        if self.still.is_none() {
            self.still = Some(still(fs).await);
        }
    }

    /// Adds a reference to the blocks of a part of an extent. Marks the extent if it has no mark.
    pub(crate) fn share(&mut self, ino: Ino, extent: &mut Extent, part: BlockRun) -> Result<(), TooMany> {
        self.counts.add(part)?;
        if !extent.shared {
            extent.shared = true;
            self.marked.push((ino, extent.clone()));
        }
        Ok(())
    }

    /// Adds a reference to the blocks of a compressed unit of which one more part remains.
    pub(crate) fn divide(&mut self, run: BlockRun) -> Result<(), TooMany> {
        self.counts.add(run)
    }

    /// Undoes the references that were added
    /// ([`Canary::ShareWithoutCount`](syncline_store::Canary)).
    pub(crate) fn uncount(&mut self) {
        self.counts.forget_changes();
    }

    /// Removes a reference. Returns the blocks that nothing uses any more.
    pub(crate) fn release(&mut self, run: BlockRun) -> Vec<BlockRun> {
        self.counts.release(run)
    }

    /// Puts the marks into a transaction, before any other change of these extents.
    pub(crate) fn put_marks(&self, transaction: &mut Transaction) {
        for (ino, extent) in &self.marked {
            transaction.put(Key::new(*ino, Kind::Extent, extent.file_block), extent.encode());
        }
    }

    /// Puts the changed counts into a transaction, as absolute values: replaying them twice changes
    /// nothing.
    pub(crate) fn put_counts(&self, transaction: &mut Transaction) {
        for (block, item) in self.counts.changes() {
            let key = Key::new(0, Kind::Shared, block);
            match item {
                Some(shared) => transaction.put(key, shared.encode()),
                None => transaction.delete(key),
            }
        }
    }
}
