//! Pages with two copies: one of them may be damaged anywhere, and is mended.

use std::sync::Arc;
use syncline_device::{AlignedBuf, FlushTracker, MemoryDevice, block_on};
use syncline_format::space::BITS;
use syncline_format::superblock::SpaceRoot;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Metadata};
use syncline_space::{Class, KeptMap, PageReader, Space};

const GEOMETRY: Geometry =
    Geometry { total_blocks: 2 * BITS + 5000, node_bytes: 16384, metadata: Metadata::Dup };

/// An image with a map of four pages, twice.
fn image() -> (Arc<FlushTracker>, Arc<Space>, SpaceRoot) {
    let tracker = FlushTracker::new(MemoryDevice::new(GEOMETRY.total_blocks * BLOCK_BYTES as u64));
    let space = Space::format(GEOMETRY);
    for near in [1000, BITS + 1000, 2 * BITS + 1000] {
        space.name(space.allocate(Class::Data, 100, 100, Some(near)).unwrap());
    }
    let mut frozen = space.freeze(1);
    let persisted = block_on(space.persist(&tracker, &mut frozen)).unwrap();
    for written in &persisted.written {
        block_on(written.handle.wait()).unwrap();
    }
    space.superblock_durable(1);
    (tracker, space, persisted.root)
}

fn read(tracker: &Arc<FlushTracker>, addr: u64) -> Vec<u8> {
    block_on(tracker.read(addr * BLOCK_BYTES as u64, BLOCK_BYTES)).unwrap().to_vec()
}

fn write(tracker: &Arc<FlushTracker>, addr: u64, bytes: &[u8]) {
    let bytes = AlignedBuf::copy_from(bytes).into_bytes();
    block_on(tracker.write(addr * BLOCK_BYTES as u64, vec![bytes]).wait()).unwrap();
}

/// Every page in both its places.
fn places(space: &Space) -> Vec<u64> {
    space.map_runs().into_iter().flat_map(|run| run.start..run.end()).collect()
}

#[test]
fn any_one_copy_may_be_damaged_and_is_mended() {
    let (tracker, space, root) = image();
    let places = places(&space);
    assert_eq!(places.len(), 8);
    for addr in places {
        let good = read(&tracker, addr);
        write(&tracker, addr, &[3; BLOCK_BYTES]);
        let quick = PageReader::new(tracker.clone());
        let loaded = block_on(Space::load(&quick, GEOMETRY, root)).unwrap();
        assert_eq!(loaded.named_runs(), space.named_runs());
        let kept = block_on(KeptMap::union(&quick, GEOMETRY, &[(GEOMETRY, root)])).unwrap();
        assert_eq!(kept.runs(), space.named_runs());
        let all = PageReader::of_all_copies(tracker.clone());
        block_on(Space::load(&all, GEOMETRY, root)).unwrap();
        let rotten = all.take_rotten();
        assert_eq!(rotten.iter().map(|page| page.addr).collect::<Vec<_>>(), [addr]);
        // A reader that is content with one copy sees damage to the first only.
        assert_eq!(!quick.take_rotten().is_empty(), rotten[0].pointer.addr == addr);
        assert!(space.has_page(rotten[0].pointer));
        block_on(rotten[0].mend(&tracker)).unwrap();
        assert!(read(&tracker, addr) == good);
    }
}

#[test]
fn a_page_is_lost_only_with_both_copies() {
    let (tracker, _, root) = image();
    root.page.places().for_each(|addr| write(&tracker, addr, &[3; BLOCK_BYTES]));
    let pages = PageReader::of_all_copies(tracker);
    assert!(block_on(Space::load(&pages, GEOMETRY, root)).is_err());
    assert!(pages.take_rotten().is_empty());
}

/// The copies lie at the two ends of an image that has room.
#[test]
fn copies_lie_far_apart() {
    let (_, space, root) = image();
    assert!(root.page.copy - root.page.addr > GEOMETRY.total_blocks * 3 / 4);
    let node = space.allocate(Class::Node, 4, 4, None).unwrap();
    let copy = space.allocate(Class::Copy, 4, 4, None).unwrap();
    assert!(GEOMETRY.contains(BlockRun::new(copy.start, 4)) && copy.start - node.start > BITS);
}
