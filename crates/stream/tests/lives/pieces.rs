//! Streams that are cut off and go on: at every record, at random bytes, by a sender that stops, by a
//! receiver that is killed. The snapshot is what it would have been.

use crate::describe::{Whole, describe, require_same};
use crate::world::{self, World};
use crate::{number, require_sound, stream};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::Read;
use std::sync::Arc;
use syncline_device::{MemoryDevice, Spawn, block_on};
use syncline_fs::Filesystem;
use syncline_store::Canary;
use syncline_stream::{
    Cut, Kept, Options, Received, Source, StreamError, Token, receive, receive_in_pieces, receive_with,
    resume,
};

/// Longer than every stream here.
pub const ONE_PIECE: u64 = 1 << 40;

/// Where the header of a stream ends, and each of its records.
pub fn ends(bytes: &[u8]) -> Vec<usize> {
    let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut ends = vec![24 + length(12) + 4];
    while let Some(at) = ends.last().copied().filter(|at| *at < bytes.len()) {
        ends.push(at + 24 + length(at + 4));
    }
    ends
}

/// The rest of a stream.
pub fn rest(world: &World, name: &str, from: Option<&str>, token: &Token) -> Result<Vec<u8>, StreamError> {
    let mut output = Vec::new();
    let (fs, snapshot) = world.snapshot(name);
    let older = from.map(|from| world.snapshot(from));
    let older = older.as_ref().map(|(fs, snapshot)| Source { fs, snapshot: snapshot.clone() });
    block_on(resume(&Source { fs: &fs, snapshot }, older.as_ref(), token, &mut output))?;
    Ok(output)
}

/// The token of the part of a stream that a filesystem keeps.
pub fn kept(fs: &Filesystem) -> Option<Token> {
    block_on(Kept::find(fs)).unwrap().map(|kept| kept.token())
}

pub fn cut(target: &World, bytes: impl Read, piece_bytes: u64) -> Cut {
    block_on(receive_in_pieces(&target.fs, bytes, None, piece_bytes)).expect_err("it is cut off")
}

/// Receives in pieces, and takes the room for it little by little if the target is shared.
fn take(target: &World, input: impl Read, piece_bytes: u64, is_shared: bool) -> Result<Received, Cut> {
    let options = Options { piece_bytes: Some(piece_bytes), is_shared, ..Options::default() };
    block_on(receive_with(&target.fs, input, options))
}

/// Names of the snapshots that a user sees.
pub fn visible(fs: &Filesystem) -> Vec<String> {
    block_on(fs.snapshots()).unwrap().into_iter().map(|usage| usage.snapshot.name).collect()
}

/// Two snapshots of a small life, and the image that a receiver of the first one has.
struct Small {
    source: World,
    spawn: Arc<dyn Spawn>,
    empty: Arc<MemoryDevice>,
    with_first: Arc<MemoryDevice>,
}

fn small_life(seed: u64, steps: usize) -> Small {
    let spawn = world::spawn();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut source = World::new(&spawn, 32 << 20, 16384);
    for name in ["first", "second"] {
        source.live(&mut rng, steps);
        block_on(source.fs.create_snapshot(name)).unwrap();
    }
    let target = World::new(&spawn, 32 << 20, 16384);
    target.close();
    let empty = target.device.snapshot();
    let target = World::open(empty.snapshot(), &spawn);
    block_on(receive(&target.fs, &stream(&source, "first", None)[..], None)).unwrap();
    target.close();
    Small { source, spawn, empty, with_first: target.device.snapshot() }
}

fn expected(life: &Small, name: &str) -> Whole {
    describe(&life.source.snapshot(name).0)
}

#[test]
fn a_stream_that_is_cut_at_any_record_goes_on() {
    let life = small_life(5, 30);
    for (name, from) in [("first", None), ("second", Some("first"))] {
        let bytes = stream(&life.source, name, from);
        let base = if from.is_none() { &life.empty } else { &life.with_first };
        let (sent, ends) = (expected(&life, name), ends(&bytes));
        assert!(ends.len() > 20, "{} records", ends.len());
        for (records, end) in ends.iter().copied().enumerate().take(ends.len() - 1) {
            let what = format!("{name}, after record {records}");
            let mut target = World::open(base.snapshot(), &life.spawn);
            let before = visible(&target.fs);
            // In the middle of the next record, too.
            let end = if records % 2 == 0 { end } else { end + 10 };
            let Cut { error, kept: token } = cut(&target, &bytes[..end], ONE_PIECE);
            assert!(matches!(error, StreamError::Truncated(at) if at == records as u64), "{what}: {error}");
            assert_eq!(visible(&target.fs), before, "{what}: nothing is to be seen");
            assert_eq!(token, kept(&target.fs), "{what}");
            if records % 3 == 0 {
                target.close();
                require_sound(&target.device, &life.spawn, &what);
                target = World::open(target.device.clone(), &life.spawn);
            }
            let Some(token) = token else {
                assert_eq!(records, 0, "{what}: it is kept");
                continue;
            };
            assert_eq!(token.position.records, records as u64, "{what}");
            let rest = rest(&life.source, name, from, &token).unwrap();
            let behind = &bytes[ends[records]..];
            assert!(
                rest.ends_with(behind) && rest.len() < behind.len() + 1000,
                "{what}: only the rest is sent"
            );
            block_on(receive_in_pieces(&target.fs, &rest[..], None, ONE_PIECE)).unwrap();
            assert_eq!(kept(&target.fs), None, "{what}: nothing is kept any more");
            require_same(&sent, &describe(&target.snapshot(name).0), &what);
            target.close();
            if records % 3 == 1 {
                require_sound(&target.device, &life.spawn, &what);
            }
        }
    }
}

#[test]
fn pieces_of_one_record_each_make_the_same_snapshot() {
    let life = small_life(6, 40);
    let bytes = stream(&life.source, "second", Some("first"));
    let target = World::open(life.with_first.snapshot(), &life.spawn);
    let received = block_on(receive_in_pieces(&target.fs, &bytes[..], Some("other"), 1)).unwrap();
    assert_eq!(received.records + 1, ends(&bytes).len() as u64 - 1, "the last record does not count");
    require_same(&expected(&life, "second"), &describe(&target.snapshot("other").0), "pieces");
    assert_eq!(visible(&target.fs), ["first", "other"]);
    assert_eq!(kept(&target.fs), None);
    target.close();
    require_sound(&target.device, &life.spawn, "pieces");
    // Streams from the copy fit, and those that start from it.
    let copy = World::open(target.device.clone(), &life.spawn);
    let third = World::open(life.with_first.snapshot(), &life.spawn);
    block_on(receive(&third.fs, &stream(&copy, "other", Some("first"))[..], None)).unwrap();
    require_same(&expected(&life, "second"), &describe(&third.snapshot("other").0), "the copy's copy");
}

/// Input in whose middle the receiver is killed: the device is copied as it is then.
struct Killed<'a> {
    bytes: &'a [u8],
    at: usize,
    kill_at: usize,
    device: &'a MemoryDevice,
    left: Option<Arc<MemoryDevice>>,
}

impl Read for Killed<'_> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let mut rest = &self.bytes[self.at..];
        let read = rest.read(room)?;
        self.at += read;
        if self.at >= self.kill_at && self.left.is_none() {
            self.left = Some(self.device.snapshot());
        }
        Ok(read)
    }
}

/// Receives a stream with cuts of all kinds, and returns the target, which may be another one.
pub fn receive_with_cuts(
    source: &World,
    (name, from): (&str, Option<&str>),
    mut target: World,
    rng: &mut ChaCha8Rng,
    what: &str,
) -> World {
    let whole = stream(source, name, from);
    let ends = ends(&whole);
    let mut cuts = rng.random_range(1..5);
    loop {
        let token = kept(&target.fs);
        let bytes = match &token {
            Some(token) if rng.random_bool(0.7) => rest(source, name, from, token).unwrap(),
            _ => whole.clone(),
        };
        let piece_bytes = [ONE_PIECE, 200_000, 20_000][rng.random_range(0..3)];
        let is_shared = rng.random_bool(0.3);
        let least = token.map_or(0, |token| token.position.records);
        match rng.random_range(0..3) {
            _ if cuts == 0 => {
                let received = take(&target, &bytes[..], piece_bytes, is_shared);
                received.unwrap_or_else(|cut| panic!("{what}: {}", cut.error));
                assert_eq!(kept(&target.fs), None, "{what}");
                return target;
            }
            0 => {
                let end = rng.random_range(0..bytes.len());
                let cut = take(&target, &bytes[..end], piece_bytes, is_shared).expect_err("it is cut off");
                let is_cut = matches!(
                    cut.error,
                    StreamError::Truncated(_) | StreamError::Nothing | StreamError::NotAStream
                );
                assert!(is_cut, "{what}: {}", cut.error);
            }
            1 => {
                let mut bytes = bytes.clone();
                let at = rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << rng.random_range(0..8);
                let cut = take(&target, &bytes[..], piece_bytes, is_shared).expect_err("it is damaged");
                assert!(cut.error.is_of_stream(), "{what}: {}", cut.error);
            }
            _ => {
                let device = target.device.clone();
                let kill_at = rng.random_range(0..bytes.len());
                let mut input = Killed { bytes: &bytes, at: 0, kill_at, device: &device, left: None };
                let _ = take(&target, &mut input, piece_bytes, is_shared);
                let left = input.left.expect("it was read up to there");
                target = target.moved_to(left);
            }
        }
        cuts -= 1;
        let records = kept(&target.fs).map_or(0, |token| token.position.records);
        assert!(records >= least && records < ends.len() as u64, "{what}: {records} after {least}");
        if rng.random_bool(0.3) {
            target.live(rng, 10);
        }
        if rng.random_bool(0.3) {
            target.close();
            require_sound(&target.device, &target.spawn, what);
            let device = target.device.clone();
            target = target.moved_to(device);
        }
    }
}

/// `SYNCLINE_ROUNDS` is the number of lives (8), `SYNCLINE_SEED` the first one's seed.
#[test]
fn lives_with_cuts_end_the_same() {
    let (rounds, first, spawn) = (number("SYNCLINE_ROUNDS", 8), number("SYNCLINE_SEED", 1), world::spawn());
    (first..first + rounds).for_each(|seed| life_with_cuts(seed, &spawn, None));
}

/// One life, with a receiver that breaks a rule.
pub fn life_with_cuts(seed: u64, spawn: &Arc<dyn Spawn>, canary: Option<Canary>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let mut source = World::new(spawn, 96 << 20, 16384);
    let node_bytes = [16384, 65536][rng.random_range(0..2)];
    let mut target = World::new(spawn, 128 << 20, node_bytes).breaking(canary);
    target.live(&mut rng, 30);
    let mut last: Option<String> = None;
    for number in 0..3 {
        let steps = [5, 40, 200][rng.random_range(0..3)];
        source.live(&mut rng, steps);
        let name = format!("s{number}");
        block_on(source.fs.create_snapshot(&name)).unwrap();
        let from = last.take().filter(|_| rng.random_bool(0.7));
        let what = format!("seed {seed}, {name} from {from:?}");
        target = receive_with_cuts(&source, (&name, from.as_deref()), target, &mut rng, &what);
        let sent = describe(&source.snapshot(&name).0);
        require_same(&sent, &describe(&target.snapshot(&name).0), &what);
        last = Some(name);
    }
    target.live(&mut rng, 20);
    target.close();
    require_sound(&target.device, spawn, &format!("seed {seed}"));
}
