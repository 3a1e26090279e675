//! Durability classes: what a sync of each waits for, what is promised, and who has which class.

use super::faults::{moody, moody_breaking};
use super::*;
use crate::Durability;
use crate::data::flush::promises::FILES_MAX;
use crate::types::FileFlags;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use syncline_format::superblock::FEATURE_DURABILITY;
use syncline_store::{Canary, Cover};

/// More than the promise of a second.
const KEPT: Duration = Duration::from_secs(20);

fn set(mount: &Mount, ino: Ino, class: Durability) {
    block_on(mount.fs.set_durability(ino, Some(class))).unwrap();
}

fn class(mount: &Mount, ino: Ino) -> Durability {
    block_on(mount.fs.durability(ino)).unwrap().1
}

fn flushes(mount: &Mount) -> u64 {
    mount.fs.store().device_counters().flushes_issued
}

fn make(mount: &Mount, dir: Ino, name: &str, file_type: FileType) -> Ino {
    let made = match file_type {
        FileType::Directory => block_on(mount.fs.mkdir(CALLER, dir, name.as_bytes(), 0o755)),
        _ => block_on(mount.fs.mknod(CALLER, dir, name.as_bytes(), file_type, 0o644, 0)),
    };
    made.unwrap().ino
}

/// Waits until everything is durable.
fn wait_until_durable(mount: &Mount) {
    let deadline = Instant::now() + KEPT;
    while !mount.fs.store().is_durable(mount.fs.store().last_op()) {
        assert!(Instant::now() < deadline, "the promise is not kept");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_ordered_sync_waits_for_no_flush_and_one_follows_in_time() {
    let mount = Mount::new();
    set(&mount, ROOT, Durability::Ordered(1));
    let files: Vec<Ino> = (0..50).map(|number| mount.create(&number.to_string())).collect();
    let before = flushes(&mount);
    for &ino in &files {
        mount.write(ino, 0, &pattern(ino, 30_000));
        mount.fsync(ino);
    }
    mount.fsync(ROOT);
    assert_eq!(flushes(&mount), before);
    let receipt = mount.fs.last_receipt().unwrap();
    assert_eq!((receipt.cover, receipt.durability), (Cover::Ordered, Durability::Ordered(1)));
    assert_eq!(mount.fs.counters().syncs_ordered, 51);
    wait_until_durable(&mount);
    assert_eq!(flushes(&mount), before + 1, "one for all of them");
    let after = mount.crash();
    for (number, ino) in files.into_iter().enumerate() {
        assert_eq!(after.read(after.find(&number.to_string()), 0, 40_000), pattern(ino, 30_000));
    }
    // Nobody synced since, and nothing is owed.
    mount.fsync(ROOT);
    assert_eq!(mount.fs.last_receipt().unwrap().cover, Cover::Elided);
}

#[test]
fn a_shorter_promise_is_kept_in_its_own_time_and_the_longer_one_with_it() {
    let mount = Mount::new();
    let (long, short) = (mount.create("long"), mount.create("short"));
    set(&mount, long, Durability::Ordered(255));
    set(&mount, short, Durability::Ordered(1));
    mount.write(long, 0, b"later");
    mount.fsync(long);
    mount.write(short, 0, b"soon");
    mount.fsync(short);
    wait_until_durable(&mount);
    let after = mount.crash();
    assert_eq!(after.read(after.find("long"), 0, 10), b"later");
    assert_eq!(after.read(after.find("short"), 0, 10), b"soon");
}

#[test]
fn a_sync_of_class_fsync_makes_ordered_ones_before_it_durable() {
    let mount = Mount::new();
    let (ordered, plain) = (mount.create("ordered"), mount.create("plain"));
    set(&mount, ordered, Durability::Ordered(255));
    mount.write(ordered, 0, &pattern(3, 200_000));
    mount.fsync(ordered);
    // Not promised, and so it may be lost.
    mount.write(ordered, 0, b"afterwards");
    mount.write(plain, 0, b"durable");
    mount.fsync(plain);
    let after = mount.crash();
    assert_eq!(after.read(after.find("ordered"), 0, 300_000), pattern(3, 200_000));
}

#[test]
fn a_sync_of_several_files_has_the_strongest_class_of_theirs() {
    let mount = Mount::new();
    let files = [mount.create("a"), mount.create("b")];
    let sync = |mount: &Mount| {
        files.iter().for_each(|&ino| mount.write(ino, 0, &pattern(flushes(mount), 50_000)));
        let before = flushes(mount);
        block_on(mount.fs.sync_many(&files, 0)).unwrap();
        flushes(mount) - before
    };
    set(&mount, files[0], Durability::Ordered(255));
    assert_eq!(sync(&mount), 1, "b has class fsync");
    set(&mount, files[1], Durability::Ordered(255));
    assert_eq!(sync(&mount), 0);
    set(&mount, files[0], Durability::Strict);
    assert_eq!(sync(&mount), 1);
}

#[test]
fn new_files_have_the_class_of_their_directory() {
    let mount = Mount::new();
    let dir = make(&mount, ROOT, "dir", FileType::Directory);
    let before = make(&mount, dir, "before", FileType::Regular);
    set(&mount, dir, Durability::Ordered(9));
    let file = make(&mount, dir, "file", FileType::Regular);
    let below = make(&mount, dir, "below", FileType::Directory);
    let deep = make(&mount, below, "deep", FileType::Regular);
    assert_eq!(class(&mount, before), Durability::Fsync, "what is there keeps its class");
    for ino in [file, below, deep] {
        assert_eq!(class(&mount, ino), Durability::Ordered(9));
    }
    // A class of its own stands against that of the directory, and goes again.
    set(&mount, below, Durability::Fsync);
    let plain = make(&mount, below, "plain", FileType::Regular);
    block_on(mount.fs.set_durability(file, None)).unwrap();
    let mount = mount.reopen();
    assert_eq!(class(&mount, plain), Durability::Fsync);
    assert_eq!(block_on(mount.fs.durability(file)).unwrap(), (None, Durability::Fsync));
    assert_eq!(class(&mount, deep), Durability::Ordered(9));
}

#[test]
fn the_mount_says_the_class_of_those_without_one() {
    let mount = Mount::sized(64 << 20, Options { durability: Durability::Ordered(255), ..options() });
    let (plain, own) = (mount.create("plain"), mount.create("own"));
    set(&mount, own, Durability::Fsync);
    let flushed_by = |ino| {
        let before = flushes(&mount);
        mount.write(ino, 0, b"contents");
        mount.fsync(ino);
        flushes(&mount) - before
    };
    assert_eq!((flushed_by(plain), flushed_by(own)), (0, 1));
}

#[test]
fn a_strict_change_is_settled_and_others_are_not() {
    let mount = Mount::new();
    let (strict, plain) = (mount.create("strict"), mount.create("plain"));
    set(&mount, strict, Durability::Strict);
    let flushed_by = |ino| {
        let before = flushes(&mount);
        mount.write(ino, 0, b"contents");
        block_on(mount.fs.settle(ino)).unwrap();
        flushes(&mount) - before
    };
    assert_eq!((flushed_by(strict), flushed_by(plain)), (1, 0));
    // chattr's S is this class, and leaves others alone.
    let mut flags = block_on(mount.fs.file_flags(strict)).unwrap();
    assert!(flags.synchronous);
    flags.synchronous = false;
    block_on(mount.fs.set_file_flags(strict, flags)).unwrap();
    assert_eq!(class(&mount, strict), Durability::Fsync);
    set(&mount, plain, Durability::Ordered(3));
    let flags = block_on(mount.fs.file_flags(plain)).unwrap();
    block_on(mount.fs.set_file_flags(plain, flags)).unwrap();
    assert_eq!(class(&mount, plain), Durability::Ordered(3));
}

#[test]
fn the_class_of_an_immutable_file_stays() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let immutable = FileFlags { immutable: true, ..FileFlags::default() };
    block_on(mount.fs.set_file_flags(ino, immutable)).unwrap();
    let refused = block_on(mount.fs.set_durability(ino, Some(Durability::Ordered(5))));
    assert!(matches!(refused, Err(FsError::NotPermitted)), "{refused:?}");
    assert_eq!(class(&mount, ino), Durability::Fsync);
    block_on(mount.fs.set_file_flags(ino, FileFlags { synchronous: true, ..immutable })).unwrap();
}

#[test]
fn the_superblock_tells_of_classes_before_any_inode_has_one() {
    let mount = Mount::new();
    let told = |mount: &Mount| mount.fs.store().has_features(FEATURE_DURABILITY);
    assert!(!told(&mount));
    set(&mount, ROOT, Durability::Ordered(5));
    assert!(told(&mount.crash()));
}

/// Promise P5: the program was told that all is well, so its next fsync tells the truth.
#[test]
fn a_promise_that_could_not_be_kept_is_reported_once_and_kept_later() {
    let (device, mount) = moody(options());
    let ino = mount.create("file");
    set(&mount, ino, Durability::Ordered(1));
    mount.fsync(ino);
    wait_until_durable(&mount);
    mount.write(ino, 0, &pattern(4, 20_000));
    device.fail.store(true, SeqCst);
    mount.fsync(ino);
    let deadline = Instant::now() + KEPT;
    while mount.fs.counters().promises_failed == 0 {
        assert!(Instant::now() < deadline, "the flush is tried");
        std::thread::sleep(Duration::from_millis(10));
    }
    device.fail.store(false, SeqCst);
    assert_eq!(block_on(mount.fs.fsync(ino, false)).unwrap_err().errno(), 5);
    mount.fsync(ino);
    wait_until_durable(&mount);
    let after = mount.crash();
    assert_eq!(after.read(after.find("file"), 0, 30_000), pattern(4, 20_000));
}

/// The sync of another file has kept this file's promise. A later failure does not concern this
/// file.
#[test]
fn a_file_that_others_made_durable_does_not_tell_of_a_later_failure() {
    let (device, mount) = moody(options());
    let [early, late, plain] = ["early", "late", "plain"].map(|name| mount.create(name));
    set(&mount, early, Durability::Ordered(1));
    set(&mount, late, Durability::Ordered(1));
    mount.write(early, 0, &pattern(5, 20_000));
    mount.fsync(early);
    mount.write(plain, 0, b"durable");
    mount.fsync(plain);
    mount.write(late, 0, &pattern(6, 20_000));
    device.fail.store(true, SeqCst);
    mount.fsync(late);
    let deadline = Instant::now() + KEPT;
    while mount.fs.counters().promises_failed == 0 {
        assert!(Instant::now() < deadline, "the flush is tried");
        std::thread::sleep(Duration::from_millis(10));
    }
    device.fail.store(false, SeqCst);
    mount.fsync(early);
    assert_eq!(block_on(mount.fs.fsync(late, false)).unwrap_err().errno(), 5);
}

/// The kernel opens files without a request, so a file that a program has open may leave memory.
#[test]
fn a_file_stays_in_memory_until_what_it_is_promised_was_tried() {
    let (device, mount) = moody(Options { cached_inodes_max: 64, ..options() });
    let ino = mount.create("file");
    set(&mount, ino, Durability::Ordered(1));
    // Only its class changed: the queue of dirty data does not keep it.
    mount.fsync(ino);
    assert_eq!(mount.fs.last_receipt().unwrap().cover, Cover::Ordered);
    device.fail.store(true, SeqCst);
    (0..2000).for_each(|number| _ = mount.create(&number.to_string()));
    let deadline = Instant::now() + KEPT;
    while mount.fs.counters().promises_failed == 0 {
        assert!(Instant::now() < deadline, "the flush is tried");
        std::thread::sleep(Duration::from_millis(10));
    }
    device.fail.store(false, SeqCst);
    assert_eq!(block_on(mount.fs.fsync(ino, false)).unwrap_err().errno(), 5);
    mount.fsync(ino);
}

#[test]
fn nothing_is_promised_on_a_filesystem_that_has_given_up_writing() {
    let mount = Mount::new();
    let ino = mount.create("file");
    set(&mount, ino, Durability::Ordered(255));
    mount.write(ino, 0, &pattern(4, 20_000));
    mount.fsync(ino);
    mount.fs.store().shut_down("the test wants it");
    for _ in 0..3 {
        block_on(mount.fs.fsync(ino, false)).unwrap_err();
        block_on(mount.fs.fsync(ino, true)).unwrap_err();
        block_on(mount.fs.sync_many(&[ino], 0)).unwrap_err();
    }
    assert_eq!(mount.fs.counters().syncs_ordered, 1);
}

#[test]
fn so_many_files_are_promised_something_and_then_a_flush_begins_at_once() {
    let mount = Mount::new();
    set(&mount, ROOT, Durability::Ordered(255));
    let files: Vec<Ino> = (0..FILES_MAX).map(|number| mount.create(&number.to_string())).collect();
    let (last, others) = files.split_last().unwrap();
    let before = flushes(&mount);
    others.iter().for_each(|&ino| mount.fsync(ino));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(flushes(&mount), before);
    mount.fsync(*last);
    wait_until_durable(&mount);
}

#[test]
fn some_make_a_file_durable_whatever_its_class() {
    let mount = Mount::new();
    let ino = mount.create("file");
    set(&mount, ino, Durability::Ordered(255));
    mount.write(ino, 0, b"contents");
    block_on(mount.fs.make_durable(ino)).unwrap();
    assert!(mount.fs.store().is_durable(mount.fs.store().last_op()));
    assert_eq!(mount.crash().read(ino, 0, 10), b"contents");
}

#[test]
fn a_forgotten_promise_is_not_kept() {
    let (_, mount) = moody_breaking(Some(Canary::PromiseForgotten), options());
    set(&mount, ROOT, Durability::Ordered(1));
    let ino = mount.create("file");
    mount.write(ino, 0, &[1; 5000]);
    mount.fsync(ino);
    std::thread::sleep(Duration::from_secs(3));
    assert!(!mount.fs.store().is_durable(mount.fs.store().last_op()));
}
