//! Blocks that the device refused: they are not handed out again while the image is open.
//!
//! Only a limited number is kept, and only while there are other blocks: a device path that is away
//! for a while fails every write, and puts the blame on sound blocks. Beyond the limit, the oldest
//! blocks are tried again.

use crate::bits::{blocks_of, clip};
use std::collections::VecDeque;
use syncline_format::BlockRun;

/// The quarantined blocks, oldest first.
#[derive(Default)]
pub(crate) struct Quarantine {
    runs: VecDeque<Kept>,
    blocks: u64,
}

struct Kept {
    run: BlockRun,
    /// The parts that would be free otherwise.
    withheld: Vec<BlockRun>,
}

impl Quarantine {
    /// Quarantines `run`, and at most `max` blocks in all; returns the blocks of the oldest runs
    /// that had to leave and may be handed out.
    pub(crate) fn add(&mut self, run: BlockRun, max: u64) -> Vec<BlockRun> {
        let known = self.runs.iter().any(|kept| kept.run.start <= run.start && run.end() <= kept.run.end());
        if known || run.blocks > max {
            return Vec::new();
        }
        self.runs.push_back(Kept { run, withheld: Vec::new() });
        self.blocks += run.blocks;
        let mut freed = Vec::new();
        while self.blocks > max {
            let Some(oldest) = self.runs.pop_front() else { break };
            self.blocks -= oldest.run.blocks;
            freed.extend(oldest.withheld);
        }
        // Another quarantined run may cover the same blocks.
        self.withhold(freed)
    }

    /// Ends the quarantine; returns the blocks that may be handed out now.
    pub(crate) fn end(&mut self) -> Vec<BlockRun> {
        let Self { runs, .. } = std::mem::take(self);
        runs.into_iter().flat_map(|kept| kept.withheld).collect()
    }

    /// Withholds the quarantined parts of these free runs; returns the rest, which may be handed
    /// out.
    pub(crate) fn withhold(&mut self, free: Vec<BlockRun>) -> Vec<BlockRun> {
        if self.runs.is_empty() {
            return free;
        }
        let mut open = free;
        for kept in &mut self.runs {
            let mut rest = Vec::with_capacity(open.len());
            for run in open {
                let Some(bad) = clip(run, kept.run) else {
                    rest.push(run);
                    continue;
                };
                kept.withheld.push(bad);
                let (before, after) = (bad.start - run.start, run.end() - bad.end());
                rest.extend((before > 0).then(|| BlockRun::new(run.start, before)));
                rest.extend((after > 0).then(|| BlockRun::new(bad.end(), after)));
            }
            open = rest;
        }
        open
    }

    /// The runs that are withheld: nobody uses them, and they are not handed out.
    pub(crate) fn withheld(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.runs.iter().flat_map(|kept| kept.withheld.iter().copied())
    }

    /// Number of blocks withheld.
    pub(crate) fn withheld_blocks(&self) -> u64 {
        self.runs.iter().map(|kept| blocks_of(&kept.withheld)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_not_handed_out_until_too_much_is() {
        let mut quarantine = Quarantine::default();
        assert!(quarantine.add(BlockRun::new(100, 4), 8).is_empty());
        let open = quarantine.withhold(vec![BlockRun::new(98, 10), BlockRun::new(200, 2)]);
        assert_eq!(open, [BlockRun::new(98, 2), BlockRun::new(104, 4), BlockRun::new(200, 2)]);
        assert_eq!(quarantine.withheld_blocks(), 4);
        assert!(quarantine.add(BlockRun::new(300, 4), 8).is_empty());
        assert_eq!(quarantine.add(BlockRun::new(400, 1), 8), [BlockRun::new(100, 4)]);
        assert!(quarantine.add(BlockRun::new(500, 9), 8).is_empty(), "larger than all that may be kept");
        assert_eq!(quarantine.withhold(vec![BlockRun::new(300, 8)]), [BlockRun::new(304, 4)]);
        assert_eq!(quarantine.end(), [BlockRun::new(300, 4)]);
        assert_eq!(quarantine.withhold(vec![BlockRun::new(400, 1)]), [BlockRun::new(400, 1)]);
    }
}
