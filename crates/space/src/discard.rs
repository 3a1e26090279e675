//! Which free blocks the device may be told to discard.
//!
//! Nothing that a recovery would read names a block that may be allocated (rule R2). But a block
//! freed by the newest superblock's generation may still be named by the tree of the previous
//! superblock, which lies in the other slot and is the fallback if both copies of the newest are
//! lost. Writers may overwrite such a block, but it is not destroyed on purpose: it waits for one
//! more superblock.

use crate::bits::{blocks_of, sorted_and_joined, split_by};
use crate::space::Space;
use syncline_format::BlockRun;

/// Number of runs remembered before they are joined.
const RUNS_UNJOINED: usize = 64 << 10;

/// Blocks to be discarded now or later.
#[derive(Default)]
pub(crate) struct Discards {
    /// Blocks freed by the generation of the newest superblock, in order of address.
    fresh: Vec<BlockRun>,
    /// Blocks that became free and were not discarded since, perhaps allocated again; `None` if
    /// nobody asks for them.
    waiting: Option<Vec<BlockRun>>,
}

impl Discards {
    /// Records the blocks freed by the generation of the superblock that has just become durable.
    pub(crate) fn released(&mut self, runs: Vec<BlockRun>) {
        self.fresh = sorted_and_joined(runs);
    }

    /// Records blocks that may be allocated from now on.
    pub(crate) fn reusable(&mut self, runs: &[BlockRun]) {
        let Some(waiting) = &mut self.waiting else { return };
        waiting.extend(runs);
        if waiting.len() > RUNS_UNJOINED {
            // That leaves at most one run for every two blocks.
            *waiting = merged(std::mem::take(waiting));
        }
    }
}

/// Merges runs, which may overlap, into as few as possible, in order of address.
fn merged(mut runs: Vec<BlockRun>) -> Vec<BlockRun> {
    runs.sort_unstable();
    let mut merged: Vec<BlockRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match merged.last_mut() {
            Some(last) if last.end() >= run.start => last.blocks = last.blocks.max(run.end() - last.start),
            _ => merged.push(run),
        }
    }
    merged
}

impl Space {
    /// From now on, remembers blocks that become free, for [`take_freed`](Self::take_freed).
    pub fn remember_freed(&self) {
        self.lock().discards.waiting.get_or_insert_default();
    }

    /// Stops remembering blocks that become free.
    pub fn forget_freed(&self) {
        self.lock().discards.waiting = None;
    }

    /// Number of blocks freed by the generation of the newest superblock: they wait for one more.
    pub fn discards_waiting(&self) -> u64 {
        blocks_of(&self.lock().discards.fresh)
    }

    /// Blocks that became free since the last call, in order of address. Some may be in use again,
    /// or have to wait.
    pub fn take_freed(&self) -> Vec<BlockRun> {
        let waiting = self.lock().discards.waiting.as_mut().map(std::mem::take).unwrap_or_default();
        merged(waiting)
    }

    /// The parts of a run that are free now and have at least `min` blocks.
    pub fn free_runs(&self, run: BlockRun, min: u64) -> Vec<BlockRun> {
        let Some(run) = self.clip(run) else { return Vec::new() };
        let mut parts = self.lock().live.free_parts(run);
        parts.retain(|part| part.blocks >= min);
        parts
    }

    /// Takes the parts of a run that are free and that neither superblock slot's tree names: nobody
    /// else gets them until `give_back`. Free blocks that have to wait for the next superblock are
    /// remembered.
    pub fn claim_discardable(&self, run: BlockRun) -> Vec<BlockRun> {
        let Some(run) = self.clip(run) else { return Vec::new() };
        let state = &mut *self.lock();
        let (parts, early) = split_by(&state.live.free_parts(run), &state.discards.fresh);
        state.discards.reusable(&early);
        parts.iter().for_each(|part| state.live.set(*part));
        parts
    }

    /// For a canary: takes blocks freed in a generation that is not durable yet, without waiting
    /// for its superblock.
    #[doc(hidden)]
    pub fn freed_too_early(&self) -> Vec<BlockRun> {
        self.lock().pending.unreleased().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pairs: &[(u64, u64)]) -> Vec<BlockRun> {
        pairs.iter().map(|&(start, blocks)| BlockRun::new(start, blocks)).collect()
    }

    #[test]
    fn runs_that_overlap_or_meet_become_one() {
        let found = merged(runs(&[(10, 5), (0, 2), (12, 1), (15, 1), (2, 3), (30, 1), (30, 1)]));
        assert_eq!(found, runs(&[(0, 5), (10, 6), (30, 1)]));
    }

    #[test]
    fn what_two_lists_have_in_common_is_told_apart() {
        let (rest, both) =
            split_by(&runs(&[(0, 10), (20, 10), (40, 2)]), &runs(&[(3, 2), (8, 14), (29, 20)]));
        assert_eq!(rest, runs(&[(0, 3), (5, 3), (22, 7)]));
        assert_eq!(both, runs(&[(3, 2), (8, 2), (20, 2), (29, 1), (40, 2)]));
        assert_eq!(split_by(&runs(&[(0, 4)]), &[]), (runs(&[(0, 4)]), vec![]));
    }
}
