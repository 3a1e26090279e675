//! Quota reservations for dirty data of files in a tree with a quota.
//!
//! A block counts when it becomes dirty at a place with no extent and no preallocated room, because
//! it will add to the file's blocks. A block that replaces another adds nothing, although for a
//! moment both exist. The transaction that names the block turns the reserved units into used ones.
//! Files without a quota have none of this.

use super::ranges::Ranges;
use super::{DataState, UNITS};
use std::ops::Range;

/// The pending blocks of a file that counts in a quota, and what is reserved for them.
#[derive(Default)]
pub(crate) struct Charge {
    /// Number of the quota.
    pub(crate) number: u64,
    /// Blocks, dirty or in flight, at places where the file has nothing yet.
    pub(in crate::data) holes: Ranges,
    /// Units that are reserved for them.
    pub(crate) units: u64,
}

/// The values to restore if a change of a charge is not committed.
#[derive(Default)]
pub(crate) struct ChargeBefore {
    holes: Vec<Range<u64>>,
    pub(in crate::data) units: u64,
}

fn has_first(holes: &Ranges) -> bool {
    !holes.within(&(0..1)).is_empty()
}

impl Charge {
    pub(crate) fn new(number: u64) -> Option<Box<Self>> {
        (number != 0).then(|| Box::new(Self { number, ..Self::default() }))
    }

    /// Units that block 0 adds. A small file lies in the inode item; in other files, block 0
    /// replaces what lies there.
    fn first_units(&self, data: &DataState, size: u64, inline_max: u64, more: &Ranges) -> u64 {
        let inline = data.logged.inline_units();
        if size <= inline_max && data.logged.blocks() == 0 && !data.preallocated.has_first() {
            size.div_ceil(512).saturating_sub(inline)
        } else if has_first(&self.holes) || has_first(more) {
            UNITS.saturating_sub(inline)
        } else {
            0
        }
    }

    /// Units that the pending blocks and the blocks `more` will add when the file has `size` bytes.
    pub(in crate::data) fn needs(
        &self,
        data: &DataState,
        size: u64,
        inline_max: u64,
        more: &Ranges,
        with_first: bool,
    ) -> u64 {
        let count = |holes: &Ranges| holes.blocks() - u64::from(has_first(holes));
        let first = with_first || data.blocks.is_pending(0);
        let first = if first { self.first_units(data, size, inline_max, more) } else { 0 };
        (count(&self.holes) + count(more)) * UNITS + first
    }
}

impl DataState {
    /// Makes data that is written from now on count in this quota. It never waits.
    pub(crate) fn charge_to(&mut self, number: u64) {
        self.charge = Charge::new(number);
    }

    /// Adjusts the reservation to the pending blocks, after the blocks `cleared` have been named or
    /// are gone. Returns the values before.
    pub(crate) fn recharge(&mut self, size: u64, inline_max: u64, cleared: &[Range<u64>]) -> ChargeBefore {
        let Some(mut charge) = self.charge.take() else { return ChargeBefore::default() };
        let mut before = ChargeBefore { holes: Vec::new(), units: charge.units };
        // If block 0 is not pending, it went into the inode item.
        let first = if self.blocks.is_pending(0) { 0..0 } else { 0..1 };
        for range in cleared.iter().chain([&first]) {
            before.holes.extend(charge.holes.within(range));
            charge.holes.remove(range);
        }
        charge.units = charge.needs(self, size, inline_max, &Ranges::default(), false);
        self.charge = Some(charge);
        before
    }

    /// The difference that a change of the charge has made to the reserved units.
    pub(crate) fn charged_since(&self, before: &ChargeBefore) -> i64 {
        self.charge.as_ref().map_or(0, |charge| charge.units as i64 - before.units as i64)
    }

    /// Undoes a change of the charge.
    pub(crate) fn restore_charge(&mut self, before: ChargeBefore) {
        if let Some(charge) = &mut self.charge {
            before.holes.into_iter().for_each(|range| charge.holes.insert(range));
            charge.units = before.units;
        }
    }
}
