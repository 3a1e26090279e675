//! Making a filesystem: a tree with its first items, a space map and the first superblocks.

use crate::checkpoint::{GENERATION_OF_MKFS, write_slot};
use crate::room::{LEAST_SEGMENT_BLOCKS, allocate_nodes, segment_blocks};
use crate::{Store, StoreError, StoreOptions, Transaction};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt, FlushTracker, Spawn};
use syncline_format::items::inode::has_room_for_xattr_units;
use syncline_format::space::MAX_BLOCKS;
use syncline_format::superblock::{
    FEATURE_COUNTED_XATTRS, FEATURE_DUP, FEATURE_LEASE, FEATURE_PARENT_POINTERS, FEATURE_UNPLACED, LogStart,
    Pointer, Superblock, encode_label,
};
use syncline_format::{BLOCK_BYTES, BlockRun, Epoch, Geometry, Key, Metadata, NODE_BYTES_DEFAULT};
use syncline_space::{Class, Space};
use syncline_tree::{MergeFailed, Tree};

/// Choices that are made once for the life of an image.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Tree node size in bytes: a power of two from 4 KiB to 64 KiB. Default 16 KiB.
    pub node_bytes: u32,
    /// How many times the image holds its metadata. Default twice.
    pub metadata: Metadata,
    /// Human-readable name, at most 64 bytes of UTF-8. Default empty.
    pub label: String,
    /// Name of the filesystem; random unless given.
    pub uuid: [u8; 16],
    /// Whether every inode knows its names (parent pointers). Default true.
    pub parent_pointers: bool,
    /// Whether a sync may log small amounts of data whole and place them later. Default true.
    pub data_in_log: bool,
    /// Whether extended attributes count in the blocks of their inodes, and so in quotas, if tree
    /// nodes have room to record that. Default true.
    pub counted_xattrs: bool,
    /// Whether every writer must hold the device lease, since several hosts reach the device. The
    /// caller holds it. Default false.
    pub shared: bool,
    /// Seed of the directory name hash; random unless given.
    pub hash_seed: [u8; 16],
    /// Creation time, nanoseconds since 1970.
    pub created_ns: u64,
    /// The smallest object id handed out. Smaller ones are for fixed objects such as the root
    /// directory.
    pub first_object: u64,
    /// The first log epoch; random unless a simulation sets it.
    #[doc(hidden)]
    pub epoch: Option<Epoch>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            node_bytes: NODE_BYTES_DEFAULT,
            metadata: Metadata::default(),
            label: String::new(),
            uuid: *uuid::Uuid::new_v4().as_bytes(),
            parent_pointers: true,
            data_in_log: true,
            counted_xattrs: true,
            shared: false,
            hash_seed: rand::random(),
            created_ns: 0,
            first_object: 16,
            epoch: None,
        }
    }
}

/// Refuses a size that no image can have.
pub fn require_size(size_bytes: u64) -> Result<(), StoreError> {
    let total_blocks = size_bytes / BLOCK_BYTES as u64;
    if total_blocks < Geometry::MIN_BLOCKS {
        return Err(StoreError::Unusable("an image has at least 16 MiB".into()));
    }
    if total_blocks > MAX_BLOCKS {
        return Err(StoreError::Unusable("an image has at most 256 TiB".into()));
    }
    Ok(())
}

/// Makes a filesystem on `device` with the first contents `initial`. Previous contents are lost.
///
/// Previous contents, other filesystems included, are made unrecognizable first, and the
/// superblocks are written last. So a crash leaves either no filesystem or this one with its first
/// contents.
pub async fn format(
    device: Arc<dyn Device>,
    options: FormatOptions,
    initial: Transaction,
    spawn: Arc<dyn Spawn>,
) -> Result<(), StoreError> {
    require_size(device.size_bytes())?;
    let total_blocks = device.size_bytes() / BLOCK_BYTES as u64;
    let FormatOptions { node_bytes, metadata, .. } = options;
    let geometry = Geometry { total_blocks, node_bytes, metadata };
    let geometry = geometry.check().map_err(|error| StoreError::Unusable(error.to_string().into()))?;
    wipe(&device, geometry).await?;
    let tracker = FlushTracker::new(device.clone());
    let space = Space::format(geometry);
    let superblock = first_superblock(&tracker, &space, &options, initial).await?;
    write_slot(&tracker, 1, &superblock).await?;
    let again = Superblock { generation: GENERATION_OF_MKFS, ..superblock };
    write_slot(&tracker, 0, &again).await?;
    drop(tracker);
    // The log that recovery opens has an epoch of its own.
    let epoch = options.epoch.map(|epoch| epoch.map(|byte| !byte));
    let (store, _) = Store::open(device, StoreOptions { epoch, ..StoreOptions::default() }, spawn).await?;
    store.close().await
}

/// Zeros both ends of the device. Superblocks lie there, and so do the signatures of other
/// filesystems, swap and volume managers, by which these would take the device for theirs.
async fn wipe(device: &Arc<dyn Device>, geometry: Geometry) -> Result<(), StoreError> {
    let usable = geometry.usable();
    for run in [BlockRun::new(0, usable.start), BlockRun::new(usable.end(), Geometry::TAIL_BLOCKS)] {
        let zeros = AlignedBuf::zeroed(run.len_bytes() as usize).into_bytes();
        device.write_at(run.offset_bytes(), vec![zeros]).await?;
    }
    device.flush_all().await?;
    Ok(())
}

/// Writes a tree of the first items and its space map, durably, and returns the superblock that
/// refers to them.
pub(crate) async fn first_superblock(
    tracker: &Arc<FlushTracker>,
    space: &Arc<Space>,
    options: &FormatOptions,
    initial: Transaction,
) -> Result<Superblock, StoreError> {
    const GENERATION: u64 = 1;
    debug_assert!(initial.named.is_empty() && initial.freed.is_empty(), "a new filesystem has no data");
    let impossible = || StoreError::Unusable("a label has at most 64 bytes, and no NUL".into());
    let label = encode_label(&options.label).ok_or_else(impossible)?;
    let geometry = space.geometry();
    let tree = Tree::new(tracker.clone(), geometry, 1 << 20);
    let node = geometry.node_blocks();
    let allocate = |copy, _| allocate_nodes(space, copy, node);
    let failed = |failed: MergeFailed| StoreError::from(failed.error);
    let empty = tree.create(GENERATION, &allocate).await.map_err(failed)?;
    let items: BTreeMap<Key, Option<Bytes>> = initial.changes.into_iter().collect();
    let merged = tree.merge(empty.root, GENERATION, &items, &allocate).await.map_err(failed)?;
    let written = if items.is_empty() { &empty.written } else { &merged.written };
    let mut frozen = space.freeze(GENERATION);
    written.iter().for_each(|written| frozen.name(written.run));
    let persisted = space.persist(tracker, &mut frozen).await?;
    let handles = empty.written.iter().chain(&merged.written).map(|written| &written.handle);
    for handle in handles.chain(persisted.written.iter().map(|written| &written.handle)) {
        handle.wait().await?;
    }
    tracker.make_durable(tracker.newest_ticket()).await?;
    let counted_xattrs =
        options.counted_xattrs && has_room_for_xattr_units(geometry.node_bytes, options.parent_pointers);
    let blocks = segment_blocks(geometry.total_blocks);
    let least = LEAST_SEGMENT_BLOCKS.min(blocks);
    let segment = space.allocate(Class::Log, blocks, least, None).ok_or(StoreError::NoSpace)?;
    Ok(Superblock {
        uuid: options.uuid,
        label,
        geometry,
        generation: GENERATION,
        epoch: options.epoch.unwrap_or_else(rand::random),
        tree: merged.root,
        space: persisted.root,
        log: LogStart::first_in(segment, 1, 0),
        features: if options.parent_pointers { FEATURE_PARENT_POINTERS } else { 0 }
            | if options.data_in_log { FEATURE_UNPLACED } else { 0 }
            | if counted_xattrs { FEATURE_COUNTED_XATTRS } else { 0 }
            | if options.shared { FEATURE_LEASE } else { 0 }
            | if options.metadata == Metadata::Dup { FEATURE_DUP } else { 0 },
        next_object: options.first_object,
        // The first contents count as a transaction like any other.
        op_seq: u64::from(!items.is_empty()),
        tree_nodes: if items.is_empty() { empty.nodes_written } else { merged.nodes_written },
        used_blocks: persisted.used_blocks,
        objects: initial.objects_delta.max(0) as u64,
        hash_seed: options.hash_seed,
        created_ns: options.created_ns,
        snapshots: Pointer::default(),
        base: 0,
        clean: true,
    })
}
