//! An image's description of itself, read without opening it.

use crate::error::CheckError;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::superblock::FEATURE_LEASE;
use syncline_format::{BLOCK_BYTES, FORMAT_VERSION};
use syncline_store::{Snapshot, kept_besides, read_snapshots, read_superblocks};

/// An image's own description.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Info {
    /// Version of the format.
    pub format_version: u32,
    /// UUID of the filesystem.
    pub uuid: String,
    /// Label.
    pub label: String,
    /// Size of the filesystem in bytes.
    pub size_bytes: u64,
    /// Size of the device or file in bytes.
    pub device_bytes: u64,
    /// Size of a tree node in bytes.
    pub node_bytes: u32,
    /// Copies of each tree node and of each page of the space map.
    pub metadata_copies: u64,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Bytes in use at the last checkpoint, without those that only snapshots use.
    pub used_bytes: u64,
    /// Snapshots, if their table can be read.
    pub snapshots: Option<u64>,
    /// Bytes that only snapshots and the received part of a stream use, if their space maps can be
    /// read.
    pub kept_bytes: Option<u64>,
    /// Files, directories and other objects at the last checkpoint.
    pub objects: u64,
    /// Nodes of the item tree.
    pub tree_nodes: u64,
    /// Levels of the item tree above its leaves.
    pub tree_level: u8,
    /// Number of the last checkpoint.
    pub generation: u64,
    /// Number of transactions up to the last checkpoint.
    pub transactions: u64,
    /// The image keeps parent pointers.
    pub parent_pointers: bool,
    /// Every writer takes the device lease, since several hosts reach the device.
    pub device_lease: bool,
    /// Creation time, seconds since 1970.
    pub created_seconds: u64,
    /// The image was unmounted cleanly and is not in use.
    pub clean: bool,
    /// Log batches after the last checkpoint, which the next mount replays.
    pub log_batches: u64,
    /// Why the log breaks off before its end, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_damaged: Option<String>,
    /// Part of a stream is kept that has not come wholly.
    pub part_of_stream: bool,
    /// Copies of superblocks that are damaged.
    pub superblocks_damaged: u64,
    /// Why a newer state may have been lost, if that is possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub superblock_lost: Option<String>,
}

/// Reads the superblocks and follows the log.
pub async fn info(device: &Arc<dyn Device>) -> Result<Info, CheckError> {
    let slots = read_superblocks(device).await?;
    let superblock_lost = slots.loss();
    let superblock = slots.superblock;
    let scan =
        syncline_log::scan(device, superblock.geometry, superblock.epoch, superblock.log, superblock.clean)
            .await;
    let scan = scan.map_err(syncline_store::StoreError::from)?;
    let log_damaged = scan
        .contradiction
        .map(|later| format!("batch {} is missing, and batch {} was there", scan.end.seq, later.seq));
    // Damaged ones are a matter of `check`.
    let snapshots = read_snapshots(device).await.map(|(_, all)| all).ok();
    let kept_blocks = kept_besides(device).await.ok();
    let part_of_stream = snapshots.iter().flatten().any(Snapshot::is_receiving);
    Ok(Info {
        format_version: FORMAT_VERSION,
        uuid: uuid::Uuid::from_bytes(superblock.uuid).to_string(),
        label: superblock.label_text(),
        size_bytes: superblock.geometry.total_blocks * BLOCK_BYTES as u64,
        device_bytes: device.size_bytes(),
        node_bytes: superblock.geometry.node_bytes,
        metadata_copies: superblock.geometry.metadata.copies(),
        block_bytes: BLOCK_BYTES as u32,
        used_bytes: superblock.used_blocks * BLOCK_BYTES as u64,
        snapshots: snapshots.map(|all| all.iter().filter(|it| it.is_visible()).count() as u64),
        kept_bytes: kept_blocks.map(|blocks| blocks * BLOCK_BYTES as u64),
        objects: superblock.objects,
        tree_nodes: superblock.tree_nodes,
        tree_level: superblock.tree.level,
        generation: superblock.generation,
        transactions: superblock.op_seq,
        parent_pointers: superblock.has_parent_pointers(),
        device_lease: superblock.features & FEATURE_LEASE != 0,
        created_seconds: superblock.created_ns / 1_000_000_000,
        clean: superblock.clean,
        log_batches: scan.batches.len() as u64,
        log_damaged,
        part_of_stream,
        superblocks_damaged: (slots.damaged.len() + slots.wiped.len()) as u64,
        superblock_lost,
    })
}
