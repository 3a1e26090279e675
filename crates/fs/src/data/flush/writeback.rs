//! Background write-back of dirty data: place, write, wait, then name the blocks that are still
//! valid.
//!
//! Nothing of the file is locked while the writes are in flight. Afterwards only the blocks that
//! are still valid are named. Blocks that a truncation removed meanwhile are given back. Blocks
//! that were written again meanwhile are named with their older contents, which no transaction has
//! overtaken (submissions of an inode exclude each other), and stay dirty with the newer contents.
//!
//! This is where data is compressed, if the file asks for it: between taking the blocks and placing
//! them, with nothing locked.

use super::{ended, start, transact};
use crate::FsError;
use crate::data::effects::{FileChange, SizeChange};
use crate::data::extents::place::{self, Naming, Placement};
use crate::data::extents::room::make_up_reservation;
use crate::data::extents::shares;
use crate::data::extents::shares::Shares;
use crate::data::extents::{lookup, pack};
use crate::data::memory::block::Block;
use crate::data::memory::ranges::number_ranges;
use crate::data::memory::submission::Aim;
use crate::data::memory::unplaced;
use crate::data::memory::{DataState, page_end, page_start};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::receipt::Submitted;
use smallvec::smallvec;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Extent, piece_start};
use syncline_store::{Admission, Canary, ChangeSize, Reservation, StoreError};

/// Most blocks of one inode in flight at a time when its data is compressed before writing: 4 MiB.
const PACKED_ROUND_BLOCKS: u64 = 1024;
/// Number of places at which a block is tried before the write fails.
pub(in crate::data) const PLACES_MAX: usize = 4;
/// Most new extents of one transaction, and so about the most old ones that it replaces.
const EXTENTS_MAX: usize = 256;
/// Bytes of an item that names a block, and the number of such items in a node.
pub(in crate::data) const NAME_BYTES: u64 = 176;
const NAMES_IN_NODE: u64 = 32;

/// Writes back the data of a file that is dirty now. A failure is remembered for the next fsync
/// (promise P5); the data stays dirty.
pub(crate) async fn write_back(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    let result = write_back_once(fs, inode).await;
    let first = {
        let failures = &mut inode.state.lock().data.failures;
        match &result {
            // Otherwise nothing was dirty, perhaps because a sync has it in flight, which may fail.
            Ok(wrote) => {
                if *wrote {
                    failures.end_unwritten();
                }
                None
            }
            Err(error) => failures.add_unwritten(error.clone()).then_some(error),
        }
    };
    if first.is_some() {
        fs.counters.writeback_errors.add(1);
    }
    if let Some(error) = first.filter(|error| !is_end(fs, error)) {
        // It is tried again for as long as the device fails, which is told once.
        let fate = match fs.store.writable() {
            Ok(()) => "is tried again",
            Err(_) => "its unsynced data is lost",
        };
        tracing::error!(
            ino = inode.ino,
            %error,
            "a file could not be written back, and {fate}; 'syncline path DIR INODE' names it"
        );
    }
    result.map(|_| ())
}

/// True if the store has ended, which is told once.
fn is_end(fs: &Filesystem, error: &FsError) -> bool {
    matches!(error, FsError::Store(error) if fs.store.is_end(error))
}

/// True if there was something to write.
pub(in crate::data) async fn write_back_once(fs: &Filesystem, inode: &Arc<Inode>) -> Result<bool, FsError> {
    if inode.state.lock().is_settled(Aim::Place) {
        return Ok(false);
    }
    let mut wrote = false;
    let writeback = inode.state.lock().data.writeback();
    let mut held = writeback.lock().await;
    'submission: loop {
        let (mut first, end, small) = {
            let mut state = inode.state.lock();
            let small = state.attr.size <= fs.limits.inline_bytes as u64;
            (0, state.begin_submission(), small)
        };
        fs.store.give_way();
        if small || end == 0 {
            let submitted = submit_small(fs, inode).await?;
            ended::require_size(fs, inode);
            return Ok(wrote || submitted);
        }
        wrote = true;
        while first < end {
            first = round(fs, inode, first..end, Way::WriteBack, &mut Submitted::default()).await?;
            if first < end && fs.store.is_standing_still() {
                // Whoever stands still submits the rest, and need not wait for all rounds.
                drop(held);
                fs.store.pass_gate().await;
                held = writeback.lock().await;
                continue 'submission;
            }
        }
        if ended::has_ended(fs, inode) {
            return Ok(wrote);
        }
    }
}

/// Places the logged blocks, for operations that look at extents.
pub(in crate::data) async fn place_logged(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    unplaced::require_whole(inode)?;
    let some = inode.state.lock().data.logged.unplaced().len() > 0;
    if some && fs.store.writable().is_ok() { write_back(fs, inode).await } else { Ok(()) }
}

/// Submits a small file, which lies in its inode item: it has no data to write beside that. True if there
/// was something to submit.
async fn submit_small(fs: &Filesystem, inode: &Arc<Inode>) -> Result<bool, FsError> {
    let _room = fs.store.admit(Admission::Finish).await?;
    let _lease = inode.lease.write().await;
    if inode.state.lock().is_clean(Aim::Place) {
        return Ok(false);
    }
    // If the file has grown meanwhile, the rest is due again soon enough.
    let blocks = 0..page_end(fs.options.parallel_blocks);
    start::submit(fs, &[start::Submission { inode, blocks, aim: Aim::Place }], &mut Submitted::default())
        .await?;
    Ok(true)
}

/// The kind of submission that a round belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Write-back: nothing that was dirty when the submission began lies past the end of the range.
    WriteBack,
    /// A submission that a caller waits for: blocks past the end of the range go in parallel with
    /// the batch. Only whole units are compressed, so that a small sync never waits for
    /// compression.
    BeforeLog,
}

/// Writes back the first dirty blocks of a range and returns the block to continue with. The
/// inode's `writeback` is held; its lease is not.
///
/// Blocks that the device does not take are written to another place: one bad sector is no reason
/// to fail a program's sync.
pub(crate) async fn round(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
    way: Way,
    note: &mut Submitted,
) -> Result<u64, FsError> {
    for _ in 1..PLACES_MAX {
        match round_once(fs, inode, blocks.clone(), way, note).await {
            Err(ref whole @ FsError::Store(StoreError::Device(ref error))) if !is_end(fs, whole) => {
                tracing::warn!(ino = inode.ino, "{error}; writing this data elsewhere");
            }
            ended => return ended,
        }
    }
    round_once(fs, inode, blocks, way, note).await
}

async fn round_once(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
    way: Way,
    note: &mut Submitted,
) -> Result<u64, FsError> {
    let room = fs.store.admit(Admission::Finish).await?;
    let algorithm = pack::algorithm(inode);
    let end = blocks.end;
    let (mut flight, next) = {
        let _lease = inode.lease.write().await;
        make_up_reservation(fs, inode).await?;
        match algorithm {
            None => take_off(fs, inode, blocks)?,
            Some(_) => take(fs, inode, blocks),
        }
    };
    // Held until everything is named: the room that was reserved for names went when the blocks
    // were allocated.
    let _names = fs.store.promise(names_of(flight.placements.len() + flight.waiting.len()));
    drop(room);
    if let Some(algorithm) = algorithm {
        flight.pack(algorithm, way == Way::BeforeLog).await?;
    }
    let all = way == Way::WriteBack;
    let written = flight.wait().await;
    place::note(&flight.placements, note);
    note.blocks_before_log = note.blocks;
    let _room = fs.store.admit(Admission::Finish).await?;
    let _lease = inode.lease.write().await;
    flight.land(all && next == end && written.is_ok(), note).await?;
    written?;
    Ok(next)
}

/// The size of a change that names this many runs of a file: their items are neighbours, in few
/// nodes.
pub(in crate::data) fn names_of(runs: usize) -> ChangeSize {
    let runs = runs as u64;
    ChangeSize::with(runs / NAMES_IN_NODE, runs * NAME_BYTES)
}

/// Blocks in flight. When dropped, it makes those that were not named dirty again.
struct Flight<'a> {
    fs: &'a Filesystem,
    inode: &'a Arc<Inode>,
    /// Blocks that are written or being written, and not named.
    placements: Vec<Placement>,
    /// Blocks in flight that are not placed yet; `reservation` is the room for them.
    waiting: Vec<(u64, Block)>,
    reservation: Reservation,
}

/// The end of a round of at most `max` blocks, or a few more: it never cuts a page (P9).
fn round_end(fs: &Filesystem, data: &DataState, blocks: Range<u64>, max: u64) -> u64 {
    if fs.store.breaks(Canary::PageCut) {
        return data.blocks.numbers(blocks.clone()).nth(max as usize - 1).map_or(blocks.end, |last| last + 1);
    }
    data.round_end(blocks, max)
}

/// Moves dirty blocks into flight, to be placed later.
fn take<'a>(fs: &'a Filesystem, inode: &'a Arc<Inode>, blocks: Range<u64>) -> (Flight<'a>, u64) {
    let mut state = inode.state.lock();
    let most = fs.options.round_blocks.clamp(1, PACKED_ROUND_BLOCKS);
    let next = round_end(fs, &state.data, blocks.clone(), most);
    let size = state.attr.size;
    let (waiting, reservation) = state.data.take_dirty(size, blocks.start..next);
    state.data.take_off(waiting.iter().map(|(number, block)| (*number, block.share())), size);
    fs.data.queue.account(&mut state.data);
    drop(state);
    (Flight { fs, inode, placements: Vec::new(), waiting, reservation }, next)
}

/// Moves dirty blocks into flight and starts writing them.
fn take_off<'a>(
    fs: &'a Filesystem,
    inode: &'a Arc<Inode>,
    blocks: Range<u64>,
) -> Result<(Flight<'a>, u64), FsError> {
    let most = fs.options.round_blocks.max(1);
    let (taken, mut reservation, size, near, next) = {
        let mut state = inode.state.lock();
        let next = round_end(fs, &state.data, blocks.clone(), most);
        let size = state.attr.size;
        let near = state.data.layout.near();
        let (taken, reservation) = state.data.take_dirty(size, blocks.start..next);
        (taken, reservation, size, near, next)
    };
    let placed = place::place(fs, &mut reservation, &taken, near);
    let mut state = inode.state.lock();
    let result = match placed {
        Ok(placements) => {
            state.data.take_off(taken, size);
            if let Some(last) = placements.last() {
                state.data.layout.set_near(last.write.run().end());
            }
            let (waiting, reservation) = (Vec::new(), Reservation::default());
            Ok((Flight { fs, inode, placements, waiting, reservation }, next))
        }
        Err(error) => {
            state.data.blocks.restore(taken);
            Err(error)
        }
    };
    fs.data.queue.account(&mut state.data);
    result
}

impl Flight<'_> {
    /// Compresses the waiting blocks, as far as that helps, and starts writing them. Blocks that
    /// were truncated meanwhile are written in vain; `land` finds that out.
    async fn pack(&mut self, algorithm: Algorithm, whole: bool) -> Result<(), FsError> {
        let cargo = pack::pack(self.fs, self.inode, algorithm, whole, &self.waiting).await;
        // From here to the end nothing waits.
        let near = self.inode.state.lock().data.layout.near();
        self.placements = place::place_all(self.fs, &mut self.reservation, cargo, near)?;
        self.waiting.clear();
        self.reservation = Reservation::default();
        if let Some(last) = self.placements.last() {
            self.inode.state.lock().data.layout.set_near(last.write.run().end());
        }
        Ok(())
    }

    /// Waits for all writes. Blocks whose write failed become dirty again, with the rest of their
    /// pages and units; the first failure is returned.
    async fn wait(&mut self) -> Result<(), FsError> {
        let mut result = Ok(());
        let mut failed = Vec::new();
        for index in 0..self.placements.len() {
            // By index: if this wait is given up, `drop` must find the placements in their list.
            if let Err(error) = self.placements[index].write.wait().await {
                failed.push(index);
                result = result.and(Err(error.into()));
            }
        }
        for index in failed.into_iter().rev() {
            let placement = self.placements.remove(index);
            self.give_up(&placement);
        }
        result
    }

    /// Names the blocks that are still valid. With `all`, the submission ends with this. The
    /// inode's lease is held for writing.
    async fn land(&mut self, all: bool, note: &mut Submitted) -> Result<(), FsError> {
        if all && self.placements.is_empty() {
            // A truncation has left nothing to name. But an earlier round may have logged a size
            // below the floor, because blocks below the floor were written again while it was in
            // flight.
            return self.name(0, &[], Shares::default(), all, note);
        }
        while !self.placements.is_empty() {
            let unit = self.next_unit();
            let numbers = self.placements[..unit].iter().flat_map(Placement::numbers);
            let ranges = {
                let extent_end = self.inode.state.lock().data.layout.extent_end();
                number_ranges(numbers.filter(|&number| number < extent_end))
            };
            let old = lookup::overlapping(&self.fs.store, self.inode.ino, &ranges).await?;
            let shares = shares::hold(self.fs, &old).await?;
            self.name(unit, &old, shares, all && unit == self.placements.len(), note)?;
        }
        Ok(())
    }

    /// The number of placements that fit one transaction, or a few more: it never cuts a page (P9).
    fn next_unit(&self) -> usize {
        let most = EXTENTS_MAX.min(self.fs.options.extents_at_once);
        let (mut extents, mut last) = (0, None);
        for (index, placement) in self.placements.iter().enumerate() {
            let mut naming = Naming::default();
            placement.name(&mut naming, |_| true);
            let page = placement.numbers().next().map(page_start);
            let cuts = last == page && !self.fs.store.breaks(Canary::PageCut);
            if extents + naming.extents.len() > most && index > 0 && !cuts {
                return index;
            }
            extents += naming.extents.len();
            last = placement.numbers().last().map(page_start);
        }
        self.placements.len()
    }

    /// Commits the transaction that names the first `unit` placements. It never waits.
    fn name(
        &mut self,
        unit: usize,
        old: &[Extent],
        shares: Shares<'_>,
        all: bool,
        note: &mut Submitted,
    ) -> Result<(), FsError> {
        let (mut naming, mut stale) = (Naming::default(), Vec::new());
        let landed = {
            let mut state = self.inode.state.lock();
            for placement in &self.placements[..unit] {
                let runs = placement.name(&mut naming, |number| state.data.blocks.is_in_flight(number));
                stale.extend(runs.into_iter().map(|run| (placement.write.clone(), run)));
            }
            state.data.blocks.land(self.placements[..unit].iter().flat_map(Placement::numbers))
        };
        let placed = self.placements[..unit].iter().map(|placement| placement.write.run().len_bytes());
        let written = placed.sum::<u64>() - stale.iter().map(|(_, run)| run.len_bytes()).sum::<u64>();
        self.fs.store.give_way();
        let (short, reach) = {
            let InodeState { data, attr, .. } = &*self.inode.state.lock();
            let numbers: Vec<u64> = landed.iter().map(|(number, _)| *number).collect();
            (all && data.logged.size() < data.progress.floor().min(attr.size), data.reach(&numbers))
        };
        if short || !naming.extents.is_empty() {
            let size = SizeChange::Submitted { all, reach };
            let mut change = FileChange { size, ..FileChange::nothing(self.inode) };
            change.name(old, naming);
            if let Err(error) = transact::commit_noting(self.fs, smallvec![change], shares, note) {
                // Back into flight, where `drop` finds them.
                self.inode.state.lock().data.blocks.unland(landed);
                return Err(error);
            }
        }
        self.fs.store.give_way();
        self.placements.drain(..unit);
        self.fs.counters.writeback_bytes.add(written);
        for (write, run) in stale {
            self.fs.counters.stale_bytes.add(run.len_bytes());
            self.fs.store.abandon(&write, run);
        }
        let placed = landed.iter().filter_map(|(number, block)| Some((*number, block.as_ref()?)));
        self.fs.data.cached.add(self.inode, placed, self.fs.options.kept_bytes_max);
        let mut state = self.inode.state.lock();
        state.data.add_reservation(None);
        self.fs.data.queue.account(&mut state.data);
        state.attr.blocks = state.data.visible_units(state.attr.size);
        Ok(())
    }

    /// Makes the blocks of a placement dirty again, unless they are gone or newer contents are
    /// dirty. It does the same to the other blocks of their pages, which must not be named without them (P9), and
    /// of their compressed units, which are named as a whole.
    fn give_up(&self, placement: &Placement) {
        place::abandon(self.fs, std::slice::from_ref(placement));
        let mut state = self.inode.state.lock();
        if self.fs.store.breaks(Canary::PageCut) {
            return self.give_back(&mut state.data, placement.numbers());
        }
        let mut units: Vec<u64> = placement.numbers().map(piece_start).collect();
        units.dedup();
        let blocks = units.into_iter().flat_map(|first| first..first + EXTENT_BLOCKS_MAX);
        self.give_back(&mut state.data, blocks);
    }

    /// Makes those of the blocks dirty again that are still in flight.
    fn give_back(&self, data: &mut DataState, numbers: impl Iterator<Item = u64>) {
        data.blocks.give_back(numbers);
        self.fs.data.queue.note_dirty(self.fs, self.inode, data);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        for placement in std::mem::take(&mut self.placements) {
            self.give_up(&placement);
        }
        let waiting = std::mem::take(&mut self.waiting);
        if !waiting.is_empty() {
            let mut state = self.inode.state.lock();
            self.give_back(&mut state.data, waiting.iter().map(|(number, _)| *number));
        }
        let mut state = self.inode.state.lock();
        state.data.progress.end_flight();
        self.fs.data.queue.account(&mut state.data);
    }
}
