//! The filesystem as a whole.

use crate::attributes::access::Accessed;
use crate::attributes::durability::Durability;
use crate::attributes::quota::Quotas;
use crate::cache::{Claim, InodeCache, References};
use crate::counters::{Counters, FsCounters};
use crate::data::{self, FileData};
use crate::inode::{Inode, InodeState};
use crate::names::hash::NameHasher;
use crate::names::orphan::OrphanQueue;
use crate::receipt::Receipts;
use crate::transact::Together;
use crate::types::{FileType, Ino, ROOT, Timestamp};
use crate::{FsError, Options};
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_device::Spawn;
use syncline_format::items::inode::{inline_bytes_max, xattr_bytes_max};
use syncline_format::items::parent::parent_bytes_max;
use syncline_format::superblock::{FEATURE_COMPRESSION, FEATURE_COUNTED_XATTRS, FEATURE_DURABILITY};
use syncline_store::Store;
use syncline_sync::atomic::AtomicBool;

/// A mounted filesystem.
pub struct Filesystem {
    pub(crate) store: Arc<Store>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) options: Options,
    /// Limits that follow from the geometry.
    pub(crate) limits: Limits,
    pub(crate) hasher: NameHasher,
    /// Whether a sync may log data whole instead of placing it.
    pub(crate) logs_data: bool,
    /// Whether every inode knows its names.
    pub(crate) parent_pointers: bool,
    pub(crate) inodes: InodeCache,
    pub(crate) references: References,
    /// Inodes whose access time is not logged yet.
    pub(crate) accessed: Accessed,
    pub(crate) orphans: OrphanQueue,
    pub(crate) quotas: Quotas,
    /// Held while a directory changes its parent; taken before all leases of inodes.
    pub(crate) rename_lease: syncline_sync::asynchronous::Mutex<()>,
    /// Held for writing while a transaction of the library is applied, for reading by each call of
    /// the library. A mount has no such transactions and takes none of it.
    pub(crate) transactions: syncline_sync::asynchronous::RwLock<()>,
    /// The changes of the newest transaction, for the laboratory.
    pub(crate) last_transaction: syncline_sync::Mutex<Option<Together>>,
    pub(crate) counters: Counters,
    /// Receipts of the last syncs.
    pub(crate) receipts: Receipts,
    /// State of file data: dirty list, budgets, background tasks.
    pub(crate) data: FileData,
    /// A durable superblock is known to have the feature of compressed data.
    pub(crate) may_compress: AtomicBool,
    /// Some inode may have a durability class of its own, or the mount demands `strict`.
    pub(crate) has_classes: AtomicBool,
    /// A reference to itself, for background tasks.
    me: Weak<Filesystem>,
}

/// Limits that follow from the geometry of the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest value of an item.
    pub value_bytes: usize,
    /// Most bytes of file data (or symlink target) kept in the inode item.
    pub inline_bytes: usize,
    /// Most bytes that all small xattrs take in the inode item.
    pub xattr_bytes: usize,
    /// Most bytes that all parent pointers take in the inode item.
    pub parent_bytes: usize,
    /// Extended attributes with items of their own count towards usage.
    pub counts_xattrs: bool,
}

/// A filesystem that has been read as far as necessary and changes nothing yet. Its store need not
/// have begun.
pub struct Loaded {
    fs: Arc<Filesystem>,
    orphans: Vec<Ino>,
}

impl Loaded {
    /// The filesystem, for reading.
    pub fn fs(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    /// Starts the removal of orphans and the background write-back. The store must have begun.
    pub fn start(self) -> Arc<Filesystem> {
        self.fs.enqueue_orphans(self.orphans);
        data::start(&self.fs);
        self.fs
    }
}

impl Filesystem {
    /// Opens the filesystem of a store, and starts the removal of orphans and the background
    /// write-back.
    pub async fn open(
        store: Arc<Store>,
        spawn: Arc<dyn Spawn>,
        options: Options,
    ) -> Result<Arc<Self>, FsError> {
        Ok(Self::load(store, spawn, options).await?.start())
    }

    /// The first part of `Filesystem::open`: reads, and refuses an image that can't be used.
    pub async fn load(store: Arc<Store>, spawn: Arc<dyn Spawn>, options: Options) -> Result<Loaded, FsError> {
        let hasher = NameHasher::new(&store.hash_seed());
        Self::load_with(store, spawn, options, hasher).await
    }

    /// `Filesystem::open` with a given hash of names.
    #[cfg(test)]
    pub(crate) async fn open_with(
        store: Arc<Store>,
        spawn: Arc<dyn Spawn>,
        options: Options,
        hasher: NameHasher,
    ) -> Result<Arc<Self>, FsError> {
        Ok(Self::load_with(store, spawn, options, hasher).await?.start())
    }

    async fn load_with(
        store: Arc<Store>,
        spawn: Arc<dyn Spawn>,
        options: Options,
        hasher: NameHasher,
    ) -> Result<Loaded, FsError> {
        let geometry = store.geometry();
        let limits = Limits {
            value_bytes: geometry.max_value_bytes(),
            inline_bytes: inline_bytes_max(geometry.node_bytes),
            xattr_bytes: xattr_bytes_max(geometry.node_bytes),
            parent_bytes: parent_bytes_max(geometry.node_bytes),
            counts_xattrs: store.has_features(FEATURE_COUNTED_XATTRS),
        };
        let parent_pointers = store.has_parent_pointers();
        let logs_data = data::can_log_data(&store);
        let may_compress = AtomicBool::new(store.has_features(FEATURE_COMPRESSION));
        let strict = options.durability == Durability::Strict;
        let has_classes = AtomicBool::new(strict || store.has_features(FEATURE_DURABILITY));
        let fs = Arc::new_cyclic(|me| Self {
            logs_data,
            parent_pointers,
            store,
            spawn,
            limits,
            hasher,
            inodes: InodeCache::new(options.cached_inodes_max),
            references: References::new(),
            accessed: Accessed::default(),
            orphans: OrphanQueue::default(),
            quotas: Quotas::default(),
            rename_lease: syncline_sync::asynchronous::Mutex::new(()),
            transactions: syncline_sync::asynchronous::RwLock::new(()),
            last_transaction: syncline_sync::Mutex::new(None),
            counters: Counters::default(),
            receipts: Receipts::new(options.receipts_max),
            data: FileData::default(),
            may_compress,
            has_classes,
            me: me.clone(),
            options,
        });
        fs.store.set_relocation(Arc::new(data::Relocation(fs.me.clone())));
        fs.data.room.load(&fs.store).await?;
        fs.quotas.load(&fs).await?;
        // An image without a usable root is refused here, not by the first caller.
        fs.directory(ROOT).await?;
        let orphans = fs.find_orphans().await?;
        Ok(Loaded { fs, orphans })
    }

    /// Removes all inodes without names, writes everything else back, and stops the background
    /// tasks. The caller closes the store.
    pub async fn close(self: &Arc<Self>) -> Result<(), FsError> {
        self.close_orphans().await;
        let accessed = self.log_access_times().await;
        data::stop(self).await.and(accessed)
    }

    /// True if file data that was accepted is in memory only. After [`close`](Self::close), it is lost.
    pub fn has_unwritten(&self) -> bool {
        let unwritten = |inode: &Inode| {
            let state = inode.state.lock();
            state.attr.nlink > 0 && state.data.has_unlogged()
        };
        !self.inodes.matching(unwritten).is_empty()
    }

    /// The inodes that the kernel knows, and of which it may have pages.
    pub fn known_to_kernel(&self) -> Vec<Ino> {
        self.references.all()
    }

    /// The `Arc` of this filesystem, for a background task.
    pub(crate) fn arc(&self) -> Arc<Filesystem> {
        self.me.upgrade().expect("a filesystem lives in the Arc that calls its methods")
    }

    /// The store below.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The time of day, for timestamps.
    pub(crate) fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// The time by which ages are measured.
    pub(crate) fn uptime(&self) -> Duration {
        self.options.clock.uptime()
    }

    /// An inode, from memory or from the store; `Stale` if it does not exist.
    pub(crate) async fn inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        loop {
            match self.inodes.claim(ino) {
                Claim::Hit(inode) => {
                    self.counters.inode_hits.add(1);
                    return Ok(inode);
                }
                Claim::Wait(loaded) => loaded.await,
                Claim::Load(loading) => {
                    // Boxed, so that the future of a caller that finds the inode in memory has no
                    // room for this.
                    let inode = Box::pin(self.load_inode(ino)).await?;
                    self.store.give_way();
                    if loading.finish(&inode) {
                        self.store.give_way();
                        data::note_loaded(self, &inode);
                        return Ok(inode);
                    }
                }
            }
        }
    }

    async fn load_inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        self.counters.inode_loads.add(1);
        let value = self.store.get(Inode::key(ino)).await?.ok_or(FsError::Stale)?;
        self.store.give_way();
        let mut state = InodeState::decode(ino, &value, self.limits, self.store.last_op())
            .map_err(|detail| FsError::Corrupt { ino, detail })?;
        state.count_in(self.quotas.existing(state.meta.quota));
        if state.attr.file_type == FileType::Regular {
            state.data = state.data.with_preallocated(self.data.room.of(&self.store, ino).await?);
            data::load_unplaced(self, &mut state).await?;
        }
        Ok(Inode::new(state))
    }

    /// Figures since the mount.
    pub fn counters(&self) -> FsCounters {
        FsCounters {
            dirty_bytes: self.data.queue.dirty_bytes(),
            inodes_cached: self.inodes.len() as u64,
            inodes_referenced: self.references.len() as u64,
            ..self.counters.snapshot()
        }
    }
}
