//! How far the submissions of a file have come, and in which lists the file is.

use std::sync::Arc;

/// The progress of a file's submissions.
#[derive(Default)]
pub(crate) struct Progress {
    /// Held while data of this inode is submitted: one submission at a time.
    writeback: Arc<syncline_sync::asynchronous::Mutex<()>>,
    /// The size that the current submission must log at least: the file size when it began, because
    /// it submits everything that was dirty below that. A truncation meanwhile lowers it.
    floor: u64,
    /// The size that must be logged when the submission has ended. It starts equal to `floor`, but
    /// a truncation lowers it to the new size and no further. The check in `ended` uses it.
    promised: u64,
    /// The current submission's notes about its blocks in flight. Few files have any, so it is boxed.
    flight: Option<Box<Flight>>,
    /// Blocks of memory that write-back holds: those it took, until their writes have ended, even
    /// if a truncation cuts some of them off meanwhile.
    flying_blocks: u32,
    /// Blocks of memory of this inode that the gauge of dirty bytes counts.
    accounted_blocks: u32,
    /// After a task that places logged blocks has failed: the number of logged blocks at which the next
    /// one may start.
    place_from: u16,
    /// A task is placing this file's logged blocks.
    placing: bool,
    /// Data of this inode has been submitted before, since it came into the cache.
    submitted: bool,
    /// The inode is in the list of dirty inodes.
    queued: bool,
    /// The inode is in the list of small files that an fsync may take along, or was dropped from
    /// that list because it was full.
    small_noted: bool,
}

/// Blocks in flight.
struct Flight {
    /// Size of the file when they were taken, or as far as truncations have left it since.
    size: u64,
    /// The first block that a truncation cut while it was in flight. The block becomes dirty again, and
    /// the submission is not complete without it.
    recalled: Option<u64>,
}

/// The sizes that a submission must log.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) struct Bounds {
    floor: u64,
    promised: u64,
    flight: u64,
}

impl Progress {
    /// The lock of the one submission at a time.
    pub(super) fn writeback(&self) -> &Arc<syncline_sync::asynchronous::Mutex<()>> {
        &self.writeback
    }

    /// A submission of a file of `size` bytes begins.
    pub(super) fn begin(&mut self, size: u64) {
        self.floor = size;
        self.promised = size;
        self.flight = None;
    }

    /// The size that the submission must log at least.
    pub(in crate::data) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn raise_floor(&mut self, size: u64) {
        self.floor = self.floor.max(size);
    }

    /// The size that must be logged when the submission has ended.
    pub(in crate::data) fn promised(&self) -> u64 {
        self.promised
    }

    /// The sizes that the submission must log.
    pub(in crate::data) fn bounds(&self) -> Bounds {
        Bounds { floor: self.floor, promised: self.promised, flight: self.flight_size() }
    }

    /// Undoes a [`cut`](Self::cut).
    pub(in crate::data) fn restore(&mut self, bounds: Bounds) {
        self.floor = bounds.floor;
        self.promised = bounds.promised;
        if let Some(flight) = &mut self.flight {
            flight.size = bounds.flight;
        }
    }

    /// The file was cut to `size` bytes, of which `left` can be logged at once.
    pub(in crate::data) fn cut(&mut self, size: u64, left: u64) {
        self.floor = self.floor.min(left);
        self.promised = self.promised.min(size);
        if let Some(flight) = &mut self.flight {
            flight.size = flight.size.min(left);
        }
    }

    /// Blocks of a file of `size` bytes go into flight, with this many blocks of memory.
    pub(super) fn take_off(&mut self, size: u64, memory_blocks: u32) {
        self.flying_blocks = memory_blocks;
        match &mut self.flight {
            Some(flight) => flight.size = size,
            None => self.flight = Some(Box::new(Flight { size, recalled: None })),
        }
    }

    /// The size of the file when its blocks went into flight, or as far as truncations have left it.
    pub(super) fn flight_size(&self) -> u64 {
        self.flight.as_ref().map_or(0, |flight| flight.size)
    }

    /// Write-back has ended, and holds no memory any more.
    pub(in crate::data) fn end_flight(&mut self) {
        self.flying_blocks = 0;
    }

    pub(super) fn flying_blocks(&self) -> u32 {
        self.flying_blocks
    }

    /// Notes that a truncation has cut a block that was in flight. Unless `forgets`, earlier ones are
    /// remembered: all blocks from the first of them on are looked at.
    pub(in crate::data) fn recall(&mut self, block: u64, forgets: bool) {
        if let Some(flight) = &mut self.flight {
            let earlier = flight.recalled.filter(|_| !forgets);
            flight.recalled = Some(earlier.map_or(block, |first| block.min(first)));
        }
    }

    /// The first block that a truncation cut while it was in flight. The flight is over.
    pub(super) fn take_recalled(&mut self) -> Option<u64> {
        self.flight.take()?.recalled
    }

    /// True if data has been submitted since the inode came into the cache.
    pub(in crate::data) fn has_submitted(&self) -> bool {
        self.submitted
    }

    pub(in crate::data) fn note_submitted(&mut self) {
        self.submitted = true;
    }

    /// True while a task places this file's logged blocks.
    pub(in crate::data) fn is_placing(&self) -> bool {
        self.placing
    }

    pub(in crate::data) fn set_placing(&mut self, placing: bool) {
        self.placing = placing;
    }

    /// The number of logged blocks from which on such a task may start.
    pub(in crate::data) fn place_from(&self) -> u64 {
        self.place_from.into()
    }

    pub(in crate::data) fn set_place_from(&mut self, blocks: u64) {
        self.place_from = blocks.try_into().unwrap_or(u16::MAX);
    }

    /// Notes that the inode is in the list of dirty inodes. True if it was not.
    pub(in crate::data) fn enter_queue(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }

    /// The inode has left the lists.
    pub(in crate::data) fn leave_lists(&mut self) {
        self.queued = false;
        self.small_noted = false;
    }

    /// True if the inode is in the list of small files.
    pub(in crate::data) fn is_noted_small(&self) -> bool {
        self.small_noted
    }

    pub(in crate::data) fn note_small(&mut self, noted: bool) {
        self.small_noted = noted;
    }

    /// Notes the blocks of memory that the gauge counts, and returns the number before.
    pub(in crate::data) fn account(&mut self, blocks: u32) -> u32 {
        std::mem::replace(&mut self.accounted_blocks, blocks)
    }
}
