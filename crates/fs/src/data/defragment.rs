//! Defragmenting: blocks that lie scattered on the device are written again, together.
//!
//! It is a write-back of what was not written: old contents go to a new place without any lock, and one transaction, under the
//! inode's lease, names the new place if the file still has exactly the extents that were read. A writer who was faster keeps what
//! he wrote, and the copy is given back. Contents, size and times never change.

use super::join::join_all;
use super::place::{self, Naming, Placement};
use super::transact;
use super::writeback::PLACES_MAX;
use super::{BLOCK, lookup, plan, reflink, submit, unplaced};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::receipt::Submitted;
use crate::types::Ino;
use bytes::Bytes;
use smallvec::smallvec;
use std::sync::Arc;
use syncline_format::BlockRun;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent, FILE_BLOCKS_MAX};
use syncline_store::{Admission, Reservation, StoreError};

/// Blocks of a file looked at in one step: 16 MiB, in memory at a time.
const STEP_BLOCKS: u64 = 4096;
/// A fragment of so many blocks (4 MiB) is left where it is: reading on elsewhere after it costs little.
const LARGE_BLOCKS: u64 = 1024;
/// Most blocks of one data write.
const WRITE_BLOCKS_MAX: u64 = 256;
/// Reads in flight at a time.
const READS_IN_FLIGHT: usize = 16;
/// Extents looked at together.
const EXTENTS_EACH: usize = 1024;

/// How a file lies on the device; what is not written yet doesn't count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fragments {
    /// Runs of blocks that lie one after the other.
    pub fragments: u64,
    /// Blocks in them.
    pub blocks: u64,
}

/// What one step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Defragmented {
    /// The block of the file to go on with, if there are more.
    pub next: Option<u64>,
    /// Bytes written again.
    pub moved_bytes: u64,
    /// Bytes copied for nothing, since somebody wrote there meanwhile.
    pub overtaken_bytes: u64,
}

/// A row of extents to be written again, and what lies before and after it.
struct Row {
    extents: Vec<Extent>,
    /// Where the block before lies, if there is one close by: the best place begins right after it.
    before: Option<u64>,
    /// Where the block after it lies.
    after: Option<u64>,
    /// Where to go on.
    next: Option<u64>,
}

impl Filesystem {
    /// How a regular file lies on the device.
    pub async fn fragments(&self, ino: Ino) -> Result<Fragments, FsError> {
        let inode = self.regular(ino).await?;
        unplaced::place(self, &inode).await?;
        let end = inode.state.lock().attr.size.div_ceil(BLOCK);
        let (mut found, mut first, mut last) = (Fragments::default(), 0, None);
        loop {
            let some = lookup::some(&self.store, ino, first, end, EXTENTS_EACH).await?;
            for extent in &some.extents {
                found.fragments += u64::from(last != Some(extent.addr));
                found.blocks += extent.blocks();
                last = Some(extent.run().end());
            }
            match some.extents.last() {
                Some(extent) if !some.complete => first = extent.end(),
                _ => return Ok(found),
            }
        }
    }

    /// Looks at a part of a regular file from block `first` on, and writes what lies scattered there again in fewer fragments, if
    /// there is room for that. What other files use too is left alone, unless `unshare`.
    pub async fn defragment(&self, ino: Ino, first: u64, unshare: bool) -> Result<Defragmented, FsError> {
        let inode = self.regular(ino).await?;
        self.store.writable()?;
        unplaced::place(self, &inode).await?;
        // Like any writer: not while too much waits for a flush or a checkpoint.
        let room = self.store.admit(Admission::Grow).await?;
        let end = inode.state.lock().attr.size.div_ceil(BLOCK).min(FILE_BLOCKS_MAX);
        let row = find_row(self, ino, first, end, unshare).await?;
        let mut done = Defragmented { next: row.next, ..Defragmented::default() };
        if row.extents.is_empty() {
            return Ok(done);
        }
        let blocks: u64 = row.extents.iter().map(Extent::blocks).sum();
        let mut reservation = self.store.reserve(blocks).await?;
        // Or the next admission would wait for this one.
        drop(room);
        let generation = self.store.superblock().generation;
        let (mut room, contents) = {
            // Addresses are used without the lease: none that is found from now on goes to others (rule R2). Under the pin nothing
            // waits but for the device. To wait for room, or for the lease of somebody who does, could be to wait for what it holds back.
            let _pin = self.store.pin();
            if find_row(self, ino, first, end, unshare).await?.extents != row.extents {
                return Ok(Defragmented { overtaken_bytes: blocks * BLOCK, ..done });
            }
            let Some(room) = Room::find(self, &mut reservation, &row, blocks) else { return Ok(done) };
            (room, read(self, &row.extents).await?)
        };
        let mut copy = room.write(&row.extents, contents.clone());
        // What the device did not take stays in use until there is another place, so that it is another.
        let mut failed = Vec::new();
        while let Err(error) = copy.wait().await {
            failed.push(copy);
            let again = matches!(error, FsError::Store(StoreError::Device(_))) && failed.len() < PLACES_MAX;
            let elsewhere = again.then(|| self.store.try_reserve(blocks)).flatten();
            let room = elsewhere.and_then(|mut more| Room::find(self, &mut more, &row, blocks));
            copy = room.ok_or(error)?.write(&row.extents, contents.clone());
        }
        self.store.give_way();
        let _room = self.store.admit(Admission::Shrink).await?;
        if copy.name(&inode, &row.extents, &contents, generation).await? {
            done.moved_bytes = blocks * BLOCK;
            self.counters.defragmented_bytes.add(done.moved_bytes);
        } else {
            done.overtaken_bytes = blocks * BLOCK;
        }
        Ok(done)
    }
}

/// The first row of small fragments from block `first` on, within one step.
async fn find_row(fs: &Filesystem, ino: Ino, first: u64, end: u64, unshare: bool) -> Result<Row, FsError> {
    let until = end.min((first / STEP_BLOCKS + 1) * STEP_BLOCKS);
    let next = (until < end).then_some(until);
    if first >= until {
        return Ok(Row { extents: Vec::new(), before: None, after: None, next });
    }
    let found = lookup::all(&fs.store, ino, first, until).await?;
    let follows = |one: &Extent, other: &Extent| {
        one.run().end() == other.addr && one.packed.is_some() == other.packed.is_some()
    };
    let fragments: Vec<&[Extent]> = found.chunk_by(follows).collect();
    let movable = |fragment: &&[Extent]| {
        let small = fragment.iter().map(Extent::blocks).sum::<u64>() < LARGE_BLOCKS;
        // A compressed unit is small already, and parts of one may lie on the same blocks.
        let plain = fragment.iter().all(|extent| extent.packed.is_none());
        small && plain && (unshare || !fragment.iter().any(|extent| extent.shared))
    };
    let mut rows = fragments.chunk_by(|one, other| movable(one) == movable(other));
    let Some(row) = rows.find(|row| row.len() > 1 && movable(&row[0])) else {
        return Ok(Row { extents: Vec::new(), before: None, after: None, next });
    };
    let extents = row.concat();
    let (start, stop) = (extents[0].file_block, extents[extents.len() - 1].end());
    let around = start.saturating_sub(EXTENT_BLOCKS_MAX)..(stop + EXTENT_BLOCKS_MAX).min(FILE_BLOCKS_MAX);
    let before = lookup::all(&fs.store, ino, around.start, start).await?;
    let after = lookup::some(&fs.store, ino, stop, around.end, 1).await?.extents;
    Ok(Row {
        extents,
        before: before.last().map(|extent| extent.run().end()),
        after: after.first().map(|extent| extent.addr),
        next: (stop < end).then_some(stop),
    })
}

/// The contents of these extents, each compared with its checksums.
async fn read(fs: &Filesystem, extents: &[Extent]) -> Result<Vec<Bytes>, FsError> {
    let reads = extents.iter().map(|extent| fs.store.read_data(extent.run(), &extent.checksums)).collect();
    let read: Result<Vec<Bytes>, _> = join_all(reads, READS_IN_FLIGHT).await.into_iter().collect();
    Ok(read?)
}

/// Room that was found and is not written yet; given back when dropped.
struct Room<'a> {
    fs: &'a Filesystem,
    runs: Vec<BlockRun>,
}

impl<'a> Room<'a> {
    /// Room in which the row has fewer fragments, with what lies before and after it.
    fn find(fs: &'a Filesystem, reservation: &mut Reservation, row: &Row, blocks: u64) -> Option<Self> {
        let starts = |first: u64, before: Option<u64>| u64::from(before != Some(first));
        let fragments = row.extents.chunk_by(|one, other| one.run().end() == other.addr).count() as u64;
        let last = row.extents.last()?.run().end();
        let now = fragments - 1
            + starts(row.extents[0].addr, row.before)
            + row.after.map_or(0, |after| starts(after, Some(last)));
        let mut room = Self { fs, runs: Vec::new() };
        let mut missing = blocks;
        while missing > 0 {
            let near = room.runs.last().map(|run: &BlockRun| run.end()).or(row.before);
            room.runs.push(fs.store.allocate(reservation, missing, near).ok()?);
            missing -= room.runs.last()?.blocks;
            if room.runs.len() as u64 > now {
                return None;
            }
        }
        let scattered = room.runs.windows(2).filter(|pair| pair[0].end() != pair[1].start).count() as u64;
        let then = scattered
            + starts(room.runs[0].start, row.before)
            + row.after.map_or(0, |after| starts(after, room.runs.last().map(|run| run.end())));
        (then < now).then_some(room)
    }

    /// Starts writing the contents of the extents there.
    fn write(&mut self, extents: &[Extent], contents: Vec<Bytes>) -> Copy<'a> {
        let mut numbers = extents.iter().flat_map(|extent| extent.file_block..extent.end());
        let mut blocks = contents.iter().flat_map(|bytes| {
            (0..bytes.len()).step_by(BLOCK as usize).map(|at| bytes.slice(at..at + BLOCK as usize))
        });
        let mut copy = Copy { fs: self.fs, placements: Vec::new() };
        for run in std::mem::take(&mut self.runs).into_iter().flat_map(|run| run.pieces(WRITE_BLOCKS_MAX)) {
            let count = run.blocks as usize;
            let write = self.fs.store.write_data(run, blocks.by_ref().take(count).collect());
            copy.placements.push(Placement::plain(write, numbers.by_ref().take(count)));
        }
        copy
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.runs.iter().for_each(|run| self.fs.store.give_back(*run));
    }
}

/// Blocks written and not named; given back when dropped.
struct Copy<'a> {
    fs: &'a Filesystem,
    placements: Vec<Placement>,
}

impl Copy<'_> {
    /// Waits for all writes.
    async fn wait(&self) -> Result<(), FsError> {
        for placement in &self.placements {
            placement.write.wait().await?;
        }
        Ok(())
    }

    /// Names the copy in place of `old`; false if these are not the file's extents any more, with the contents that they had when the
    /// newest superblock was of `generation`.
    async fn name(
        &mut self,
        inode: &Arc<Inode>,
        old: &[Extent],
        contents: &[Bytes],
        generation: u64,
    ) -> Result<bool, FsError> {
        let _lease = inode.lease.write().await;
        self.fs.require_present(inode)?;
        let ranges = plan::ranges(old);
        let present = lookup::overlapping(&self.fs.store, inode.ino, &ranges).await?;
        let mut present =
            present.iter().filter(|extent| ranges.iter().any(|range| range.contains(&extent.file_block)));
        if !old.iter().all(|extent| present.next() == Some(extent)) || present.next().is_some() {
            return Ok(false);
        }
        // What is freed goes to others when a superblock says so, and not before: then the same extents may be of other contents.
        if self.fs.store.superblock().generation != generation && read(self.fs, old).await? != contents {
            return Ok(false);
        }
        let shares = reflink::hold(self.fs, old).await?;
        let mut naming = Naming::default();
        self.placements.iter().for_each(|placement| {
            placement.name(&mut naming, |_| true);
        });
        let mut change = submit::unchanged(inode);
        change.name(old, naming);
        // Only addresses change: what is logged of these blocks, and newer, stays.
        change.extents.cleared.clear();
        transact::commit_noting(self.fs, smallvec![change], shares, &mut Submitted::default())?;
        self.placements.clear();
        Ok(true)
    }
}

impl Drop for Copy<'_> {
    fn drop(&mut self) {
        place::abandon(self.fs, &self.placements);
    }
}
