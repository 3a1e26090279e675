//! The tree's machinery: node cache, checked reads, and lookups of single items.

use crate::TreeError;
use crate::frame::Place;
use crate::rotten::RottenList;
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
    pub(crate) rotten: RottenList,
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
    /// Copies of nodes found damaged or unreadable while the other copy was sound.
    pub copies_rotten: u64,
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
    pub(crate) copies_rotten: AtomicU64,
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
    /// Always read from the device, both copies: a check looks at the device's contents.
    Bypass,
}

/// A node that is being read.
pub(crate) struct Reading {
    first: DeviceFuture<AlignedBuf>,
    /// The second copy, if it is wanted even though the first one may be sound.
    copy: Option<DeviceFuture<AlignedBuf>>,
}

/// Why a copy of a node can't be used.
#[derive(thiserror::Error, Debug)]
pub(crate) enum Unsound {
    #[error(transparent)]
    Corrupt(FormatError),
    #[error(transparent)]
    Unread(DeviceError),
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
        let (rotten, counters) = (RottenList::default(), Counters::default());
        Arc::new(Self { tracker, geometry, border, cache, rotten, counters })
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
            copies_rotten: self.counters.copies_rotten.load(Relaxed),
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
        started: Option<Reading>,
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
        started: Option<Reading>,
        caching: Caching,
    ) -> Result<Node, TreeError> {
        let addr = place.pointer.addr;
        let read = self.read(place, started, caching);
        let cached = match caching {
            // If several callers miss the same node at once, one of them reads it.
            Caching::Fill => self.cache.get_or_insert_async(&addr, read).await?,
            Caching::Peek | Caching::Bypass => read.await?,
        };
        if cached.checksum == place.pointer.checksum {
            return self.check_place(place, cached.node);
        }
        // The cached node is not the one meant: the device decides.
        let fresh = self.read(place, None, caching).await?;
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

    /// Starts reading a node unless the cache has it; both copies if the device's contents are wanted.
    /// [`Tree::load`] refuses places outside the device.
    pub(crate) fn start_read(&self, place: Place, caching: Caching) -> Option<Reading> {
        let is_cached = caching != Caching::Bypass && self.cache.contains_key(&place.pointer.addr);
        if is_cached { None } else { self.begin_read(place, caching) }
    }

    fn begin_read(&self, place: Place, caching: Caching) -> Option<Reading> {
        let (geometry, pointer) = (self.geometry.get(), place.pointer);
        if !geometry.has(pointer, geometry.node_blocks()) {
            return None;
        }
        self.counters.read.fetch_add(1, Relaxed);
        let copy = (caching == Caching::Bypass && pointer.copy != 0).then(|| self.read_at(pointer.copy));
        Some(Reading { first: self.read_at(pointer.addr), copy })
    }

    pub(crate) fn read_at(&self, addr: BlockAddr) -> DeviceFuture<AlignedBuf> {
        self.tracker.read(offset_bytes(addr), self.geometry.get().node_bytes as usize)
    }

    /// Reads a node: its first copy if that is sound, otherwise the second.
    async fn read(
        &self,
        place: Place,
        started: Option<Reading>,
        caching: Caching,
    ) -> Result<Cached, TreeError> {
        let started = started.or_else(|| self.begin_read(place, caching));
        let Some(Reading { first, copy }) = started else {
            return Err(self.corrupt(place, FormatError::Field { structure: "tree root", field: "address" }));
        };
        let (first, pointer) = (self.decoded(place, first.await), place.pointer);
        let second = match (copy, &first) {
            (Some(copy), _) => self.decoded(place, copy.await),
            (None, Err(_)) if pointer.copy != 0 => self.decoded(place, self.read_at(pointer.copy).await),
            _ => return first.map_err(|unsound| self.told(place, unsound)),
        };
        match (first, second) {
            (Ok(sound), Ok(_)) => Ok(sound),
            (Ok(sound), Err(unsound)) => {
                self.rotten(place, pointer.copy, &unsound);
                Ok(sound)
            }
            (Err(unsound), Ok(sound)) => {
                self.rotten(place, pointer.addr, &unsound);
                Ok(sound)
            }
            (Err(unsound), Err(_)) => Err(self.told(place, unsound)),
        }
    }

    /// A copy of a node, if it is sound.
    fn decoded(&self, place: Place, read: Result<AlignedBuf, DeviceError>) -> Result<Cached, Unsound> {
        let bytes = read.map_err(Unsound::Unread)?.into_bytes();
        let checksum = crc(&bytes);
        if checksum != place.pointer.checksum {
            return Err(Unsound::Corrupt(FormatError::Checksum { structure: "tree node" }));
        }
        let node = Node::decode(bytes, self.geometry.get(), place.pointer.addr, place.level);
        Ok(Cached { node: node.map_err(Unsound::Corrupt)?, checksum })
    }

    fn told(&self, place: Place, unsound: Unsound) -> TreeError {
        match unsound {
            Unsound::Corrupt(detail) => self.corrupt(place, detail),
            Unsound::Unread(error) => self.unread(place, error),
        }
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
