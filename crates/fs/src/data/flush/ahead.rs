//! Placing blocks that syncs have logged, before a sync has to do it.
//!
//! A file may have only so many blocks that are in the log and have no place (`unplaced`). A sync
//! that finds that many has to place them all and wait for their writes, which takes several times
//! as long as the syncs before it. So from a fraction of that number on, a task writes the blocks
//! to a place while syncs continue, and holds nothing of the file. When the writes have ended, it
//! takes the file's `writeback` and its lease, only for as long as it takes to name the blocks.
//!
//! Invariant: a block is named only with the contents that its items have. If a block was written
//! again, cut off, or placed otherwise meanwhile, its newest contents are elsewhere, and the place
//! is given back.

use super::choose::UNPLACED_MAX;
use super::{transact, writeback};
use crate::FsError;
use crate::data::effects::{FileChange, SizeChange};
use crate::data::extents::lookup;
use crate::data::extents::place::{self, Naming, Placement};
use crate::data::extents::shares;
use crate::data::memory::block::Block;
use crate::data::memory::ranges::number_ranges;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::receipt::Submitted;
use smallvec::smallvec;
use std::collections::BTreeSet;
use std::sync::Arc;
use syncline_format::items::inode::compression_of;
use syncline_store::{Admission, Admitted, Canary};
use syncline_sync::atomic::{AtomicU64, Ordering};

/// Most files whose blocks are placed at a time. A block that is rewritten meanwhile is in memory
/// twice until its task ends.
const FILES_AT_ONCE: u64 = 16;

/// Free blocks that must remain: more than all tasks together can take.
const ROOM: u64 = 4096;
const _: () = assert!(FILES_AT_ONCE * UNPLACED_MAX < ROOM);

/// Number of tasks that are running.
#[derive(Default)]
pub(crate) struct Ahead(AtomicU64);

impl Ahead {
    pub(in crate::data) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Starts a task after a sync has logged `logged` blocks of a file, if enough have no place and no
/// task is running for it.
pub(in crate::data) fn begin(fs: &Filesystem, inode: &Arc<Inode>, logged: u64) {
    if !take_turn(fs, &mut inode.state.lock(), logged) {
        return;
    }
    let task = Task { fs: fs.arc(), inode: inode.clone() };
    fs.spawn.spawn(Box::pin(async move { task.run().await }));
}

fn take_turn(fs: &Filesystem, state: &mut InodeState, logged: u64) -> bool {
    let (data, ahead) = (&mut state.data, fs.options.place_ahead_blocks);
    // Blocks have been placed otherwise since a task failed.
    let unplaced = data.logged.unplaced().len();
    if unplaced < data.progress.place_from().saturating_sub(ahead) {
        data.progress.set_place_from(0);
    }
    // Most of a task's cost does not depend on its blocks, so large syncs gather for it as small ones.
    let enough = ahead.max((ahead / 2).saturating_mul(logged));
    let due = unplaced >= data.progress.place_from().max(enough);
    let busy = data.progress.is_placing() || fs.data.queue.is_stopping();
    // Blocks that are to be compressed wait until there are whole units.
    if !due || busy || compression_of(state.meta.flags).is_some() {
        return false;
    }
    let is_free = |tasks| (tasks < FILES_AT_ONCE).then_some(tasks + 1);
    let has_turn = fs.data.ahead.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_free).is_ok();
    data.progress.set_placing(has_turn);
    has_turn
}

/// The right to place a file's blocks, until it is dropped.
struct Task {
    fs: Arc<Filesystem>,
    inode: Arc<Inode>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.inode.state.lock().data.progress.set_placing(false);
        self.fs.data.ahead.end();
        self.fs.data.queue.note_progress();
    }
}

/// Blocks at their places, or being written there. When dropped, it gives back those that were not
/// named.
struct Written<'a> {
    fs: &'a Filesystem,
    blocks: Vec<(u64, Block)>,
    placements: Vec<Placement>,
    /// Held until everything is named: the room that was reserved for names went when the blocks
    /// were allocated.
    _names: Admitted,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        place::abandon(self.fs, &self.placements);
    }
}

impl Task {
    async fn run(&self) {
        let result = self.place().await;
        let data = &mut self.inode.state.lock().data;
        data.progress.set_place_from(0);
        if let Err(error) = result {
            // The blocks are in the log and in memory as before, and the caller that must place them gets
            // the error. The next task starts only when there are more blocks, not with each sync.
            tracing::debug!(ino = self.inode.ino, %error, "logged blocks stay without a place");
            let from = data.logged.unplaced().len().saturating_add(self.fs.options.place_ahead_blocks);
            data.progress.set_place_from(from);
        }
    }

    async fn place(&self) -> Result<(), FsError> {
        let Some(written) = self.write()? else { return Ok(()) };
        for placement in &written.placements {
            placement.write.wait().await?;
        }
        self.name(written).await
    }

    /// Starts writing all logged blocks, if there is room beside what is promised. A block that the
    /// file ends within is left out: an append would rewrite it, and leave a hole between what is
    /// placed now and what is placed next.
    fn write(&self) -> Result<Option<Written<'_>>, FsError> {
        let fs = &*self.fs;
        let (blocks, near) = {
            let state = self.inode.state.lock();
            let mut blocks = state.data.blocks.logged();
            blocks.retain(|(number, _)| *number < state.attr.size / crate::data::memory::BLOCK);
            (blocks, state.data.layout.near())
        };
        // The blocks have room reserved already; until they are named, they take it twice.
        if !fs.store.is_roomy(ROOM) {
            return Ok(None);
        }
        let Some(mut reservation) = fs.store.try_reserve(blocks.len() as u64) else { return Ok(None) };
        let placements = place::place(fs, &mut reservation, &blocks, near)?;
        if let Some(last) = placements.last() {
            self.inode.state.lock().data.layout.set_near(last.write.run().end());
        }
        let names = fs.store.promise(writeback::names_of(placements.len()));
        Ok(Some(Written { fs, blocks, placements, _names: names }))
    }

    /// Names the blocks whose contents are still those that were written.
    async fn name(&self, mut written: Written<'_>) -> Result<(), FsError> {
        let (fs, inode) = (&*self.fs, &self.inode);
        let writeback = inode.state.lock().data.writeback();
        let _writeback = writeback.lock().await;
        let _room = fs.store.admit(Admission::Finish).await?;
        let _lease = inode.lease.write().await;
        // Nothing of this can change while the lease is held.
        let (numbers, ranges) = {
            let state = inode.state.lock();
            let numbers: BTreeSet<u64> = still_logged(fs, &state, &written.blocks).collect();
            let extent_end = state.data.layout.extent_end();
            let ranges = number_ranges(numbers.iter().copied().filter(|&number| number < extent_end));
            (numbers, ranges)
        };
        let old = lookup::overlapping(&fs.store, inode.ino, &ranges).await?;
        let shares = shares::hold(fs, &old).await?;
        // From here on nothing waits.
        let (mut naming, mut stale) = (Naming::default(), Vec::new());
        for placement in &written.placements {
            let runs = placement.name(&mut naming, |number| numbers.contains(&number));
            stale.extend(runs.into_iter().map(|run| (placement.write.clone(), run)));
        }
        if numbers.is_empty() {
            return Ok(());
        }
        let taken = inode.state.lock().data.blocks.take_each(numbers);
        let mut change = FileChange { size: SizeChange::Placed, ..FileChange::nothing(inode) };
        change.name(&old, naming);
        fs.store.give_way();
        if let Err(error) = transact::commit_noting(fs, smallvec![change], shares, &mut Submitted::default())
        {
            inode.state.lock().data.blocks.restore_logged(taken);
            return Err(error);
        }
        fs.store.give_way();
        written.placements.clear();
        fs.counters.placed_ahead.add(taken.len() as u64);
        fs.counters.writeback_bytes.add(taken.len() as u64 * crate::data::memory::BLOCK);
        for (write, run) in stale {
            fs.counters.stale_bytes.add(run.len_bytes());
            fs.store.abandon(&write, run);
        }
        let placed = taken.iter().map(|(number, block)| (*number, block));
        fs.data.cached.add(inode, placed, fs.options.kept_bytes_max);
        let mut state = inode.state.lock();
        state.data.add_reservation(None);
        fs.data.queue.account(&mut state.data);
        state.attr.blocks = state.data.visible_units(state.attr.size);
        Ok(())
    }
}

/// The blocks among `blocks` whose items still have these contents.
fn still_logged<'a>(
    fs: &'a Filesystem,
    state: &'a InodeState,
    blocks: &'a [(u64, Block)],
) -> impl Iterator<Item = u64> + 'a {
    let blocks = if state.removing { &[] } else { blocks };
    let data = &state.data;
    let same = |number, block| {
        let known = data.logged.unplaced().contains(number) && data.blocks.has_logged(number, block);
        known || fs.store.breaks(Canary::PlaceStale) && data.blocks.is_dirty(number)
    };
    blocks.iter().filter_map(move |(number, block)| same(*number, block).then_some(*number))
}
