//! Defragmenting: blocks that lie scattered on the device are rewritten together.
//!
//! It works like a write-back of old contents: they are copied to a new place without any lock, and
//! one transaction, under the inode's lease, names the new place if the file still has exactly the
//! extents that were read. If a writer was faster, its data stays and the copy is given back.
//! Contents, size and times never change.

use crate::FsError;
use crate::data::effects::FileChange;
use crate::data::extents::place::{self, Naming, Placement};
use crate::data::extents::shares;
use crate::data::extents::{lookup, plan};
use crate::data::flush::transact;
use crate::data::flush::writeback;
use crate::data::flush::writeback::PLACES_MAX;
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::join::join_all;
use crate::receipt::Submitted;
use crate::types::Ino;
use bytes::Bytes;
use smallvec::smallvec;
use std::sync::Arc;
use syncline_format::BlockRun;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent, FILE_BLOCKS_MAX};
use syncline_store::{Admission, Reservation, StoreError};

/// Blocks of a file examined in one step: 16 MiB, in memory at a time.
const STEP_BLOCKS: u64 = 4096;
/// A fragment of at least this many blocks (4 MiB) is left where it is: continuing elsewhere after
/// it costs little.
const LARGE_BLOCKS: u64 = 1024;
/// Most blocks of one data write.
const WRITE_BLOCKS_MAX: u64 = 256;
/// Reads in flight at a time.
const READS_IN_FLIGHT: usize = 16;
/// Extents looked up at a time.
const EXTENTS_EACH: usize = 1024;

/// How a file lies on the device. Data that is not written yet does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fragments {
    /// Runs of consecutive device blocks.
    pub fragments: u64,
    /// Blocks in them.
    pub blocks: u64,
}

/// The result of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Defragmented {
    /// The block of the file to continue with, if there are more.
    pub next: Option<u64>,
    /// Bytes that were rewritten.
    pub moved_bytes: u64,
    /// Bytes copied in vain, because the file was written there meanwhile.
    pub overtaken_bytes: u64,
}

/// A row of extents to rewrite, and the places of its neighbours.
struct Row {
    extents: Vec<Extent>,
    /// The end of the preceding extent on the device, if there is one close by: the best place
    /// begins there.
    before: Option<u64>,
    /// The address of the following extent, if there is one close by.
    after: Option<u64>,
    /// The block of the file to continue with.
    next: Option<u64>,
}

impl Filesystem {
    /// How a regular file lies on the device.
    pub async fn fragments(&self, ino: Ino) -> Result<Fragments, FsError> {
        let inode = self.regular(ino).await?;
        writeback::place_logged(self, &inode).await?;
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

    /// Examines a part of a regular file from block `first` on, and rewrites blocks that lie
    /// scattered there in fewer fragments, if there is room for that. Blocks that other files use
    /// too are left alone, unless `unshare`.
    pub async fn defragment(&self, ino: Ino, first: u64, unshare: bool) -> Result<Defragmented, FsError> {
        let inode = self.regular(ino).await?;
        self.store.writable()?;
        writeback::place_logged(self, &inode).await?;
        // Admitted like any writer: not while too much waits for a flush or a checkpoint.
        let room = self.store.admit(Admission::Grow).await?;
        let end = inode.state.lock().attr.size.div_ceil(BLOCK).min(FILE_BLOCKS_MAX);
        let row = find_row(self, ino, first, end, unshare).await?;
        let mut done = Defragmented { next: row.next, ..Defragmented::default() };
        if row.extents.is_empty() {
            return Ok(done);
        }
        let blocks: u64 = row.extents.iter().map(Extent::blocks).sum();
        let mut reservation = self.store.reserve(blocks).await?;
        // Dropped here, or the next admission would wait for this one.
        drop(room);
        let generation = self.store.superblock().generation;
        let (mut room, contents) = {
            // Addresses are used without the lease: the pin keeps any that is found from now on
            // from being reused (rule R2). Under the pin, only the device is waited for. Waiting
            // for room, or for the lease of an operation that waits for room, could mean waiting
            // for blocks that the pin holds back.
            let _pin = self.store.pin();
            if find_row(self, ino, first, end, unshare).await?.extents != row.extents {
                return Ok(Defragmented { overtaken_bytes: blocks * BLOCK, ..done });
            }
            let Some(room) = Room::find(self, &mut reservation, &row, blocks) else { return Ok(done) };
            (room, read(self, ino, &row.extents).await?)
        };
        let mut copy = room.write(&row.extents, contents.clone());
        // Blocks that the device did not take stay allocated until there is another place, so that
        // it is a different one.
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

/// The first row of small fragments at or after block `first`, within one step.
async fn find_row(fs: &Filesystem, ino: Ino, first: u64, end: u64, unshare: bool) -> Result<Row, FsError> {
    // A message may name any block.
    let until = end.min((first / STEP_BLOCKS + 1).saturating_mul(STEP_BLOCKS));
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
        // A compressed unit is small already, and several of its parts may lie on the same blocks.
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

/// Reads the contents of these extents and checks their checksums.
async fn read(fs: &Filesystem, ino: Ino, extents: &[Extent]) -> Result<Vec<Bytes>, FsError> {
    let reads =
        extents.iter().map(|extent| fs.store.read_data(ino, extent.run(), &extent.checksums)).collect();
    let read: Result<Vec<Bytes>, _> = join_all(reads, READS_IN_FLIGHT).await.into_iter().collect();
    Ok(read?)
}

/// Room that is allocated and not written yet; given back when dropped.
struct Room<'a> {
    fs: &'a Filesystem,
    runs: Vec<BlockRun>,
}

impl<'a> Room<'a> {
    /// Allocates room in which the row, together with its neighbours, has fewer fragments than now.
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

    /// Starts writing the contents of the extents into the room.
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

/// Blocks that are written, or being written, and not named; given back when dropped.
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

    /// Names the copy in place of `old`. False if these are no longer the file's extents, with the
    /// contents that they had when the newest superblock was of `generation`.
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
        // Freed blocks are reused only once a superblock says that they are free. So after a new
        // superblock, the same extents may have other contents.
        if self.fs.store.superblock().generation != generation
            && read(self.fs, inode.ino, old).await? != contents
        {
            return Ok(false);
        }
        let shares = shares::hold(self.fs, old).await?;
        let mut naming = Naming::default();
        self.placements.iter().for_each(|placement| {
            placement.name(&mut naming, |_| true);
        });
        let mut change = FileChange::nothing(inode);
        change.name(old, naming);
        // Only addresses change: logged contents of these blocks, which are newer, stay.
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
