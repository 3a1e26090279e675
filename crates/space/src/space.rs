//! The free space of an image: blocks that may be handed out, named blocks, and waiting blocks.

use crate::bits::{blocks_of, clip, push_bits, sorted_and_joined};
use crate::discard::Discards;
use crate::frames::Frames;
use crate::frozen::{FrozenMap, InFlight};
use crate::kept::KeptMap;
use crate::live::LiveMap;
use crate::named::{Change, NamedMap};
use crate::pages::PageTable;
use crate::pending::Pending;
use crate::pins::{Pin, Pins};
use crate::policy::{Class, Placement};
use crate::quarantine::Quarantine;
use std::sync::Arc;
use syncline_format::space::{MAX_BLOCKS, pages_at, root_level};
use syncline_format::superblock::Pointer;
use syncline_format::{BlockAddr, BlockRun, Geometry, SharedGeometry};
use syncline_sync::{Mutex, MutexGuard};

/// Maximum number of runs made reusable under one lock, so that other threads get in between.
const RUNS_PER_LOCK: usize = 1024;

/// The share of blocks that may be in quarantine because the device refused them: one in this many.
const QUARANTINE_SHARE: u64 = 64;
/// The least limit of the quarantine: as many blocks as the largest single write has.
const QUARANTINE_LEAST: u64 = 256;

/// Amounts of space, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceCounters {
    /// Blocks that can be allocated at all.
    pub total: u64,
    /// Blocks that can be allocated now.
    pub free: u64,
    /// Blocks freed or held that are not reusable yet.
    pub pending_free: u64,
    /// Blocks that something committed names.
    pub named: u64,
}

/// The free space of an image. Everything except `load` and `persist` is plain code under one short
/// lock.
///
/// Runs are cut to the blocks that the geometry allows to be allocated, so a caller that passes a
/// run read from a device can't corrupt anything outside them.
pub struct Space {
    /// The blocks that may be allocated. While the image grows, the map is already larger.
    geometry: SharedGeometry,
    state: Mutex<State>,
    pins: Pins,
}

/// The state that the lock protects.
pub(crate) struct State {
    pub(crate) live: LiveMap,
    pub(crate) named: NamedMap,
    pub(crate) kept: KeptMap,
    pub(crate) pending: Pending,
    pub(crate) placement: Placement,
    pub(crate) table: PageTable,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) discards: Discards,
    /// The size that the map is for: in memory now, on the device from the next checkpoint on.
    pub(crate) map_geometry: Geometry,
    /// Blocks from here on are not handed out, even when they are freed.
    pub(crate) border: BlockAddr,
    pub(crate) quarantine: Quarantine,
}

impl State {
    /// Blocks that can be handed out on request.
    fn free_blocks(&self) -> u64 {
        self.live.free() + self.quarantine.withheld_blocks()
    }

    /// Makes runs freed in `generation` wait.
    pub(crate) fn wait(&mut self, generation: u64, runs: Vec<BlockRun>) {
        let blocks =
            if self.kept.is_empty() { blocks_of(&runs) } else { blocks_of(&self.kept.others(runs.clone())) };
        self.pending.add(generation, runs, blocks);
    }

    /// The parts of these unused runs that may be handed out.
    pub(crate) fn in_front(&mut self, runs: &[BlockRun]) -> Vec<BlockRun> {
        let front = BlockRun::new(0, self.border);
        let open = runs.iter().filter_map(|run| clip(*run, front)).collect();
        self.quarantine.withhold(open)
    }

    /// Releases quarantined blocks, since promised room comes first; false if there are none.
    fn end_quarantine(&mut self) -> bool {
        let freed = self.quarantine.end();
        self.live.clear(&freed);
        !freed.is_empty()
    }

    /// Recounts the waiting blocks that will be reusable, after the snapshots have changed.
    pub(crate) fn count_pending(&mut self) {
        let blocks = blocks_of(&self.kept.others(self.pending.runs().collect()));
        self.pending.recount(blocks);
    }

    /// All freed blocks that wait, including those freed by the checkpoint in flight.
    pub(crate) fn waiting(&self) -> KeptMap {
        let freed = self.in_flight.iter().flat_map(InFlight::freed);
        KeptMap::of_runs(self.named.pages().len(), self.pending.runs().chain(freed))
    }
}

/// Called with blocks before anybody can get them, to drop them from caches.
type Forget<'a> = &'a dyn Fn(&[BlockRun]);

/// Amounts of space that may be handed out now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Free {
    /// Number of blocks.
    pub blocks: u64,
    /// The blocks among them in wholly free frames (a frame has the size of a node and is aligned).
    pub whole: u64,
}

impl Space {
    /// The space of a new image: everything is free.
    ///
    /// # Panics
    /// When the image has more than [`MAX_BLOCKS`] blocks.
    pub fn format(geometry: Geometry) -> Arc<Self> {
        assert!(geometry.total_blocks <= MAX_BLOCKS, "mkfs refuses images that can't be managed");
        Self::with_map(geometry, NamedMap::empty(geometry), PageTable::empty(geometry))
    }

    /// The space of an image with this map; everything unnamed may be handed out.
    pub(crate) fn with_map(geometry: Geometry, named: NamedMap, table: PageTable) -> Arc<Self> {
        let mut live = LiveMap::new(geometry);
        named.words().for_each(|(word, bits)| live.set_word(word, bits));
        let state = State {
            live,
            named,
            kept: KeptMap::empty(geometry),
            pending: Pending::default(),
            placement: Placement::new(geometry),
            table,
            in_flight: None,
            discards: Discards::default(),
            map_geometry: geometry,
            border: BlockAddr::MAX,
            quarantine: Quarantine::default(),
        };
        let geometry = SharedGeometry::new(geometry);
        Arc::new(Self { geometry, state: Mutex::new(state), pins: Pins::default() })
    }

    /// The sizes of the image, as far as its blocks are handed out.
    pub fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    pub(crate) fn set_total(&self, total_blocks: u64) {
        self.geometry.set_total(total_blocks);
    }

    /// Allocates up to `want` blocks as one run, near `near` or else where blocks of `class` are
    /// placed. A run shorter than `want` is the longest there is, and has at least `min` blocks;
    /// `None` if there is no such run.
    pub fn allocate(&self, class: Class, want: u64, min: u64, near: Option<BlockAddr>) -> Option<BlockRun> {
        let state = &mut *self.lock();
        let run = state.placement.allocate(&mut state.live, class, want, min, near);
        if run.is_some() || !state.end_quarantine() {
            return run;
        }
        state.placement.allocate(&mut state.live, class, want, min, near)
    }

    /// For tests: lets the next `after` allocations pass and fails the `times` allocations that
    /// follow for lack of room. Returns how many were refused since the last call.
    #[doc(hidden)]
    pub fn refuse_allocations(&self, after: u64, times: u64) -> u64 {
        self.lock().placement.refuse(after, times)
    }

    /// Gives back blocks that were allocated, claimed or reserved but never named: they are
    /// reusable at once. No write to them may be in flight (rule R2).
    pub fn give_back(&self, run: BlockRun) {
        self.give_back_with(run, |_, _| {});
    }

    /// The same for blocks that were written: they are discarded as others that become free.
    pub fn give_back_written(&self, run: BlockRun) {
        self.give_back_with(run, |state, open| state.discards.reusable(open));
    }

    fn give_back_with(&self, run: BlockRun, note: impl FnOnce(&mut State, &[BlockRun])) {
        let Some(run) = self.clip(run) else { return };
        let state = &mut *self.lock();
        let parts = state.named.unnamed_parts(run);
        debug_assert_eq!(parts, [run], "what is given back was never named");
        let open = state.in_front(&parts);
        state.live.clear(&open);
        note(state, &open);
    }

    /// Keeps a run from being handed out: log segments, and blocks that replayed batches name.
    pub fn reserve_live(&self, run: BlockRun) {
        let Some(run) = self.clip(run) else { return };
        self.lock().live.set(run);
    }

    /// Keeps a segment of a replayed log from being handed out; false if part of it was not free.
    pub fn reserve_segment(&self, run: BlockRun) -> bool {
        let Some(run) = self.clip(run) else { return false };
        let live = &mut self.lock().live;
        let free = live.free_parts(run) == [run];
        live.set(run);
        free
    }

    /// Names a run for a replayed batch; false if part of it was not free. The writer of the batch
    /// had allocated the run, and freed blocks are not allocated again before a superblock ends
    /// their generation, so such a batch is damaged.
    pub fn name_replayed(&self, run: BlockRun) -> bool {
        let free = self.clip(run).is_some_and(|run| self.lock().live.free_parts(run) == [run]);
        self.name(run);
        free
    }

    /// Names a run for a committed transaction.
    pub fn name(&self, run: BlockRun) {
        let Some(run) = self.clip(run) else { return };
        let state = &mut *self.lock();
        state.live.set(run);
        state.named.change(run, Change::Name);
    }

    /// Frees a run for a transaction committed in `generation`. Blocks of the run that are not
    /// named stay as they are.
    pub fn unname(&self, run: BlockRun, generation: u64) {
        let Some(run) = self.clip(run) else { return };
        let state = &mut *self.lock();
        let freed = state.named.change(run, Change::Unname);
        state.wait(generation, freed);
    }

    /// Releases a run that is live but not named as soon as a superblock of `generation` is
    /// durable: a log segment that will not be needed then.
    pub fn hold(&self, run: BlockRun, generation: u64) {
        let Some(run) = self.clip(run) else { return };
        let state = &mut *self.lock();
        let parts = state.named.unnamed_parts(run);
        parts.iter().for_each(|part| state.live.set(*part));
        state.wait(generation, parts);
    }

    /// Keeps blocks that the device refused from being handed out while the image is open, within a
    /// limit.
    pub fn quarantine(&self, run: BlockRun) {
        let Some(run) = self.clip(run) else { return };
        let max = (self.geometry().total_blocks / QUARANTINE_SHARE).max(QUARANTINE_LEAST);
        let state = &mut *self.lock();
        let freed = state.quarantine.add(run, max);
        state.live.clear(&freed);
    }

    /// True when something committed names some block of `run`.
    pub fn names_any(&self, run: BlockRun) -> bool {
        let Some(run) = self.clip(run) else { return false };
        blocks_of(&self.lock().named.unnamed_parts(run)) < run.blocks
    }

    /// Freezes the named blocks for the checkpoint of `generation`. Called under the store's commit
    /// lock; costs one pointer for each page that changed since the last freeze.
    ///
    /// # Panics
    /// When the checkpoint before is still in flight, which the rules forbid.
    pub fn freeze(self: &Arc<Self>, generation: u64) -> FrozenMap {
        let state = &mut *self.lock();
        assert!(state.in_flight.is_none(), "no second freeze before the first one's superblock is durable");
        state.in_flight = Some(InFlight::new(generation));
        FrozenMap::new(Arc::clone(self), generation, state.named.freeze(), state.named.used())
    }

    /// Undoes a failed checkpoint: everything done through `frozen` is undone, including the node
    /// runs it named and unnamed, and its pages are left to the next checkpoint to write.
    ///
    /// The blocks it named are not reusable before a later superblock is durable: its writes, even
    /// its superblock, may still reach the device.
    pub fn checkpoint_failed(&self, frozen: FrozenMap) {
        self.undo(frozen, None);
    }

    /// Like `checkpoint_failed`, if all its writes have ended and no superblock was written: the
    /// blocks it named are reusable at once. `forget` is called with them before anybody can get
    /// them.
    pub fn checkpoint_given_up(&self, frozen: FrozenMap, forget: impl Fn(&[BlockRun])) {
        self.undo(frozen, Some(&forget));
    }

    fn undo(&self, frozen: FrozenMap, forget: Option<Forget<'_>>) {
        let generation = frozen.generation();
        let state = &mut *self.lock();
        let Some(mut in_flight) = state.in_flight.take_if(|flight| flight.generation == generation) else {
            return;
        };
        for (change, run) in in_flight.take_changes() {
            match change {
                Change::Name => {
                    let parts = state.named.change(run, Change::Unname);
                    let Some(forget) = forget else {
                        state.wait(generation, parts);
                        continue;
                    };
                    forget(&parts);
                    let open = state.in_front(&state.kept.others(parts));
                    state.live.clear(&open);
                }
                Change::Unname => {
                    state.named.change(run, Change::Name);
                }
            }
        }
        state.table.restore(in_flight.replaced);
        state.named.mark_dirty(frozen.into_pages());
        state.named.thaw();
    }

    /// Releases everything freed up to `generation`, whose superblock is durable. Returns the runs
    /// that became reusable.
    pub fn superblock_durable(&self, generation: u64) -> Vec<BlockRun> {
        self.superblock_durable_with(generation, |_| {})
    }

    /// Like `superblock_durable`; `forget` is called with the blocks before anybody can get them,
    /// to drop them from caches.
    pub fn superblock_durable_with(
        &self,
        generation: u64,
        forget: impl FnOnce(&[BlockRun]),
    ) -> Vec<BlockRun> {
        let mut state = self.lock();
        if let Some(done) = state.in_flight.take_if(|flight| flight.generation <= generation) {
            state.wait(done.generation, done.freed().collect());
            state.named.thaw();
        }
        let released = state.pending.release(generation);
        state.discards.released(released);
        drop(state);
        self.collect_with(forget)
    }

    /// While the pin exists, blocks released from now on are not reused. For readers that hold
    /// addresses.
    pub fn pin(&self) -> Pin {
        self.pins.pin()
    }

    /// Makes blocks reusable that only pins kept which have ended; returns them.
    pub fn collect(&self) -> Vec<BlockRun> {
        self.collect_with(|_| {})
    }

    /// Like `collect`; `forget` is called with the blocks before anybody can get them.
    pub fn collect_with(&self, forget: impl FnOnce(&[BlockRun])) -> Vec<BlockRun> {
        let ready = {
            let state = &mut *self.lock();
            let ready = state.pending.collect(&self.pins);
            if ready.is_empty() {
                return ready;
            }
            // Blocks that a snapshot keeps stay as they are; they come back when the snapshot is
            // deleted.
            let ready = state.kept.others(sorted_and_joined(ready));
            state.pending.take(blocks_of(&ready));
            ready
        };
        forget(&ready);
        for runs in ready.chunks(RUNS_PER_LOCK) {
            let state = &mut *self.lock();
            let open = state.in_front(runs);
            let cleared = state.live.clear(&open);
            debug_assert_eq!(cleared, blocks_of(&open), "a block waits in one place only");
            state.pending.reused(blocks_of(runs));
            state.discards.reusable(&open);
        }
        ready
    }

    /// True when at least this much will be free once the superblock of the checkpoint in flight is
    /// durable and readers have ended. Blocks freed meanwhile do not count: a crash after that
    /// superblock finds them in use.
    pub fn checkpoint_leaves(&self, least: Free) -> bool {
        let state = self.lock();
        let is_enough = |live: &LiveMap| live.free() >= least.blocks && live.whole() >= least.whole;
        let Some(flight) = &state.in_flight else { return is_enough(&state.live) };
        if is_enough(&state.live) {
            return true;
        }
        let front = BlockRun::new(0, state.border);
        let waiting = flight.freed().chain(state.pending.released_by(flight.generation)).collect();
        let waiting = state.kept.others(sorted_and_joined(waiting));
        let mut live = state.live.clone();
        live.clear(&waiting.into_iter().filter_map(|run| clip(run, front)).collect::<Vec<_>>());
        is_enough(&live)
    }

    /// True when the checkpoint in flight takes no more blocks than it gives back.
    pub fn checkpoint_gives_what_it_takes(&self) -> bool {
        let state = self.lock();
        state.in_flight.as_ref().is_none_or(|flight| {
            let gives = state.kept.others(sorted_and_joined(flight.freed().collect()));
            blocks_of(&gives) >= flight.named().map(|run| run.blocks).sum()
        })
    }

    /// Number of released blocks that only pins keep from being reused.
    pub fn kept_by_readers(&self) -> u64 {
        let state = self.lock();
        blocks_of(&state.kept.others(sorted_and_joined(state.pending.released().collect())))
    }

    /// True when something committed names the block.
    pub fn is_named(&self, block: BlockAddr) -> bool {
        self.clip(BlockRun::new(block, 1)).is_some() && self.lock().named.is_named(block)
    }

    /// All named blocks, in order of address: for checks of the whole image, not for everyday use.
    pub fn named_runs(&self) -> Vec<BlockRun> {
        let state = self.lock();
        let mut runs = Vec::new();
        state.named.words().for_each(|(word, bits)| push_bits(&mut runs, word, bits));
        runs
    }

    /// True if the map has the page that this pointer leads to.
    pub fn has_page(&self, pointer: Pointer) -> bool {
        self.lock().table.iter().any(|(_, entry)| entry.page == pointer)
    }

    /// The blocks of the map's own pages, in order of address.
    pub fn map_runs(&self) -> Vec<BlockRun> {
        let state = self.lock();
        let places = state.table.iter().flat_map(|(_, entry)| entry.page.places());
        sorted_and_joined(places.map(|addr| BlockRun::new(addr, 1)).collect())
    }

    /// Blocks that can be allocated now.
    pub fn free_blocks(&self) -> u64 {
        self.lock().free_blocks()
    }

    /// The most blocks that the map's pages can take in one checkpoint. Admission keeps this many
    /// free for `persist`.
    pub fn map_reserve_blocks(&self) -> u64 {
        let geometry = self.geometry();
        let pages: u64 = (0..=root_level(geometry)).map(|level| pages_at(geometry, level)).sum();
        pages * geometry.metadata.copies()
    }

    /// Reserves `blocks` for uses that need contiguous blocks (nodes, the log): as long as there
    /// are others, allocations that may be scattered go elsewhere. Returns how much is free.
    pub fn keep_whole(&self, blocks: u64) -> Free {
        let state = &mut *self.lock();
        state.placement.keep_whole(blocks);
        if state.live.whole() < blocks {
            state.end_quarantine();
        }
        Free { blocks: state.free_blocks(), whole: state.live.whole() }
    }

    /// Blocks per frame.
    pub fn frame_blocks(&self) -> u64 {
        Frames::of(self.geometry()).blocks()
    }

    /// The current amounts of space.
    pub fn counters(&self) -> SpaceCounters {
        let state = self.lock();
        let freed_in_flight = state.in_flight.as_ref().map_or(0, InFlight::freed_blocks);
        SpaceCounters {
            total: self.geometry().usable().blocks,
            free: state.live.free(),
            pending_free: state.pending.blocks() + freed_in_flight,
            named: state.named.used(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn clip(&self, run: BlockRun) -> Option<BlockRun> {
        clip(run, self.geometry().usable())
    }
}
