//! Blocks freed or held that must not be reused yet (rule R2): first until a superblock of their generation is
//! durable, then until every pin older than that has ended.

use crate::pins::Pins;
use std::collections::BTreeMap;
use syncline_format::BlockRun;

/// Where freed blocks wait. None of them leaves the live map before `collect` hands it out.
#[derive(Default)]
pub(crate) struct Pending {
    /// Freed in these generations, none of which is durable.
    by_generation: BTreeMap<u64, Vec<BlockRun>>,
    /// Released by a superblock, and waiting for the next switch of slots.
    released: Vec<BlockRun>,
    /// Waiting for the pins of this slot to end.
    draining: Option<(usize, Vec<BlockRun>)>,
    /// Blocks that will be reusable: those that a snapshot keeps are not counted.
    blocks: u64,
    /// Of these, taken out by `collect` and not reusable yet.
    taken: u64,
}

impl Pending {
    /// Blocks that will be reusable, in whatever stage they wait.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds runs freed in `generation`, of which so many blocks are kept by no snapshot.
    pub(crate) fn add(&mut self, generation: u64, runs: Vec<BlockRun>, blocks: u64) {
        self.blocks += blocks;
        let waiting = self.by_generation.entry(generation).or_default();
        if waiting.is_empty() { *waiting = runs } else { waiting.extend(runs) }
    }

    /// A superblock of `generation` is durable: what was freed up to it waits for pins only. Returns what that is.
    pub(crate) fn release(&mut self, generation: u64) -> Vec<BlockRun> {
        let later = self.by_generation.split_off(&(generation + 1));
        let runs = std::mem::replace(&mut self.by_generation, later);
        let released: Vec<BlockRun> = runs.into_values().flatten().collect();
        self.released.extend(&released);
        released
    }

    /// What generations freed that are not durable.
    pub(crate) fn unreleased(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.by_generation.values().flatten().copied()
    }

    /// What is released when a superblock of `generation` is durable, and what was before.
    pub(crate) fn released_by(&self, generation: u64) -> impl Iterator<Item = BlockRun> + '_ {
        let runs = self.by_generation.range(..=generation).flat_map(|(_, runs)| runs);
        runs.copied().chain(self.released())
    }

    /// Everything that waits, whether or not a snapshot keeps it.
    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let draining = self.draining.iter().map(|(_, runs)| runs);
        self.by_generation.values().chain([&self.released]).chain(draining).flatten().copied()
    }

    /// What a durable superblock has released, and readers may keep.
    pub(crate) fn released(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let draining = self.draining.iter().map(|(_, runs)| runs);
        [&self.released].into_iter().chain(draining).flatten().copied()
    }

    /// Counts anew, since other blocks are kept now: of what waits, so many will be reusable.
    pub(crate) fn recount(&mut self, blocks: u64) {
        self.blocks = blocks + self.taken;
    }

    /// Takes out what no pin keeps any more. The caller tells with `take` how many blocks of it are kept by no snapshot, makes
    /// these reusable and then calls `reused`.
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

    /// Of what `collect` took out, so many blocks will be reusable.
    pub(crate) fn take(&mut self, blocks: u64) {
        self.taken += blocks;
    }

    /// Blocks taken out by `collect` were made reusable.
    pub(crate) fn reused(&mut self, blocks: u64) {
        self.blocks -= blocks;
        self.taken -= blocks;
    }
}
