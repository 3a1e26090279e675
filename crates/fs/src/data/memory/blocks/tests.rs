//! The memory that a map keeps alive, and what becomes of its blocks.

use super::*;
use crate::data::memory::block::gather;
use proptest::prelude::*;

/// A payload that is not aligned to a block, whatever address the allocator gives.
fn payload(blocks: usize, byte: u8) -> Bytes {
    let larger = Bytes::from(vec![byte; blocks * BLOCK_BYTES + 2]);
    let begin = usize::from((larger.as_ptr() as usize).is_multiple_of(BLOCK_BYTES));
    larger.slice(begin..begin + blocks * BLOCK_BYTES)
}

#[test]
fn a_large_write_is_one_buffer_for_each_piece() {
    let mut map = Blocks::default();
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
    let mut map = Blocks::default();
    map.replace(16, &buf);
    let bufs = gather(&map.take(0, u64::MAX, 1000));
    assert_eq!(bufs.len(), 1);
    assert_eq!(bufs[0].as_ptr(), buf.as_ptr());
}

/// Fails unless the map satisfies its invariants.
fn require_sound(map: &Blocks) {
    let mut buffers: BTreeMap<usize, (Arc<Buffer>, u64, bool)> = BTreeMap::new();
    let mut memory = [0; 2];
    let mut counts = Counts::default();
    for (&number, Entry { contents, state }) in &map.map {
        assert_eq!(contents.as_slice().len(), BLOCK_BYTES);
        counts.dirty += u32::from(state.is_dirty());
        counts.logged += u32::from(*state == BlockState::Logged);
        counts.flying += u32::from(state.is_flying());
        let flies = *state == BlockState::InFlight;
        match contents.buffer() {
            None => memory[usize::from(flies)] += 1,
            Some(buffer) => {
                assert!(buffer.numbers().contains(&number));
                let address = Arc::as_ptr(buffer) as usize;
                let (_, here, all) = buffers.entry(address).or_insert((buffer.clone(), 0, flies));
                assert_eq!(*all, flies, "a buffer is shared by dirty blocks and blocks in flight");
                *here += 1;
            }
        }
    }
    for (buffer, here, flies) in buffers.into_values() {
        assert_eq!(buffer.here(), here);
        assert!(flies || !buffer.is_wasted_on(here), "{here} blocks keep {}", buffer.blocks());
        memory[usize::from(flies)] += buffer.blocks();
    }
    let found = (map.dirty(), map.unlogged(), map.in_flight());
    assert_eq!(found, (counts.dirty.into(), (counts.dirty - counts.logged).into(), counts.flying.into()));
    let found = [map.memory_blocks(), map.flying_memory_blocks()].map(u64::from);
    assert_eq!(found, memory);
    assert!(memory[0] <= 2 * map.dirty());
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
    type Change = fn(&mut Blocks);
    let changes: [(&str, Change); 5] = [
        ("cut off", |map| map.truncate(1)),
        ("punched", |map| drop(map.take(1, u64::MAX, u64::MAX))),
        ("taken for writing", |map| drop(map.take_each((0..100).chain(101..256)))),
        ("written anew as a whole", |map| map.replace(1, &payload(255, 9))),
        ("written anew in parts", |map| (1..256).for_each(|block| map.patch(block, 7, b"new", None))),
    ];
    for (what, change) in changes {
        let mut map = Blocks::default();
        let (buf, alive) = large(7);
        map.replace(0, &buf);
        drop(buf);
        change(&mut map);
        require_sound(&map);
        assert!(alive.upgrade().is_none(), "{what}: the buffer is there");
        let left = map.next_dirty(0).unwrap();
        assert_eq!(map.get(left).unwrap().as_slice(), [7; BLOCK_BYTES], "{what}");
    }
}

#[test]
fn what_is_taken_of_a_large_write_keeps_no_large_buffer() {
    let mut map = Blocks::default();
    let (buf, alive) = large(7);
    map.replace(0, &buf);
    drop(buf);
    let taken = map.take(10, 12, 9);
    map.truncate(0);
    assert!(alive.upgrade().is_none());
    // They lie together as before, so that one write takes them.
    assert_eq!(gather(&taken).len(), 1);
    let mut other = Blocks::default();
    other.restore(taken);
    require_sound(&other);
}

#[test]
fn what_is_logged_is_kept_alone() {
    let mut map = Blocks::default();
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
    let mut map = Blocks::default();
    let (first, first_alive) = large(1);
    map.replace(0, &first);
    drop(first);
    let (second, _alive) = large(2);
    map.replace(0, &second);
    assert!(first_alive.upgrade().is_none());
    let taken = map.take(0, u64::MAX, u64::MAX);
    let bufs = gather(&taken);
    assert_eq!((bufs.len(), bufs[0].as_ptr()), (1, second.as_ptr()));
    // Nor is anything copied while they are in flight.
    map.take_off(taken);
    require_sound(&map);
    let landed = map.land(0..256);
    let last = landed[255].1.as_ref().unwrap();
    assert_eq!(last.as_slice().as_ptr(), second[255 * BLOCK_BYTES..].as_ptr());
    assert_eq!(map.flying_memory_blocks(), 0);
}

#[test]
fn small_appends_stay_in_one_buffer_until_it_is_frozen() {
    let mut map = Blocks::default();
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
    let mut map = Blocks::default();
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
        let mut map = Blocks::default();
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut frozen: Vec<(Block, Vec<u8>)> = Vec::new();
        let mut other = Blocks::default();
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

const STATES: [BlockState; 5] =
    [BlockState::Dirty, BlockState::Logged, BlockState::InFlight, BlockState::Rewritten, BlockState::Placed];
const EVENTS: [Event; 5] = [Event::Written, Event::Logged, Event::TakenOff, Event::Named, Event::Failed];

/// The rows of the table of a block's life in a text: for each state what a crash leaves, and the states
/// that follow.
fn table(text: &str) -> Vec<(String, String, Vec<String>)> {
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("//! ").unwrap_or(line).split('|').map(str::trim).collect();
        let state = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        let known = STATES.iter().any(|known| format!("{known:?}") == state) && cells.len() == 10;
        let next = || cells[4..9].iter().map(|cell| cell.trim_matches('`').into()).collect();
        known.then(|| (state.into(), cells[3].into(), next()))
    });
    rows.collect()
}

#[test]
fn the_documents_have_the_table() {
    let documented = table(include_str!("../blocks.rs"));
    let expected: Vec<_> = STATES
        .iter()
        .map(|state| {
            let next = |event| state.after(event).map_or("–".into(), |next| format!("{next:?}"));
            (format!("{state:?}"), EVENTS.map(next).to_vec())
        })
        .collect();
    let found: Vec<_> = documented.iter().map(|(state, _, next)| (state.clone(), next.clone())).collect();
    assert_eq!(found, expected);
    let durability = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/DURABILITY.md");
    assert_eq!(table(&std::fs::read_to_string(durability).unwrap()), documented);
}

/// A block as the table says that it is: its state and the byte that fills it.
type Life = BTreeMap<u64, (BlockState, u8)>;

/// One step of the life of blocks, in the map and in the model.
fn step(map: &mut Blocks, model: &mut Life, what: u8, numbers: Range<u64>, byte: u8) {
    let of = |model: &Life, wanted: fn(BlockState) -> bool| -> Vec<u64> {
        model.range(numbers.clone()).filter(|(_, (state, _))| wanted(*state)).map(|(&n, _)| n).collect()
    };
    let happens = |model: &mut Life, number: u64, event: Event| {
        let entry = model.get_mut(&number).unwrap();
        entry.0 = entry.0.after(event).expect("the table has it");
        if entry.0 == BlockState::Placed {
            model.remove(&number);
        }
    };
    match what {
        0 | 1 => {
            map.replace(numbers.start, &payload((numbers.end - numbers.start) as usize, byte));
            for number in numbers {
                let state = model
                    .get(&number)
                    .map_or(BlockState::Dirty, |(state, _)| state.after(Event::Written).unwrap());
                model.insert(number, (state, byte));
            }
        }
        2 if map.in_flight() == 0 => {
            let logged: Vec<u64> = map.log().into_iter().map(|(number, _)| number).collect();
            let dirty = model.iter().filter(|(_, (state, _))| *state == BlockState::Dirty);
            let dirty: Vec<u64> = dirty.map(|(&number, _)| number).collect();
            assert_eq!(logged, dirty);
            dirty.into_iter().for_each(|number| happens(model, number, Event::Logged));
        }
        3 if map.in_flight() == 0 => {
            let taken = map.take(numbers.start, numbers.end, u64::MAX);
            map.take_off(taken);
            of(model, BlockState::is_dirty).into_iter().for_each(|n| happens(model, n, Event::TakenOff));
        }
        4 | 5 => {
            let flying = of(model, BlockState::is_flying);
            let landed = map.land(numbers);
            assert_eq!(landed.iter().map(|(number, _)| *number).collect::<Vec<_>>(), flying);
            // The transaction may fail.
            if byte.is_multiple_of(2) {
                return map.unland(landed);
            }
            flying.into_iter().for_each(|number| happens(model, number, Event::Named));
        }
        6 => {
            of(model, BlockState::is_flying).into_iter().for_each(|n| happens(model, n, Event::Failed));
            map.give_back(numbers);
        }
        7 => {
            map.truncate(numbers.end);
            model.retain(|&number, _| number < numbers.end);
        }
        _ => {}
    }
}

proptest! {
    /// Blocks live by the table, and their newest contents are in the map.
    #[test]
    fn blocks_live_by_the_table(
        steps in proptest::collection::vec((0..8u8, 0..40u64, 1..40u64, any::<u8>()), 1..80)
    ) {
        let (mut map, mut model) = (Blocks::default(), Life::new());
        for (what, first, blocks, byte) in steps {
            step(&mut map, &mut model, what, first..first + blocks, byte);
            require_sound(&map);
            prop_assert_eq!(map.pending(..).collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
            for (&number, &(state, byte)) in &model {
                prop_assert_eq!(map.state_of(number), Some(state));
                prop_assert_eq!(map.get(number).unwrap().as_slice(), [byte; BLOCK_BYTES]);
            }
            let unnamed = model.iter().find(|(_, (state, _))| *state != BlockState::Logged);
            prop_assert_eq!(map.next_unnamed(0), unnamed.map(|(&number, _)| number));
        }
    }
}
