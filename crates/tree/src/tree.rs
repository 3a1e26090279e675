//! The tree's machinery: node cache, checked reads, and lookups of single items.

use crate::TreeError;
use crate::frame::Place;
use bytes::Bytes;
use foldhash::fast::FixedState;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syncline_device::{AlignedBuf, DeviceError, DeviceFuture, FlushTracker};
use syncline_format::node::Node;
use syncline_format::superblock::TreeRoot;
use syncline_format::{
    BLOCK_BYTES, BlockAddr, BlockRun, Crc, FormatError, Geometry, Key, SharedGeometry, crc,
};
use syncline_sync::yield_point;

/// Reads and writes trees of one device; see the crate's documentation.
pub struct Tree {
    pub(crate) tracker: Arc<FlushTracker>,
    /// Sizes of the image, which may grow while it is open.
    pub(crate) geometry: Arc<SharedGeometry>,
    /// Leaves that reach behind this block are rewritten by any change that leads to them.
    pub(crate) border: AtomicU64,
    /// Its hash is the same in every process, so that evictions depend only on the nodes that were
    /// read.
    cache: Cache<BlockAddr, Cached, Weight, FixedState>,
    pub(crate) counters: Counters,
}

/// Counts since the tree was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeCounters {
    /// Nodes read from the device.
    pub nodes_read: u64,
    /// Nodes handed to the device to write.
    pub nodes_written: u64,
    /// Nodes that did not match what their parent says.
    pub nodes_corrupt: u64,
    /// Reads of nodes that the device failed.
    pub reads_failed: u64,
    /// Items that merges copied from old nodes to new ones.
    pub items_kept: u64,
    /// Bulk copies by which these items were copied.
    pub copies: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) read: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) corrupt: AtomicU64,
    pub(crate) reads_failed: AtomicU64,
    pub(crate) items_kept: AtomicU64,
    pub(crate) copies: AtomicU64,
}

/// How a walk uses the node cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Look in the cache first, and keep the nodes that had to be read.
    Fill,
    /// Look in the cache first, but keep nothing: the nodes that a merge reads are about to be
    /// freed.
    Peek,
    /// Always read from the device: a check looks at the device's contents.
    Bypass,
}

/// A cached node; the checksum tells whether it is the one that a pointer means.
#[derive(Clone)]
struct Cached {
    node: Node,
    checksum: Crc,
}

#[derive(Clone)]
struct Weight;

/// Memory of a cached node besides its bytes: cache entry, buffer header.
const CACHED_OVERHEAD_BYTES: u64 = 160;

impl Weighter<BlockAddr, Cached> for Weight {
    fn weight(&self, _addr: &BlockAddr, cached: &Cached) -> u64 {
        cached.node.bytes().len() as u64 + CACHED_OVERHEAD_BYTES
    }
}

impl Tree {
    /// A tree on `tracker`'s device that keeps about `cache_bytes` of nodes in memory.
    pub fn new(tracker: Arc<FlushTracker>, geometry: Geometry, cache_bytes: usize) -> Arc<Tree> {
        Self::of_shared(tracker, Arc::new(SharedGeometry::new(geometry)), cache_bytes)
    }

    /// Like `new`, for an image that may grow.
    pub fn of_shared(
        tracker: Arc<FlushTracker>,
        geometry: Arc<SharedGeometry>,
        cache_bytes: usize,
    ) -> Arc<Tree> {
        let nodes = cache_bytes / geometry.get().node_bytes as usize;
        let (hash, lifecycle) = (FixedState::default(), DefaultLifecycle::default());
        let cache = Cache::with(nodes.max(16), cache_bytes as u64, Weight, hash, lifecycle);
        let border = AtomicU64::new(BlockAddr::MAX);
        Arc::new(Self { tracker, geometry, border, cache, counters: Counters::default() })
    }

    /// From now on, a merge rewrites each leaf that reaches behind `end` if any change leads to it,
    /// even one that changes nothing: putting an item unchanged moves the nodes on the path to it.
    pub fn border(&self, end: BlockAddr) {
        self.border.store(end, Relaxed);
    }

    /// The counts so far.
    pub fn counters(&self) -> TreeCounters {
        TreeCounters {
            nodes_read: self.counters.read.load(Relaxed),
            nodes_written: self.counters.written.load(Relaxed),
            nodes_corrupt: self.counters.corrupt.load(Relaxed),
            reads_failed: self.counters.reads_failed.load(Relaxed),
            items_kept: self.counters.items_kept.load(Relaxed),
            copies: self.counters.copies.load(Relaxed),
        }
    }

    /// The number of nodes in memory, and the bytes that they take.
    pub fn cached_nodes(&self) -> (u64, u64) {
        (self.cache.len() as u64, self.cache.weight())
    }

    /// The value of `key` in the tree `root`.
    pub async fn get(&self, root: TreeRoot, key: Key) -> Result<Option<Bytes>, TreeError> {
        Ok(value_in(&self.leaf_for(root, key).await?, key))
    }

    /// The value of `key` if every node on the way is in memory; `None` if one is not.
    pub fn try_get(&self, root: TreeRoot, key: Key) -> Option<Result<Option<Bytes>, TreeError>> {
        let mut place = Place::root(root);
        loop {
            let node = match self.cached(place, Caching::Fill)? {
                Ok(node) => node,
                Err(error) => return Some(Err(error)),
            };
            if node.level() == 0 {
                return Some(Ok(value_in(&node, key)));
            }
            place = Place::child(&node, node.child_for(key), place.bound);
        }
    }

    /// The last item whose key is not greater than `key`, such as the extent that covers a file
    /// block.
    pub async fn floor(&self, root: TreeRoot, key: Key) -> Result<Option<(Key, Bytes)>, TreeError> {
        // A child's first key is in its parent, so the leaf for `key` holds the answer if there is
        // one.
        let leaf = self.leaf_for(root, key).await?;
        Ok(match leaf.find(key) {
            Ok(index) => Some(leaf.entry(index)),
            Err(index) => index.checked_sub(1).map(|index| leaf.entry(index)),
        })
    }

    /// Drops the cached nodes of `run`. Call before the blocks are reused.
    pub fn forget(&self, run: BlockRun) {
        yield_point();
        let inside = |addr: BlockAddr| addr >= run.start && addr - run.start < run.blocks;
        if run.blocks > self.cache.len() as u64 {
            self.cache.retain(|&addr, _| !inside(addr));
        } else {
            for addr in run.start..run.end() {
                self.cache.remove(&addr);
            }
        }
    }

    async fn leaf_for(&self, root: TreeRoot, key: Key) -> Result<Node, TreeError> {
        let mut place = Place::root(root);
        loop {
            let node = self.load(place, None, Caching::Fill).await?;
            if node.level() == 0 {
                return Ok(node);
            }
            place = Place::child(&node, node.child_for(key), place.bound);
        }
    }

    /// The node at `place`, from the cache or from the device; `started` is a read of it in flight.
    pub(crate) async fn load(
        &self,
        place: Place,
        started: Option<DeviceFuture<AlignedBuf>>,
        caching: Caching,
    ) -> Result<Node, TreeError> {
        match self.cached(place, caching) {
            Some(node) => node,
            // Boxed, so that callers that find everything in the cache carry no space for a read.
            None => Box::pin(self.load_missing(place, started, caching)).await,
        }
    }

    /// Loads a node that the cache does not have.
    async fn load_missing(
        &self,
        place: Place,
        started: Option<DeviceFuture<AlignedBuf>>,
        caching: Caching,
    ) -> Result<Node, TreeError> {
        let addr = place.pointer.addr;
        let read = self.read(place, started);
        let cached = match caching {
            // If several callers miss the same node at once, one of them reads it.
            Caching::Fill => self.cache.get_or_insert_async(&addr, read).await?,
            Caching::Peek | Caching::Bypass => read.await?,
        };
        if cached.checksum == place.pointer.checksum {
            return self.check_place(place, cached.node);
        }
        // The cached node is not the one meant: the device decides.
        let fresh = self.read(place, None).await?;
        yield_point();
        self.cache.insert(addr, fresh.clone());
        self.check_place(place, fresh.node)
    }

    fn cached(&self, place: Place, caching: Caching) -> Option<Result<Node, TreeError>> {
        yield_point();
        let cached = match caching {
            Caching::Fill => self.cache.get(&place.pointer.addr)?,
            Caching::Peek => self.cache.peek(&place.pointer.addr)?,
            Caching::Bypass => return None,
        };
        (cached.checksum == place.pointer.checksum).then(|| self.check_place(place, cached.node))
    }

    /// Starts reading a node unless the cache has it. [`Tree::load`] refuses places outside the
    /// device.
    pub(crate) fn start_read(&self, place: Place, caching: Caching) -> Option<DeviceFuture<AlignedBuf>> {
        let geometry = self.geometry.get();
        let run = BlockRun::new(place.pointer.addr, geometry.node_blocks());
        if !geometry.contains(run)
            || (caching != Caching::Bypass && self.cache.contains_key(&place.pointer.addr))
        {
            return None;
        }
        self.counters.read.fetch_add(1, Relaxed);
        Some(self.tracker.read(run.offset_bytes(), geometry.node_bytes as usize))
    }

    async fn read(
        &self,
        place: Place,
        started: Option<DeviceFuture<AlignedBuf>>,
    ) -> Result<Cached, TreeError> {
        let started = started.or_else(|| self.start_read(place, Caching::Bypass));
        let Some(read) = started else {
            return Err(self.corrupt(place, FormatError::Field { structure: "tree root", field: "address" }));
        };
        let bytes = read.await.map_err(|error| self.unread(place, error))?.into_bytes();
        let checksum = crc(&bytes);
        if checksum != place.pointer.checksum {
            return Err(self.corrupt(place, FormatError::Checksum { structure: "tree node" }));
        }
        let node = Node::decode(bytes, self.geometry.get(), place.pointer.addr, place.level)
            .map_err(|detail| self.corrupt(place, detail))?;
        Ok(Cached { node, checksum })
    }

    /// Checks a node against its parent: only the root may be empty, and the keys must lie between
    /// this entry and the next.
    fn check_place(&self, place: Place, node: Node) -> Result<Node, TreeError> {
        let first = node.first_key();
        let right = node.level() == place.level
            && place.first.is_none_or(|key| first == Some(key))
            && place.bound.is_none_or(|bound| node.last_key().is_none_or(|last| last < bound));
        if right {
            return Ok(node);
        }
        Err(self.corrupt(place, FormatError::Field { structure: "tree node", field: "place in its parent" }))
    }

    fn corrupt(&self, place: Place, detail: FormatError) -> TreeError {
        self.counters.corrupt.fetch_add(1, Relaxed);
        tracing::error!(
            addr = place.pointer.addr,
            level = place.level,
            %detail,
            "damaged tree node: 'syncline scrub DIR' finds all damage, 'syncline check' of the unmounted image lists the possible repairs"
        );
        TreeError::Corrupt { addr: place.pointer.addr, detail }
    }

    fn unread(&self, place: Place, error: DeviceError) -> TreeError {
        self.counters.reads_failed.fetch_add(1, Relaxed);
        tracing::error!(
            addr = place.pointer.addr,
            level = place.level,
            "a tree node can't be read: {error}; 'dmesg' tells more of the device"
        );
        error.into()
    }

    /// Puts a node that is about to be written into the cache, checked as if it had been read.
    pub(crate) fn keep_new(
        &self,
        bytes: Bytes,
        addr: BlockAddr,
        level: u8,
        checksum: Crc,
    ) -> Result<(), TreeError> {
        let node = Node::decode(bytes, self.geometry.get(), addr, level)
            .map_err(|detail| TreeError::Corrupt { addr, detail })?;
        yield_point();
        self.cache.insert(addr, Cached { node, checksum });
        Ok(())
    }
}

/// Converts a node address, in blocks, to a byte offset.
pub(crate) fn offset_bytes(addr: BlockAddr) -> u64 {
    addr * BLOCK_BYTES as u64
}

fn value_in(leaf: &Node, key: Key) -> Option<Bytes> {
    leaf.find(key).ok().map(|index| leaf.entry(index).1)
}
