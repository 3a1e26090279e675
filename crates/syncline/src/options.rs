//! Options for making an image and for opening it.

use std::time::Duration;
use syncline_device::Use;
use syncline_fs::types::Timestamp;
use syncline_fs::{AccessTime, Durability, Options as EngineOptions};
use syncline_store::StoreOptions;

/// Options for making an image; they stay in force for its lifetime.
///
/// ```
/// let format = syncline::FormatOptions::new().label("mail").permissions(0o700);
/// # let _ = format;
/// ```
#[derive(Clone, Debug)]
pub struct FormatOptions {
    pub(crate) node_bytes: u32,
    pub(crate) duplicate_metadata: bool,
    pub(crate) label: String,
    pub(crate) parent_pointers: bool,
    pub(crate) data_in_log: bool,
    pub(crate) counted_xattrs: bool,
    pub(crate) shared: bool,
    pub(crate) encrypted: bool,
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) permissions: u16,
    pub(crate) uuid: Option<[u8; 16]>,
    pub(crate) hash_seed: Option<[u8; 16]>,
    pub(crate) created: Option<Timestamp>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl FormatOptions {
    /// The defaults.
    pub fn new() -> Self {
        let node_bytes = syncline_store::FormatOptions::default().node_bytes;
        Self {
            node_bytes,
            duplicate_metadata: true,
            label: String::new(),
            parent_pointers: true,
            data_in_log: true,
            counted_xattrs: true,
            shared: false,
            encrypted: false,
            owner: None,
            permissions: 0o755,
            uuid: None,
            hash_seed: None,
            created: None,
        }
    }

    /// Tree node size in bytes: a power of two from 4 KiB to 64 KiB. Default 16 KiB.
    pub fn node_bytes(self, node_bytes: u32) -> Self {
        Self { node_bytes, ..self }
    }

    /// Whether the image holds its metadata twice: tree nodes, the space map and the table of snapshots. A
    /// damaged block of metadata is then read from the other copy and mended. Default true.
    pub fn duplicate_metadata(self, duplicate_metadata: bool) -> Self {
        Self { duplicate_metadata, ..self }
    }

    /// Human-readable name, at most 64 bytes. Default empty.
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Whether every inode knows its names (parent pointers), which
    /// [`paths`](crate::Filesystem::paths) needs. Default true.
    pub fn parent_pointers(self, parent_pointers: bool) -> Self {
        Self { parent_pointers, ..self }
    }

    /// Whether a sync may log small amounts of data whole and place them later. That is faster;
    /// older programs refuse such an image. Default true.
    pub fn data_in_log(self, data_in_log: bool) -> Self {
        Self { data_in_log, ..self }
    }

    /// Whether extended attributes count in the blocks of their inodes, and so in quotas, if nodes
    /// are large enough to record that. Older programs refuse such an image. Default true.
    pub fn counted_xattrs(self, counted_xattrs: bool) -> Self {
        Self { counted_xattrs, ..self }
    }

    /// Whether several hosts reach the device: every writer takes its lease first (promise P7). An
    /// NBD export always counts as such a device. Default false.
    pub fn shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    /// Whether the image is encrypted, under the key that this process added last: [`add_key`](crate::add_key).
    /// Default false.
    pub fn encrypted(self, encrypted: bool) -> Self {
        Self { encrypted, ..self }
    }

    /// True if the image is to be encrypted.
    #[doc(hidden)]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// User and group of the root directory. Default: those of this process.
    pub fn owner(self, uid: u32, gid: u32) -> Self {
        Self { owner: Some((uid, gid)), ..self }
    }

    /// Permission bits of the root directory. Default 0o755.
    pub fn permissions(self, permissions: u16) -> Self {
        Self { permissions, ..self }
    }

    /// UUID of the filesystem. Default: random.
    pub fn uuid(self, uuid: [u8; 16]) -> Self {
        Self { uuid: Some(uuid), ..self }
    }

    /// Seed of the hash of names. Default: random; set it only if images must be reproducible.
    pub fn hash_seed(self, hash_seed: [u8; 16]) -> Self {
        Self { hash_seed: Some(hash_seed), ..self }
    }

    /// Creation time. Default: now.
    pub fn created(self, created: Timestamp) -> Self {
        Self { created: Some(created), ..self }
    }
}

/// Options for opening an image. Sizes are in bytes; a size below its minimum is raised to it.
///
/// ```
/// use std::time::Duration;
/// let options =
///     syncline::ImageOptions::new().cache_bytes(16 << 20).checkpoint_interval(Duration::from_secs(5));
/// # let _ = options;
/// ```
#[derive(Clone, Default)]
pub struct ImageOptions {
    pub(crate) store: StoreOptions,
    pub(crate) engine: EngineOptions,
    pub(crate) owner: Option<(u32, u32)>,
    direct: Use,
    io_uring: Use,
    punch_holes: bool,
}

impl ImageOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The defaults, but nothing is written: the log is replayed in memory only.
    pub fn read_only() -> Self {
        let store = StoreOptions { read_only: true, ..StoreOptions::default() };
        Self { store, ..Self::default() }
    }

    /// Memory for tree nodes. Default 128 MiB, minimum 1 MiB.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.store.node_cache_bytes = size(bytes, 1 << 20);
        self
    }

    /// Amount of changes in memory that starts a checkpoint; writers wait at twice that. Default
    /// 256 MiB, minimum 64 KiB.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.store.memtable_bytes = size(bytes, 64 << 10);
        self
    }

    /// Amount of written data in memory at which writers wait. Default 256 MiB, minimum 1 MiB.
    pub fn dirty_bytes(mut self, bytes: u64) -> Self {
        self.engine.dirty_bytes_max = bytes.max(1 << 20);
        self.store.unflushed_bytes = self.engine.dirty_bytes_max.min(self.store.unflushed_bytes);
        self
    }

    /// Memory for cached blocks that were written in parts. Default 64 MiB; 0 caches none.
    pub fn kept_bytes(mut self, bytes: u64) -> Self {
        self.engine.kept_bytes_max = bytes;
        self
    }

    /// Number of unused inodes kept in memory, at 1 KiB or more each. Default 65536.
    pub fn cached_inodes(mut self, inodes: usize) -> Self {
        self.engine.cached_inodes_max = inodes;
        self
    }

    /// Age of unsynced data at which it is written to the device. Default 5 s.
    pub fn writeback_age(mut self, age: Duration) -> Self {
        self.engine.writeback_age = age;
        self
    }

    /// Age of the oldest logged change at which a checkpoint brings it into the tree. Default 30 s.
    pub fn checkpoint_interval(mut self, interval: Duration) -> Self {
        self.store.checkpoint_interval = interval;
        self
    }

    /// How long device errors may last before the filesystem turns read-only. Default 30 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.store.patience = patience;
        self
    }

    /// When reads change access times. Default relative, as on ext4.
    pub fn access_time(mut self, access_time: AccessTime) -> Self {
        self.engine.access_time = access_time;
        self
    }

    /// Durability class of files and directories that have none of their own. Default: fsync.
    pub fn durability(mut self, class: Durability) -> Self {
        self.engine.durability = class;
        self
    }

    /// Number of receipts kept, half a kilobyte each. Default 4096; 0 keeps none.
    pub fn receipts(mut self, receipts: usize) -> Self {
        self.engine.receipts_max = receipts;
        self
    }

    /// Whether freed blocks are discarded on the device, in the background. Default no.
    pub fn discard(mut self, discard: bool) -> Self {
        self.store.discard = discard;
        self
    }

    /// Whether [`trim`](crate::Filesystem::trim) and [`discard`](Self::discard) return free blocks
    /// of an image file to the host, as holes. If the host is full when such blocks are written
    /// again, these writes fail. Default no: an image file keeps its allocated space.
    pub fn punch_holes(self, punch_holes: bool) -> Self {
        Self { punch_holes, ..self }
    }

    /// Opens for writing even if the log ends before a batch that it calls durable, or the newest
    /// superblock may be lost, and so accepts that loss. Default no: opening fails.
    pub fn accept_damaged_log(mut self, accept: bool) -> Self {
        self.store.accept_damaged_log = accept;
        self
    }

    /// User and group of files that are created. Default: those of this process.
    pub fn owner(self, uid: u32, gid: u32) -> Self {
        Self { owner: Some((uid, gid)), ..self }
    }

    /// Whether to bypass the host's page cache. Default: if it works.
    pub fn direct(self, direct: Use) -> Self {
        Self { direct, ..self }
    }

    /// Whether to use io_uring. Default: if it works.
    pub fn io_uring(self, io_uring: Use) -> Self {
        Self { io_uring, ..self }
    }

    /// Changes options that only tests and measurements use.
    #[doc(hidden)]
    pub fn laboratory(mut self, choose: impl FnOnce(&mut StoreOptions, &mut EngineOptions)) -> Self {
        choose(&mut self.store, &mut self.engine);
        self
    }

    pub(crate) fn device(&self) -> syncline_device::OpenOptions {
        syncline_device::OpenOptions {
            read_only: self.store.read_only,
            beside_writer: false,
            direct: self.direct,
            io_uring: self.io_uring,
            punch_holes: self.punch_holes,
            sparse: false,
        }
    }
}

fn size(bytes: u64, least: usize) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).max(least)
}

/// User and group of this process.
pub(crate) fn process_owner() -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    // Without /proc the owner is unknown; an image without owners has root.
    std::fs::metadata("/proc/self").map_or((0, 0), |metadata| (metadata.uid(), metadata.gid()))
}
