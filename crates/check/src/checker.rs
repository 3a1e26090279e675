//! The steps of a check, in order.

use crate::blocks::BlockSet;
use crate::compared::Compared;
use crate::error::CheckError;
use crate::finding::{FindingKind, Report};
use crate::items::ItemCheck;
use crate::repair::overlay::Overlay;
use crate::{names, parents, snapshots, space, start};
use std::sync::Arc;
use syncline_device::{Device, FlushTracker, Spawn};
use syncline_format::node::Node;
use syncline_format::snapshots::without_held;
use syncline_format::superblock::{Pointer, Superblock};
use syncline_format::{BlockRun, OBJECTS_END};
use syncline_store::{
    Ignored, PageReader, RecoveryReport, SEGMENT_IN_USE, Snapshot, Store, StoreError, StoreOptions,
};
use syncline_tree::{Tree, TreeError};

/// The stage that a check has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Reading the tree.
    Nodes,
    /// Decoding items and reading file data.
    Contents,
    /// Comparing names with inodes and blocks with the space map.
    Comparison,
}

/// Progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Blocks read so far.
    pub done: u64,
    /// Blocks to read, according to the superblock.
    pub total: u64,
}

/// Callback that receives a check's progress.
pub(crate) type Teller<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// Verifies everything on `device` and writes nothing. `spawn` is for the store, which starts no
/// task when opened read-only.
///
/// Damage goes into the report. An error means that there is no image, or that nothing could be
/// read.
pub async fn check(
    device: Arc<dyn Device>,
    spawn: Arc<dyn Spawn>,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, CheckError> {
    let mut report = Report::default();
    let Some(superblock) = start::superblock(&device, &mut report).await? else {
        report.incomplete = true;
        return Ok(report);
    };
    report.clean_unmount = superblock.clean;
    report.blocks = superblock.geometry.total_blocks;
    let tracker = FlushTracker::new(device.clone());
    let mut reachable = BlockSet::new(superblock.geometry.total_blocks);
    let pages = PageReader::of_all_copies(tracker.clone());
    let space_map = start::space_map(&pages, &superblock, &mut report).await;
    start::counters(&superblock, &mut report);
    start::fork_record(&device, &superblock, &mut report).await;
    let log = start::log(&device, &superblock, &mut report).await?;
    nodes(&tracker, &superblock, &mut reachable, &mut report, tell).await;
    let table = snapshots::table(&pages, &superblock, &log.segments, &mut report).await;
    copies_of_pages(&pages, &mut report);
    let Some(table) = table.filter(|_| space_map && log.sound) else {
        report.incomplete = true;
        return Ok(report);
    };
    let (store, recovery) = match open(&device, &spawn, &mut report).await {
        Ok(opened) => opened,
        Err(StoreError::Corrupt { addr, detail }) => {
            report.block(FindingKind::LogDamaged, addr, detail.to_string());
            report.incomplete = true;
            return Ok(report);
        }
        // The findings so far already explain this error.
        Err(_) if !report.is_clean() => {
            report.incomplete = true;
            return Ok(report);
        }
        Err(error) => return Err(error.into()),
    };
    report.batches_replayed = recovery.batches;
    report.batches_discarded = recovery.discarded_batches;
    ignored(&recovery, &mut report);
    if let Some(cut) = &recovery.cut {
        report.add(FindingKind::LogDamaged, None, None, cut.as_str());
    }
    let snapshots = without_held(store.snapshots().await);
    let mut compared = Compared::new(!snapshots.is_empty());
    let sets = (reachable, &mut compared);
    contents(&store, sets, (&log.segments, &table), &mut report, tell).await;
    for snapshot in snapshots {
        let found = check_snapshot((&device, &spawn), &snapshot, &mut compared, tell).await;
        report.adopt(&snapshot.name, found?);
    }
    Ok(report)
}

/// Opens the image as a mount for writing does, up to where that would begin to write. If that is
/// refused, which is damage, opens it for reading.
async fn open(
    device: &Arc<dyn Device>,
    spawn: &Arc<dyn Spawn>,
    report: &mut Report,
) -> Result<(Arc<Store>, RecoveryReport), StoreError> {
    let writing = StoreOptions { read_only: false, ..options() };
    // A mount for writing begins with a flush, and `check` may have the device open for reading only.
    let over = Overlay::new(device.clone());
    let refused = match Store::recover(over, writing, spawn.clone()).await {
        Ok((recovered, recovery)) => return Ok((recovered.store().clone(), recovery)),
        Err(error) => error,
    };
    let opened = Store::open(device.clone(), options(), spawn.clone()).await?;
    let told = opened.1.ignored != Ignored::default() || opened.1.cut.is_some();
    match refused {
        // A full image is sound.
        StoreError::NoSpace => {}
        // Told in other words.
        _ if told || !report.is_clean() => {}
        StoreError::Corrupt { addr, detail } if detail == SEGMENT_IN_USE => {
            report.block(FindingKind::LogOverlap, addr, "a segment of the log, or a block to which it leads");
        }
        StoreError::Corrupt { addr, detail } => {
            report.block(FindingKind::LogDamaged, addr, detail.to_string());
        }
        error => report.add(FindingKind::LogDamaged, None, None, error.to_string()),
    }
    Ok(opened)
}

/// Reports parts of the log that replay left out; because of them the image can't be mounted for
/// writing.
fn ignored(recovery: &RecoveryReport, report: &mut Report) {
    let ignored = &recovery.ignored;
    if let Some(object) = ignored.object {
        let text = format!("the log has {} items of objects that can't have their numbers", ignored.items);
        report.object(FindingKind::ObjectNumber, object, text);
    }
    if let Some(block) = ignored.block {
        let text = format!("the log names blocks that are in use, {} times", ignored.names);
        report.block(FindingKind::SpaceMapDamaged, block, text);
    }
}

/// Options for the stores that a check opens.
fn options() -> StoreOptions {
    StoreOptions { read_only: true, node_cache_bytes: 32 << 20, ..StoreOptions::default() }
}

/// Reads all items and all file data, and compares the structures with each other.
async fn contents(
    store: &Arc<Store>,
    (mut reachable, compared): (BlockSet, &mut Compared),
    (log, table): (&[BlockRun], &[BlockRun]),
    report: &mut Report,
    tell: Teller<'_>,
) {
    let mut facts = ItemCheck::new(store, (&mut reachable, compared), report, tell).run().await;
    let total = store.superblock().used_blocks;
    tell(Progress { stage: Stage::Comparison, done: total, total });
    if !report.incomplete {
        parents::compare(store, &mut facts, report).await;
        names::compare(facts, report);
        counters(store, report);
    }
    space::compare(store, reachable, log, table, report);
}

/// Checks a snapshot like an image without a log.
async fn check_snapshot(
    (device, spawn): (&Arc<dyn Device>, &Arc<dyn Spawn>),
    snapshot: &Snapshot,
    compared: &mut Compared,
    tell: Teller<'_>,
) -> Result<Report, CheckError> {
    let mut report = Report::default();
    let opened = Store::open_snapshot(device.clone(), options(), spawn.clone(), &snapshot.name).await;
    let (store, _) = match opened {
        Ok(opened) => opened,
        Err(StoreError::Corrupt { addr, detail }) => {
            report.block(FindingKind::SpaceMapDamaged, addr, detail.to_string());
            return Ok(report);
        }
        Err(StoreError::Damaged(text) | StoreError::Unusable(text)) => {
            report.add(FindingKind::SpaceMapDamaged, None, None, text.to_string());
            return Ok(report);
        }
        Err(error) => return Err(error.into()),
    };
    // A received one has the numbers that were handed out where it comes from.
    store.keep_numbers_below(OBJECTS_END);
    let superblock = store.superblock();
    let mut reachable = BlockSet::new(superblock.geometry.total_blocks);
    let tracker = FlushTracker::new(device.clone());
    nodes(&tracker, &superblock, &mut reachable, &mut report, tell).await;
    let then = Superblock { geometry: snapshot.geometry(superblock.geometry), ..superblock.clone() };
    if !start::space_map(&PageReader::new(tracker), &then, &mut report).await {
        return Ok(report);
    }
    contents(&store, (reachable, compared), (&[], &[]), &mut report, tell).await;
    Ok(report)
}

/// Reads every tree node.
async fn nodes(
    tracker: &Arc<FlushTracker>,
    superblock: &Superblock,
    reachable: &mut BlockSet,
    report: &mut Report,
    tell: Teller<'_>,
) {
    const NODES_PER_STEP: u64 = 64;
    let node_blocks = superblock.geometry.node_blocks();
    let total = superblock.tree_nodes * node_blocks;
    let tree = Tree::new(tracker.clone(), superblock.geometry, 1 << 20);
    let mut visited = 0;
    let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
        for addr in pointer.places() {
            if !reachable.add(BlockRun::new(addr, node_blocks)) {
                report.block(FindingKind::BlockUsedTwice, addr, "a tree node lies where another does");
            }
        }
        if let Err(error) = node {
            report.block(FindingKind::NodeDamaged, pointer.addr, error.to_string());
        }
        visited += 1;
        if visited % NODES_PER_STEP == 0 {
            tell(Progress { stage: Stage::Nodes, done: visited * node_blocks, total });
        }
    };
    let walked = tree.walk(superblock.tree, &mut visit).await;
    for copy in tree.take_rotten() {
        report.block(
            FindingKind::CopyDamaged,
            copy.addr,
            format!("a tree node of level {}: {}", copy.level, copy.why),
        );
    }
    report.nodes = walked.nodes;
    if walked.bad_nodes > 0 {
        report.incomplete = true;
    } else if walked.nodes != superblock.tree_nodes {
        let text = format!(
            "{} tree nodes according to the superblock, {} were found",
            superblock.tree_nodes, walked.nodes
        );
        report.add(FindingKind::SuperblockCounter, None, None, text);
    }
}

/// Reports the damaged copies of pages that were read.
fn copies_of_pages(pages: &PageReader, report: &mut Report) {
    for page in pages.take_rotten() {
        report.block(FindingKind::CopyDamaged, page.addr, format!("a page: {}", page.why));
    }
}

/// Compares the counters that log records keep up to date.
fn counters(store: &Store, report: &mut Report) {
    if store.objects() != report.inodes {
        let text = format!("the counter says {}, there are {} inodes", store.objects(), report.inodes);
        report.add(FindingKind::ObjectCount, None, None, text);
    }
}
