//! Room of the target: in small parts, behind its former end, and after streams that were refused.

use crate::describe::{describe, require_same};
use crate::pieces::{kept, rest, visible};
use crate::shared::Meanwhile;
use crate::world::{ROOT_USER, World, make, open, spawn};
use crate::{require_sound, stream};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, MemoryDevice, Operation, block_on};
use syncline_fs::types::{FileType, Ino, ROOT};
use syncline_fs::{Filesystem, FsError};
use syncline_sim::{Fault, FaultDevice};
use syncline_store::StoreError;
use syncline_stream::{Options, StreamError, receive, receive_in_pieces, receive_with};

fn file(fs: &Arc<Filesystem>, name: &[u8]) -> Ino {
    let made = block_on(fs.mknod(ROOT_USER, ROOT, name, FileType::Regular, 0o644, 0)).unwrap();
    fs.forget(made.ino, 1);
    made.ino
}

fn fill(world: &World, name: &[u8], pieces: u64) {
    let ino = file(&world.fs, name);
    for piece in 0..pieces {
        let data = Bytes::from(vec![piece as u8 + 1; 1 << 20]);
        block_on(world.fs.write(ino, piece << 20, data, false)).unwrap();
    }
}

/// Waits until removed files have given their blocks back.
fn free_blocks(world: &World, least: u64) -> u64 {
    for _ in 0..12_000 {
        block_on(world.fs.syncfs()).unwrap();
        block_on(world.fs.store().checkpoint()).unwrap();
        if world.fs.store().space().free > least {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    world.fs.store().space().free
}

fn part(number: u32) -> String {
    format!("part-{number}")
}

async fn small_file(fs: &Arc<Filesystem>, name: &[u8]) -> Result<(), FsError> {
    let made = fs.mknod(ROOT_USER, ROOT, name, FileType::Regular, 0o644, 0).await?;
    fs.forget(made.ino, 1);
    fs.write(made.ino, 0, Bytes::from(vec![7; 128 << 10]), false).await?;
    fs.fsync(made.ino, false).await
}

/// Free room in parts that are shorter than a segment of a log should be.
#[test]
fn a_target_whose_room_is_in_small_parts_receives() {
    let spawn = spawn();
    let source = World::new(&spawn, 64 << 20, 16384);
    block_on(source.fs.create_snapshot("old")).unwrap();
    fill(&source, b"new", 4);
    block_on(source.fs.create_snapshot("new")).unwrap();
    let target = World::new(&spawn, 64 << 20, 16384);
    block_on(receive(&target.fs, &stream(&source, "old", None)[..], None)).unwrap();
    // Files of 128 KiB until it is full; every second one goes.
    let full = (0..).find(|number: &u32| match block_on(small_file(&target.fs, part(*number).as_bytes())) {
        Ok(()) => false,
        Err(FsError::Store(StoreError::NoSpace)) => true,
        Err(error) => panic!("{error}"),
    });
    for number in (0..full.unwrap()).step_by(2) {
        block_on(target.fs.unlink(ROOT, part(number).as_bytes())).unwrap();
    }
    assert!(free_blocks(&target, 5000) > 5000, "{:?}", target.fs.store().space());
    // Where no run is as long as a write, the longest ones go first.
    fill(&target, b"in the longest", 6);
    block_on(target.fs.syncfs()).unwrap();
    block_on(receive(&target.fs, &stream(&source, "new", Some("old"))[..], None)).unwrap();
    require_same(&describe(&source.snapshot("new").0), &describe(&target.snapshot("new").0), "small parts");
    block_on(receive(&target.fs, &stream(&source, "old", None)[..], Some("whole"))).unwrap();
    target.close();
    require_sound(&target.device, &spawn, "small parts");
}

/// The same on a larger device, of which it takes all.
fn enlarged(world: World, size_bytes: usize) -> World {
    world.close();
    let mut image = world.device.image();
    image.resize(size_bytes, 0);
    let world = world.moved_to(MemoryDevice::from_image(&image));
    assert_eq!(block_on(world.fs.store().enlarge(None)).unwrap(), size_bytes as u64);
    world
}

#[test]
fn a_target_that_was_full_and_has_grown_goes_on_in_its_new_room() {
    let spawn = spawn();
    let source = World::new(&spawn, 96 << 20, 16384);
    fill(&source, b"first", 8);
    block_on(source.fs.create_snapshot("old")).unwrap();
    fill(&source, b"second", 24);
    block_on(source.fs.create_snapshot("new")).unwrap();
    fill(&source, b"third", 20);
    block_on(source.fs.create_snapshot("newest")).unwrap();
    let target = World::new(&spawn, 32 << 20, 16384);
    block_on(receive(&target.fs, &stream(&source, "old", None)[..], None)).unwrap();
    let bytes = stream(&source, "new", Some("old"));
    let error = block_on(receive_in_pieces(&target.fs, &bytes[..], None, 2 << 20)).unwrap_err();
    assert!(error.error.to_string().contains("no space"), "{}", error.error);
    let token = error.kept.expect("pieces have come");
    let target = enlarged(target, 80 << 20);
    assert_eq!(kept(&target.fs), Some(token));
    let rest = rest(&source, "new", Some("old"), &token).unwrap();
    block_on(receive_in_pieces(&target.fs, &rest[..], None, 2 << 20)).unwrap();
    let target = enlarged(target, 160 << 20);
    block_on(receive(&target.fs, &stream(&source, "newest", Some("new"))[..], None)).unwrap();
    for name in ["old", "new", "newest"] {
        require_same(&describe(&source.snapshot(name).0), &describe(&target.snapshot(name).0), name);
    }
    target.close();
    require_sound(&target.device, &spawn, "grown");
    // It is as large as the target is now, so this can become it.
    block_on(syncline_store::roll_back(target.device.clone(), "newest")).unwrap();
    let target = World::open(target.device.clone(), &spawn);
    fill(&target, b"more", 60);
    target.close();
    require_sound(&target.device, &spawn, "grown and rolled back");
}

/// A stream that fails before its first record leaves the target's room as it was.
#[test]
fn a_device_that_fails_at_the_beginning_takes_no_room() {
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    for name in ["old", "new"] {
        fill(&source, name.as_bytes(), 2);
        block_on(source.fs.create_snapshot(name)).unwrap();
    }
    let device = MemoryDevice::new(64 << 20);
    make(&device, &spawn, 16384, 1);
    let faults = FaultDevice::new(device.clone());
    let fs = open(faults.clone() as Arc<dyn Device>, &spawn);
    for (name, from) in [("old", None), ("new", Some("old"))] {
        let bytes = stream(&source, name, from);
        faults.add(Fault::next(Operation::Write, u64::MAX));
        let error = block_on(receive(&fs, &bytes[..], None)).unwrap_err();
        assert!(matches!(&error, StreamError::Filesystem(_)) && faults.injected() > 0, "{error}");
        faults.mend();
        block_on(receive(&fs, &bytes[..], None)).unwrap();
    }
    assert_eq!(visible(&fs), ["old", "new"]);
    block_on(fs.close()).unwrap();
    block_on(fs.store().close()).unwrap();
    require_sound(&device, &spawn, "after a device that failed");
}

/// The finished snapshot takes the place of the kept part.
#[test]
fn as_many_snapshots_as_there_can_be_do_not_stop_the_last_one() {
    const MOST: usize = syncline_format::snapshots::SNAPSHOTS_MAX;
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    fill(&source, b"file", 2);
    block_on(source.fs.create_snapshot("last")).unwrap();
    let bytes = stream(&source, "last", None);
    let target = World::new(&spawn, 128 << 20, 16384);
    let cut = block_on(receive_in_pieces(&target.fs, &bytes[..bytes.len() / 2], None, 1 << 40)).unwrap_err();
    assert!(cut.kept.is_some(), "{}", cut.error);
    for number in 1..MOST {
        block_on(target.fs.store().create_snapshot(&format!("s{number}"), number as u64)).unwrap();
    }
    block_on(receive_in_pieces(&target.fs, &bytes[..], None, 1 << 40)).unwrap();
    assert_eq!(visible(&target.fs).len(), MOST);
}

/// The branch is as large as the target was at its beginning.
#[test]
fn a_target_grows_while_a_stream_comes() {
    let spawn = spawn();
    let source = World::new(&spawn, 64 << 20, 16384);
    block_on(source.fs.create_snapshot("old")).unwrap();
    fill(&source, b"large", 16);
    block_on(source.fs.create_snapshot("new")).unwrap();
    let mut target = World::new(&spawn, 48 << 20, 16384);
    block_on(receive(&target.fs, &stream(&source, "old", None)[..], None)).unwrap();
    target.close();
    let mut image = target.device.image();
    image.resize(256 << 20, 0);
    target = target.moved_to(MemoryDevice::from_image(&image));
    let bytes = stream(&source, "new", Some("old"));
    let fs = target.fs.clone();
    let mut is_grown = false;
    let act = || {
        if !std::mem::replace(&mut is_grown, true) {
            block_on(fs.store().enlarge(None)).unwrap();
        }
    };
    let input = Meanwhile { bytes: &bytes, at: 0, every: 1 << 20, next: 4 << 20, act };
    let options = Options { is_shared: true, ..Options::default() };
    block_on(receive_with(&target.fs, input, options)).map_err(|cut| cut.error).unwrap();
    require_same(&describe(&source.snapshot("new").0), &describe(&target.snapshot("new").0), "growing");
    fill(&target, b"more", 150);
    target.close();
    require_sound(&target.device, &spawn, "growing");
}
