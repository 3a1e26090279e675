//! What is chosen when an image is made, and when it is opened.

use syncline_device::Use;
use syncline_fs::types::Timestamp;
use syncline_store::StoreOptions;

/// What is chosen once for the life of an image.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Tree node size in bytes: a power of two from 4 KiB to 64 KiB. Default 16 KiB.
    pub node_bytes: u32,
    /// Human-readable name, at most 64 bytes. Default empty.
    pub label: String,
    /// Whether every inode knows its names (parent pointers), so that [`paths`](crate::Filesystem::paths) finds them. Default
    /// true.
    pub parent_pointers: bool,
    /// Whether a sync may log little data whole and place it later: faster, and older programs refuse such an image. Default
    /// true.
    pub data_in_log: bool,
    /// Whether extended attributes count in the blocks of their inodes, and so in quotas, where nodes have room to say so; older
    /// programs refuse such an image. Default true.
    pub counted_xattrs: bool,
    /// User and group of the root directory. Default: those of this process.
    pub owner: Option<(u32, u32)>,
    /// Permission bits of the root directory. Default 0o755.
    pub permissions: u16,
    /// Name of the filesystem. Default random.
    pub uuid: Option<[u8; 16]>,
    /// Seed of the hash of names. Default random; choose it only where images must come out the same.
    pub hash_seed: Option<[u8; 16]>,
    /// Creation time. Default: now.
    pub created: Option<Timestamp>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        let label = String::new();
        let node_bytes = syncline_store::FormatOptions::default().node_bytes;
        Self {
            node_bytes,
            label,
            parent_pointers: true,
            data_in_log: true,
            counted_xattrs: true,
            owner: None,
            permissions: 0o755,
            uuid: None,
            hash_seed: None,
            created: None,
        }
    }
}

/// What is chosen each time that an image is opened.
#[derive(Clone, Default)]
pub struct ImageOptions {
    /// Choices of the store: read-only, cache and memtable sizes, checkpoint interval.
    pub store: StoreOptions,
    /// Choices of the filesystem: limits of dirty data, access times, the clock.
    pub engine: syncline_fs::Options,
    /// User and group of files that are created. Default: those of this process.
    pub owner: Option<(u32, u32)>,
    /// Whether to bypass the host's page cache. Default: where it works.
    pub direct: Use,
    /// Whether to use io_uring. Default: where it works.
    pub io_uring: Use,
    /// Whether `trim` and `store.discard` give what is free of an image file back to its host, as holes. A host that is full when
    /// they are written again makes these writes fail. Default: no, an image file keeps the room that it was made with.
    pub punch_holes: bool,
}

impl ImageOptions {
    /// The defaults, but writing nothing: the log is replayed in memory only.
    pub fn read_only() -> Self {
        let store = StoreOptions { read_only: true, ..StoreOptions::default() };
        Self { store, ..Self::default() }
    }

    pub(crate) fn device(&self) -> syncline_device::OpenOptions {
        syncline_device::OpenOptions {
            read_only: self.store.read_only,
            beside_writer: false,
            direct: self.direct,
            io_uring: self.io_uring,
            punch_holes: self.punch_holes,
        }
    }
}

/// User and group of this process.
pub(crate) fn process_owner() -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    // Without /proc there is nobody to ask; root is what an image without owners has.
    std::fs::metadata("/proc/self").map_or((0, 0), |metadata| (metadata.uid(), metadata.gid()))
}
