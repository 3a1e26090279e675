//! Blocks freed or held that must not be reused yet (rule R2): first until a superblock of their generation is
//! durable, then until every pin older than that has ended.

use crate::bits::blocks_of;
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
    blocks: u64,
}

impl Pending {
    /// Blocks that wait, in whatever stage.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds runs freed in `generation`.
    pub(crate) fn add(&mut self, generation: u64, runs: Vec<BlockRun>) {
        self.blocks += blocks_of(&runs);
        let waiting = self.by_generation.entry(generation).or_default();
        if waiting.is_empty() { *waiting = runs } else { waiting.extend(runs) }
    }

    /// A superblock of `generation` is durable: what was freed up to it waits for pins only.
    pub(crate) fn release(&mut self, generation: u64) {
        let later = self.by_generation.split_off(&(generation + 1));
        let runs = std::mem::replace(&mut self.by_generation, later);
        self.released.extend(runs.into_values().flatten());
    }

    /// Takes out what no pin keeps any more. The caller makes it reusable and then calls `reused`.
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

    /// Blocks taken out by `collect` were made reusable.
    pub(crate) fn reused(&mut self, blocks: u64) {
        self.blocks -= blocks;
    }
}
