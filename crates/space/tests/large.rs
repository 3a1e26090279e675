//! Costs of a map of 1 TiB.

use crate::computed;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{FlushTracker, MemoryDevice, block_on};
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Metadata};
use syncline_space::{Class, PageReader, Persisted, Space};

const GEOMETRY: Geometry = Geometry { total_blocks: 1 << 28, node_bytes: 16384, metadata: Metadata::Single };
/// Bitmap pages, index pages, and the root.
const ALL_PAGES: u64 = 8257 + 33 + 1;

fn checkpoint(tracker: &Arc<FlushTracker>, space: &Arc<Space>, generation: u64) -> Persisted {
    let mut frozen = space.freeze(generation);
    let persisted = block_on(space.persist(tracker, &mut frozen)).expect("there is room");
    for run in &persisted.written {
        block_on(run.handle.wait()).expect("memory does not fail");
    }
    space.superblock_durable(generation);
    persisted
}

fn pages(persisted: &Persisted) -> u64 {
    persisted.written.iter().map(|written| written.run.blocks).sum()
}

fn tracker() -> Arc<FlushTracker> {
    FlushTracker::new(MemoryDevice::new(GEOMETRY.total_blocks * BLOCK_BYTES as u64))
}

/// Names all but every thousandth block, so that no two free blocks are neighbours.
fn fill(space: &Space) {
    let all = space.allocate(Class::Data, u64::MAX, 1, None).expect("it is empty");
    assert_eq!(all, GEOMETRY.usable());
    space.name(all);
    for block in (all.start..all.end()).step_by(1000) {
        space.unname(BlockRun::new(block, 1), 1);
    }
}

#[test]
fn mkfs_of_a_large_image_writes_three_pages() {
    let (tracker, space) = (tracker(), Space::format(GEOMETRY));
    let persisted = checkpoint(&tracker, &space, 1);
    assert_eq!(pages(&persisted), 3, "the root, and the index and bitmap page that name all three");
    assert_eq!(persisted.written.len(), 1, "all in one run");
    assert_eq!(persisted.used_blocks, 3);
    let loaded = block_on(Space::load(&PageReader::new(tracker.clone()), GEOMETRY, persisted.root))
        .expect("it was just written");
    assert_eq!(loaded.counters(), space.counters());
    // The reserve equals the size of a map without null pointers.
    assert_eq!(space.map_reserve_blocks(), ALL_PAGES);
}

#[test]
fn a_checkpoint_writes_only_what_changed() {
    let (tracker, space) = (tracker(), Space::format(GEOMETRY));
    checkpoint(&tracker, &space, 1);
    let idle = checkpoint(&tracker, &space, 2);
    assert_eq!(pages(&idle), 0, "nothing changed, and the map's own pages are not a change");
    space.name(space.allocate(Class::Data, 100_000, 100_000, None).expect("it is empty"));
    let persisted = checkpoint(&tracker, &space, 3);
    // 100,000 blocks touch four or five bitmap pages; added to these are the page that covers the
    // map's own pages, and index pages.
    assert!((6..=10).contains(&pages(&persisted)), "{} pages", pages(&persisted));
    assert_eq!(pages(&checkpoint(&tracker, &space, 4)), 0);
}

#[test]
fn a_full_map_is_persisted_and_loaded_whole() {
    let (tracker, space) = (tracker(), Space::format(GEOMETRY));
    fill(&space);
    // Freed blocks become reusable with this superblock; until then only the map itself needs room.
    for run in space.named_runs().into_iter().take(9) {
        space.unname(run, 1);
    }
    space.superblock_durable(1);
    let persisted = checkpoint(&tracker, &space, 2);
    assert_eq!(pages(&persisted), ALL_PAGES);
    let loaded = block_on(Space::load(&PageReader::new(tracker.clone()), GEOMETRY, persisted.root))
        .expect("it was just written");
    assert_eq!(loaded.counters(), space.counters());
    assert_eq!(loaded.named_runs(), space.named_runs());
}

#[test]
fn searching_a_full_map_is_not_linear() {
    let space = Space::format(GEOMETRY);
    fill(&space);
    space.superblock_durable(1);
    let free = space.free_blocks();
    assert!(free > 200_000 && free < GEOMETRY.total_blocks / 900);
    // The first search that fails reads the map once and learns its bounds; those after it don't.
    let start = computed();
    assert_eq!(space.allocate(Class::Log, 256, 256, None), None);
    let learning = computed() - start;
    assert!(learning < Duration::from_secs(2), "learning took {learning:?}");
    let start = computed();
    let rounds = 2000;
    for round in 0..rounds {
        assert_eq!(space.allocate(Class::Log, 256, 256, None), None);
        assert_eq!(space.allocate(Class::Node, 4, 4, Some(round * 100_000)), None);
        let data = space.allocate(Class::Data, 64, 1, None).expect("single blocks are left");
        assert_eq!(data.blocks, 1);
    }
    // A linear search reads 32 MiB, some milliseconds; a thousandth of it is far above what the
    // bounds need.
    let each = (computed() - start) / (3 * rounds as u32);
    assert!(each < Duration::from_micros(200), "an allocation took {each:?}");
    assert_eq!(space.free_blocks(), free - rounds);
}
