//! Blocks freed or held that must not be reused yet (rule R2): they wait until a superblock of
//! their generation is durable, and then until every older pin has ended.

use crate::pins::Pins;
use std::collections::BTreeMap;
use syncline_format::BlockRun;

/// Freed blocks that wait. Each stays in the live map until `collect` has taken it out.
#[derive(Default)]
pub(crate) struct Pending {
    /// Blocks freed in generations that are not durable yet.
    by_generation: BTreeMap<u64, Vec<BlockRun>>,
    /// Blocks released by a superblock, waiting for the next switch of slots.
    released: Vec<BlockRun>,
    /// Blocks waiting for the pins of this slot to end.
    draining: Option<(usize, Vec<BlockRun>)>,
    /// Number of blocks that will be reusable, without those that a snapshot keeps.
    blocks: u64,
    /// How many of these `collect` has taken out that are not reusable yet.
    taken: u64,
}

impl Pending {
    /// Number of blocks that will be reusable, in any stage of waiting.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds runs freed in `generation`; `blocks` of their blocks are not kept by a snapshot.
    pub(crate) fn add(&mut self, generation: u64, runs: Vec<BlockRun>, blocks: u64) {
        self.blocks += blocks;
        let waiting = self.by_generation.entry(generation).or_default();
        if waiting.is_empty() { *waiting = runs } else { waiting.extend(runs) }
    }

    /// Releases everything freed up to `generation`, whose superblock is durable: it now waits only
    /// for pins. Returns the released runs.
    pub(crate) fn release(&mut self, generation: u64) -> Vec<BlockRun> {
        let later = self.by_generation.split_off(&(generation + 1));
        let runs = std::mem::replace(&mut self.by_generation, later);
        let released: Vec<BlockRun> = runs.into_values().flatten().collect();
        self.released.extend(&released);
        released
    }

    /// Runs freed in generations that are not durable yet.
    pub(crate) fn unreleased(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.by_generation.values().flatten().copied()
    }

    /// Runs that are released once a superblock of `generation` is durable, including runs released
    /// before.
    pub(crate) fn released_by(&self, generation: u64) -> impl Iterator<Item = BlockRun> + '_ {
        let runs = self.by_generation.range(..=generation).flat_map(|(_, runs)| runs);
        runs.copied().chain(self.released())
    }

    /// All waiting runs, whether or not a snapshot keeps them.
    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let draining = self.draining.iter().map(|(_, runs)| runs);
        self.by_generation.values().chain([&self.released]).chain(draining).flatten().copied()
    }

    /// Runs released by a durable superblock that readers may still keep.
    pub(crate) fn released(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let draining = self.draining.iter().map(|(_, runs)| runs);
        [&self.released].into_iter().chain(draining).flatten().copied()
    }

    /// Recounts after the kept blocks have changed: `blocks` of the waiting blocks will be
    /// reusable.
    pub(crate) fn recount(&mut self, blocks: u64) {
        self.blocks = blocks + self.taken;
    }

    /// Takes out the runs that no pin keeps any more. The caller reports with `take` how many of
    /// their blocks are not kept by a snapshot, makes these reusable and then calls `reused`.
    pub(crate) fn collect(&mut self, pins: &Pins) -> Vec<BlockRun> {
        let mut ready = Vec::new();
        loop {
            match self.draining.take() {
                Some((slot, runs)) if pins.drained(slot) => ready.extend(runs),
                Some(draining) => {
                    self.draining = Some(draining);
                    return ready;
                }
                None if self.released.is_empty() => return ready,
                None => self.draining = Some((pins.switch(), std::mem::take(&mut self.released))),
            }
        }
    }

    /// Notes that `blocks` of the blocks taken out by `collect` will be reusable.
    pub(crate) fn take(&mut self, blocks: u64) {
        self.taken += blocks;
    }

    /// Notes that blocks taken out by `collect` have become reusable.
    pub(crate) fn reused(&mut self, blocks: u64) {
        self.blocks -= blocks;
        self.taken -= blocks;
    }
}
