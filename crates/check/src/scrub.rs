//! Scrubbing: verifies a mounted filesystem in the background at a bounded rate.
//!
//! A scrub reads the superblock copies, the space map, and each tree node and each block of file
//! data of the newest state from the device, then the nodes and blocks of each snapshot that it has
//! not read yet. It processes the items in pieces, each with its own pin, so that blocks freed
//! meanwhile neither cause a false alarm nor are kept from reuse for long. Data in flight is served
//! from memory, so it needs no verifying. Damage is reported for every file that has the damaged
//! block. The log is not read: recovery verifies it before using it.

mod copies;

use crate::damaged_run::DamagedRun;
use crate::finding::{FINDINGS_MAX, Finding, FindingKind};
use crate::object::printable;
use crate::superseded::{are_superseded, readers_of};
use crate::verified::Verified;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use syncline_device::Spawn;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::{Extent, piece_start};
use syncline_format::snapshots::without_held;
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Key, Kind};
use syncline_store::{Chunk, Snapshot, Store, StoreError, Unreadable};

/// Items read at a time, which bounds the extents whose blocks one pin keeps.
const ITEMS_EACH: usize = 256;
/// The longest single wait for the rate; it bounds how late a request to stop is noticed.
const NAP: Duration = Duration::from_millis(50);
/// How far a piece may get ahead of the rate, and how long it may take on a slow device. Blocks
/// freed during a piece can't be reused, so the waiting is done between pieces.
const BURST: Duration = Duration::from_millis(200);
const ROOT: u64 = 1;

/// Progress and findings of a scrub.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ScrubReport {
    /// A scrub is in progress.
    pub running: bool,
    /// It ran to its end.
    pub finished: bool,
    /// It was asked to stop.
    pub cancelled: bool,
    /// The rate limit in bytes a second; 0: none.
    pub rate_bytes: u64,
    /// Tree nodes verified.
    pub nodes: u64,
    /// Blocks of file data verified.
    pub data_blocks: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that were in use when the scrub began.
    pub total_bytes: u64,
    /// How long it has been running.
    pub milliseconds: u64,
    /// The damage found.
    pub findings: Vec<Finding>,
    /// Findings dropped because the list was full.
    pub findings_dropped: u64,
    /// Damaged copies of metadata that were written again from the other copy.
    pub copies_mended: u64,
    /// A path for each damaged inode that has one.
    pub paths: BTreeMap<u64, String>,
}

/// The scrubs of one open filesystem; at most one runs at a time.
pub struct Scrub {
    store: Weak<Store>,
    spawn: Arc<dyn Spawn>,
    state: Mutex<State>,
    cancel: AtomicBool,
}

#[derive(Default)]
struct State {
    report: ScrubReport,
    started: Option<Instant>,
    /// Scrubs that ran to their end.
    finished: u64,
    /// Findings of all scrubs.
    damaged: u64,
    bytes: u64,
}

syncline_counters::figures! {
    /// Totals of all scrubs since the mount.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
    pub struct ScrubCounters {
        /// Scrubs that ran to their end.
        finished: total("scrubs_finished"),
        /// Bytes read by scrubs.
        bytes: total("scrubbed").bytes(),
        /// Findings of scrubs.
        damaged: total("scrub_findings"),
    }
}

/// A state of the filesystem that is being scrubbed.
#[derive(Default)]
struct Part {
    /// The snapshot that this state belongs to; `None` for the newest state.
    kept: Option<(Snapshot, Arc<Store>)>,
    /// Tree nodes read for the previous piece.
    before: HashSet<u64>,
    /// Tree nodes already reported.
    bad: HashSet<u64>,
    found: Vec<Finding>,
    damaged: DamagedRun,
}

impl Part {
    fn found(&mut self, kind: FindingKind, object: Option<u64>, block: Option<u64>, text: String) {
        self.found.push(Finding { kind, object, block, text });
    }

    fn damaged(&mut self, object: u64, (file_block, addr): (u64, BlockAddr), error: &StoreError) {
        if let StoreError::Corrupt { .. } = error {
            let texts = (format!(": {error}"), format!("; the first of them: {error}"));
            let ended = self.damaged.add(object, (file_block, addr), texts);
            self.found.extend(ended);
        } else {
            let text = format!("block {file_block} of the file: {error}");
            self.found(FindingKind::DataUnreadable, Some(object), Some(addr), text);
        }
    }
}

/// The error that ends a scrub early.
struct Stopped;

impl Scrub {
    /// No scrub has run yet.
    pub fn new(store: &Arc<Store>, spawn: Arc<dyn Spawn>) -> Arc<Self> {
        let (state, cancel) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { store: Arc::downgrade(store), spawn, state, cancel })
    }

    /// Starts a scrub that reads at most `rate_bytes` a second (0: no limit); returns false if one
    /// is running.
    pub fn start(self: &Arc<Self>, rate_bytes: u64) -> bool {
        let Some(store) = self.store.upgrade() else { return false };
        {
            let mut state = self.state.lock();
            if state.report.running {
                return false;
            }
            let total_bytes = store.space().named * BLOCK_BYTES as u64;
            state.report = ScrubReport { running: true, rate_bytes, total_bytes, ..ScrubReport::default() };
            state.started = Some(Instant::now());
        }
        self.cancel.store(false, Ordering::Release);
        let me = self.clone();
        self.spawn.spawn(Box::pin(async move {
            let stopped = me.run().await.is_err();
            let mut state = me.state.lock();
            state.report.milliseconds = state.elapsed();
            state.report.running = false;
            state.report.finished = !stopped;
            state.report.cancelled = stopped;
            state.finished += u64::from(!stopped);
        }));
        true
    }

    /// Asks the running scrub to stop.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Release);
    }

    /// The report of the current or last scrub.
    pub fn report(&self) -> ScrubReport {
        let state = self.state.lock();
        let mut report = state.report.clone();
        if report.running {
            report.milliseconds = state.elapsed();
        }
        report
    }

    /// Totals of all scrubs.
    pub fn counters(&self) -> ScrubCounters {
        let state = self.state.lock();
        ScrubCounters { finished: state.finished, bytes: state.bytes, damaged: state.damaged }
    }

    fn store(&self) -> Result<Arc<Store>, Stopped> {
        if self.cancel.load(Ordering::Acquire) {
            return Err(Stopped);
        }
        self.store.upgrade().ok_or(Stopped)
    }

    async fn run(&self) -> Result<(), Stopped> {
        self.store()?.retry_mending();
        self.superblocks().await?;
        self.space_map().await?;
        self.snapshot_table().await?;
        // Snapshots made later contain only blocks that are in the newest state or were written
        // meanwhile.
        let snapshots = without_held(self.store()?.snapshots().await);
        let mut verified = Verified::new(!snapshots.is_empty());
        self.part(Part::default(), &mut verified).await?;
        for snapshot in snapshots {
            self.snapshot(snapshot, &mut verified).await?;
        }
        self.name_inodes().await
    }

    async fn snapshot(&self, snapshot: Snapshot, verified: &mut Verified) -> Result<(), Stopped> {
        let mut part = Part::default();
        let store = self.store()?;
        let pages = store.pages_of_all_copies();
        let view = store.look_at_snapshot(&snapshot, &pages).await;
        self.tell_pages(store.mend_map_of(&snapshot, pages.take_rotten()).await);
        match view {
            Ok(view) => {
                part.kept = Some((snapshot, view));
                self.part(part, verified).await
            }
            Err(error) if self.is_there(&snapshot).await? => {
                let text = format!("snapshot {:?}: {error}", snapshot.name);
                self.found(Finding { kind: FindingKind::SnapshotDamaged, object: None, block: None, text });
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// Returns false once the snapshot was deleted: its blocks may then hold anything.
    async fn is_there(&self, snapshot: &Snapshot) -> Result<bool, Stopped> {
        Ok(self.store()?.snapshots().await.iter().any(|other| other.id == snapshot.id))
    }

    async fn part(&self, mut part: Part, verified: &mut Verified) -> Result<(), Stopped> {
        let mut from = Some(Key::MIN);
        while let Some(start) = from {
            from = self.piece(start, &mut part, verified).await?;
            self.mend_nodes(&part).await?;
            let ended = part.damaged.end();
            part.found.extend(ended);
            if !self.tell(&mut part).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Publishes the findings of a part. Returns false if the part is a snapshot that was deleted
    /// meanwhile: its findings are dropped.
    async fn tell(&self, part: &mut Part) -> Result<bool, Stopped> {
        let found = std::mem::take(&mut part.found);
        let Some((snapshot, _)) = part.kept.as_ref().filter(|_| !found.is_empty()) else {
            found.into_iter().for_each(|finding| self.found(finding));
            return Ok(true);
        };
        if !self.is_there(snapshot).await? {
            return Ok(false);
        }
        for finding in found {
            // The inode number may belong to another file by now, or to none, so its path would
            // mislead.
            let text = format!("snapshot {:?}: {finding}", snapshot.name);
            self.found(Finding { kind: FindingKind::SnapshotDamaged, object: None, text, ..finding });
        }
        Ok(true)
    }

    /// Verifies the next items of a part, with their nodes and data. Returns the key at which the
    /// next piece begins.
    async fn piece(
        &self,
        from: Key,
        part: &mut Part,
        verified: &mut Verified,
    ) -> Result<Option<Key>, Stopped> {
        self.pace().await?;
        let newest = self.store()?;
        let store = part.kept.as_ref().map_or(newest, |(_, view)| view.clone());
        let _pin = store.pin();
        let (mut nodes, mut unreadable) = (HashSet::new(), Vec::new());
        let mut visit = |node: Result<u64, Box<Unreadable>>| match node {
            Ok(addr) => drop(nodes.insert(addr)),
            Err(node) => unreadable.push(*node),
        };
        let Chunk { items, complete } = store.scan_device(from, ITEMS_EACH, &mut visit).await;
        let geometry = store.geometry();
        let bytes_each = u64::from(geometry.node_bytes) * geometry.metadata.copies();
        // The nodes on the path to the first item may have been read for the previous piece.
        let fresh = nodes.difference(&part.before).count() as u64;
        part.before = nodes;
        self.count(fresh * bytes_each);
        self.state.lock().report.nodes += fresh;
        for node in unreadable {
            if !part.bad.insert(node.addr) {
                continue;
            }
            let object = node.first.map(|key| key.object).filter(|object| *object > 0);
            let text = format!("{}; the items below it can't be read", node.error);
            part.found(FindingKind::NodeDamaged, object, Some(node.addr), text);
        }
        let begun = Instant::now();
        for (index, (key, value)) in items.iter().enumerate() {
            if index > 0 && self.ahead()?.max(begun.elapsed()) >= BURST {
                return Ok(Some(*key));
            }
            if key.kind == Kind::Extent as u8
                && let Ok(extent) = Extent::decode(key.offset, value)
                && store.geometry().contains(extent.run())
            {
                for extent in fresh_parts(extent, verified) {
                    // Other files that share a damaged block are reported as well.
                    for block in self.extent(&store, key.object, &extent, part).await {
                        verified.forget(block);
                    }
                }
            }
        }
        let next = items.last().and_then(|(key, _)| key.next());
        Ok(next.filter(|_| !complete))
    }

    /// Verifies the data of an extent; returns the damaged blocks.
    async fn extent(
        &self,
        store: &Arc<Store>,
        object: u64,
        extent: &Extent,
        part: &mut Part,
    ) -> Vec<BlockAddr> {
        self.count(extent.run().len_bytes());
        self.state.lock().report.data_blocks += extent.run().blocks;
        if let Ok(bytes) = store.read_data(object, extent.run(), &extent.checksums).await {
            if let Some(packed) = &extent.packed
                && let Err(error) = syncline_codec::unpack(packed, &bytes)
            {
                if is_read(store, object, extent, 0).await {
                    let text = format!("blocks from {} on of the file: {error}", extent.file_block);
                    part.found(FindingKind::DataDamaged, Some(object), Some(extent.addr), text);
                }
                return vec![extent.addr];
            }
            return Vec::new();
        }
        let mut damaged = Vec::new();
        for (index, checksum) in (0..).zip(&extent.checksums) {
            let block = BlockRun::new(extent.addr + index, 1);
            let Err(error) = store.read_data(object, block, &[*checksum]).await else { continue };
            damaged.push(block.start);
            if is_read(store, object, extent, index).await {
                part.damaged(object, (extent.file_block + index, block.start), &error);
            }
        }
        damaged
    }

    /// Waits while the scrub is ahead of its rate.
    async fn pace(&self) -> Result<(), Stopped> {
        loop {
            let ahead = self.ahead()?;
            if ahead.is_zero() {
                return Ok(());
            }
            self.spawn.sleep(ahead.min(NAP)).await;
        }
    }

    /// How far the scrub is ahead of its rate.
    fn ahead(&self) -> Result<Duration, Stopped> {
        if self.cancel.load(Ordering::Acquire) {
            return Err(Stopped);
        }
        let state = self.state.lock();
        let due_ms = match state.report.rate_bytes {
            0 => 0,
            rate => u128::from(state.report.bytes) * 1000 / u128::from(rate),
        };
        let ahead_ms = due_ms.saturating_sub(u128::from(state.elapsed()));
        Ok(Duration::from_millis(u64::try_from(ahead_ms).unwrap_or(u64::MAX)))
    }

    /// Finds a path for each damaged inode, with one pass over all names; does nothing if nothing
    /// is damaged.
    async fn name_inodes(&self) -> Result<(), Stopped> {
        let findings = self.state.lock().report.findings.clone();
        let wanted: BTreeSet<u64> = findings.iter().filter_map(|finding| finding.object).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        // The parent and name of every directory and of each wanted file.
        let mut names: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
        let mut from = Some(Key::MIN);
        while let Some(start) = from {
            let store = self.store()?;
            let mut ignore = |_: Result<u64, Box<Unreadable>>| {};
            let chunk = store.scan_device(start, ITEMS_EACH * 16, &mut ignore).await;
            for (key, value) in chunk.items.iter().filter(|(key, _)| key.kind == Kind::Dirent as u8) {
                let Ok(entry) = Dirent::decode(value) else { continue };
                if entry.file_type == crate::object::DIRECTORY || wanted.contains(&entry.ino) {
                    names.insert(entry.ino, (key.object, entry.name.to_vec()));
                }
            }
            from = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
        }
        let paths = wanted.into_iter().filter_map(|inode| Some((inode, path(&names, inode)?))).collect();
        self.state.lock().report.paths = paths;
        Ok(())
    }

    fn found(&self, finding: Finding) {
        let mut state = self.state.lock();
        state.damaged += 1;
        if state.report.findings.len() < FINDINGS_MAX {
            state.report.findings.push(finding);
        } else {
            state.report.findings_dropped += 1;
        }
    }

    fn count(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.report.bytes += bytes;
        state.bytes += bytes;
    }
}

impl State {
    fn elapsed(&self) -> u64 {
        self.started.map_or(0, |started| started.elapsed().as_millis() as u64)
    }
}

/// True if reads of the file still come to block `index` of an extent that was read: neither are
/// there newer contents in the log, nor was it replaced since.
async fn is_read(store: &Arc<Store>, object: u64, extent: &Extent, index: u64) -> bool {
    let blocks = readers_of(extent, index);
    if are_superseded(store, object, blocks.clone()).await {
        return false;
    }
    // Looked up after the log, from which contents go to another place, never back here: a pin keeps
    // these blocks from being reused.
    let (from, to) = (piece_start(blocks.start), blocks.end - 1);
    let keys = (Key::new(object, Kind::Extent, from), Key::new(object, Kind::Extent, to));
    let Ok(found) = store.scan(keys.0, keys.1, ITEMS_EACH).await else { return true };
    let names = |(key, value): &(Key, bytes::Bytes)| {
        let Ok(named) = Extent::decode(key.offset, value) else { return true };
        (named.addr..named.run().end()).contains(&(extent.addr + index))
    };
    !found.complete || found.items.iter().any(names)
}

/// The parts of an extent not yet verified; a compressed extent is returned whole if any of it is
/// new.
fn fresh_parts(extent: Extent, verified: &mut Verified) -> Vec<Extent> {
    let fresh = verified.insert(extent.run());
    if fresh.is_empty() || extent.packed.is_some() {
        return fresh.into_iter().take(1).map(|_| extent.clone()).collect();
    }
    let part = |run: BlockRun| {
        let first = extent.file_block + (run.start - extent.addr);
        extent.slice(first, first + run.blocks)
    };
    fresh.into_iter().filter_map(part).collect()
}

/// The path of an inode, put together from `names`.
fn path(names: &BTreeMap<u64, (u64, Vec<u8>)>, inode: u64) -> Option<String> {
    let mut parts = Vec::new();
    let mut at = inode;
    while at != ROOT {
        let (parent, name) = names.get(&at)?;
        parts.push(printable(name));
        // Damaged directories may form a loop, which has no path.
        if parts.len() > names.len() {
            return None;
        }
        at = *parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_put_together_and_loops_have_none() {
        let mut names = BTreeMap::new();
        names.insert(5, (4, b"file".to_vec()));
        names.insert(4, (1, b"directory".to_vec()));
        assert_eq!(path(&names, 5).as_deref(), Some("/directory/file"));
        assert_eq!(path(&names, 1).as_deref(), Some("/"));
        assert_eq!(path(&names, 9), None);
        names.insert(4, (5, b"loop".to_vec()));
        assert_eq!(path(&names, 5), None);
    }
}
