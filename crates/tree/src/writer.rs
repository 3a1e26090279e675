//! Gives new nodes their addresses and writes them, in long runs and with a limit on the writes in
//! flight.

use crate::TreeError;
use crate::tree::{Tree, offset_bytes};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use syncline_device::{AlignedBuf, WriteHandle};
use syncline_format::node::NodeBuilder;
use syncline_format::superblock::Pointer;
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun};

/// Allocates free blocks for copies of nodes: asked for a number of blocks, a multiple of a node's, it
/// returns a run of at most that many, also a multiple of a node's, or `None` if there is not even room
/// for one node.
pub type Allocate<'a> = dyn Fn(NodeCopy, u64) -> Option<BlockRun> + Sync + 'a;

/// One of the copies of a node, which lie far apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeCopy {
    /// The copy that every image has.
    First,
    /// The copy that an image with `Metadata::Dup` has as well.
    Second,
}

/// One vectored write of new nodes.
///
/// Keep the buffers until a successful flush covers the write: after a failed flush they are
/// written again (rule R6).
#[derive(Clone)]
pub struct WrittenRun {
    /// The blocks of the run.
    pub run: BlockRun,
    /// The nodes, one buffer each.
    pub bufs: Vec<Bytes>,
    /// The write, perhaps still in flight.
    pub handle: WriteHandle,
}

/// Maximum length of one write.
const RUN_BYTES: u64 = 1 << 20;
/// Bytes in flight above which a merge waits for its oldest write.
const IN_FLIGHT_BYTES: u64 = 8 << 20;
/// Nodes handled between two yields to the executor: about half a millisecond.
const NODES_PER_TURN: u32 = 16;

pub(crate) struct Writer<'a> {
    tree: &'a Tree,
    generation: u64,
    allocate: &'a Allocate<'a>,
    /// Number of nodes to request in one allocation.
    ask_nodes: u64,
    /// One for each copy of the nodes.
    lanes: Vec<Lane>,
    in_flight: VecDeque<(WriteHandle, u64)>,
    in_flight_bytes: u64,
    turn: u32,
    pub(crate) allocated: Vec<BlockRun>,
    pub(crate) written: Vec<WrittenRun>,
    pub(crate) unused: Vec<BlockRun>,
    pub(crate) nodes_written: u64,
}

/// Where one copy of each node goes.
struct Lane {
    which: NodeCopy,
    /// The unused rest of the last allocated run.
    room: BlockRun,
    /// Nodes not yet submitted; they end where `room` starts.
    batch: Vec<Bytes>,
}

impl<'a> Writer<'a> {
    /// A writer that expects to write about `nodes` nodes.
    pub(crate) fn new(tree: &'a Tree, generation: u64, nodes: u64, allocate: &'a Allocate<'a>) -> Self {
        let geometry = tree.geometry.get();
        let most = RUN_BYTES / u64::from(geometry.node_bytes);
        let lanes = [NodeCopy::First, NodeCopy::Second].into_iter().take(geometry.metadata.copies() as usize);
        let lane = |which| Lane { which, room: BlockRun::new(0, 0), batch: Vec::new() };
        Self {
            tree,
            generation,
            allocate,
            ask_nodes: nodes.clamp(1, most),
            lanes: lanes.map(lane).collect(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            turn: 0,
            allocated: Vec::new(),
            written: Vec::new(),
            unused: Vec::new(),
            nodes_written: 0,
        }
    }

    /// Places, encodes and caches a node; it is written soon.
    pub(crate) fn write(&mut self, node: &NodeBuilder) -> Result<Pointer, TreeError> {
        let addr = self.place(0)?;
        let copy = if self.lanes.len() > 1 { self.place(1)? } else { 0 };
        let mut buf = AlignedBuf::for_read(self.tree.geometry.get().node_bytes as usize);
        let checksum = node.encode(&mut buf, addr, self.generation);
        let bytes = buf.into_bytes();
        self.tree.keep_new(bytes.clone(), addr, node.level(), checksum)?;
        self.tree.counters.written.fetch_add(1, Relaxed);
        self.nodes_written += 1;
        self.turn += 1;
        for lane in 0..self.lanes.len() {
            let batch = &mut self.lanes[lane].batch;
            batch.push(bytes.clone());
            if batch.len() as u64 * u64::from(self.tree.geometry.get().node_bytes) >= RUN_BYTES {
                self.submit(lane);
            }
        }
        Ok(Pointer { addr, copy, checksum })
    }

    /// Allocates blocks for one copy of a node, right behind the last one if possible.
    fn place(&mut self, lane: usize) -> Result<BlockAddr, TreeError> {
        let node_blocks = self.tree.geometry.get().node_blocks();
        if self.lanes[lane].room.blocks < node_blocks {
            self.submit(lane);
            self.give_back_room(lane);
            let Lane { which, .. } = self.lanes[lane];
            let run = (self.allocate)(which, self.ask_nodes * node_blocks).ok_or(TreeError::NoSpace)?;
            debug_assert!(run.blocks >= node_blocks && run.blocks.is_multiple_of(node_blocks), "{run:?}");
            self.allocated.push(run);
            self.lanes[lane].room = run;
            if run.blocks < node_blocks {
                return Err(TreeError::NoSpace);
            }
        }
        let room = &mut self.lanes[lane].room;
        let addr = room.start;
        *room = BlockRun::new(addr + node_blocks, room.blocks - node_blocks);
        Ok(addr)
    }

    /// True for a node that this writer wrote.
    pub(crate) fn has_placed(&self, addr: BlockAddr) -> bool {
        self.allocated.iter().any(|run| addr >= run.start && addr < run.end())
    }

    /// Submits the gathered copies as one write.
    fn submit(&mut self, lane: usize) {
        let Lane { room, batch, .. } = &mut self.lanes[lane];
        let blocks = batch.iter().map(|buf| (buf.len() / BLOCK_BYTES) as u64).sum();
        if blocks == 0 {
            return;
        }
        let run = BlockRun::new(room.start - blocks, blocks);
        let bufs = std::mem::take(batch);
        let handle = self.tree.tracker.write(offset_bytes(run.start), bufs.clone());
        self.in_flight.push_back((handle.clone(), run.len_bytes()));
        self.in_flight_bytes += run.len_bytes();
        self.written.push(WrittenRun { run, bufs, handle });
    }

    fn give_back_room(&mut self, lane: usize) {
        let room = &mut self.lanes[lane].room;
        if room.blocks > 0 {
            self.unused.push(*room);
            room.blocks = 0;
        }
    }

    /// Counts one old node as processed.
    pub(crate) fn count_turn(&mut self) {
        self.turn += 1;
    }

    /// True when it is time for [`Writer::pause`].
    pub(crate) fn turn_is_over(&self) -> bool {
        self.turn >= NODES_PER_TURN || self.in_flight_bytes > IN_FLIGHT_BYTES
    }

    /// Lets other tasks run, and waits while too much is in flight.
    pub(crate) async fn pause(&mut self) -> Result<(), TreeError> {
        self.turn = 0;
        futures_lite::future::yield_now().await;
        while let Some((oldest, len_bytes)) = self.in_flight.front() {
            if self.in_flight_bytes <= IN_FLIGHT_BYTES && oldest.outcome().is_none() {
                break;
            }
            let outcome = oldest.wait().await;
            self.in_flight_bytes -= len_bytes;
            self.in_flight.pop_front();
            outcome?;
        }
        Ok(())
    }

    /// Submits the rest and gives back unused blocks.
    pub(crate) fn finish(&mut self) {
        for lane in 0..self.lanes.len() {
            self.submit(lane);
            self.give_back_room(lane);
        }
    }

    /// Waits until nothing is in flight and removes the new nodes from the cache; returns the
    /// allocated runs.
    pub(crate) async fn abandon(self) -> Vec<BlockRun> {
        for (handle, _) in &self.in_flight {
            // The outcome does not matter, since nothing refers to these nodes. But nothing may be
            // in flight to the blocks (rule R2).
            let _ = handle.wait().await;
        }
        for &run in &self.allocated {
            self.tree.forget(run);
        }
        self.allocated
    }
}
