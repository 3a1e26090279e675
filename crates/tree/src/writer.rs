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

/// Allocates free blocks: asked for a number of blocks, a multiple of a node's, it returns a run of
/// at most that many, also a multiple of a node's, or `None` if there is not even room for one
/// node.
pub type Allocate<'a> = dyn Fn(u64) -> Option<BlockRun> + Sync + 'a;

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
    /// The unused rest of the last allocated run.
    room: BlockRun,
    /// Nodes not yet submitted; they end where `room` starts.
    batch: Vec<Bytes>,
    in_flight: VecDeque<(WriteHandle, u64)>,
    in_flight_bytes: u64,
    turn: u32,
    pub(crate) allocated: Vec<BlockRun>,
    pub(crate) written: Vec<WrittenRun>,
    pub(crate) unused: Vec<BlockRun>,
    pub(crate) nodes_written: u64,
}

impl<'a> Writer<'a> {
    /// A writer that expects to write about `nodes` nodes.
    pub(crate) fn new(tree: &'a Tree, generation: u64, nodes: u64, allocate: &'a Allocate<'a>) -> Self {
        let most = RUN_BYTES / u64::from(tree.geometry.get().node_bytes);
        Self {
            tree,
            generation,
            allocate,
            ask_nodes: nodes.clamp(1, most),
            room: BlockRun::new(0, 0),
            batch: Vec::new(),
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
        let addr = self.place()?;
        let mut buf = AlignedBuf::for_read(self.tree.geometry.get().node_bytes as usize);
        let checksum = node.encode(&mut buf, addr, self.generation);
        let bytes = buf.into_bytes();
        self.tree.keep_new(bytes.clone(), addr, node.level(), checksum)?;
        self.batch.push(bytes);
        self.nodes_written += 1;
        self.turn += 1;
        if self.batch.len() as u64 * u64::from(self.tree.geometry.get().node_bytes) >= RUN_BYTES {
            self.submit();
        }
        Ok(Pointer { addr, checksum })
    }

    /// Allocates blocks for one node, right behind the last one if possible.
    fn place(&mut self) -> Result<BlockAddr, TreeError> {
        let node_blocks = self.tree.geometry.get().node_blocks();
        if self.room.blocks < node_blocks {
            self.submit();
            self.give_back_room();
            let run = (self.allocate)(self.ask_nodes * node_blocks).ok_or(TreeError::NoSpace)?;
            debug_assert!(run.blocks >= node_blocks && run.blocks.is_multiple_of(node_blocks), "{run:?}");
            self.allocated.push(run);
            self.room = run;
            if run.blocks < node_blocks {
                return Err(TreeError::NoSpace);
            }
        }
        let addr = self.room.start;
        self.room = BlockRun::new(addr + node_blocks, self.room.blocks - node_blocks);
        Ok(addr)
    }

    /// True for a node that this writer wrote.
    pub(crate) fn has_placed(&self, addr: BlockAddr) -> bool {
        self.allocated.iter().any(|run| addr >= run.start && addr < run.end())
    }

    /// Submits the gathered nodes as one write.
    fn submit(&mut self) {
        let blocks = self.batch.iter().map(|buf| (buf.len() / BLOCK_BYTES) as u64).sum();
        if blocks == 0 {
            return;
        }
        let run = BlockRun::new(self.room.start - blocks, blocks);
        let bufs = std::mem::take(&mut self.batch);
        let handle = self.tree.tracker.write(offset_bytes(run.start), bufs.clone());
        self.tree.counters.written.fetch_add(bufs.len() as u64, Relaxed);
        self.in_flight.push_back((handle.clone(), run.len_bytes()));
        self.in_flight_bytes += run.len_bytes();
        self.written.push(WrittenRun { run, bufs, handle });
    }

    fn give_back_room(&mut self) {
        if self.room.blocks > 0 {
            self.unused.push(self.room);
            self.room.blocks = 0;
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
        self.submit();
        self.give_back_room();
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
