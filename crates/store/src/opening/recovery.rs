//! Recovery: reads the newest superblock and the log that follows it, then makes a new start that
//! needs neither.
//!
//! Until the superblock that ends recovery is durable, nothing is written to a block that the old
//! superblock's tree, a replayed batch or the log itself could need: a crash at any write leaves
//! recovery repeatable.
//!
//! It has two parts. The first only reads, so that a refused image stays as it was, byte for byte;
//! the second writes, once nothing can be refused any more.

use super::replay::{Replayed, replay};
use crate::checkpoint::{Checkpoints, ReadSlots, Table, read_superblocks};
use crate::counters::Counters;
use crate::layers::Layers;
use crate::log::{Beginning, Log};
use crate::room::{LEAST_SEGMENT_BLOCKS, Room, first_segment_blocks, segment_blocks};
use crate::{Canary, RecoveryReport, Store, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{Device, FlushTracker, Spawn};
use syncline_format::space::MAX_BLOCKS;
use syncline_format::superblock::{LogStart, Superblock};
use syncline_format::{BlockAddr, BlockRun, FormatError, SharedGeometry};
use syncline_log::{Reading, Scan, scan_believing};
use syncline_space::{Class, PageReader, RottenPage, Space};
use syncline_sync::Event;
use syncline_tree::Tree;

/// Blocks rewritten at a time (1 MiB), so that a hostile image can't claim much memory.
const REWRITE_BLOCKS: u64 = 256;

/// The defect of a log segment that lies where something else does.
pub const SEGMENT_IN_USE: FormatError = FormatError::Field { structure: "log", field: "segment in use" };

/// An image that has been read and replayed into memory but not written to yet. It can be read;
/// dropping it leaves the image as it was.
pub struct Recovered {
    store: Arc<Store>,
    slots: ReadSlots,
    /// The segments of the replayed log.
    segments: Vec<BlockRun>,
    /// Accepted blocks that may have been read from a cache.
    pub(crate) unsure: Vec<BlockRun>,
    /// Damaged copies of pages of the space map, of the table of snapshots and of the snapshots' space maps.
    rotten: Vec<RottenPage>,
}

impl Store {
    /// Opens an image: recovers what a crash left, and starts the background tasks.
    pub async fn open(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
    ) -> Result<(Arc<Self>, RecoveryReport), StoreError> {
        Self::open_within(device, options, spawn, BlockAddr::MAX).await
    }

    /// Opens an image, and hands out no block from `end` on.
    pub(crate) async fn open_within(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
        end: BlockAddr,
    ) -> Result<(Arc<Self>, RecoveryReport), StoreError> {
        let (recovered, report) = Self::recover_within(device, options, spawn, end).await?;
        Ok((recovered.begin().await?, report))
    }

    /// The first part of opening: reads and replays without writing.
    pub async fn recover(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
    ) -> Result<(Recovered, RecoveryReport), StoreError> {
        Self::recover_within(device, options, spawn, BlockAddr::MAX).await
    }

    async fn recover_within(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
        end: BlockAddr,
    ) -> Result<(Recovered, RecoveryReport), StoreError> {
        let tracker = FlushTracker::new(device.clone());
        if !options.read_only {
            // Trust no cache: anything an earlier process wrote and never flushed either becomes
            // durable or turns out to be lost.
            tracker.flush_now().await?;
        }
        let slots = read_superblocks(&device).await?;
        let superblock = slots.superblock.clone();
        let mut report = RecoveryReport { clean: superblock.clean, ..RecoveryReport::default() };
        slots.refuse_loss(&options, &mut report)?;
        let pages = PageReader::new(tracker.clone());
        let (space, table) = load_structures(&pages, &superblock, &options, &mut report).await?;
        let (geometry, epoch, log) = (superblock.geometry, superblock.epoch, superblock.log);
        let lenient = options.read_only || options.accept_damaged_log;
        let reading = Reading { clean: superblock.clean, lenient };
        let found = scan_believing(&device, geometry, epoch, log, reading, options.lab.believed()).await?;
        report
            .notes
            .extend(found.unreadable.iter().map(|error| format!("the log can't be read in full: {error}")));
        // Behind the log of an image that was unmounted there was nothing.
        report.incomplete |= found.unreadable.is_some() && !superblock.clean;
        report.notes.extend(found.healed().map(|(_, text)| text));
        refuse_contradiction(&found, &options, &mut report)?;
        let mut replayed = replay(&tracker, &slots, &space, &options, found, &mut report).await?;
        if !options.read_only && replayed.has_no_room() {
            let text = "a generation or a number of the log is too great to be one; run 'syncline check'";
            return Err(StoreError::Damaged(text.into()));
        }
        space.border(end);
        let segment = match options.read_only {
            true => log.segment,
            false => {
                let most = first_segment_blocks(geometry, &space, table.blocks().len() as u64);
                space.allocate(Class::Log, most, LEAST_SEGMENT_BLOCKS, None).ok_or(StoreError::NoSpace)?
            }
        };
        let (segments, unsure) =
            (std::mem::take(&mut replayed.segments), std::mem::take(&mut replayed.unsure));
        let store = Arc::new(assemble(tracker, options, spawn, &superblock, space, replayed, segment));
        store.counters.replayed_batches.add(report.batches);
        store.counters.replayed_records.add(report.records);
        store.checkpoint.follow(slots.slot, table).await;
        store.lab_take_base();
        if store.options.read_only {
            store.health.end_writing("it was opened read-only");
        }
        let rotten = pages.take_rotten();
        Ok((Recovered { store, slots, segments, unsure, rotten }, report))
    }
}

impl Recovered {
    /// The store, for reading: nothing may be committed before `begin`.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The second part of opening: makes the replayed state the new start, and starts the
    /// background tasks. For a store opened read-only it does neither.
    pub async fn begin(self) -> Result<Arc<Store>, StoreError> {
        let Self { store, slots, segments, unsure, rotten } = self;
        if store.options.read_only {
            return Ok(store);
        }
        let mut state = store.checkpoint.lock().await;
        if store.health.is_closing() {
            return Err(StoreError::ReadOnly { reason: "it was closed before it had begun".into() });
        }
        // Before anything is written, so that an image refused for damaged leaves stays as it was.
        store.layers.read_what_changes().await?;
        store.health.begin();
        slots.settle(&store.tracker).await?;
        store.mend_pages(rotten).await;
        write_again(&store.tracker, &unsure).await?;
        // The old log is useless once the first superblock of this epoch is durable (rule R3).
        let generation = store.log.generation();
        segments.iter().for_each(|segment| store.room.space().hold(*segment, generation));
        store.run_checkpoint(&mut state, false).await?;
        drop(state);
        store.start_background(&store.spawn);
        Ok(store)
    }
}

/// Loads the space map, including what snapshots keep, and the table of snapshots. Opening for
/// reading needs neither: damage to them is then only reported.
async fn load_structures(
    pages: &PageReader,
    superblock: &Superblock,
    options: &StoreOptions,
    report: &mut RecoveryReport,
) -> Result<(Arc<Space>, Table), StoreError> {
    let read_only = options.read_only;
    let without_map =
        read_only && superblock.geometry.total_blocks <= MAX_BLOCKS && !options.lab.breaks(Canary::MapToRead);
    let mut told = |what: &str, error: StoreError| {
        report
            .notes
            .push(format!("{what}: {error}; files can be read, and 'syncline check --repair' mends it"));
    };
    let space = match load_space(pages, superblock).await {
        Err(error) if without_map => {
            told("the space map", error);
            Space::format(superblock.geometry)
        }
        loaded => loaded?,
    };
    let table = match Table::read(pages, superblock).await {
        Err(error) if read_only => {
            told("the table of snapshots", error);
            return Ok((space, Table::default()));
        }
        read => read?,
    };
    if let Some(only) = &options.only {
        space.hand_out_only(only);
        return Ok((space, table));
    }
    // This comes before any part of the log is believed: no snapshot keeps the blocks of the log or
    // the blocks that it names.
    match table.keep(pages, superblock, &space).await {
        Err(error) if read_only => told("what snapshots keep", error),
        kept => kept?,
    }
    Ok((space, table))
}

/// Reads the space map that a superblock points to.
pub(crate) async fn load_space(
    pages: &PageReader,
    superblock: &Superblock,
) -> Result<Arc<Space>, StoreError> {
    let space = Space::load(pages, superblock.geometry, superblock.space).await?;
    let (named, used) = (space.counters().named, superblock.used_blocks);
    if named != used {
        let text =
            format!("the space map names {named} blocks, the superblock says {used}; run 'syncline check'");
        return Err(StoreError::Damaged(text.into()));
    }
    Ok(space)
}

/// Reports a hole in the log before an acknowledged batch: that is damage, not a torn tail.
fn refuse_contradiction(
    found: &Scan,
    options: &StoreOptions,
    report: &mut RecoveryReport,
) -> Result<(), StoreError> {
    let Some(later) = found.contradiction else { return Ok(()) };
    let text = format!(
        "the log is damaged: batch {} is missing although batch {} says that batch {} is durable",
        found.end.seq, later.seq, later.durable_seq
    );
    if options.read_only || options.accept_damaged_log {
        report.notes.push(text);
        report.incomplete = true;
        return Ok(());
    }
    Err(StoreError::Damaged(
        format!("{text}; mount read-only (-o ro) to rescue files, or with -o accept-damaged-log to give up the changes after that point").into(),
    ))
}

/// Writes accepted batches and the data they name again, in place.
///
/// They may have been read from a cache whose earlier write-back failed without a trace; after
/// this, the flush before the next superblock covers them.
async fn write_again(tracker: &Arc<FlushTracker>, runs: &[BlockRun]) -> Result<(), StoreError> {
    for run in runs.iter().flat_map(|run| run.pieces(REWRITE_BLOCKS)) {
        let bytes = tracker.read(run.offset_bytes(), run.len_bytes() as usize).await?;
        tracker.write(run.offset_bytes(), vec![bytes.into_bytes()]).wait().await?;
    }
    Ok(())
}

/// Builds a store from what replay found, with its own log in a new epoch, beginning with
/// `segment`.
pub(crate) fn assemble(
    tracker: Arc<FlushTracker>,
    options: StoreOptions,
    spawn: Arc<dyn Spawn>,
    superblock: &Superblock,
    space: Arc<Space>,
    replayed: Replayed,
    segment: BlockRun,
) -> Store {
    let geometry = superblock.geometry;
    let segment_blocks = segment_blocks(geometry.total_blocks);
    let epoch = options.epoch.unwrap_or_else(rand::random);
    let begin = Beginning {
        epoch,
        start: LogStart::first_in(segment, replayed.end.seq, replayed.end.prev),
        op_seq: replayed.op_seq,
        generation: replayed.generation,
        objects: replayed.objects,
        next_object: replayed.next_object,
    };
    let geometry = Arc::new(SharedGeometry::new(geometry));
    let tree = Tree::of_shared(tracker.clone(), geometry.clone(), options.node_cache_bytes);
    Store {
        spawn,
        tracker,
        geometry,
        room: Room::new(space),
        layers: Layers::new(tree, replayed.memtable, superblock.tree, superblock.tree_nodes),
        log: Log::new(&options, segment_blocks, begin),
        checkpoint: Checkpoints::new(superblock.clone(), epoch),
        health: Default::default(),
        counters: Counters::default(),
        wake: Event::new(),
        options,
    }
}
