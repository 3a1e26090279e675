//! The free space of an image that has become larger.

use crate::SpaceError;
use crate::discard::Discards;
use crate::kept::KeptMap;
use crate::live::LiveMap;
use crate::pages::PageTable;
use crate::pins::Pins;
use crate::policy::Placement;
use crate::space::{Space, State};
use parking_lot::Mutex;
use std::sync::Arc;
use syncline_format::space::{BITS, MAX_BLOCKS};
use syncline_format::{BlockRun, Geometry};

impl Space {
    /// Hands all that it knows over to the space of the same image at a larger size. What is beyond the old end is free, but for
    /// the old tail, where copies of superblocks lie: [`old_tail`](Self::old_tail) of this is to be given back when no superblock
    /// needs them.
    ///
    /// The map is written by the next checkpoint, at the height that the new size demands.
    ///
    /// # Panics
    /// When a checkpoint is in flight: nobody but the opening of an image calls this.
    pub fn grow(&self, geometry: Geometry) -> Result<Arc<Self>, SpaceError> {
        if geometry.total_blocks > MAX_BLOCKS {
            return Err(SpaceError::TooLarge { total_blocks: geometry.total_blocks });
        }
        let state = &mut *self.lock();
        assert!(state.in_flight.is_none(), "an image grows before its first checkpoint");
        let old = self.geometry().usable();
        let mut live = LiveMap::new(geometry);
        let mut at = old.start;
        for free in state.live.free_parts(old) {
            live.set(BlockRun::new(at, free.start - at));
            at = free.end();
        }
        live.set(BlockRun::new(at, old.end() - at));
        live.set(self.old_tail());
        let mut named = std::mem::take(&mut state.named);
        named.grow(geometry.total_blocks.div_ceil(BITS) as usize);
        let mut kept = KeptMap::empty(geometry);
        kept.add(&state.kept);
        let mut table = PageTable::empty(geometry);
        for (page, entry) in state.table.iter() {
            table.set(page, entry);
        }
        if table.root() != state.table.root() {
            // Its page, and so all that lead there, are written anew: with them the levels that are new.
            named.mark_dirty([0]);
        }
        let grown = State {
            live,
            named,
            kept,
            pending: std::mem::take(&mut state.pending),
            placement: Placement::new(geometry),
            table,
            in_flight: None,
            discards: Discards::default(),
        };
        Ok(Self::assembled(geometry, Mutex::new(grown), Pins::default()))
    }

    /// The blocks at the end that hold copies of superblocks.
    pub fn old_tail(&self) -> BlockRun {
        BlockRun::new(self.geometry().usable().end(), Geometry::TAIL_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;
    use syncline_device::{FlushTracker, MemoryDevice, block_on};

    /// Sizes around those at which the map gets higher.
    #[test]
    fn what_was_in_use_stays_so_and_the_rest_is_free_and_comes_back_from_the_device() {
        for (before, after) in
            [(4096, 4112), (4096, 40_000), (32_512, 32_528), (40_000, 60_000), (5000, 9_000_000)]
        {
            let geometry = |total_blocks| Geometry { total_blocks, node_bytes: 4096 };
            let tracker = FlushTracker::new(MemoryDevice::new(after * 4096));
            let small = Space::format(geometry(before));
            let kept = small.allocate(Class::Data, 100, 100, None).unwrap();
            small.name(kept);
            let held = small.allocate(Class::Log, 10, 10, None).unwrap();
            let mut frozen = small.freeze(1);
            block_on(small.persist(&tracker, &mut frozen)).unwrap();
            small.superblock_durable(1);
            let freed = BlockRun::new(kept.start, 7);
            small.unname(freed, 2);
            let used = small.counters();

            let large = small.grow(geometry(after)).unwrap();
            let added = after - before - Geometry::TAIL_BLOCKS;
            let now = large.counters();
            assert_eq!((now.named, now.pending_free), (used.named, used.pending_free));
            assert_eq!((now.total, now.free), (after - 80, used.free + added), "{before} to {after}");
            assert!(large.claim_discardable(held).is_empty() && large.claim_discardable(freed).is_empty());
            let mut frozen = large.freeze(2);
            let written = block_on(large.persist(&tracker, &mut frozen)).unwrap();
            large.superblock_durable(2);
            large.give_back(small.old_tail());
            // Nothing waits: what is not named is free, but for what was allocated and is not named.
            let now = large.counters();
            assert_eq!((now.pending_free, now.free), (0, now.total - now.named - held.blocks));

            let loaded = block_on(Space::load(&tracker, geometry(after), written.root)).unwrap();
            assert_eq!(loaded.named_runs(), large.named_runs());
            assert!(loaded.is_named(kept.end() - 1) && !loaded.is_named(kept.start));
            // All of it can be had.
            let rest = loaded.free_blocks();
            let mut had = 0;
            while let Some(run) = loaded.allocate(Class::Data, u64::MAX, 1, None) {
                assert!(geometry(after).contains(run));
                had += run.blocks;
            }
            assert_eq!(had, rest);
        }
    }
}
