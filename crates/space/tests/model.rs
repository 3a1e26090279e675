//! Random histories against a model of plain sets. After each step these hold:
//!
//! 1. No block is handed out that is live, that the durable map names, or that was freed and is not
//!    reusable yet.
//! 2. Blocks that become reusable were freed in a generation that is durable, and no pin older than
//!    that is left.
//! 3. The counters equal those of the model.
//! 4. A map loaded from a checkpoint's root names the blocks named at its freeze, and the map's own
//!    pages.
//! 5. A failed checkpoint changes nothing that a later one would miss.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_device::{FlushTracker, MemoryDevice, block_on};
use syncline_format::space::BITS;
use syncline_format::superblock::SpaceRoot;
use syncline_format::{BlockRun, Geometry, Metadata};
use syncline_space::{Class, FrozenMap, PageReader, Persisted, Pin, Space};

type Blocks = BTreeSet<u64>;

/// Three bitmap pages under an index page, the last one short.
const GEOMETRY: Geometry =
    Geometry { total_blocks: 2 * BITS + 5000, node_bytes: 16384, metadata: Metadata::Dup };

#[derive(Clone, Debug)]
enum Step {
    Allocate { class: Class, want: u64, min: u64, near: Option<u64> },
    GiveBack(prop::sample::Index),
    Name(prop::sample::Index),
    Unname { pick: prop::sample::Index, skip: u64, blocks: u64 },
    Hold(prop::sample::Index),
    Claim { start: u64, blocks: u64 },
    Freeze,
    NameNode(prop::sample::Index),
    UnnameNode(prop::sample::Index),
    Persist,
    Succeed,
    Fail,
    Pin,
    Unpin(prop::sample::Index),
    Collect,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let class = prop_oneof![Just(Class::Data), Just(Class::Node), Just(Class::Log)];
    let want = prop_oneof![4 => 1..20_u64, 2 => 1..2000_u64, 1 => 1..GEOMETRY.total_blocks];
    let near = prop::option::of(0..GEOMETRY.total_blocks + 10);
    prop_oneof![
        8 => (class, want, 1..50_u64, near)
            .prop_map(|(class, want, min, near)| Step::Allocate { class, want, min, near }),
        1 => index().prop_map(Step::GiveBack),
        6 => index().prop_map(Step::Name),
        5 => (index(), 0..30_u64, 1..3000_u64)
            .prop_map(|(pick, skip, blocks)| Step::Unname { pick, skip, blocks }),
        1 => index().prop_map(Step::Hold),
        1 => (0..GEOMETRY.total_blocks, 1..500_u64).prop_map(|(start, blocks)| Step::Claim { start, blocks }),
        3 => Just(Step::Freeze),
        2 => index().prop_map(Step::NameNode),
        2 => index().prop_map(Step::UnnameNode),
        3 => Just(Step::Persist),
        3 => Just(Step::Succeed),
        1 => Just(Step::Fail),
        1 => Just(Step::Pin),
        1 => index().prop_map(Step::Unpin),
        2 => Just(Step::Collect),
        1 => Just(Step::Crash),
    ]
}

/// A checkpoint in flight, as the model sees it.
struct Checkpoint {
    frozen: FrozenMap,
    persisted: Option<Persisted>,
    /// Blocks named at the freeze, with this checkpoint's own runs and pages.
    named: Blocks,
    /// The tree runs it wrote, and those it replaced.
    written: Vec<BlockRun>,
    replaced: Vec<BlockRun>,
    /// The map's pages before the checkpoint.
    old_pages: Blocks,
}

struct Lab {
    tracker: Arc<FlushTracker>,
    space: Arc<Space>,
    generation: u64,
    /// Runs handed out but not named.
    allocated: Vec<BlockRun>,
    /// Runs named by transactions, which may free them.
    runs: Vec<BlockRun>,
    /// Runs named by successful checkpoints, which later checkpoints may free.
    nodes: Vec<BlockRun>,
    /// All named blocks, including pages.
    named: Blocks,
    pages: Blocks,
    /// Freed blocks, with the generation whose superblock they wait for.
    pending: BTreeMap<u64, u64>,
    /// Freed blocks whose generation is durable, with the newest pin taken before that.
    released: BTreeMap<u64, u64>,
    checkpoint: Option<Checkpoint>,
    /// Blocks released by the newest superblock, which the tree of the previous one may name.
    fresh: Blocks,
    /// Blocks named by the previous superblock.
    older: Blocks,
    /// The newest durable root, the blocks its map names, and the runs among them that checkpoints
    /// and transactions own.
    durable: (SpaceRoot, Blocks, Vec<BlockRun>),
    pins: BTreeMap<u64, Pin>,
    next_pin: u64,
    /// Named runs at the freeze, for a crash after the checkpoint.
    runs_at_freeze: Vec<BlockRun>,
}

fn blocks(runs: &[BlockRun]) -> Blocks {
    runs.iter().flat_map(|run| run.start..run.end()).collect()
}

impl Lab {
    fn new() -> Self {
        let device = MemoryDevice::new(GEOMETRY.total_blocks * 4096);
        let mut lab = Self {
            tracker: FlushTracker::new(device),
            space: Space::format(GEOMETRY),
            generation: 1,
            allocated: Vec::new(),
            runs: Vec::new(),
            nodes: Vec::new(),
            named: Blocks::new(),
            pages: Blocks::new(),
            pending: BTreeMap::new(),
            released: BTreeMap::new(),
            fresh: Blocks::new(),
            older: Blocks::new(),
            checkpoint: None,
            durable: (SpaceRoot::default(), Blocks::new(), Vec::new()),
            pins: BTreeMap::new(),
            next_pin: 0,
            runs_at_freeze: Vec::new(),
        };
        lab.freeze();
        lab.succeed();
        lab
    }

    fn take<T>(from: &mut Vec<T>, pick: prop::sample::Index) -> Option<T> {
        if from.is_empty() { None } else { Some(from.swap_remove(pick.index(from.len()))) }
    }

    /// Every block that must not be handed out.
    fn live(&self) -> Blocks {
        let waiting = self.pending.keys().chain(self.released.keys()).copied();
        let mut live: Blocks = waiting.chain(self.named.iter().copied()).collect();
        live.extend(blocks(&self.allocated));
        live.extend(&self.durable.1);
        if let Some(checkpoint) = &self.checkpoint {
            live.extend(&checkpoint.named);
            live.extend(blocks(&checkpoint.replaced));
            live.extend(&checkpoint.old_pages);
        }
        live
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Allocate { class, want, min, near } => self.allocate(class, want, min, near),
            Step::GiveBack(pick) => {
                if let Some(run) = Self::take(&mut self.allocated, pick) {
                    self.space.give_back(run);
                }
            }
            Step::Name(pick) => {
                if let Some(run) = Self::take(&mut self.allocated, pick) {
                    self.space.name(run);
                    self.named.extend(run.start..run.end());
                    self.runs.push(run);
                }
            }
            Step::Unname { pick, skip, blocks } => self.unname(pick, skip, blocks),
            Step::Hold(pick) => {
                if let Some(run) = Self::take(&mut self.allocated, pick) {
                    self.space.hold(run, self.generation);
                    self.pending.extend((run.start..run.end()).map(|block| (block, self.generation)));
                }
            }
            Step::Claim { start, blocks } => self.claim(BlockRun::new(start, blocks)),
            Step::Freeze if self.checkpoint.is_none() => self.freeze(),
            Step::NameNode(pick) => self.name_node(pick),
            Step::UnnameNode(pick) => self.unname_node(pick),
            Step::Persist => self.persist(),
            Step::Succeed => self.succeed(),
            Step::Fail => self.fail(),
            Step::Pin => {
                self.pins.insert(self.next_pin, self.space.pin());
                self.next_pin += 1;
            }
            Step::Unpin(pick) if !self.pins.is_empty() => {
                let id = *self.pins.keys().nth(pick.index(self.pins.len())).expect("picked among them");
                self.pins.remove(&id);
            }
            Step::Collect => {
                let reusable = self.space.collect();
                self.reused(&reusable);
            }
            Step::Crash => self.crash(),
            Step::Freeze | Step::Unpin(_) => {}
        }
        self.check_counters();
    }

    fn allocate(&mut self, class: Class, want: u64, min: u64, near: Option<u64>) {
        let live = self.live();
        let usable = GEOMETRY.usable();
        let mut longest = 0;
        let mut from = usable.start;
        for block in live.iter().copied().chain([usable.end()]) {
            longest = longest.max(block - from);
            from = block + 1;
        }
        let Some(run) = self.space.allocate(class, want, min, near) else {
            let is_right = longest < min || !self.knows_all();
            assert!(is_right, "there was a run of {longest} blocks for a request of {min}");
            return;
        };
        assert!(GEOMETRY.contains(run), "{run:?} lies outside");
        let taken = live.range(run.start..run.end()).next();
        assert_eq!(taken, None, "a block of {run:?} was handed out that must not be");
        let full = want.max(min).min(longest);
        let is_right = run.blocks == full || !self.knows_all() && (min..full).contains(&run.blocks);
        assert!(is_right, "{run:?} for {min} to {want} blocks, and the longest run has {longest}");
        self.allocated.push(run);
    }

    fn claim(&mut self, run: BlockRun) {
        let live = self.live();
        let usable = GEOMETRY.usable();
        let free = |block: &u64| *block >= usable.start && *block < usable.end() && !live.contains(block);
        let waits = |block: &u64| self.fresh.contains(block);
        let expected: Blocks = (run.start..run.end()).filter(|block| free(block) && !waits(block)).collect();
        let claimed = self.space.claim_discardable(run);
        assert_eq!(blocks(&claimed), expected);
        assert!(expected.is_disjoint(&self.older), "the tree in the other slot names it");
        let again = self.space.claim_discardable(run);
        assert!(again.is_empty(), "what is claimed is nobody else's");
        self.allocated.extend(claimed);
    }

    fn unname(&mut self, pick: prop::sample::Index, skip: u64, blocks: u64) {
        let Some(run) = Self::take(&mut self.runs, pick) else { return };
        let skip = skip.min(run.blocks - 1);
        let part = BlockRun::new(run.start + skip, blocks.min(run.blocks - skip));
        self.space.unname(part, self.generation);
        // A second free of the same blocks must not release them twice.
        self.space.unname(part, self.generation);
        for block in part.start..part.end() {
            assert!(self.named.remove(&block));
            self.pending.insert(block, self.generation);
        }
        let rest = [(run.start, part.start), (part.end(), run.end())];
        let rest = rest.into_iter().filter(|(start, end)| start < end);
        self.runs.extend(rest.map(|(start, end)| BlockRun::new(start, end - start)));
    }

    fn freeze(&mut self) {
        let frozen = self.space.freeze(self.generation);
        self.generation += 1;
        self.runs_at_freeze = self.runs.clone();
        self.checkpoint = Some(Checkpoint {
            frozen,
            persisted: None,
            named: self.named.clone(),
            written: Vec::new(),
            replaced: Vec::new(),
            old_pages: self.pages.clone(),
        });
    }

    fn name_node(&mut self, pick: prop::sample::Index) {
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|checkpoint| checkpoint.persisted.is_none())
        else {
            return;
        };
        if let Some(run) = Self::take(&mut self.allocated, pick) {
            checkpoint.frozen.name(run);
            checkpoint.named.extend(run.start..run.end());
            checkpoint.written.push(run);
            self.named.extend(run.start..run.end());
        }
    }

    /// Frees a node of an earlier checkpoint, or one that this checkpoint wrote itself.
    fn unname_node(&mut self, pick: prop::sample::Index) {
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|checkpoint| checkpoint.persisted.is_none())
        else {
            return;
        };
        let run = if pick.index(5) == 0 {
            Self::take(&mut checkpoint.written, pick)
        } else {
            Self::take(&mut self.nodes, pick)
        };
        if let Some(run) = run {
            checkpoint.frozen.unname(run);
            for block in run.start..run.end() {
                checkpoint.named.remove(&block);
                self.named.remove(&block);
            }
            checkpoint.replaced.push(run);
        }
    }

    fn persist(&mut self) {
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|checkpoint| checkpoint.persisted.is_none())
        else {
            return;
        };
        // A full image may have no block for the pages; then the checkpoint is tried again later,
        // or fails.
        let Ok(persisted) = block_on(self.space.persist(&self.tracker, &mut checkpoint.frozen)) else {
            return;
        };
        let again = block_on(self.space.persist(&self.tracker, &mut checkpoint.frozen));
        assert!(again.is_err(), "a map is persisted once");
        let pages = blocks(&self.space.map_runs());
        for run in &persisted.written {
            block_on(run.handle.wait()).expect("the device has not failed");
            for block in run.run.start..run.run.end() {
                assert!(!self.durable.1.contains(&block), "block {block} of the durable map was overwritten");
                assert!(pages.contains(&block));
            }
        }
        for block in self.pages.difference(&pages) {
            checkpoint.named.remove(block);
            self.named.remove(block);
        }
        checkpoint.named.extend(&pages);
        self.named.extend(&pages);
        self.pages = pages;
        let loaded = block_on(Space::load(&PageReader::new(self.tracker.clone()), GEOMETRY, persisted.root))
            .expect("it was just written");
        assert_eq!(blocks(&loaded.named_runs()), checkpoint.named, "the map is that of the freeze");
        assert_eq!(persisted.used_blocks, checkpoint.named.len() as u64);
        assert_eq!(loaded.counters().named, persisted.used_blocks);
        assert_eq!(loaded.map_runs(), self.space.map_runs());
        checkpoint.persisted = Some(persisted);
    }

    fn succeed(&mut self) {
        self.persist();
        let Some(checkpoint) = self.checkpoint.take_if(|checkpoint| checkpoint.persisted.is_some()) else {
            return;
        };
        let generation = checkpoint.frozen.generation();
        let root = checkpoint.persisted.expect("it was persisted").root;
        let newest_pin = self.next_pin;
        let old_pages = checkpoint.old_pages.difference(&self.pages).copied();
        let freed = blocks(&checkpoint.replaced).into_iter().chain(old_pages);
        self.fresh = freed.collect();
        self.released.extend(self.fresh.iter().map(|block| (*block, newest_pin)));
        let due: Blocks =
            self.pending.iter().filter(|(_, freed)| **freed <= generation).map(|(block, _)| *block).collect();
        for block in due {
            self.pending.remove(&block);
            self.released.insert(block, newest_pin);
            self.fresh.insert(block);
        }
        self.nodes.extend(checkpoint.written);
        let mut owned = self.runs_at_freeze.clone();
        owned.extend(&self.nodes);
        self.older = std::mem::replace(&mut self.durable, (root, checkpoint.named, owned)).1;
        let mut seen = Vec::new();
        let reusable = self.space.superblock_durable_with(generation, |runs| seen.extend_from_slice(runs));
        assert_eq!(seen, reusable);
        self.reused(&reusable);
    }

    /// Blocks became reusable: they had to be due (invariant 2).
    fn reused(&mut self, runs: &[BlockRun]) {
        let oldest = self.pins.keys().next().copied().unwrap_or(u64::MAX);
        for block in blocks(runs) {
            let taken_before = self.released.remove(&block).expect("what becomes reusable was released");
            assert!(oldest >= taken_before, "block {block} became reusable under an older pin");
        }
    }

    fn fail(&mut self) {
        let Some(checkpoint) = self.checkpoint.take() else { return };
        let generation = checkpoint.frozen.generation();
        self.space.checkpoint_failed(checkpoint.frozen);
        let wrote = blocks(&checkpoint.written);
        let given_up = self.pages.difference(&checkpoint.old_pages).copied();
        let own: Vec<u64> = wrote.into_iter().chain(given_up).collect();
        for block in own {
            self.named.remove(&block);
            self.pending.insert(block, generation);
        }
        // Of its changes, its own runs wait, and nodes of earlier checkpoints that it freed are in
        // use again.
        for run in checkpoint.replaced {
            let before = self.durable.1.contains(&run.start);
            for block in run.start..run.end() {
                if before {
                    self.named.insert(block);
                } else {
                    self.pending.insert(block, generation);
                }
            }
            if before {
                self.nodes.push(run);
            }
        }
        self.named.extend(&checkpoint.old_pages);
        self.pages = checkpoint.old_pages;
        // Only the space knows pages placed by a persist that found too little room.
        let named = blocks(&self.space.named_runs());
        assert_eq!(named, self.named, "the failed checkpoint left no trace in what is named");
        let live = self.live().len() as u64;
        let counters = self.space.counters();
        assert!(counters.total - counters.free >= live);
    }

    fn crash(&mut self) {
        self.pins.clear();
        self.checkpoint = None;
        self.space = block_on(Space::load(&PageReader::new(self.tracker.clone()), GEOMETRY, self.durable.0))
            .expect("it is durable");
        self.named = self.durable.1.clone();
        assert_eq!(blocks(&self.space.named_runs()), self.named, "the durable map is what it was");
        self.pages = blocks(&self.space.map_runs());
        self.runs.clone_from(&self.durable.2);
        self.nodes.clear();
        self.allocated.clear();
        self.pending.clear();
        self.released.clear();
        // Recovery takes a checkpoint before anything else.
        self.fresh.clear();
        self.older.clear();
        self.generation += 10;
    }

    /// False after a persist that ran out of room: the map keeps blocks for its next try, which the model
    /// does not know.
    fn knows_all(&self) -> bool {
        let named = |checkpoint: &Checkpoint| checkpoint.named.len() as u64;
        let knows = |checkpoint: &Checkpoint| checkpoint.frozen.used_blocks() == named(checkpoint);
        self.checkpoint.as_ref().is_none_or(knows) && self.hidden_pending() == 0
    }

    fn check_counters(&self) {
        let counters = self.space.counters();
        assert_eq!(counters.total, GEOMETRY.usable().blocks);
        assert_eq!(counters.free, self.space.free_blocks());
        if self.knows_all() {
            assert_eq!(counters.named, self.named.len() as u64);
            assert_eq!(counters.free, counters.total - self.live().len() as u64);
        }
    }

    /// Blocks waiting in the space that the model does not know of (after a persist without room).
    fn hidden_pending(&self) -> u64 {
        let in_flight = self.checkpoint.as_ref().map_or(0, |checkpoint| {
            let old_pages = checkpoint.old_pages.difference(&self.pages).count();
            blocks(&checkpoint.replaced).len() + old_pages
        });
        let known = (self.pending.len() + self.released.len() + in_flight) as u64;
        self.space.counters().pending_free.abs_diff(known)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
    #[test]
    fn random_histories_agree_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut lab = Lab::new();
        for step in steps {
            lab.run(step);
        }
        // At rest, everything that waited comes back.
        lab.allocated.drain(..).for_each(|run| lab.space.give_back(run));
        lab.pins.clear();
        for _ in 0..2 {
            if lab.checkpoint.is_none() {
                lab.freeze();
            }
            lab.succeed();
        }
        if lab.checkpoint.is_some() {
            // Named blocks fill the image, so the map has no room.
            prop_assert!(lab.space.free_blocks() < lab.space.map_reserve_blocks());
            lab.fail();
        } else {
            let reusable = lab.space.collect();
            lab.reused(&reusable);
            prop_assert!(lab.released.is_empty());
            prop_assert_eq!(lab.space.counters().pending_free, 0);
        }
        lab.check_counters();
        lab.crash();
        lab.check_counters();
    }
}
