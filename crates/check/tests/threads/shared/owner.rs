//! Files that one thread changes: it always knows their contents, and others may read, copy and
//! sync them.

use super::judge::{read, values_of};
use super::ledger::{History, Ledger};
use super::records::{RECORD_BYTES, Record, Value, bytes_of};
use super::world::World;
use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::block_on;
use syncline_fs::types::{Algorithm, Ino, SetAttributes};
use syncline_fs::{Allocation, FsError};

/// Most records of an owned file: 64 KiB.
const RECORDS_MAX: usize = 2048;
/// Records in a block.
const BLOCK: usize = 4096 / RECORD_BYTES as usize;

pub struct OwnedFile {
    pub ino: Ino,
    pub owner: u64,
    pub history: History<State>,
}

/// The contents of a file: its records, in order.
#[derive(Clone)]
pub struct State {
    pub values: Arc<Vec<Value>>,
    /// The change that led here was made in several steps, each of whole blocks.
    piecewise: bool,
}

impl State {
    fn new(values: Vec<Value>, piecewise: bool) -> Self {
        Self { values: Arc::new(values), piecewise }
    }

    /// The state after giving these places values, longer if necessary.
    fn with(&self, places: Range<usize>, value: impl Fn(usize) -> Value, piecewise: bool) -> Self {
        let mut values = self.values.to_vec();
        if values.len() < places.end {
            values.resize(places.end, Value::default());
        }
        for place in places {
            values[place] = value(place);
        }
        Self::new(values, piecewise)
    }
}

impl OwnedFile {
    pub fn new(ino: Ino, owner: u64) -> Self {
        Self { ino, owner, history: History::beginning_with(State::new(Vec::new(), false)) }
    }

    /// Fails unless the at most `len` records read from place `first` on match the state after one
    /// of the changes between `returned`, the last that had returned before the read, and now.
    pub fn require_read(
        &self,
        returned: usize,
        first: usize,
        len: usize,
        found: &[Value],
    ) -> Result<(), String> {
        let states = self.history.since(returned);
        let expected = |state: &State| {
            let end = (first + len).min(state.values.len());
            state.values.get(first.min(end)..end).unwrap_or_default().to_vec()
        };
        if states.iter().any(|state| expected(state) == found) {
            return Ok(());
        }
        let mut found = found.to_vec();
        if states.iter().skip(1).any(|state| state.piecewise) {
            drop(found.splice(0..0, std::iter::repeat_n(Value::default(), first)));
            let ends = states.iter().map(|state| state.values.len().min(first + len).max(first));
            let (least, most) = (ends.clone().min().unwrap_or(0), ends.max().unwrap_or(0));
            if (least..=most).contains(&found.len()) && self.blocks_match(&states, first, &found).is_ok() {
                return Ok(());
            }
            found.drain(..first);
        }
        let told: Vec<Vec<Value>> = states.iter().map(expected).collect();
        let at = told.iter().map(|state| state.iter().zip(&found).take_while(|(a, b)| a == b).count());
        Err(format!(
            "file {} from record {first}, {len} wanted: {} records found, as after none of the changes from {returned} on; \
             lengths and first differences: {:?}; found there: {:?}",
            self.ino,
            found.len(),
            told.iter().map(Vec::len).zip(at.clone()).collect::<Vec<_>>(),
            at.map(|at| (found.get(at), told[0].get(at))).collect::<Vec<_>>(),
        ))
    }

    /// Fails unless each block of the file found after a power cut is from after one of the changes
    /// from `least` on.
    pub fn require_survived(&self, least: usize, found: &[Value]) -> Result<(), String> {
        let states = self.history.since(least);
        let lengths = states.iter().map(|state| state.values.len());
        let (shortest, longest) = (lengths.clone().min().unwrap_or(0), lengths.max().unwrap_or(0));
        if !(shortest..=longest).contains(&found.len()) {
            return Err(format!(
                "file {} has {} records, and had {shortest} to {longest} after change {least} and those that followed",
                self.ino,
                found.len()
            ));
        }
        self.blocks_match(&states, 0, found).map_err(|what| format!("{what} after change {least}"))
    }

    fn blocks_match(&self, states: &[State], first: usize, found: &[Value]) -> Result<(), String> {
        for start in (first / BLOCK * BLOCK..found.len()).step_by(BLOCK) {
            let range = start.max(first)..(start + BLOCK).min(found.len());
            let there = |state: &State, place: usize| state.values.get(place).copied().unwrap_or_default();
            if !states.iter().any(|state| range.clone().all(|place| there(state, place) == found[place])) {
                let differs = range.clone().find(|&place| there(&states[0], place) != found[place]);
                let place = differs.unwrap_or(start);
                let written: Vec<Value> = states.iter().map(|state| there(state, place)).collect();
                return Err(format!(
                    "file {}, records {range:?}: record {place} is {:?}, of {written:?}",
                    self.ino, found[place]
                ));
            }
        }
        Ok(())
    }
}

/// One random change, read or sync of a file by its owner.
pub fn step(world: &World, thread: u64, random: &mut StdRng) {
    let own: Vec<usize> =
        (0..world.owned.len()).filter(|&index| world.owned[index].owner == thread).collect();
    let index = own[random.random_range(0..own.len())];
    let file = &world.owned[index];
    match random.random_range(0..20) {
        0..13 => some_change(world, thread, index, &own, random),
        13 => {
            let algorithm = [None, Some(Algorithm::Lz4), Some(Algorithm::Zstd)][random.random_range(0..3)];
            compress(world, thread, file.ino, algorithm, random.random());
        }
        14 | 15 => look(world, thread, file),
        _ => sync(world, thread, file.ino, random.random()),
    }
}

/// A random change of a file, perhaps with contents of another of the owner's files `own`.
pub fn some_change(world: &World, thread: u64, index: usize, own: &[usize], random: &mut StdRng) {
    let file = &world.owned[index];
    let len = file.history.present().values.len();
    match random.random_range(0..13) {
        0..8 => {
            let places = some_places(random, len);
            let append = random.random_range(0..4) == 0;
            let places = if append { len..(len + places.len()).min(RECORDS_MAX) } else { places };
            write(world, thread, file, places, append);
        }
        8 | 9 => {
            // Several in a row may end up in one submission.
            for _ in 0..[1, 1, 2, 4][random.random_range(0..4)] {
                let len = file.history.present().values.len();
                let size = match random.random_range(0..4) {
                    0 => 0,
                    1 => random.random_range(0..=RECORDS_MAX),
                    2 => random.random_range(0..=len),
                    _ => random.random_range(0..=len) / BLOCK * BLOCK,
                };
                truncate(world, thread, file, size);
            }
        }
        10 | 11 => {
            let keep_size = random.random();
            let what = match random.random_range(0..4) {
                0 => Allocation::Preallocate { keep_size },
                1 => Allocation::ZeroRange { keep_size },
                2 => Allocation::UnshareRange { keep_size },
                _ => Allocation::PunchHole,
            };
            allocate(world, thread, file, what, some_places(random, len));
        }
        _ => copy(world, thread, file, &world.owned[own[random.random_range(0..own.len())]], random),
    }
}

/// Writes these places, or appends that many records; the file must end where they begin.
fn write(world: &World, thread: u64, file: &OwnedFile, places: Range<usize>, append: bool) {
    if places.is_empty() {
        return;
    }
    let (fs, ino) = (&world.mount.fs, file.ino);
    let present = file.history.present();
    let value = Value { ino, write: world.next_write() };
    world.note(thread, || format!("writes {places:?} of {ino}, append {append}"));
    let bytes = bytes(&places, value);
    change(world, file, present.with(places.clone(), |_| value, false), || {
        if append {
            let at = block_on(fs.append(ino, bytes, false))?;
            assert_eq!(at, places.start as u64 * RECORD_BYTES, "an append went elsewhere");
            return Ok(());
        }
        block_on(fs.write(ino, places.start as u64 * RECORD_BYTES, bytes, false))
    });
}

fn truncate(world: &World, thread: u64, file: &OwnedFile, size: usize) {
    let (fs, ino) = (&world.mount.fs, file.ino);
    let mut values = file.history.present().values.to_vec();
    let len = values.len();
    values.resize(size, Value::default());
    world.note(thread, || format!("truncates {ino} from {len} to {size} records"));
    change(world, file, State::new(values, false), || {
        let set = SetAttributes { size: Some(size as u64 * RECORD_BYTES), ..SetAttributes::default() };
        block_on(fs.setattr(super::world::CALLER, ino, set)).map(drop)
    });
}

/// Sets the compression of future writes, and perhaps rewrites the existing data.
pub fn compress(world: &World, thread: u64, ino: Ino, algorithm: Option<Algorithm>, rewrite: bool) {
    let fs = &world.mount.fs;
    world.note(thread, || format!("compression of {ino}: {algorithm:?}"));
    world.expect(block_on(fs.set_compression(ino, algorithm)), &[]);
    if rewrite {
        world.expect(block_on(fs.rewrite(ino, 0)), &[]);
    }
}

/// Reads all of a file.
pub fn look(world: &World, thread: u64, file: &OwnedFile) {
    let ino = file.ino;
    world.note(thread, || format!("reads all of {ino}"));
    let returned = file.history.returned();
    let found = read(world, ino, 0, RECORDS_MAX as u64 * RECORD_BYTES);
    let values = world.judged(values_of(ino, 0, &found));
    world.judged(file.require_read(returned, 0, RECORDS_MAX, &values));
}

/// Syncs a file.
pub fn sync(world: &World, thread: u64, ino: Ino, data_only: bool) {
    world.note(thread, || format!("syncs {ino}, data only {data_only}"));
    let promise = Ledger::promise(world, &[ino], data_only);
    world.must(block_on(world.mount.fs.fsync(ino, data_only)));
    world.follow_up();
    world.ledger.record(world, promise);
}

/// A change of a file by its owner: either refused without effect, or done.
fn change(world: &World, file: &OwnedFile, state: State, work: impl FnOnce() -> Result<(), FsError>) {
    file.history.begin(state);
    match world.expect(work(), &[]) {
        Some(()) => file.history.end(None),
        None => file.history.refuse(),
    }
}

/// Places to write: near the start, whole blocks, or anything.
fn some_places(random: &mut StdRng, len: usize) -> Range<usize> {
    let start = random.random_range(0..=len.min(RECORDS_MAX - 1));
    match random.random_range(0..4) {
        0 => 0..random.random_range(1..=16),
        1 => {
            let start = start / BLOCK * BLOCK;
            start..(start + BLOCK * random.random_range(1..=4)).min(RECORDS_MAX)
        }
        2 => start..(start + random.random_range(1..=16)).min(RECORDS_MAX),
        _ => {
            let start = random.random_range(0..RECORDS_MAX);
            start..(start + random.random_range(1..=3 * BLOCK)).min(RECORDS_MAX)
        }
    }
}

fn bytes(places: &Range<usize>, value: Value) -> Bytes {
    let records = places.clone().flat_map(|place| bytes_of(Record { value, place: place as u64 }));
    records.collect::<Vec<u8>>().into()
}

fn allocate(world: &World, thread: u64, file: &OwnedFile, what: Allocation, places: Range<usize>) {
    let (fs, ino) = (&world.mount.fs, file.ino);
    let mut values = file.history.present().values.to_vec();
    let len = values.len();
    let grows = match what {
        Allocation::Preallocate { keep_size }
        | Allocation::ZeroRange { keep_size }
        | Allocation::UnshareRange { keep_size } => !keep_size,
        _ => false,
    };
    if grows && len < places.end {
        values.resize(places.end, Value::default());
    }
    if matches!(what, Allocation::ZeroRange { .. } | Allocation::PunchHole) {
        let end = places.end.min(values.len());
        values[places.start.min(end)..end].fill(Value::default());
    }
    world.note(thread, || format!("{what:?} at {places:?} of {ino} with {len} records"));
    let (offset, bytes) = (places.start as u64 * RECORD_BYTES, places.len() as u64 * RECORD_BYTES);
    change(world, file, State::new(values, false), || block_on(fs.allocate(ino, what, offset, bytes, false)));
}

/// Copies whole blocks from another of the owner's files to the same place in this one.
fn copy(world: &World, thread: u64, file: &OwnedFile, source: &OwnedFile, random: &mut StdRng) {
    let from = source.history.present().values;
    let present = file.history.present();
    let start = random.random_range(0..4) * BLOCK;
    let end = (start + random.random_range(1..=4) * BLOCK).min(from.len() / BLOCK * BLOCK);
    if source.ino == file.ino || start >= end {
        return;
    }
    world.note(thread, || format!("copies {start}..{end} of {} to {}", source.ino, file.ino));
    let (offset, len) = (start as u64 * RECORD_BYTES, (end - start) as u64 * RECORD_BYTES);
    let state = present.with(start..end, |place| from[place], true);
    change(world, file, state, || {
        let copied =
            block_on(world.mount.fs.copy_range((source.ino, offset), (file.ino, offset), len, false))?;
        assert_eq!(copied, len, "a copy is short");
        Ok(())
    });
}
