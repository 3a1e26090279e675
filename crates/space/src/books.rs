//! The books of the allocator, for tests that compare them with what the store says of the same blocks.

use crate::bits::split_by;
use crate::frozen::InFlight;
use crate::space::Space;
use syncline_format::BlockRun;

/// Which blocks are not free, and why as far as the allocator knows; each list in order of address, but `waiting`.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Books {
    /// What may be allocated at all.
    pub usable: BlockRun,
    /// Blocks that can't be had now.
    pub live: Vec<BlockRun>,
    /// Blocks that something committed names.
    pub named: Vec<BlockRun>,
    /// Blocks that snapshots keep.
    pub kept: Vec<BlockRun>,
    /// Blocks freed or held, until a superblock is durable and readers have ended. Snapshots may keep some of them.
    pub waiting: Vec<BlockRun>,
    /// Blocks that nobody uses and nobody gets, because the device did not take them.
    pub withheld: Vec<BlockRun>,
    /// How many of those that wait will be reusable, as it is counted.
    pub pending_free: u64,
}

impl Space {
    /// All of them at one moment.
    #[doc(hidden)]
    pub fn books(&self) -> Books {
        let named = self.named_runs();
        let usable = self.geometry().usable();
        let state = self.lock();
        let freed = state.in_flight.iter().flat_map(InFlight::freed);
        Books {
            usable,
            live: split_by(&[usable], &state.live.free_parts(usable)).0,
            named,
            kept: state.kept.runs(),
            waiting: state.pending.runs().chain(freed).collect(),
            withheld: state.quarantine.withheld().collect(),
            pending_free: state.pending.blocks() + state.in_flight.as_ref().map_or(0, InFlight::freed_blocks),
        }
    }
}
