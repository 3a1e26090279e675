//! The books of the allocator, for tests that compare them with the store's view of the same
//! blocks.

use crate::bits::split_by;
use crate::frozen::InFlight;
use crate::space::Space;
use syncline_format::BlockRun;

/// The blocks that are not free, and why, as far as the allocator knows. Each list except `waiting`
/// is ordered by address.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Books {
    /// The blocks that may be allocated at all.
    pub usable: BlockRun,
    /// Blocks that can't be allocated now.
    pub live: Vec<BlockRun>,
    /// Blocks that something committed names.
    pub named: Vec<BlockRun>,
    /// Blocks that snapshots keep.
    pub kept: Vec<BlockRun>,
    /// Blocks freed or held, until a superblock is durable and readers have ended. Snapshots may
    /// keep some of them.
    pub waiting: Vec<BlockRun>,
    /// Blocks withheld from everybody because the device refused writes there.
    pub withheld: Vec<BlockRun>,
    /// How many of the waiting blocks will be reusable, according to the counter.
    pub pending_free: u64,
}

impl Space {
    /// The books as of one moment.
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
