//! The filesystem as a whole: its parts, its beginning and end, and the few calls that need several
//! parts.
//!
//! All layers import the type `Filesystem`, whose methods each of them adds to.

use crate::attributes::access::Accessed;
use crate::attributes::durability::class_of;
use crate::attributes::stat::require_times;
use crate::counters::{Counters, FsCounters};
use crate::data::{self, FileData};
use crate::inode::cache::{Claim, InodeCache, References};
use crate::inode::item::Limits;
use crate::inode::quotas::Quotas;
use crate::inode::{Inode, InodeState};
use crate::names::hash::NameHasher;
use crate::names::orphan::OrphanQueue;
use crate::receipt::Receipts;
use crate::transact::Together;
use crate::types::{Attributes, Caller, FileType, Ino, ROOT, SetAttributes, Timestamp};
use crate::{FsError, Options};
use bytes::Bytes;
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_device::Spawn;
use syncline_format::Key;
use syncline_format::items::durability::Durability;
use syncline_format::superblock::{FEATURE_COMPRESSION, FEATURE_DURABILITY};
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
    /// Where the background tasks run.
    pub fn spawner(&self) -> &dyn Spawn {
        &*self.spawn
    }

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
        let limits = Limits::of(&store);
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

    /// Calls `each` with every item from `from` to `to`, in order, reading `at_once` of them at a
    /// time.
    pub(crate) async fn each_item(
        &self,
        mut from: Key,
        to: Key,
        at_once: usize,
        mut each: impl FnMut(Key, &Bytes) -> Result<(), FsError> + Send,
    ) -> Result<(), FsError> {
        loop {
            let chunk = self.store.scan(from, to, at_once).await?;
            for (key, value) in &chunk.items {
                each(*key, value)?;
            }
            match chunk.items.last().and_then(|(key, _)| key.next()) {
                Some(next) if !chunk.complete && next <= to => from = next,
                _ => return Ok(()),
            }
        }
    }

    /// True when every inode of the image knows its names.
    pub fn has_parent_pointers(&self) -> bool {
        self.parent_pointers
    }

    /// Changes attributes. A new size is set first, as an operation of its own: if it fails,
    /// nothing has changed. The kernel has checked the permission of `_caller`.
    pub async fn setattr(
        &self,
        _caller: Caller,
        ino: Ino,
        changes: SetAttributes,
    ) -> Result<Attributes, FsError> {
        require_times(&changes)?;
        let inode = self.inode(ino).await?;
        if let Some(size) = changes.size {
            match inode.file_type {
                FileType::Regular => {}
                FileType::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid("only a regular file has a size to set")),
            }
            data::truncate(self, &inode, size, self.now(), changes.kill_privileges).await?;
        }
        let rest = SetAttributes { size: None, kill_privileges: false, ..changes };
        match changes.size {
            Some(_) if rest == SetAttributes::default() => self.getattr(ino).await,
            Some(_) => self.set_attributes(&inode, rest).await,
            None => self.set_attributes(&inode, changes).await,
        }
    }

    /// Makes a file or directory, and everything that was committed anywhere before, durable,
    /// whatever its class: for those whose own promise does not depend on it.
    pub async fn make_durable(&self, ino: Ino) -> Result<(), FsError> {
        let inode = self.inode(ino).await?;
        let class = match class_of(self, &inode) {
            Durability::Ordered(_) => Durability::Fsync,
            class => class,
        };
        data::fsync_as(self, &inode, class, false).await
    }

    /// Makes a change of an inode durable that has just been made, if its class demands that. A
    /// change of names counts as one of the directory.
    pub async fn settle(&self, ino: Ino) -> Result<(), FsError> {
        if !self.may_be_strict() {
            return Ok(());
        }
        let inode = self.inode(ino).await?;
        match class_of(self, &inode) {
            strict @ Durability::Strict => data::fsync_as(self, &inode, strict, false).await,
            Durability::Fsync | Durability::Ordered(_) => Ok(()),
        }
    }

    /// Figures since the mount.
    pub fn counters(&self) -> FsCounters {
        FsCounters {
            dirty_bytes: self.data.queue.dirty_bytes(),
            inodes_cached: self.inodes.len() as u64,
            inodes_referenced: self.references.len() as u64,
            ..self.counters.counts()
        }
    }
}
