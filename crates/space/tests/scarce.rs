//! Where whole frames are scarce, an allocation does not search the whole map.

use crate::computed;
use std::time::Duration;
use syncline_format::{BlockRun, Geometry, Metadata};
use syncline_space::{Class, Space};

/// An image of 256 GiB, all in use except single blocks at the front and whole frames at the end.
fn nearly_full() -> std::sync::Arc<Space> {
    let geometry = Geometry { total_blocks: 64 << 20, node_bytes: 16384, metadata: Metadata::Dup };
    let space = Space::format(geometry);
    let usable = geometry.usable();
    let holes = 40_000;
    let mut at = usable.start.next_multiple_of(16);
    for _ in 0..holes {
        space.reserve_live(BlockRun::new(at, 3));
        at += 4;
    }
    let frames_at = (usable.end() - 16_384) / 16 * 16;
    space.reserve_live(BlockRun::new(at, frames_at - at));
    space
}

/// The average processor time of one call.
fn measure(count: u32, mut one: impl FnMut()) -> Duration {
    let before = computed();
    (0..count).for_each(|_| one());
    (computed() - before) / count
}

/// Searching 256 GiB took 3 to 8 ms.
#[test]
fn allocations_where_frames_are_scarce_do_not_scan_the_map() {
    let space = nearly_full();
    space.keep_whole(16_000);
    let nodes = measure(200, || assert_eq!(space.allocate(Class::Node, 4, 4, None).unwrap().blocks, 4));
    // A file in the middle that is appended to, or rewritten, in single blocks.
    let near = Some(32 << 20);
    let data = measure(200, || assert_eq!(space.allocate(Class::Data, 1, 1, near).unwrap().blocks, 1));
    let most = Duration::from_millis(1);
    assert!(data < most && nodes < most, "for one block near a file {data:?}, for one node {nodes:?}");
}

/// A reservation outranks the quarantine of blocks whose write failed.
#[test]
fn quarantined_blocks_are_handed_out_where_no_others_are_left() {
    let space = Space::format(Geometry { total_blocks: 16384, node_bytes: 16384, metadata: Metadata::Dup });
    let mut runs = Vec::new();
    while let Some(run) = space.allocate(Class::Data, 1024, 1, None) {
        runs.push(run);
    }
    let failed = BlockRun::new(runs[0].start + 8, 4);
    space.quarantine(failed);
    space.give_back(BlockRun::new(runs[0].start, 16));
    let mut found: Vec<u64> = Vec::new();
    while let Some(run) = space.allocate(Class::Data, 1, 1, None) {
        found.extend(run.start..run.end());
    }
    let (others, last) = found.split_at(12);
    assert!(others.iter().all(|block| !(failed.start..failed.end()).contains(block)), "{others:?}");
    assert_eq!(last, (failed.start..failed.end()).collect::<Vec<_>>());
}
