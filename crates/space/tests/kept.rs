//! Tests the blocks that many maps keep together, and those that each has alone, against sets of
//! blocks.

use std::collections::BTreeSet;
use std::sync::Arc;
use syncline_device::{FlushTracker, MemoryDevice, block_on};
use syncline_format::space::BITS;
use syncline_format::superblock::SpaceRoot;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Metadata};
use syncline_space::{Class, KeptMap, PageReader, Space};

const LARGEST: u64 = 9_000_000;

fn geometry(total_blocks: u64) -> Geometry {
    Geometry { total_blocks, node_bytes: 4096, metadata: Metadata::Single }
}

/// A reproducible stream of random numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A map on the device, and the blocks that it names.
struct Map {
    geometry: Geometry,
    root: SpaceRoot,
    blocks: BTreeSet<u64>,
}

/// An image whose map is kept now and then.
struct Image {
    tracker: Arc<FlushTracker>,
    space: Arc<Space>,
    generation: u64,
    maps: Vec<Map>,
    named: Vec<BlockRun>,
}

impl Image {
    fn new(total_blocks: u64) -> Self {
        let tracker = FlushTracker::new(MemoryDevice::new(LARGEST * BLOCK_BYTES as u64));
        let space = Space::format(geometry(total_blocks));
        Self { tracker, space, generation: 0, maps: Vec::new(), named: Vec::new() }
    }

    /// Names and frees a few runs, mostly in a few places.
    fn change(&mut self, chance: &mut Chance) {
        for _ in 0..chance.below(5) {
            let near = Some(chance.below(4) * BITS * 60 + chance.below(300));
            if let Some(run) = self.space.allocate(Class::Data, 1 + chance.below(200), 1, near) {
                self.space.name(run);
                self.named.push(run);
            }
        }
        for _ in 0..chance.below(4).min(self.named.len() as u64) {
            let run = self.named.swap_remove(chance.below(self.named.len() as u64) as usize);
            self.space.unname(run, self.generation + 1);
        }
    }

    fn checkpoint(&mut self, keep: bool) {
        self.generation += 1;
        let mut frozen = self.space.freeze(self.generation);
        let written = block_on(self.space.persist(&self.tracker, &mut frozen)).expect("there is room");
        for run in &written.written {
            block_on(run.handle.wait()).expect("memory does not fail");
        }
        if keep {
            self.space.keep_frozen(&frozen);
            let blocks = self.space.named_runs().iter().flat_map(|run| run.start..run.end()).collect();
            let geometry = self.space.map_geometry();
            self.maps.push(Map { geometry, root: written.root, blocks });
        }
        self.space.superblock_durable(self.generation);
    }

    fn grow(&mut self, total_blocks: u64) {
        self.space.resize_map(geometry(total_blocks)).expect("it is no larger than the largest");
        self.checkpoint(false);
        self.space.widen();
    }

    fn roots(&self) -> Vec<(Geometry, SpaceRoot)> {
        self.maps.iter().map(|map| (map.geometry, map.root)).collect()
    }
}

fn blocks_of(map: &KeptMap) -> BTreeSet<u64> {
    map.runs().iter().flat_map(|run| run.start..run.end()).collect()
}

#[test]
fn unions_and_what_each_has_alone_are_those_of_sets() {
    for seed in 0..12 {
        let chance = &mut Chance(seed);
        // On the way, the map grows by one level, and then another.
        let mut image = Image::new([4096, 40_000][seed as usize % 2]);
        for turn in 0..24 {
            image.change(chance);
            image.checkpoint(chance.below(3) > 0);
            match turn {
                8 => image.grow(60_000),
                16 => image.grow(LARGEST),
                _ => {}
            }
        }
        let roots = image.roots();
        let now = image.space.geometry();
        let union = block_on(KeptMap::union(&PageReader::new(image.tracker.clone()), now, &roots)).unwrap();
        let expected: BTreeSet<u64> = image.maps.iter().flat_map(|map| map.blocks.iter().copied()).collect();
        assert_eq!(blocks_of(&union), expected, "seed {seed}");
        assert_eq!(union.blocks(), expected.len() as u64);
        let together = block_on(KeptMap::together(&PageReader::new(image.tracker.clone()), &roots)).unwrap();
        assert_eq!(together, expected.len() as u64, "seed {seed}");
        assert_eq!(blocks_of(&image.space.kept()), expected, "seed {seed}: what is kept in use");

        let live = image.space.named_map();
        let exclusive =
            block_on(KeptMap::exclusive(&PageReader::new(image.tracker.clone()), &roots, &live)).unwrap();
        for (index, map) in image.maps.iter().enumerate() {
            let others = image.maps.iter().enumerate().filter(|(other, _)| *other != index);
            let others: BTreeSet<u64> = others.flat_map(|(_, map)| map.blocks.iter().copied()).collect();
            let alone = map.blocks.difference(&others).filter(|block| !live.contains(**block)).count();
            assert_eq!(exclusive[index], alone as u64, "seed {seed}, map {index} of {}", image.maps.len());
        }
    }
}

#[test]
fn what_maps_share_is_read_once() {
    let mut image = Image::new(LARGEST);
    let far = |index: u64| Some(index * BITS + 5000);
    for index in 0..50 {
        let run = image.space.allocate(Class::Data, 10, 10, far(index)).expect("it is empty");
        image.space.name(run);
    }
    image.checkpoint(true);
    for _ in 0..100 {
        // Each of them has one or two pages of its own of each kind: bitmap page, index page and
        // root.
        let run = image.space.allocate(Class::Data, 10, 10, far(30)).expect("there is room");
        image.space.name(run);
        image.checkpoint(true);
    }
    let roots = image.roots();
    let before = image.tracker.counters().read_bytes;
    block_on(KeptMap::union(&PageReader::new(image.tracker.clone()), image.space.geometry(), &roots))
        .unwrap();
    let pages = (image.tracker.counters().read_bytes - before) / BLOCK_BYTES as u64;
    assert!((300..=50 + 101 * 6).contains(&pages), "{pages} pages read");
}
