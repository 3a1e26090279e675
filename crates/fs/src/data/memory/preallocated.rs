//! Preallocated blocks: room that is set aside for ranges of a file without extents, through
//! remounts and crashes.
//!
//! A preallocated block has no address. A write to it takes its room instead of asking for some,
//! and places the data like any other, on fresh blocks: nothing is ever written in place, and a
//! crash between the data and its batch leaves zeros, since no item ever named a block there. The
//! transaction that names the extent removes the block from the preallocation item.
//!
//! The room is counted in memory as a reservation of the store, which is made again from the items
//! at mount.

use super::ranges::{Ranges, count};
use crate::FsError;
use crate::types::Ino;
use std::collections::{BTreeMap, btree_map::Entry};
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::preallocation::{Preallocation, decode_sum, encode_sum};
use syncline_format::{FormatError, Key, Kind};
use syncline_store::{Reservation, Store, Transaction};
use syncline_sync::Mutex;
use syncline_sync::atomic::{AtomicBool, Ordering};

/// Items read at a time.
const ITEMS_EACH: usize = 1024;
static NO_RANGES: Ranges = Ranges::NONE;

/// The preallocated blocks of a file. Most files never had any.
#[derive(Default)]
pub(crate) struct Preallocated(Option<Box<Blocks>>);

#[derive(Default)]
struct Blocks {
    /// The preallocated blocks, as logged.
    ranges: Ranges,
    /// The preallocated blocks whose room a dirty block has taken.
    taken: Ranges,
}

/// The change that a transaction makes to a file's preallocated blocks.
#[derive(Default)]
pub(crate) struct PreallocatedChange {
    gone: Vec<Range<u64>>,
    gone_taken: Vec<Range<u64>>,
    added: Vec<Range<u64>>,
    /// By first block: the new item's length, or `None` to delete an item.
    items: BTreeMap<u64, Option<u64>>,
}

impl PreallocatedChange {
    /// True when no item changes, as for every file without preallocated blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Preallocated {
    pub(crate) fn blocks(&self) -> u64 {
        self.ranges().blocks()
    }

    /// Number of blocks whose room dirty blocks have taken.
    pub(crate) fn taken_blocks(&self) -> u64 {
        self.0.as_ref().map_or(0, |blocks| blocks.taken.blocks())
    }

    pub(crate) fn ranges(&self) -> &Ranges {
        self.0.as_ref().map_or(&NO_RANGES, |blocks| &blocks.ranges)
    }

    /// True when block 0 is preallocated.
    pub(crate) fn has_first(&self) -> bool {
        !self.ranges().within(&(0..1)).is_empty()
    }

    /// The parts of `blocks`, which become dirty, that have room to take.
    pub(crate) fn untaken(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        self.0.as_ref().map_or(Vec::new(), |mine| mine.untaken(blocks))
    }

    /// Notes that dirty blocks take the room of `blocks`. Returns how many of these had room to
    /// take.
    pub(crate) fn take(&mut self, blocks: &Range<u64>) -> u64 {
        self.0.as_mut().map_or(0, |mine| mine.take(blocks))
    }

    /// Clears blocks, then adds others.
    pub(crate) fn change(&mut self, cleared: &[Range<u64>], added: &[Range<u64>]) -> PreallocatedChange {
        if self.ranges().is_empty() && added.is_empty() {
            return PreallocatedChange::default();
        }
        self.0.get_or_insert_default().change(cleared, added)
    }

    /// Undoes a change that was not committed.
    pub(crate) fn undo(&mut self, change: PreallocatedChange) {
        if let Some(blocks) = &mut self.0 {
            blocks.undo(change);
        }
    }

    /// Puts a change into a transaction.
    pub(crate) fn put(&self, ino: Ino, change: &PreallocatedChange, transaction: &mut Transaction) {
        for (&file_block, &item) in &change.items {
            let key = Key::new(ino, Kind::Preallocation, file_block);
            match item {
                Some(blocks) => transaction.put(key, Preallocation { file_block, blocks }.encode()),
                None => transaction.delete(key),
            }
        }
        if change.is_empty() {
            return;
        }
        let sum = Key::new(0, Kind::Preallocation, ino);
        match self.blocks() {
            0 => transaction.delete(sum),
            blocks => transaction.put(sum, encode_sum(blocks)),
        }
    }
}

impl Blocks {
    fn untaken(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        self.ranges.within(blocks).iter().flat_map(|part| self.taken.gaps(part)).collect()
    }

    fn take(&mut self, blocks: &Range<u64>) -> u64 {
        let untaken = self.untaken(blocks);
        let number = count(&untaken);
        untaken.into_iter().for_each(|part| self.taken.insert(part));
        number
    }

    fn change(&mut self, cleared: &[Range<u64>], added: &[Range<u64>]) -> PreallocatedChange {
        let mut change = PreallocatedChange::default();
        for range in cleared {
            self.note(
                range,
                &mut change,
                |ranges| ranges.remove(range),
                |this, change| {
                    change.gone.extend(this.ranges.within(range));
                    change.gone_taken.extend(this.taken.within(range));
                },
            );
            self.taken.remove(range);
        }
        for range in added {
            self.note(
                range,
                &mut change,
                |ranges| ranges.insert(range.clone()),
                |this, change| {
                    change.added.extend(this.ranges.gaps(range));
                },
            );
        }
        change
    }

    /// Makes one change to the ranges, and notes the changes to the items around it.
    fn note(
        &mut self,
        range: &Range<u64>,
        change: &mut PreallocatedChange,
        make: impl FnOnce(&mut Ranges),
        before: impl FnOnce(&Self, &mut PreallocatedChange),
    ) {
        before(self, change);
        let old = self.ranges.around(range);
        make(&mut self.ranges);
        let new = self.ranges.around(range);
        for gone in old.iter().filter(|old| !new.contains(old)) {
            change.items.insert(gone.start, None);
        }
        for put in new.iter().filter(|new| !old.contains(new)) {
            change.items.insert(put.start, Some(put.end - put.start));
        }
    }

    fn undo(&mut self, change: PreallocatedChange) {
        change.added.iter().for_each(|range| self.ranges.remove(range));
        change.gone.into_iter().for_each(|range| self.ranges.insert(range));
        change.gone_taken.into_iter().for_each(|range| self.taken.insert(range));
    }
}

/// The room of all files' preallocated blocks that no dirty block has taken.
#[derive(Default)]
pub(crate) struct Room {
    inner: Mutex<Inner>,
    /// The superblock says that there may be preallocation items.
    pub(crate) enabled: AtomicBool,
}

#[derive(Default)]
struct Inner {
    /// Number of blocks that the room is for.
    blocks: u64,
    /// Reserves that many blocks, and a share for the cost of naming them.
    reservation: Reservation,
    /// Preallocated blocks of each file that has some.
    files: BTreeMap<Ino, u64>,
}

/// `blocks` and the cost of naming each of them by itself.
pub(crate) fn with_share(blocks: u64) -> u64 {
    blocks + blocks.div_ceil(16)
}

impl Inner {
    /// Gives back what exceeds the need.
    fn trim(&mut self) {
        let excess = self.reservation.blocks().saturating_sub(with_share(self.blocks));
        drop(self.reservation.split(excess));
    }
}

impl Room {
    /// Sets aside the room that the items of an image ask for, at mount.
    pub(crate) async fn load(&self, store: &Arc<Store>) -> Result<(), FsError> {
        let mut files = BTreeMap::new();
        let (mut from, to) =
            (Key::new(0, Kind::Preallocation, 0), Key::new(0, Kind::Preallocation, u64::MAX));
        loop {
            let chunk = store.scan(from, to, ITEMS_EACH).await?;
            for (key, value) in &chunk.items {
                let blocks =
                    decode_sum(value).map_err(|detail| FsError::Corrupt { ino: key.offset, detail })?;
                files.insert(key.offset, blocks);
            }
            match chunk.items.last().and_then(|(key, _)| key.next()) {
                Some(next) if !chunk.complete && next <= to => from = next,
                _ => break,
            }
        }
        // There can't be more of them than the image has blocks, whatever its items say.
        let most = store.geometry().total_blocks;
        let blocks = files.values().fold(0, |sum: u64, &blocks| sum.saturating_add(blocks).min(most));
        let mut inner = self.inner.lock();
        inner.reservation = store.reserve_again(with_share(blocks));
        inner.blocks = blocks;
        inner.files = files;
        Ok(())
    }

    /// The preallocated blocks of an inode that is loaded.
    pub(crate) async fn of(&self, store: &Store, ino: Ino) -> Result<Preallocated, FsError> {
        if !self.inner.lock().files.contains_key(&ino) {
            return Ok(Preallocated::default());
        }
        let mut blocks = Box::<Blocks>::default();
        let (mut from, to) =
            (Key::new(ino, Kind::Preallocation, 0), Key::new(ino, Kind::Preallocation, u64::MAX));
        loop {
            let chunk = store.scan(from, to, ITEMS_EACH).await?;
            for (key, value) in &chunk.items {
                let item = Preallocation::decode(key.offset, value)
                    .map_err(|detail| FsError::Corrupt { ino, detail })?;
                let range = item.file_block..item.end();
                if !blocks.ranges.around(&range).is_empty() {
                    let detail = FormatError::Field { structure: "preallocation", field: "overlap" };
                    return Err(FsError::Corrupt { ino, detail });
                }
                blocks.ranges.insert(range);
            }
            match chunk.items.last().and_then(|(key, _)| key.next()) {
                Some(next) if !chunk.complete && next <= to => from = next,
                _ => return Ok(Preallocated(Some(blocks))),
            }
        }
    }

    /// Number of blocks for which room is set aside.
    pub(crate) fn blocks(&self) -> u64 {
        self.inner.lock().blocks
    }

    /// Takes room for blocks that become dirty.
    pub(crate) fn take(&self, blocks: u64) -> Option<Reservation> {
        if blocks == 0 {
            return None;
        }
        let mut inner = self.inner.lock();
        inner.blocks = inner.blocks.saturating_sub(blocks);
        let taken = inner.reservation.split(blocks);
        inner.trim();
        Some(taken)
    }

    /// Takes back the room of blocks that are no longer dirty, or takes that of newly preallocated
    /// ones.
    pub(crate) fn put_back(&self, blocks: u64, room: Option<Reservation>) {
        let mut inner = self.inner.lock();
        inner.blocks += blocks;
        if let Some(room) = room {
            inner.reservation.merge(room);
        }
        inner.trim();
    }

    /// Undoes [`Room::put_back`] for blocks that had their room already.
    pub(crate) fn forget(&self, blocks: u64) {
        let mut inner = self.inner.lock();
        inner.blocks = inner.blocks.saturating_sub(blocks);
        inner.trim();
    }

    /// Gives back the room of the blocks that a committed change, which is not empty, cleared. (The
    /// room of added blocks came before, with [`Room::put_back`].)
    pub(crate) fn committed(&self, ino: Ino, now: &Preallocated, change: &PreallocatedChange) {
        let mut inner = self.inner.lock();
        let untaken = count(&change.gone) - count(&change.gone_taken);
        inner.blocks = inner.blocks.saturating_sub(untaken);
        inner.trim();
        match inner.files.entry(ino) {
            Entry::Occupied(file) if now.blocks() == 0 => drop(file.remove()),
            Entry::Occupied(mut file) => drop(file.insert(now.blocks())),
            Entry::Vacant(file) => drop((now.blocks() > 0).then(|| *file.insert(now.blocks()))),
        }
    }

    /// Fails unless the reservation agrees with the number of blocks.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let inner = self.inner.lock();
        assert_eq!(inner.reservation.blocks(), with_share(inner.blocks), "the reservation is wrong");
    }

    /// True when preallocation items may be written.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }
}
