//! The memory that a map keeps alive, and what becomes of its blocks.

use super::super::block::gather;
use super::*;
use proptest::prelude::*;

fn payload(blocks: usize, byte: u8) -> Bytes {
    Bytes::from(vec![byte; blocks * BLOCK_BYTES])
}

#[test]
fn a_large_write_is_one_buffer_for_each_piece() {
    let mut map = BlockMap::default();
    map.replace(30, &payload(20, 7));
    let taken = map.take(0, u64::MAX, 1000);
    assert_eq!(taken.len(), 20);
    let bufs = gather(&taken);
    assert_eq!(bufs.iter().map(|buf| buf.len() / BLOCK_BYTES).collect::<Vec<_>>(), [2, 16, 2]);
    assert!(bufs.iter().all(|buf| (buf.as_ptr() as usize).is_multiple_of(BLOCK_BYTES)));
}

#[test]
fn an_aligned_payload_is_not_copied() {
    let buf = AlignedBuf::copy_from(&[9; 16 * BLOCK_BYTES]).into_bytes();
    let mut map = BlockMap::default();
    map.replace(16, &buf);
    let bufs = gather(&map.take(0, u64::MAX, 1000));
    assert_eq!(bufs.len(), 1);
    assert_eq!(bufs[0].as_ptr(), buf.as_ptr());
}

/// Fails unless the map satisfies its invariants.
fn require_sound(map: &BlockMap) {
    let mut buffers: BTreeMap<usize, (Arc<Buffer>, u64)> = BTreeMap::new();
    let mut memory = 0;
    for (&number, block) in &map.blocks {
        assert_eq!(block.as_slice().len(), BLOCK_BYTES);
        match block.buffer() {
            None => memory += 1,
            Some(buffer) => {
                assert!(buffer.numbers().contains(&number));
                buffers.entry(Arc::as_ptr(buffer) as usize).or_insert((buffer.clone(), 0)).1 += 1;
            }
        }
    }
    for (buffer, here) in buffers.into_values() {
        assert_eq!(buffer.here(), here);
        assert!(!buffer.is_wasted_on(here), "{here} blocks keep {}", buffer.blocks());
        memory += buffer.blocks();
    }
    assert_eq!(u64::from(map.memory_blocks()), memory);
    assert!(memory <= 2 * map.len());
}

fn large(byte: u8) -> (Bytes, std::sync::Weak<()>) {
    struct Watched(AlignedBuf, #[expect(dead_code, reason = "dropped with the buffer")] Arc<()>);
    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let alive = Arc::new(());
    let weak = Arc::downgrade(&alive);
    (Bytes::from_owner(Watched(AlignedBuf::copy_from(&[byte; 256 * BLOCK_BYTES]), alive)), weak)
}

#[test]
fn what_is_left_of_a_large_write_keeps_no_large_buffer() {
    type Change = fn(&mut BlockMap);
    let changes: [(&str, Change); 5] = [
        ("cut off", |map| map.truncate(1)),
        ("punched", |map| drop(map.take(1, u64::MAX, u64::MAX))),
        ("taken for writing", |map| drop(map.take_each((0..100).chain(101..256)))),
        ("written anew as a whole", |map| map.replace(1, &payload(255, 9))),
        ("written anew in parts", |map| (1..256).for_each(|block| map.patch(block, 7, b"new", None))),
    ];
    for (what, change) in changes {
        let mut map = BlockMap::default();
        let (buf, alive) = large(7);
        map.replace(0, &buf);
        drop(buf);
        change(&mut map);
        require_sound(&map);
        assert!(alive.upgrade().is_none(), "{what}: the buffer is there");
        let left = map.next(0).unwrap();
        assert_eq!(map.get(left).unwrap().as_slice(), [7; BLOCK_BYTES], "{what}");
    }
}

#[test]
fn what_is_taken_of_a_large_write_keeps_no_large_buffer() {
    let mut map = BlockMap::default();
    let (buf, alive) = large(7);
    map.replace(0, &buf);
    drop(buf);
    let taken = map.take(10, 12, 9);
    map.truncate(0);
    assert!(alive.upgrade().is_none());
    // They lie together as before, so that one write takes them.
    assert_eq!(gather(&taken).len(), 1);
    let mut other = BlockMap::default();
    other.restore(taken);
    require_sound(&other);
}

#[test]
fn what_is_logged_is_kept_alone() {
    let mut map = BlockMap::default();
    let (buf, alive) = large(7);
    map.replace(0, &buf);
    drop(buf);
    map.truncate(130);
    assert!(alive.upgrade().is_some(), "more than half is here");
    let logged = map.log();
    require_sound(&map);
    assert!(alive.upgrade().is_none());
    assert_eq!(logged.len(), 130);
    assert!(logged.iter().all(|(_, contents)| **contents == [7; BLOCK_BYTES]));
}

#[test]
fn a_large_write_over_another_copies_nothing() {
    let mut map = BlockMap::default();
    let (first, first_alive) = large(1);
    map.replace(0, &first);
    drop(first);
    let (second, _alive) = large(2);
    map.replace(0, &second);
    assert!(first_alive.upgrade().is_none());
    let taken = map.take(0, u64::MAX, u64::MAX);
    let bufs = gather(&taken);
    assert_eq!((bufs.len(), bufs[0].as_ptr()), (1, second.as_ptr()));
    // Nor is anything copied on the way through the map of blocks in flight.
    let mut in_flight = BlockMap::default();
    in_flight.restore(taken);
    require_sound(&in_flight);
    assert_eq!(in_flight.take_each(0..256)[255].1.as_slice().as_ptr(), second[255 * BLOCK_BYTES..].as_ptr());
    assert_eq!(in_flight.memory_blocks(), 0);
}

#[test]
fn small_appends_stay_in_one_buffer_until_it_is_frozen() {
    let mut map = BlockMap::default();
    map.patch(3, 0, b"one", None);
    let address = map.get(3).unwrap().as_slice().as_ptr();
    map.patch(3, 3, b"two", None);
    assert_eq!(map.get(3).unwrap().as_slice().as_ptr(), address);
    let taken = map.take(0, u64::MAX, 1);
    assert_eq!(taken[0].1.as_slice().as_ptr(), address, "freezing copies nothing");
    map.restore([(3, taken[0].1.share())]);
    map.patch(3, 6, b"three", None);
    assert_eq!(&taken[0].1.as_slice()[..8], b"onetwo\0\0", "a frozen buffer never changes (R7)");
    assert_eq!(&map.get(3).unwrap().as_slice()[..11], b"onetwothree");
}

#[test]
fn restoring_never_replaces_newer_contents() {
    let mut map = BlockMap::default();
    map.patch(1, 0, b"old", None);
    let taken = map.take(0, u64::MAX, 9);
    map.patch(1, 0, b"new", None);
    map.restore(taken);
    assert_eq!(&map.get(1).unwrap().as_slice()[..3], b"new");
}

proptest! {
    /// Patches, whole blocks, truncation and takes against plain bytes.
    #[test]
    fn the_map_follows_plain_bytes(
        steps in proptest::collection::vec((0..5u8, 0..20usize, 0..BLOCK_BYTES, 1..3000usize, any::<u8>()), 1..60)
    ) {
        let mut map = BlockMap::default();
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut frozen: Vec<(Block, Vec<u8>)> = Vec::new();
        let mut other = BlockMap::default();
        for (what, block, at, len, byte) in steps {
            let number = block as u64;
            match what {
                0 | 1 => {
                    let len = len.min(BLOCK_BYTES - at);
                    map.patch(number, at, &vec![byte; len], Some(&[byte ^ 0xff; BLOCK_BYTES]));
                    let bytes = model.entry(number).or_insert(vec![byte ^ 0xff; BLOCK_BYTES]);
                    bytes[at..at + len].fill(byte);
                }
                2 => {
                    let blocks = 1 + len % 40;
                    map.replace(number, &payload(blocks, byte));
                    for index in 0..blocks as u64 {
                        model.insert(number + index, vec![byte; BLOCK_BYTES]);
                    }
                }
                3 => {
                    map.zero_from(number, at);
                    map.truncate(number + 1);
                    model.retain(|&key, _| key <= number);
                    if let Some(bytes) = model.get_mut(&number) {
                        bytes[at..].fill(0);
                    }
                }
                _ => {
                    for (number, contents) in map.take(number, number + 10, 4) {
                        let expected = model.remove(&number).expect("the model has it too");
                        prop_assert_eq!(contents.as_slice(), &expected[..]);
                        other.restore([(number, contents.share())]);
                        frozen.push((contents, expected));
                    }
                    // Write-back puts failed blocks back.
                    if len % 3 == 0 {
                        let back = other.take(number, number + 6, 3);
                        for (number, contents) in &back {
                            model.entry(*number).or_insert_with(|| contents.as_slice().to_vec());
                        }
                        map.restore(back);
                    }
                    if len % 7 == 0 {
                        map.log();
                    }
                }
            }
            require_sound(&map);
            require_sound(&other);
            prop_assert_eq!(map.numbers(..).collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
            for (&number, bytes) in &model {
                prop_assert_eq!(map.get(number).unwrap().as_slice(), &bytes[..]);
            }
        }
        // Rule R7: blocks that were taken have not changed.
        for (contents, expected) in &frozen {
            prop_assert_eq!(contents.as_slice(), &expected[..]);
        }
    }
}
