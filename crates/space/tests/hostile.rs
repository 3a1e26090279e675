//! Maps that no honest program wrote: each is refused with an error, and none causes a panic or is
//! believed.

use bytes::Bytes;
use proptest::prelude::*;
use std::mem::discriminant;
use std::sync::Arc;
use syncline_device::{AlignedBuf, DeviceExt, FlushTracker, MemoryDevice, block_on};
use syncline_format::space::{BITS, Entry, MAX_BLOCKS, PageId, WORDS, encode_bitmap, encode_index};
use syncline_format::superblock::{Pointer, SpaceRoot};
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Metadata};
use syncline_space::{Class, KeptMap, PageReader, Space, SpaceError};

const GEOMETRY: Geometry =
    Geometry { total_blocks: BITS + 5000, node_bytes: 16384, metadata: Metadata::Single };

/// An image with a map of three pages: a root over two bitmap pages.
fn image() -> (Arc<FlushTracker>, SpaceRoot) {
    let tracker = FlushTracker::new(MemoryDevice::new(GEOMETRY.total_blocks * BLOCK_BYTES as u64));
    let space = Space::format(GEOMETRY);
    space.name(space.allocate(Class::Data, 500, 500, None).expect("the image is empty"));
    space.name(space.allocate(Class::Data, 20, 20, Some(BITS + 100)).expect("the image is empty"));
    let root = persist(&tracker, &space);
    (tracker, root)
}

fn persist(tracker: &Arc<FlushTracker>, space: &Arc<Space>) -> SpaceRoot {
    let mut frozen = space.freeze(1);
    let persisted = block_on(space.persist(tracker, &mut frozen)).expect("there is room");
    for run in &persisted.written {
        block_on(run.handle.wait()).expect("memory does not fail");
    }
    space.superblock_durable(1);
    persisted.root
}

/// Loads a map in both ways: as the present map, and side by side as snapshot maps.
fn load(tracker: &Arc<FlushTracker>, root: SpaceRoot) -> Result<Arc<Space>, SpaceError> {
    let pages = PageReader::new(tracker.clone());
    let loaded = block_on(Space::load(&pages, GEOMETRY, root));
    let kept = block_on(KeptMap::union(&pages, GEOMETRY, &[(GEOMETRY, root), (GEOMETRY, root)]));
    match (&loaded, kept) {
        (Ok(space), Ok(kept)) => assert_eq!(kept.runs(), space.named_runs()),
        (Err(one), Err(other)) => assert_eq!(discriminant(one), discriminant(&other), "{one} and {other}"),
        (_, kept) => panic!("one is refused and the other not: {:?}", kept.map(|kept| kept.blocks())),
    }
    loaded
}

fn refused(tracker: &Arc<FlushTracker>, root: SpaceRoot) -> SpaceError {
    load(tracker, root).err().expect("the map must be refused")
}

fn read(tracker: &Arc<FlushTracker>, addr: u64) -> AlignedBuf {
    block_on(tracker.device().read_at(addr * BLOCK_BYTES as u64, BLOCK_BYTES)).expect("memory does not fail")
}

fn write(tracker: &Arc<FlushTracker>, addr: u64, block: &[u8]) {
    let write = tracker.write(addr * BLOCK_BYTES as u64, vec![Bytes::copy_from_slice(block)]);
    block_on(write.wait()).expect("memory does not fail");
}

/// Writes bitmap page 0 at `addr` with these blocks set.
fn plant_bitmap(tracker: &Arc<FlushTracker>, addr: u64, set: &[u64]) -> Entry {
    let mut words = [0; WORDS];
    set.iter().for_each(|block| words[*block as usize / 64] |= 1 << (block % 64));
    let mut block = [0; BLOCK_BYTES];
    let entry = encode_bitmap(&mut block, 0, addr, &words);
    write(tracker, addr, &block);
    entry
}

fn plant_root(tracker: &Arc<FlushTracker>, addr: u64, entries: &[Entry]) -> SpaceRoot {
    let mut block = [0; BLOCK_BYTES];
    let (page, _) = encode_index(&mut block, PageId { level: 1, index: 0 }, addr, entries, Metadata::Single);
    write(tracker, addr, &block);
    SpaceRoot { page, level: 1 }
}

#[test]
fn an_honest_map_is_believed() {
    let (tracker, root) = image();
    let space = load(&tracker, root).expect("it is honest");
    assert_eq!(space.counters().named, 523);
    let root = plant_root(&tracker, 200, &[plant_bitmap(&tracker, 201, &[200, 201])]);
    assert_eq!(load(&tracker, root).expect("so is this one").counters().named, 2);
}

#[test]
fn a_page_that_was_overwritten_is_refused() {
    let (tracker, root) = image();
    let pages = load(&tracker, root).expect("it is honest").map_runs();
    for addr in pages.into_iter().flat_map(|run| run.start..run.end()) {
        let good = read(&tracker, addr);
        for at in [0, 5, 9, 17, 25, 33, 100, BLOCK_BYTES - 1] {
            let mut bad = good.to_vec();
            bad[at] ^= 0x10;
            write(&tracker, addr, &bad);
            assert!(
                matches!(refused(&tracker, root), SpaceError::Corrupt { addr: found, .. } if found == addr)
            );
        }
        write(&tracker, addr, &good);
    }
    assert!(load(&tracker, root).is_ok());
}

#[test]
fn roots_that_cannot_be_are_refused() {
    let (tracker, root) = image();
    for level in [0, 2, 200] {
        let error = refused(&tracker, SpaceRoot { level, ..root });
        assert!(matches!(error, SpaceError::RootLevel { expected: 1, .. }));
    }
    // Outside the device, and where the byte offset would overflow.
    for addr in [GEOMETRY.total_blocks, u64::MAX / 4096 + 1, u64::MAX] {
        let page = Pointer { addr, ..root.page };
        assert!(matches!(refused(&tracker, SpaceRoot { page, ..root }), SpaceError::Device(_)));
    }
    let geometry = Geometry { total_blocks: MAX_BLOCKS + 1, ..GEOMETRY };
    let error =
        block_on(Space::load(&PageReader::new(tracker), geometry, root)).err().expect("it is too large");
    assert!(matches!(error, SpaceError::TooLarge { .. }));
}

#[test]
fn pages_that_point_to_themselves_or_to_each_other_are_refused() {
    let (tracker, _) = image();
    // A loop is impossible, since its checksums can't be made to match, but two entries can point
    // to one page.
    let twice = plant_bitmap(&tracker, 201, &[200, 201]);
    let root = plant_root(&tracker, 200, &[twice, twice]);
    assert!(matches!(refused(&tracker, root), SpaceError::Corrupt { addr: 201, .. }));
    // An index page where a bitmap page belongs.
    let root = plant_root(&tracker, 202, &[Entry { page: root.page, used: 4 }]);
    assert!(matches!(refused(&tracker, root), SpaceError::Corrupt { addr: 200, .. }));
}

#[test]
fn a_map_that_calls_its_own_pages_free_is_refused() {
    let (tracker, _) = image();
    for set in [[200, 300], [300, 201]] {
        let root = plant_root(&tracker, 200, &[plant_bitmap(&tracker, 201, &set)]);
        assert!(matches!(refused(&tracker, root), SpaceError::OwnPageFree { .. }));
    }
}

#[test]
fn counts_that_do_not_add_up_are_refused() {
    let (tracker, _) = image();
    let mut entry = plant_bitmap(&tracker, 201, &[200, 201]);
    entry.used = 3;
    let root = plant_root(&tracker, 200, &[entry]);
    assert!(matches!(refused(&tracker, root), SpaceError::Corrupt { addr: 201, .. }));
}

#[test]
fn runs_outside_the_image_change_nothing() {
    let space = Space::format(GEOMETRY);
    let before = space.counters();
    for run in [
        BlockRun::new(0, Geometry::HEAD_BLOCKS),
        BlockRun::new(GEOMETRY.usable().end(), u64::MAX),
        BlockRun::new(u64::MAX, u64::MAX),
        BlockRun::new(500, 0),
    ] {
        space.reserve_live(run);
        space.name(run);
        space.unname(run, 1);
        space.hold(run, 1);
        space.give_back(run);
        assert!(space.claim_discardable(run).is_empty());
    }
    assert_eq!(space.counters(), before);
    assert_eq!(space.allocate(Class::Data, u64::MAX, u64::MAX, Some(u64::MAX)), None);
    let all = space.allocate(Class::Data, u64::MAX, 1, Some(u64::MAX));
    assert_eq!(all, Some(GEOMETRY.usable()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Random bytes in place of a page, with a pointer that matches them.
    #[test]
    fn random_pages_never_panic(
        bytes in prop::collection::vec(any::<u8>(), BLOCK_BYTES),
        keep in 0..64_usize,
        index in any::<bool>(),
    ) {
        let (tracker, root) = image();
        let addr = if index { root.page.addr } else { 201 };
        let mut block = read(&tracker, root.page.addr).to_vec();
        if !index {
            plant_bitmap(&tracker, addr, &[200, 201]);
            block = read(&tracker, addr).to_vec();
        }
        block[keep..].copy_from_slice(&bytes[keep..]);
        write(&tracker, addr, &block);
        let page = Pointer::single(addr, syncline_format::crc(&block));
        let root = if index {
            SpaceRoot { page, level: 1 }
        } else {
            plant_root(&tracker, 200, &[Entry { page, used: 2 }])
        };
        prop_assert!(load(&tracker, root).is_err());
    }
}
