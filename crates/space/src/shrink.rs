//! The free space of an image that becomes smaller: first nothing behind the new end is handed out any more, then all that lies there
//! moves, and at last the map is one for the smaller size.

use crate::SpaceError;
use crate::bits::{clip, push_bits, words_of};
use crate::named::Change;
use crate::pages::PageTable;
use crate::space::Space;
use syncline_format::space::{BITS, CHILDREN};
use syncline_format::{BlockAddr, BlockRun, Geometry};

impl Space {
    /// Hands out nothing from block `end` on any more, not even what is freed there.
    pub fn fence(&self, end: BlockAddr) {
        let state = &mut *self.lock();
        state.fence = end;
        let all = self.geometry().usable();
        if let Some(behind) = clip(BlockRun::new(end, all.end().saturating_sub(end)), all) {
            state.live.set(behind);
        }
    }

    /// What is named from block `end` on.
    pub fn named_behind(&self, end: BlockAddr) -> Vec<BlockRun> {
        let all = self.geometry().usable();
        let mut runs = Vec::new();
        let Some(behind) = clip(BlockRun::new(end, all.end().saturating_sub(end)), all) else { return runs };
        let state = self.lock();
        words_of(behind).for_each(|(word, mask)| push_bits(&mut runs, word, mask & state.named.word(word)));
        runs
    }

    /// Has the next checkpoint write those pages of the map anew that lie from block `end` on, or stand for nothing that an image of
    /// this geometry has; false when there are none.
    pub fn move_pages(&self, end: BlockAddr, geometry: Geometry) -> bool {
        let state = &mut *self.lock();
        let smaller = PageTable::empty(geometry);
        let leaves = state.named.pages().len() as u64;
        let mut pages = Vec::new();
        for (id, entry) in state.table.iter() {
            if entry.page.addr >= end || (id.level == 0 && !smaller.has(id)) {
                // Any page below an index page: what is above it is written too.
                let first = id.index.saturating_mul((CHILDREN as u64).saturating_pow(u32::from(id.level)));
                pages.push(first.min(leaves - 1));
            }
        }
        state.named.mark_dirty(pages.iter().copied());
        !pages.is_empty()
    }

    /// Makes the map one for a smaller size, from the next checkpoint on, whose generation this is. Nothing is named behind the new
    /// end, and [`move_pages`](Self::move_pages) found nothing.
    pub fn narrow_map(&self, geometry: Geometry, generation: u64) -> Result<(), SpaceError> {
        {
            let state = &mut *self.lock();
            debug_assert!(geometry.total_blocks.div_ceil(BITS) <= state.named.pages().len() as u64);
            let smaller = PageTable::empty(geometry);
            // Index pages of levels, and at places, that there will not be.
            let gone: Vec<BlockRun> = state
                .table
                .iter()
                .filter(|(id, _)| !smaller.has(*id))
                .map(|(_, entry)| BlockRun::new(entry.page.addr, 1))
                .collect();
            for run in gone {
                let freed = state.named.change(run, Change::Unname);
                state.wait(generation, freed);
            }
        }
        self.resize_map(geometry)
    }
}
