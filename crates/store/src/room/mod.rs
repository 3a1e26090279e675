//! Room: which blocks are free, and how many of them are promised to changes and to data. Others
//! ask whether they may begin, get blocks, and give blocks back.

mod admit;
mod count;
mod reserve;
mod trim;

pub use admit::{Admission, Admitted, ChangeSize};
pub use reserve::Reservation;

pub(crate) use count::{LEAST_SEGMENT_BLOCKS, first_segment_blocks, segment_blocks};
pub(crate) use trim::tend_discards;

use admit::UnderWay;
use std::sync::Arc;
use syncline_format::BlockRun;
use syncline_space::{Class, Space};
use syncline_sync::asynchronous::MutexGuard;
use syncline_sync::atomic::{AtomicU64, Ordering};
use syncline_tree::NodeCopy;
use trim::Discarding;

/// The blocks of an image, and the promises made of them.
pub(crate) struct Room {
    space: Arc<Space>,
    /// Blocks reserved.
    reserved: AtomicU64,
    /// Changes that are admitted but not committed.
    under_way: UnderWay,
    discarding: Discarding,
}

/// Allocates a run of whole nodes.
pub(crate) fn allocate_nodes(space: &Space, copy: NodeCopy, blocks: u64) -> Option<BlockRun> {
    let node = space.geometry().node_blocks();
    let class = match copy {
        NodeCopy::First => Class::Node,
        NodeCopy::Second => Class::Copy,
    };
    let run = space.allocate(class, blocks, node, None)?;
    let whole = run.blocks / node * node;
    if whole < run.blocks {
        space.give_back(BlockRun::new(run.start + whole, run.blocks - whole));
    }
    Some(BlockRun::new(run.start, whole))
}

impl Room {
    /// The room of an image whose free blocks are those of `space`, with nothing promised.
    pub(crate) fn new(space: Arc<Space>) -> Arc<Self> {
        Arc::new(Self {
            space,
            reserved: AtomicU64::new(0),
            under_way: UnderWay::default(),
            discarding: Discarding::default(),
        })
    }

    /// The allocator: hands out blocks, holds freed ones until they are reusable, and keeps the map.
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Blocks reserved for data.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// Free blocks that are not reserved.
    pub(crate) fn unreserved_blocks(&self) -> u64 {
        self.space.free_blocks().saturating_sub(self.reserved())
    }

    /// Waits until no discard is in flight; none begins while the result lives.
    pub(crate) async fn without_discards(&self) -> MutexGuard<'_, ()> {
        self.discarding.batch.lock().await
    }

    /// Like `without_discards`; `None` if a discard is in flight.
    pub(crate) fn try_without_discards(&self) -> Option<MutexGuard<'_, ()>> {
        self.discarding.batch.try_lock()
    }
}
