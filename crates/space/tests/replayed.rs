//! The blocks that replayed batches may name.

use syncline_format::{BlockRun, Geometry, Metadata};
use syncline_space::{Class, Space};

#[test]
fn only_free_blocks_can_be_named_by_a_replayed_batch() {
    let space = Space::format(Geometry { total_blocks: 4096, node_bytes: 4096, metadata: Metadata::Dup });
    let taken = space.allocate(Class::Node, 4, 4, None).unwrap();
    let free = BlockRun::new(taken.end() + 100, 8);
    assert!(space.name_replayed(free));
    assert!(!space.name_replayed(BlockRun::new(free.start + 7, 2)), "named before");
    assert!(!space.name_replayed(BlockRun::new(taken.start, 1)), "a log segment, say");
    assert!(!space.name_replayed(BlockRun::new(4090, 1)), "outside");
    assert!(space.reserve_segment(BlockRun::new(2000, 64)), "a log segment");
    assert!(!space.reserve_segment(BlockRun::new(2063, 64)), "another that overlaps it");
    assert!(!space.name_replayed(BlockRun::new(2010, 1)));
    // Freed blocks wait for their superblock: a batch before it can't have been given them.
    space.unname(free, 5);
    assert!(!space.name_replayed(free));
}
