//! Blocks that are sent once: as whose contents, and which blocks are no contents.

use crate::describe::{describe, require_same};
use crate::stream;
use crate::world::{ROOT_USER, World, spawn};
use bytes::Bytes;
use std::time::Duration;
use syncline_device::block_on;
use syncline_format::{Key, Kind};
use syncline_fs::types::{FileType, Ino};
use syncline_fs::{Filesystem, Options};
use syncline_store::{Store, StoreOptions, Transaction};
use syncline_stream::{Header, Origin, Record, StreamError, Writer, receive};

const BLOCK: usize = 4096;

fn make(world: &World, name: &[u8]) -> Ino {
    block_on(world.fs.mknod(ROOT_USER, 1, name, FileType::Regular, 0o644, 0)).unwrap().ino
}

fn write(world: &World, ino: Ino, data: &[u8]) {
    block_on(world.fs.write(ino, 0, Bytes::copy_from_slice(data), false)).unwrap();
}

fn share(world: &World, from: Ino, to: Ino, data: &[u8]) {
    block_on(world.fs.copy_range((from, 0), (to, 0), data.len() as u64, false)).unwrap();
}

fn snapshot(world: &World, name: &str) {
    block_on(world.fs.create_snapshot(name)).unwrap();
}

/// Sends a snapshot to a target and compares the two.
fn send_on(source: &World, target: &World, name: &str, from: Option<&str>) {
    block_on(receive(&target.fs, &stream(source, name, from)[..], None)).unwrap();
    require_same(&describe(&source.snapshot(name).0), &describe(&target.snapshot(name).0), name);
}

/// The filesystem after a crash, in which a truncation had come as far as its first transaction.
fn truncated_in_part(world: World, ino: Ino, size: u64) -> World {
    world.close();
    let world = World::open(world.device.clone(), &world.spawn);
    world.cut_short(ino, size);
    world
}

#[test]
fn nothing_is_cloned_from_behind_the_end_of_a_file() {
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    let (cut, copy) = (make(&source, b"cut"), make(&source, b"copy"));
    let data = vec![7; 40 * BLOCK];
    write(&source, cut, &data);
    share(&source, cut, copy, &data);
    let source = truncated_in_part(source, cut, 2 * BLOCK as u64);
    snapshot(&source, "cut");
    let target = World::new(&spawn, 32 << 20, 16384);
    send_on(&source, &target, "cut", None);
    let received = block_on(target.snapshot("cut").0.read(copy, 0, data.len())).unwrap().concat();
    assert!(received == data);
    // The same where it has not changed since.
    let third = make(&source, b"third");
    share(&source, copy, third, &data);
    snapshot(&source, "third");
    send_on(&source, &target, "third", Some("cut"));
}

/// A truncation that was cut short leaves extents that are no contents. A copy that shares makes the
/// very same ones contents again, so the trees of the two snapshots have them both.
#[test]
fn what_was_behind_the_end_before_is_sent_when_the_file_has_grown() {
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    let (cut, kept) = (make(&source, b"cut"), make(&source, b"kept"));
    let data: Vec<u8> = (0..40 * BLOCK).map(|at| (at / 1000) as u8).collect();
    write(&source, cut, &data);
    share(&source, cut, kept, &data);
    let source = truncated_in_part(source, cut, 2 * BLOCK as u64);
    snapshot(&source, "before");
    share(&source, kept, cut, &data);
    snapshot(&source, "after");
    let target = World::new(&spawn, 32 << 20, 16384);
    send_on(&source, &target, "before", None);
    send_on(&source, &target, "after", Some("before"));
    let received = block_on(target.snapshot("after").0.read(cut, 0, data.len())).unwrap().concat();
    assert!(received == data);
}

/// Two files that share their blocks, of which the first has one in the log instead: nobody looks at it
/// after the crash, so the block stays there.
fn with_a_logged_block(data: &[u8]) -> (World, Ino, Ino) {
    let spawn = spawn();
    let made = World::new(&spawn, 32 << 20, 16384);
    let (logged, same) = (make(&made, b"logged"), make(&made, b"same"));
    write(&made, logged, data);
    share(&made, logged, same, data);
    made.close();
    let options = Options { writeback_age: Duration::from_secs(3600), ..Options::default() };
    let (store, _) =
        block_on(Store::open(made.device.clone(), StoreOptions::default(), spawn.clone())).unwrap();
    let fs = block_on(Filesystem::open(store, spawn.clone(), options)).unwrap();
    block_on(fs.write(logged, 3 * BLOCK as u64, Bytes::from(vec![8; 100]), false)).unwrap();
    block_on(fs.fsync(logged, false)).unwrap();
    (World::open(made.device.snapshot(), &spawn), logged, same)
}

fn is_logged(world: &World, ino: Ino) -> bool {
    let (from, to) = (Key::new(ino, Kind::Unplaced, 0), Key::new(ino, Kind::Unplaced, u64::MAX));
    !block_on(world.fs.store().scan(from, to, 9)).unwrap().items.is_empty()
}

/// The extents are those of before: that they are contents again is all that changes.
#[test]
fn what_is_not_in_the_log_any_more_is_shared_as_before() {
    let data = vec![7; 16 * BLOCK];
    let (source, logged, same) = with_a_logged_block(&data);
    snapshot(&source, "before");
    assert!(is_logged(&source, logged), "it tests nothing");
    share(&source, same, logged, &data);
    snapshot(&source, "after");
    assert!(!is_logged(&source, logged), "it tests nothing");
    let target = World::new(&spawn(), 32 << 20, 16384);
    send_on(&source, &target, "before", None);
    send_on(&source, &target, "after", Some("before"));
}

#[test]
fn what_is_in_the_log_is_not_taken_for_the_extent_below_it() {
    let data = vec![7; 16 * BLOCK];
    let (source, logged, same) = with_a_logged_block(&data);
    snapshot(&source, "before");
    let copy = make(&source, b"copy");
    share(&source, same, copy, &data);
    snapshot(&source, "after");
    assert!(is_logged(&source, logged), "it tests nothing");
    let target = World::new(&spawn(), 32 << 20, 16384);
    send_on(&source, &target, "before", None);
    send_on(&source, &target, "after", Some("before"));
    let received = block_on(target.snapshot("after").0.read(copy, 0, data.len())).unwrap().concat();
    assert!(received == data);
}

#[test]
fn a_file_without_names_is_nobodys_source() {
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    // The reference that making it counted keeps the file.
    let (open, kept) = (make(&source, b"open"), make(&source, b"kept"));
    let data = vec![7; 16 * BLOCK];
    write(&source, open, &data);
    share(&source, open, kept, &data);
    block_on(source.fs.unlink(1, b"open")).unwrap();
    snapshot(&source, "before");
    let copy = make(&source, b"copy");
    share(&source, kept, copy, &data);
    snapshot(&source, "after");
    let target = World::new(&spawn, 32 << 20, 16384);
    send_on(&source, &target, "before", None);
    send_on(&source, &target, "after", Some("before"));
}

/// Its item stays as it is, and only its extents tell that there is such an inode.
#[test]
fn a_file_without_names_whose_blocks_move_is_not_sent() {
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    let open = make(&source, b"open");
    write(&source, open, &[7; 16 * BLOCK]);
    block_on(source.fs.unlink(1, b"open")).unwrap();
    block_on(source.fs.syncfs()).unwrap();
    snapshot(&source, "before");
    let value = block_on(source.fs.store().get(Key::new(open, Kind::Inode, 0))).unwrap().unwrap();
    block_on(source.fs.allocate(
        open,
        syncline_fs::Allocation::PunchHole,
        4 * BLOCK as u64,
        BLOCK as u64,
        false,
    ))
    .unwrap();
    block_on(source.fs.syncfs()).unwrap();
    // The attributes of before: moving blocks changes none.
    let mut transaction = Transaction::new();
    transaction.put(Key::new(open, Kind::Inode, 0), value);
    source.fs.store().commit(transaction).unwrap();
    snapshot(&source, "after");
    let target = World::new(&spawn, 32 << 20, 16384);
    send_on(&source, &target, "before", None);
    send_on(&source, &target, "after", Some("before"));
}

/// A stream by a program that sent such clones: it is refused, where it made zeros.
#[test]
fn a_clone_from_behind_the_end_of_a_file_is_refused() {
    let origin = Origin { created_ns: 5, id: 1, name: "s".to_owned() };
    let header = Header {
        uuid: [0; 16],
        filesystem_features: 0,
        next_object: 9,
        objects: 3,
        used_bytes: 0,
        resumed: None,
        snapshot: origin,
        parent: None,
    };
    let file = |ino| Record::Make { ino, mode: 0o100_644, rdev: 0, target: Bytes::new() };
    let clone = |from_offset| Record::Clone { ino: 3, offset: 0, length: 4096, from: 2, from_offset };
    let place = |ino| Record::Place { ino, dir: 1, name: format!("{ino}").into_bytes() };
    for (from_offset, is_sound) in [(4096, true), (8192, false)] {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, &header).unwrap();
        let begin = [
            file(2),
            Record::Resize { ino: 2, size: 5000 },
            Record::Data { ino: 2, offset: 0, bytes: Bytes::from(vec![7; 5000]) },
            file(3),
            Record::Resize { ino: 3, size: 4096 },
        ];
        for record in begin.into_iter().chain([clone(from_offset), place(2), place(3)]) {
            writer.put(&record).unwrap();
        }
        writer.end().unwrap();
        let target = World::new(&spawn(), 32 << 20, 16384);
        match block_on(receive(&target.fs, &bytes[..], None)) {
            Ok(_) => assert!(is_sound),
            Err(error) => {
                assert!(!is_sound && matches!(error, StreamError::Refused { record: 6, .. }), "{error}");
            }
        }
    }
}
