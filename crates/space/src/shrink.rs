//! The free space of an image that shrinks: first, nothing behind the new end is handed out any
//! more; then everything there moves; finally the map gets the smaller size.

use crate::SpaceError;
use crate::bits::{clip, push_bits, words_of};
use crate::named::Change;
use crate::pages::PageTable;
use crate::space::Space;
use syncline_format::space::{BITS, children};
use syncline_format::{BlockAddr, BlockRun, Geometry};

impl Space {
    /// From now on, hands out nothing from block `end` on, not even blocks freed there.
    pub fn border(&self, end: BlockAddr) {
        let state = &mut *self.lock();
        state.border = end;
        let all = self.geometry().usable();
        if let Some(behind) = clip(BlockRun::new(end, all.end().saturating_sub(end)), all) {
            state.live.set(behind);
        }
    }

    /// The named blocks from block `end` on.
    pub fn named_behind(&self, end: BlockAddr) -> Vec<BlockRun> {
        let all = self.geometry().usable();
        let mut runs = Vec::new();
        let Some(behind) = clip(BlockRun::new(end, all.end().saturating_sub(end)), all) else { return runs };
        let state = self.lock();
        words_of(behind).for_each(|(word, mask)| push_bits(&mut runs, word, mask & state.named.word(word)));
        runs
    }

    /// Makes the next checkpoint rewrite the map's pages that lie at block `end` or behind it, and
    /// bitmap pages that an image of this geometry does not have; false if there are none.
    pub fn move_pages(&self, end: BlockAddr, geometry: Geometry) -> bool {
        let state = &mut *self.lock();
        let smaller = PageTable::empty(geometry);
        let leaves = state.named.pages().len() as u64;
        let mut pages = Vec::new();
        for (id, entry) in state.table.iter() {
            if entry.page.places().any(|addr| addr >= end) || (id.level == 0 && !smaller.has(id)) {
                // Any bitmap page below an index page will do: the pages above it are rewritten
                // too.
                let width = children(geometry.metadata).saturating_pow(u32::from(id.level));
                let first = id.index.saturating_mul(width);
                pages.push(first.min(leaves - 1));
            }
        }
        state.named.mark_dirty(pages.iter().copied());
        !pages.is_empty()
    }

    /// Makes the map one for a smaller size, effective with the next checkpoint, which has this
    /// generation. Nothing may be named behind the new end, and [`move_pages`](Self::move_pages)
    /// must have found nothing.
    pub fn narrow_map(&self, geometry: Geometry, generation: u64) -> Result<(), SpaceError> {
        {
            let state = &mut *self.lock();
            debug_assert!(geometry.total_blocks.div_ceil(BITS) <= state.named.pages().len() as u64);
            let smaller = PageTable::empty(geometry);
            // Index pages on levels and at places that will not exist any more.
            let gone: Vec<BlockRun> = state
                .table
                .iter()
                .filter(|(id, _)| !smaller.has(*id))
                .flat_map(|(_, entry)| entry.page.places())
                .map(|addr| BlockRun::new(addr, 1))
                .collect();
            for run in gone {
                let freed = state.named.change(run, Change::Unname);
                state.wait(generation, freed);
            }
        }
        self.resize_map(geometry)
    }
}
