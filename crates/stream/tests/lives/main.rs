//! Random lives of a filesystem, sent and received in series, and compared in everything. Damaged,
//! cut off and full: the target stays as it was.
//!
//! `SYNCLINE_ROUNDS` is the number of lives (8), `SYNCLINE_SEED` the first one's seed.

mod canaries;
mod describe;
mod flushes;
mod golden;
mod limits;
mod originals;
mod pairs;
mod pieces;
mod power;
mod room;
mod shared;
mod sizes;
mod sources;
mod tokens;
mod units;
mod world;

use bytes::Bytes;
use describe::{describe, require_same};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use syncline_device::{MemoryDevice, Spawn, block_on};
use syncline_fs::types::FileType;
use syncline_store::roll_back;
use syncline_stream::{Header, Reader, Record, Source, StreamError, Writer, receive, send};
use world::World;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The stream of a snapshot.
fn stream(world: &World, name: &str, from: Option<&str>) -> Vec<u8> {
    let mut output = Vec::new();
    let (fs, snapshot) = world.snapshot(name);
    let older = from.map(|from| world.snapshot(from));
    let older = older.as_ref().map(|(fs, snapshot)| Source { fs, snapshot: snapshot.clone() });
    block_on(send(&Source { fs: &fs, snapshot }, older.as_ref(), &mut output)).unwrap();
    output
}

fn require_sound(device: &Arc<MemoryDevice>, spawn: &Arc<dyn Spawn>, what: &str) {
    let report = block_on(syncline_check::check(device.snapshot(), spawn.clone(), &mut |_| {})).unwrap();
    assert!(report.findings.is_empty() && !report.incomplete, "{what}: {:?}", report.findings);
}

/// No stream leads from a snapshot of one filesystem to one of another.
fn require_unrelated(world: &World, older: &str, newer: &str) {
    let (older, newer) = (world.snapshot(older), world.snapshot(newer));
    let (older, newer) =
        (Source { fs: &older.0, snapshot: older.1 }, Source { fs: &newer.0, snapshot: newer.1 });
    let error = block_on(send(&newer, Some(&older), Vec::new())).expect_err("they are unrelated");
    assert!(matches!(error, StreamError::Unrelated(_)), "{error}");
}

fn one_life(seed: u64, spawn: &Arc<dyn Spawn>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut source = World::new(spawn, 96 << 20, 16384);
    let node_bytes = [16384, 32768, 65536][rng.random_range(0..3)];
    let mut target = World::new(spawn, 128 << 20, node_bytes);
    // The target has a life of its own, which goes on, and snapshots of another filesystem.
    target.live(&mut rng, 40);
    let mut other = World::born(spawn, 48 << 20, 16384, 2);
    other.live(&mut rng, 40);
    block_on(other.fs.create_snapshot("other")).unwrap();
    let mut bytes = stream(&other, "other", None);
    if rng.random_bool(0.3) {
        bytes = claiming(&bytes, 1 << 56);
    }
    block_on(receive(&target.fs, &bytes[..], None)).unwrap();
    let mut names: Vec<String> = Vec::new();
    for number in 0..rng.random_range(2..5) {
        let steps = [3, 30, 200][rng.random_range(0..3)];
        source.live(&mut rng, steps);
        match rng.random_range(0..4) {
            0 => source.crash(&mut rng),
            1 => source.crash_in_truncations(&mut rng),
            _ => {}
        }
        source.live(&mut rng, 3);
        let name = format!("s{number}");
        block_on(source.fs.create_snapshot(&name)).unwrap();
        let from = names.last().filter(|_| rng.random_bool(0.8)).cloned();
        let bytes = stream(&source, &name, from.as_deref());
        let what = format!("seed {seed}, {name} from {from:?}");
        let received = block_on(receive(&target.fs, &bytes[..], None));
        received.unwrap_or_else(|error| panic!("{what}: {error}"));
        require_unrelated(&target, "other", &name);
        if rng.random_bool(0.2) {
            target.crash(&mut rng);
        }
        target.live(&mut rng, 20);
        let sent = describe(&source.snapshot(&name).0);
        require_same(&sent, &describe(&target.snapshot(&name).0), &what);
        if rng.random_bool(0.3) && !names.is_empty() {
            let gone = names.remove(rng.random_range(0..names.len()));
            block_on(target.fs.delete_snapshot(&gone)).unwrap();
            block_on(source.fs.delete_snapshot(&gone)).unwrap();
        }
        names.push(name);
    }
    source.close();
    target.close();
    require_sound(&target.device, spawn, &format!("seed {seed}"));
    // A copy of the copy.
    let (last, mut third) = (names.last().unwrap(), World::new(spawn, 96 << 20, 16384));
    let target = World::open(target.device.clone(), spawn);
    let bytes = stream(&target, last, None);
    block_on(receive(&third.fs, &bytes[..], Some("copy"))).unwrap();
    third.live(&mut rng, 10);
    let (sent, received) = (describe(&target.snapshot(last).0), describe(&third.snapshot("copy").0));
    require_same(&sent, &received, &format!("seed {seed}, the copy's copy"));
    // It becomes the filesystem, which goes on.
    target.close();
    block_on(roll_back(target.device.clone(), last)).unwrap();
    let mut target = World::open(target.device.clone(), spawn);
    target.live(&mut rng, 60);
    block_on(target.fs.create_snapshot("own")).unwrap();
    let fourth = World::new(spawn, 128 << 20, 16384);
    block_on(receive(&fourth.fs, &stream(&target, "own", None)[..], None)).unwrap();
    let (sent, received) = (describe(&target.snapshot("own").0), describe(&fourth.snapshot("own").0));
    require_same(&sent, &received, &format!("seed {seed}, what the target made"));
    target.close();
    require_sound(&target.device, spawn, &format!("seed {seed}, rolled back"));
}

/// A stream that says it has inodes up to this number.
fn claiming(bytes: &[u8], next_object: u64) -> Vec<u8> {
    let (mut reader, header) = Reader::new(bytes).unwrap();
    let mut claiming = Vec::new();
    let mut writer = Writer::new(&mut claiming, &Header { next_object, ..header }).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        writer.put(&record).unwrap();
    }
    writer.end().unwrap();
    claiming
}

#[test]
fn what_was_sent_is_received() {
    let (rounds, first, spawn) = (number("SYNCLINE_ROUNDS", 8), number("SYNCLINE_SEED", 1), world::spawn());
    for seed in first..first + rounds {
        one_life(seed, &spawn);
        if rounds > 20 && (seed - first) % 20 == 19 {
            eprintln!("{} lives", seed - first + 1);
        }
    }
}

/// A small stream, and a target that it fits.
fn small(spawn: &Arc<dyn Spawn>) -> (Vec<u8>, World) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut source = World::new(spawn, 16 << 20, 4096);
    source.live(&mut rng, 12);
    block_on(source.fs.create_snapshot("small")).unwrap();
    let bytes = stream(&source, "small", None);
    (bytes, World::new(spawn, 32 << 20, 16384))
}

fn refused(target: &World, bytes: &[u8]) -> StreamError {
    let error = block_on(receive(&target.fs, bytes, None)).expect_err("it is damaged");
    assert!(error.is_of_stream(), "{error}");
    assert!(block_on(target.fs.store().snapshots()).is_empty(), "{error}");
    error
}

#[test]
fn a_stream_that_was_cut_or_changed_is_refused() {
    let spawn = world::spawn();
    let (bytes, target) = small(&spawn);
    let free = block_on(async { target.fs.store().checkpoint().await }).map(|()| target.fs.store().space());
    let free = free.unwrap().free;
    let step = (bytes.len() / 200).max(1);
    for cut in (0..bytes.len()).step_by(step).chain(bytes.len() - 30..bytes.len()) {
        let error = refused(&target, &bytes[..cut]);
        let is_cut =
            matches!(error, StreamError::Truncated(_) | StreamError::Nothing | StreamError::NotAStream);
        assert!(is_cut, "cut at {cut}: {error}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    refused(&target, &longer);
    for at in (0..bytes.len()).step_by(step).chain(0..150).chain(bytes.len() - 40..bytes.len()) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        refused(&target, &changed);
    }
    let now = target.fs.store().space();
    assert!(now.free + now.pending_free + 64 >= free, "blocks are lost: {} of {free}", now.free);
    block_on(receive(&target.fs, &bytes[..], None)).unwrap();
    target.close();
    require_sound(&target.device, &spawn, "after damaged streams");
}

#[test]
fn a_name_that_is_there_and_a_parent_that_is_not_are_refused() {
    let spawn = world::spawn();
    let (bytes, target) = small(&spawn);
    block_on(target.fs.create_snapshot("small")).unwrap();
    let error = block_on(receive(&target.fs, &bytes[..], None)).unwrap_err();
    assert!(error.to_string().contains("already"), "{error}");
    block_on(receive(&target.fs, &bytes[..], Some("other"))).unwrap();

    let mut source = World::new(&spawn, 32 << 20, 16384);
    source.live(&mut ChaCha8Rng::seed_from_u64(1), 20);
    block_on(source.fs.create_snapshot("old")).unwrap();
    block_on(source.fs.create_snapshot("new")).unwrap();
    let bytes = stream(&source, "new", Some("old"));
    let error = block_on(receive(&target.fs, &bytes[..], None)).unwrap_err();
    assert!(matches!(error, StreamError::NoParent(_)), "{error}");
    let (old, new) = (source.snapshot("old"), source.snapshot("new"));
    let [old, new] = [old, new].map(|(fs, snapshot)| (fs, snapshot));
    let (old, new) = (Source { fs: &old.0, snapshot: old.1 }, Source { fs: &new.0, snapshot: new.1 });
    let error = block_on(send(&old, Some(&new), Vec::new())).unwrap_err();
    assert!(matches!(error, StreamError::Order { .. }), "{error}");
}

#[test]
fn snapshots_of_different_filesystems_are_not_compared() {
    let spawn = world::spawn();
    let both = World::new(&spawn, 64 << 20, 16384);
    // Each has an inode of the same number.
    for (name, target) in [("a", "x"), ("b", "y"), ("c", "y")] {
        let one = World::new(&spawn, 32 << 20, 16384);
        let made = block_on(one.fs.symlink(world::ROOT_USER, 1, b"link", target.as_bytes())).unwrap();
        assert_eq!(made.file_type, FileType::Symlink);
        block_on(one.fs.create_snapshot(name)).unwrap();
        block_on(receive(&both.fs, &stream(&one, name, None)[..], None)).unwrap();
    }
    require_unrelated(&both, "a", "b");
    require_unrelated(&both, "b", "c");
}

/// Whatever numbers a stream claims or has, its target can still be sent on, and be rolled back to it.
#[test]
fn no_stream_takes_the_numbers_that_its_target_needs() {
    let spawn = world::spawn();
    for (number, claimed) in [(None, 1 << 56), (Some((1 << 56) - 2), 1 << 56), (Some(1 << 54), 1 << 55)] {
        let (bytes, mut target) = small(&spawn);
        let (mut reader, header) = Reader::new(&bytes[..]).unwrap();
        let mut hostile = Vec::new();
        let mut writer = Writer::new(&mut hostile, &Header { next_object: claimed, ..header }).unwrap();
        if let Some(ino) = number {
            writer.put(&Record::Make { ino, mode: 0o010_644, rdev: 0, target: Bytes::new() }).unwrap();
        }
        while let Some(record) = reader.next_record().unwrap() {
            writer.put(&record).unwrap();
        }
        if let Some(ino) = number {
            writer.put(&Record::Place { ino, dir: 1, name: b"great".to_vec() }).unwrap();
        }
        writer.end().unwrap();
        block_on(receive(&target.fs, &hostile[..], None)).unwrap();
        target.close();
        require_sound(&target.device, &spawn, "with great numbers");
        target = World::open(target.device.clone(), &spawn);
        target.live(&mut ChaCha8Rng::seed_from_u64(1), 40);
        block_on(target.fs.create_snapshot("mine")).unwrap();
        let other = World::new(&spawn, 64 << 20, 16384);
        block_on(receive(&other.fs, &stream(&target, "mine", None)[..], None)).unwrap();
        target.close();
        block_on(roll_back(target.device.clone(), "small")).unwrap();
        let mut target = World::open(target.device.clone(), &spawn);
        target.live(&mut ChaCha8Rng::seed_from_u64(2), 40);
        target.close();
        require_sound(&target.device, &spawn, "rolled back");
    }
}

#[test]
fn a_full_target_stays_as_it_was() {
    let spawn = world::spawn();
    let mut source = World::new(&spawn, 96 << 20, 16384);
    source.live(&mut ChaCha8Rng::seed_from_u64(9), 200);
    let made = block_on(source.fs.mknod(world::ROOT_USER, 1, b"large", FileType::Regular, 0o644, 0)).unwrap();
    for piece in 0..24 {
        let data = vec![piece as u8 + 1; 1 << 20];
        block_on(source.fs.write(made.ino, piece << 20, data.into(), false)).unwrap();
    }
    block_on(source.fs.create_snapshot("large")).unwrap();
    let bytes = stream(&source, "large", None);
    let target = World::new(&spawn, 16 << 20, 16384);
    let error = block_on(receive(&target.fs, &bytes[..], None)).unwrap_err();
    assert!(error.to_string().contains("no space"), "{error}");
    let (bytes, _) = small(&spawn);
    block_on(receive(&target.fs, &bytes[..], None)).unwrap();
    target.close();
    require_sound(&target.device, &spawn, "after a stream that is too large");
}
