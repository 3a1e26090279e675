//! What memory knows about where and how a file's blocks lie on the device.

use std::num::NonZeroU64;

/// `extent_end` of a file that may have extents anywhere.
const UNKNOWN: u64 = u64::MAX;
/// After this many units in a row that did not shrink, only some are compressed.
const STUBBORN_AFTER: u16 = 8;
/// Of the units that then follow, one in this many is tried.
const TRIED_OF: u16 = 8;

/// The places of a file's extents, as far as memory knows them.
pub(crate) struct Layout {
    /// No extent lies at or past this block. Unknown after loading: a crash may have left extents
    /// past the end.
    extent_end: u64,
    /// The device address at which the next block would best be placed.
    near: Option<NonZeroU64>,
    /// Units in a row that compression did not make smaller.
    unshrunk: u16,
}

impl Layout {
    /// The layout of a new file, which has no extents.
    pub(super) fn new() -> Self {
        Self { extent_end: 0, ..Self::unknown() }
    }

    /// The layout of a file that was loaded.
    pub(super) fn unknown() -> Self {
        Self { extent_end: UNKNOWN, near: None, unshrunk: 0 }
    }

    /// The block at or past which no extent lies; the largest number if that is not known.
    pub(in crate::data) fn extent_end(&self) -> u64 {
        self.extent_end
    }

    /// True if it is known where the extents end.
    pub(in crate::data) fn is_known(&self) -> bool {
        self.extent_end != UNKNOWN
    }

    /// True if no extent lies at or past this block, as far as is known.
    pub(in crate::data) fn is_past(&self, block: u64) -> bool {
        block >= self.extent_end
    }

    /// True if the file has no extents.
    pub(in crate::data) fn is_empty(&self) -> bool {
        self.extent_end == 0
    }

    /// All extents from `block` on are gone.
    pub(in crate::data) fn end_at(&mut self, block: u64) {
        self.extent_end = block.min(self.extent_end);
    }

    /// There may be extents anywhere.
    pub(in crate::data) fn forget_end(&mut self) {
        self.extent_end = UNKNOWN;
    }

    /// There are extents up to `block`.
    pub(in crate::data) fn reach(&mut self, block: u64) {
        self.extent_end = block.max(self.extent_end);
    }

    /// The address at which the next block would best be placed.
    pub(in crate::data) fn near(&self) -> Option<u64> {
        self.near.map(NonZeroU64::get)
    }

    pub(in crate::data) fn set_near(&mut self, address: u64) {
        self.near = NonZeroU64::new(address);
    }

    /// False for most units of a file whose contents have not shrunk for a while: pictures, archives,
    /// random data.
    pub(in crate::data) fn is_packing_worth_a_try(&mut self) -> bool {
        if self.unshrunk < STUBBORN_AFTER {
            return true;
        }
        self.note_unshrunk();
        (self.unshrunk - STUBBORN_AFTER).is_multiple_of(TRIED_OF)
    }

    /// Counts one more unit that did not shrink; at the end of the range as if the file had just become
    /// stubborn.
    pub(in crate::data) fn note_unshrunk(&mut self) {
        self.unshrunk = self.unshrunk.checked_add(1).unwrap_or(STUBBORN_AFTER);
    }

    pub(in crate::data) fn note_shrunk(&mut self) {
        self.unshrunk = 0;
    }
}
