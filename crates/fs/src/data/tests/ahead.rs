//! Placing logged blocks while syncs continue.

use super::faults::{Moody, moody};
use super::*;
use crate::data::memory::BLOCK;
use futures_lite::future::poll_once;
use std::pin::pin;
use syncline_format::BLOCK_BYTES;

/// `Options::place_ahead_blocks`.
const PLACE_AHEAD: u64 = 16;
/// Least size of a write of the task; a sync writes less at once.
const LARGE: usize = 16 * BLOCK_BYTES;

impl Mount {
    /// Waits for the placing task, if there is one.
    fn wait_for_placing(&self) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while self.fs.data.ahead.any() {
            assert!(std::time::Instant::now() < deadline, "it does not end");
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
}

/// A file with so many logged blocks that a task is writing them to a place, and waits for its
/// writes.
fn on_its_way() -> (Arc<Moody>, Mount, Ino, Vec<u8>) {
    on_its_way_with(options())
}

/// The same, with an access time that is not logged.
fn read_on_its_way() -> (Arc<Moody>, Mount, Ino, Timestamp) {
    let clock = Arc::new(ManualClock::at(10_000_000_000));
    let (device, mount, ino, _) = on_its_way_with(Options { clock: clock.clone(), ..options() });
    clock.advance(1_000_000_000);
    mount.read(ino, 0, 1);
    let read_at = atime(&mount);
    (device, mount, ino, read_at)
}

fn atime(mount: &Mount) -> Timestamp {
    block_on(mount.fs.getattr(mount.find("file"))).unwrap().atime
}

fn on_its_way_with(options: Options) -> (Arc<Moody>, Mount, Ino, Vec<u8>) {
    let (device, mount) = moody(options);
    let (ino, mut contents) = mount.file("file", 100);
    device.hold_from(LARGE);
    for block in 0..PLACE_AHEAD as usize {
        mount.update(ino, &mut contents, block * BLOCK_BYTES, &pattern(100 + block as u64, BLOCK_BYTES));
    }
    device.wait_for_held(1);
    (device, mount, ino, contents)
}

#[test]
fn as_many_large_syncs_are_placed_together_as_small_ones() {
    const SYNC: usize = 8;
    let mount = Mount::new();
    let (ino, mut contents) = mount.file("file", 500);
    for round in 0..PLACE_AHEAD as usize / 2 {
        assert_eq!(mount.fs.counters().placed_ahead, 0, "round {round}");
        mount.update(ino, &mut contents, round * SYNC * BLOCK_BYTES, &pattern(2, SYNC * BLOCK_BYTES));
        mount.wait_for_placing();
    }
    assert_eq!(mount.fs.counters().placed_ahead, PLACE_AHEAD / 2 * SYNC as u64);
    assert_eq!(mount.unplaced(ino), []);
}

#[test]
fn no_sync_has_to_place_what_a_task_can() {
    let mount = Mount::new();
    let (ino, mut contents) = mount.file("file", 500);
    let before = mount.fs.counters();
    for round in 0..400 {
        mount.update(ino, &mut contents, round * 37 % 500 * BLOCK_BYTES, &pattern(round as u64, BLOCK_BYTES));
        mount.wait_for_placing();
        if round % 50 == 3 {
            let crashed = mount.crash();
            let ino = crashed.find("file");
            assert!(crashed.read(ino, 0, contents.len()) == contents, "round {round}");
            crashed.check_items(ino);
        }
    }
    let after = mount.fs.counters();
    assert_eq!(after.submitted_bytes, before.submitted_bytes, "a sync has placed blocks");
    assert!(after.placed_ahead >= 400 - PLACE_AHEAD, "{} blocks", after.placed_ahead);
    assert_eq!(after.stale_bytes, before.stale_bytes);
    mount.check_items(ino);
    let mount = mount.reopen();
    let ino = mount.find("file");
    assert!(mount.read(ino, 0, contents.len()) == contents);
    mount.unlink("file");
    block_on(mount.fs.wait_for_orphans());
    let left = mount.reopen().fs.store().space().named;
    assert_eq!(left, Mount::new().reopen().fs.store().space().named, "each block had one place");
}

#[test]
fn a_sync_of_durable_blocks_waits_for_no_place() {
    for data_only in [true, false] {
        let (device, mount, ino, contents) = on_its_way();
        device.release();
        mount.wait_for_placing();
        assert_eq!(mount.unplaced(ino), []);
        let flushes = || mount.fs.store().device_counters().flushes_issued;
        let before = flushes();
        let sync = || block_on(mount.fs.fsync(ino, data_only)).unwrap();
        sync();
        block_on(mount.fs.sync_many(&[ino], 0)).unwrap();
        assert_eq!(flushes(), before, "the log has them");
        let crashed = mount.crash();
        assert!(crashed.read(crashed.find("file"), 0, contents.len()) == contents);
        // The sync waits for all other changes.
        mount.truncate(ino, 90 * BLOCK).unwrap();
        sync();
        assert_eq!(flushes(), before + 1);
        let crashed = mount.crash();
        assert!(crashed.read(crashed.find("file"), 0, contents.len()) == contents[..90 * BLOCK_BYTES]);
    }
}

/// The task logs the whole inode item, and with it an access time that nothing else has logged.
#[test]
fn a_sync_waits_for_times_that_came_with_a_place() {
    let (device, mount, ino, read_at) = read_on_its_way();
    device.release();
    mount.wait_for_placing();
    assert_ne!(atime(&mount.crash()), read_at, "it is durable already");
    block_on(mount.fs.fsync(ino, false)).unwrap();
    assert_eq!(atime(&mount.crash()), read_at);
}

/// The sync has begun before the task logs the time, and waits for its turn behind it.
#[test]
fn a_sync_that_waits_for_a_place_has_the_times_that_came_with_it() {
    let (device, mount, ino, read_at) = read_on_its_way();
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let busy = block_on(inode.lease.read());
    device.release();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while inode.state.lock().data.writeback().try_lock().is_some() {
        assert!(std::time::Instant::now() < deadline, "the task does not come so far");
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    let mut sync = pin!(mount.fs.fsync(ino, false));
    assert!(block_on(poll_once(sync.as_mut())).is_none());
    drop(busy);
    block_on(sync).unwrap();
    assert_eq!(atime(&mount.crash()), read_at);
}

#[test]
fn what_changes_meanwhile_stays_as_it_is() {
    let (device, mount, ino, mut contents) = on_its_way();
    let named = mount.fs.store().space().named;
    // Syncs continue, of blocks that are being placed and of others.
    mount.update(ino, &mut contents, 3 * BLOCK_BYTES, &pattern(7, BLOCK_BYTES));
    mount.update(ino, &mut contents, 5 * BLOCK_BYTES + 17, b"a part");
    mount.update(ino, &mut contents, 70 * BLOCK_BYTES, &pattern(8, BLOCK_BYTES));
    mount.allocate(ino, Allocation::PunchHole, 9 * BLOCK, BLOCK).unwrap();
    contents[9 * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
    mount.truncate(ino, 90 * BLOCK).unwrap();
    contents.truncate(90 * BLOCK_BYTES);
    mount.fsync(ino);
    let synced = contents.clone();
    mount.write(ino, 11 * BLOCK, &pattern(9, BLOCK_BYTES));
    contents[11 * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&pattern(9, BLOCK_BYTES));
    device.release();
    mount.wait_for_placing();
    assert_eq!(mount.unplaced(ino), [3, 5, 11, 70]);
    assert_eq!(mount.fs.counters().stale_bytes, 4 * BLOCK, "3, 5, 9 and 11");
    assert!(mount.read(ino, 0, contents.len()) == contents);
    mount.check_items(ino);
    for _ in 0..2 {
        let crashed = mount.crash();
        let crashed_ino = crashed.find("file");
        assert!(crashed.read(crashed_ino, 0, synced.len() + 1) == synced);
        crashed.check_items(crashed_ino);
        // The transaction that has just named blocks is durable with the next sync of anything.
        mount.fsync(ROOT);
    }
    let mount = mount.reopen();
    assert!(mount.read(mount.find("file"), 0, contents.len()) == contents);
    assert_eq!(mount.fs.store().space().named, named - 11, "a hole and ten blocks less");
}

#[test]
fn a_write_that_fails_is_nobodys_error() {
    let (device, mount, ino, contents) = on_its_way();
    let named = mount.fs.store().space().named;
    device.release_failing();
    mount.wait_for_placing();
    assert_eq!(mount.unplaced(ino).len() as u64, PLACE_AHEAD);
    assert_eq!(mount.fs.store().space().named, named);
    mount.fsync(ino);
    let crashed = mount.crash();
    assert!(crashed.read(crashed.find("file"), 0, contents.len()) == contents);
    // It is tried again when there are as many more logged blocks.
    let (blocks, written) = (PLACE_AHEAD as usize, || mount.fs.store().counters().data_bytes);
    for block in 0..2 * blocks {
        assert_eq!(mount.unplaced(ino).len(), blocks.max(block));
        let before = written();
        mount.write(ino, block as u64 * BLOCK, &contents[block * BLOCK_BYTES..][..BLOCK_BYTES]);
        mount.fsync(ino);
        mount.wait_for_placing();
        assert_eq!(written() > before, block == 2 * blocks - 1, "block {block}");
    }
    assert_eq!(mount.unplaced(ino), []);
    mount.check_items(ino);
}

/// When the task fails, so many blocks are logged that there are never as many more: it is tried
/// again once there are fewer.
#[test]
fn a_failure_is_forgotten_when_others_have_placed_the_blocks() {
    let (device, mount, ino, mut contents) = on_its_way();
    for block in PLACE_AHEAD as usize..50 {
        mount.update(ino, &mut contents, block * BLOCK_BYTES, &pattern(100 + block as u64, BLOCK_BYTES));
    }
    device.release_failing();
    mount.wait_for_placing();
    assert_eq!(mount.unplaced(ino).len(), 50);
    mount.fsync_placed(ino);
    for block in 0..PLACE_AHEAD as usize {
        mount.update(ino, &mut contents, block * BLOCK_BYTES, &pattern(200 + block as u64, BLOCK_BYTES));
        mount.wait_for_placing();
    }
    assert_eq!((mount.fs.counters().placed_ahead, mount.unplaced(ino).len()), (PLACE_AHEAD, 0));
}

/// Blocks that a file takes after text was appended to it, with a sync after each block.
fn synced_appends_take(place_ahead_blocks: u64) -> u64 {
    let mount = Mount::sized(64 << 20, Options { place_ahead_blocks, ..options() });
    mount.compress(ROOT, Some(Algorithm::Zstd));
    let ino = mount.create("file");
    for block in 0..256 {
        let line = |line: u64| format!("{block} line {line} of a text that says the same again and again\n");
        let text: Vec<u8> = (0..).map(line).flat_map(String::into_bytes).take(BLOCK_BYTES).collect();
        mount.write(ino, block * BLOCK, &text);
        mount.fsync(ino);
        mount.wait_for_placing();
    }
    mount.fsync_placed(ino);
    mount.check_items(ino);
    mount.blocks(ino)
}

#[test]
fn what_is_to_be_compressed_waits_for_whole_units() {
    assert_eq!(synced_appends_take(PLACE_AHEAD), synced_appends_take(u64::MAX));
}

#[test]
fn a_removed_file_takes_its_places_along() {
    let (device, mount, ino, _) = on_its_way();
    let named = mount.fs.store().space().named;
    mount.unlink("file");
    mount.fs.forget(ino, 1);
    block_on(mount.fs.wait_for_orphans());
    device.release();
    mount.wait_for_placing();
    let mount = mount.reopen();
    assert_eq!(mount.fs.store().space().named, named - 100);
}

#[test]
fn an_unmount_waits_for_it() {
    let (device, mount, _, contents) = on_its_way();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| block_on(mount.fs.close()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!closing.is_finished());
        device.release();
        closing.join().unwrap().unwrap();
    });
    assert!(!mount.fs.data.ahead.any());
    let mount = mount.reopen();
    assert!(mount.read(mount.find("file"), 0, contents.len()) == contents);
}
