//! The free space of an image that grows while it is in use.
//!
//! The map comes first: a checkpoint writes it for the new size while nothing behind the old end is
//! handed out, since no log that the old superblock leads to may name a block beyond that
//! superblock's size. The rest follows when the new superblock is durable.

use crate::SpaceError;
use crate::kept::KeptMap;
use crate::space::Space;
use syncline_format::space::{BITS, MAX_BLOCKS};
use syncline_format::{BlockRun, Geometry};

impl Space {
    /// The size of the image for which the next checkpoint writes the map.
    pub fn map_geometry(&self) -> Geometry {
        self.lock().map_geometry
    }

    /// Resizes the map, effective with the next checkpoint; no more blocks are handed out yet. If
    /// that checkpoint fails, call this again with the old size.
    ///
    /// # Panics
    /// If a checkpoint is in flight: the caller must be the only one to take checkpoints.
    pub fn resize_map(&self, geometry: Geometry) -> Result<(), SpaceError> {
        if geometry.total_blocks > MAX_BLOCKS {
            return Err(SpaceError::TooLarge { total_blocks: geometry.total_blocks });
        }
        let state = &mut *self.lock();
        assert!(state.in_flight.is_none(), "the map is resized between two checkpoints");
        let root = state.table.root();
        state.table = state.table.resized(geometry);
        state.named.resize(geometry.total_blocks.div_ceil(BITS) as usize);
        if state.table.root() != root {
            // This rewrites its page and all pages above it, including the new levels.
            state.named.mark_dirty([0]);
        }
        let mut kept = KeptMap::empty(geometry);
        kept.add(&state.kept);
        state.kept = kept;
        state.map_geometry = geometry;
        Ok(())
    }

    /// From now on, hands out the blocks that the map has behind the old end: a superblock of that
    /// size is durable. Returns the old tail, which holds copies of older superblocks; give it back
    /// when none of them is needed.
    pub fn widen(&self) -> BlockRun {
        let state = &mut *self.lock();
        let old_tail = BlockRun::new(self.geometry().usable().end(), Geometry::TAIL_BLOCKS);
        state.live = state.live.widened(state.map_geometry);
        state.placement = state.placement.widened(state.map_geometry);
        self.set_total(state.map_geometry.total_blocks);
        old_tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, PageReader};
    use syncline_device::{FlushTracker, MemoryDevice, block_on};
    use syncline_format::Metadata;

    /// Sizes around those at which the map gets another level.
    #[test]
    fn what_was_in_use_stays_so_and_the_rest_is_free_and_comes_back_from_the_device() {
        for ((before, after), metadata) in
            [(4096, 4112), (4096, 40_000), (32_512, 32_528), (40_000, 60_000), (5000, 9_000_000)]
                .into_iter()
                .flat_map(|sizes| [(sizes, Metadata::Single), (sizes, Metadata::Dup)])
        {
            let geometry = |total_blocks| Geometry { total_blocks, node_bytes: 4096, metadata };
            let tracker = FlushTracker::new(MemoryDevice::new(after * 4096));
            let pages = PageReader::new(tracker.clone());
            let space = Space::format(geometry(before));
            let checkpoint = |generation| {
                let mut frozen = space.freeze(generation);
                let written = block_on(space.persist(&tracker, &mut frozen)).unwrap();
                space.superblock_durable(generation);
                written
            };
            let kept = space.allocate(Class::Data, 100, 100, None).unwrap();
            space.name(kept);
            let held = space.allocate(Class::Log, 10, 10, None).unwrap();
            checkpoint(1);
            // A checkpoint that fails, after which the map goes back to its old size.
            space.resize_map(geometry(after)).unwrap();
            let mut frozen = space.freeze(2);
            block_on(space.persist(&tracker, &mut frozen)).unwrap();
            space.checkpoint_failed(frozen);
            space.resize_map(geometry(before)).unwrap();
            let written = checkpoint(3);
            let loaded = block_on(Space::load(&pages, geometry(before), written.root)).unwrap();
            assert_eq!(loaded.named_runs(), space.named_runs());

            let freed = BlockRun::new(kept.start, 7);
            space.unname(freed, 5);
            space.resize_map(geometry(after)).unwrap();
            let written = checkpoint(4);
            // Nothing behind the old end can be allocated before `widen` is told that a superblock
            // has the new size.
            assert_eq!((space.geometry(), space.map_geometry()), (geometry(before), geometry(after)));
            let used = space.counters();
            assert!(space.allocate(Class::Data, used.total, used.total, None).is_none());
            let old_tail = space.widen();
            let added = after - before - Geometry::TAIL_BLOCKS;
            let now = space.counters();
            assert_eq!((now.named, now.pending_free), (used.named, used.pending_free));
            assert_eq!((now.total, now.free), (after - 80, used.free + added), "{before} to {after}");
            assert!(space.claim_discardable(held).is_empty() && space.claim_discardable(freed).is_empty());
            space.superblock_durable(5);
            space.give_back(old_tail);
            // Nothing waits: every block that is not named is free, except the allocated ones.
            let now = space.counters();
            assert_eq!((now.pending_free, now.free), (0, now.total - now.named - held.blocks));

            let loaded = block_on(Space::load(&pages, geometry(after), written.root)).unwrap();
            assert_eq!(loaded.named_runs(), space.named_runs());
            assert!(loaded.is_named(kept.end() - 1) && !loaded.is_named(kept.start));
            // All of it can be allocated.
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
