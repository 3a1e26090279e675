//! What a kernel that keeps writes hands over.

use super::faults::moody;
use super::*;
use crate::types::{Attributes, FileFlags, WrittenTimes};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 7 }
}

fn times(mtime: i64, ctime: i64) -> WrittenTimes {
    WrittenTimes { mtime: at(mtime), ctime: at(ctime) }
}

impl Mount {
    fn hand_over(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), FsError> {
        block_on(self.fs.write_kept(ino, offset, Bytes::copy_from_slice(data), |size| size))
    }

    fn take_times(&self, ino: Ino, times: WrittenTimes) {
        block_on(self.fs.take_times(ino, |_| Some(times))).unwrap();
    }

    fn times(&self, ino: Ino) -> WrittenTimes {
        let found = block_on(self.fs.getattr(ino)).unwrap();
        WrittenTimes { mtime: found.mtime, ctime: found.ctime }
    }
}

#[test]
fn contents_and_times_are_durable_with_the_sync() {
    for len in [5, 5000, 500_000] {
        let mount = Mount::new();
        let ino = mount.create("file");
        let data = pattern(1, len);
        mount.hand_over(ino, 0, &data).unwrap();
        mount.take_times(ino, times(3, 4));
        mount.fsync(ino);
        let crashed = mount.crash();
        assert_eq!(crashed.read(ino, 0, 1 << 20), data);
        assert_eq!(crashed.times(ino), times(3, 4));
        // Times that come without contents, for fdatasync too.
        mount.take_times(ino, times(5, 6));
        block_on(mount.fs.fsync(ino, true)).unwrap();
        assert_eq!(mount.crash().times(ino), times(5, 6));
    }
}

#[test]
fn contents_without_their_times_have_new_ones() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.take_times(ino, times(3, 3));
    mount.hand_over(ino, 0, b"contents").unwrap();
    block_on(mount.fs.sync_many(&[ino], 0)).unwrap();
    let found = mount.crash().times(ino);
    assert!(found.mtime > at(3) && found.ctime > at(3), "{found:?}");
}

/// The times of a rename come with an mtime that has not changed, so that no data will take them
/// along.
#[test]
fn a_change_time_alone_is_logged_too() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.hand_over(ino, 0, b"contents").unwrap();
    mount.take_times(ino, times(3, 3));
    mount.fsync(ino);
    mount.take_times(ino, times(3, 8));
    let mount = mount.reopen();
    assert_eq!(mount.times(mount.find("file")), times(3, 8));
}

#[test]
fn times_that_nobody_has_change_nothing() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let before = mount.times(ino);
    let seen = std::cell::Cell::new(None);
    let none = |attributes: &Attributes| {
        seen.set(Some(attributes.mtime));
        None
    };
    block_on(mount.fs.take_times(ino, none)).unwrap();
    assert_eq!((mount.times(ino), seen.get()), (before, Some(before.mtime)));
    assert!(block_on(mount.fs.take_times(ROOT, |_| Some(times(3, 3)))).is_err(), "no regular file");
}

#[test]
fn what_is_refused_is_counted() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.hand_over(ino, 0, b"one\n").unwrap();
    let flags = |append_only, immutable| FileFlags { append_only, immutable, ..FileFlags::default() };
    block_on(mount.fs.set_file_flags(ino, flags(true, false))).unwrap();
    mount.hand_over(ino, 0, b"one\ntwo\n").unwrap();
    let refused = |result| assert!(matches!(result, Err(FsError::NotPermitted)));
    refused(mount.hand_over(ino, 0, b"One\ntwo\nthree\n"));
    block_on(mount.fs.set_file_flags(ino, flags(false, true))).unwrap();
    refused(mount.hand_over(ino, 8, b"three\n"));
    assert_eq!(mount.read(ino, 0, 100), b"one\ntwo\n");
    assert_eq!(mount.fs.counters().writes_lost, 2);
    // The caller tells of it, with what it knows of the file.
    mount.fsync(ino);
}

/// The kernel hands over in several requests, and the second one may be served first.
#[test]
fn what_was_appended_comes_in_any_order() {
    let mount = Mount::new();
    let ino = mount.create("log");
    let data = pattern(2, 20_000);
    mount.hand_over(ino, 0, &data[..100]).unwrap();
    let append_only = FileFlags { append_only: true, ..FileFlags::default() };
    block_on(mount.fs.set_file_flags(ino, append_only)).unwrap();
    let came = |offset: usize, data: &[u8]| {
        block_on(mount.fs.write_kept(ino, offset as u64, Bytes::copy_from_slice(data), |_| 100))
    };
    came(8192, &data[8192..]).unwrap();
    let mut changed = data[..8192].to_vec();
    changed[99] ^= 1;
    assert!(matches!(came(0, &changed), Err(FsError::NotPermitted)));
    came(0, &data[..8192]).unwrap();
    assert_eq!(mount.read(ino, 0, 1 << 20), data);
}

/// Another file's data has to make room, and the device does not take it for a moment.
#[test]
fn a_device_that_fails_for_a_moment_costs_nothing_that_was_kept() {
    let (device, mount) = moody(Options { dirty_bytes_max: 1 << 20, ..options() });
    let (other, ino) = (mount.create("other"), mount.create("file"));
    device.fail.store(true, Ordering::SeqCst);
    mount.write(other, 0, &pattern(1, 1 << 20));
    let data = pattern(2, 4096);
    std::thread::scope(|scope| {
        let came = scope.spawn(|| mount.hand_over(ino, 0, &data));
        std::thread::sleep(Duration::from_millis(300));
        device.fail.store(false, Ordering::SeqCst);
        came.join().unwrap().unwrap();
    });
    assert_eq!(mount.fs.counters().writes_lost, 0);
    mount.fsync(ino);
    assert_eq!(mount.crash().read(ino, 0, 1 << 20), data);
}

/// A write needs the rest of its block, or of an append-only file what was there.
#[test]
fn a_read_that_fails_for_a_moment_costs_nothing_that_was_kept() {
    for append_only in [false, true] {
        let (device, mount) = moody(options());
        let ino = mount.create("file");
        let mut data = pattern(1, 12_000);
        mount.write(ino, 0, &data);
        mount.fsync_placed(ino);
        let flags = FileFlags { append_only, ..FileFlags::default() };
        block_on(mount.fs.set_file_flags(ino, flags)).unwrap();
        let came = match append_only {
            true => [&data[..], b"appended"].concat(),
            false => pattern(2, 100),
        };
        data.resize(data.len().max(came.len()), 0);
        data[..came.len()].copy_from_slice(&came);
        device.fail_reads.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let came = scope.spawn(|| mount.hand_over(ino, 0, &came));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!came.is_finished(), "{:?}", came.join());
            device.fail_reads.store(false, Ordering::SeqCst);
            came.join().unwrap().unwrap();
        });
        assert_eq!(mount.fs.counters().writes_lost, 0);
        mount.fsync(ino);
        assert_eq!(mount.crash().read(ino, 0, 1 << 20), data);
    }
}

/// What stays unreadable keeps nobody waiting for as long as a device may take to recover.
#[test]
fn a_block_that_stays_unreadable_costs_what_was_kept_of_it() {
    let (device, mount) = moody(options());
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 12_000));
    mount.fsync_placed(ino);
    device.fail_reads.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    assert_eq!(mount.hand_over(ino, 0, &pattern(2, 100)).unwrap_err().errno(), 5);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(mount.fs.counters().writes_lost, 1);
    mount.hand_over(ino, 0, &pattern(3, 4096)).unwrap();
}

/// Another file's data has to make room, and its items are damaged. There are others.
#[test]
fn a_damaged_file_costs_nothing_that_was_kept_of_others() {
    let mount = Mount::sized(64 << 20, Options { dirty_bytes_max: 1 << 20, ..options() });
    let (damaged, sound, ino) = (mount.create("damaged"), mount.create("sound"), mount.create("file"));
    mount.write(damaged, 0, &pattern(1, 10 * 4096));
    mount.fsync_placed(damaged);
    let key = Key::new(damaged, Kind::Extent, 0);
    let mut value = block_on(mount.fs.store().get(key)).unwrap().unwrap().to_vec();
    value[8..10].fill(0);
    let mut transaction = syncline_store::Transaction::new();
    transaction.put(key, value);
    mount.fs.store().commit(transaction).unwrap();
    mount.write(damaged, 0, &pattern(2, 10 * 4096));
    mount.write(sound, 0, &pattern(3, 1 << 19));
    let data = pattern(4, (1 << 19) + 4096);
    mount.hand_over(ino, 0, &data).unwrap();
    assert_eq!(mount.fs.counters().writes_lost, 0);
    assert!(mount.fs.counters().writes_throttled > 0, "it found room at once");
    mount.fsync(ino);
    assert_eq!(mount.crash().read(ino, 0, 1 << 20), data);
    assert!(matches!(block_on(mount.fs.fsync(damaged, false)), Err(FsError::Corrupt { .. })));
}

/// A write takes room that only a checkpoint gives back.
#[test]
fn a_checkpoint_that_fails_for_a_moment_costs_nothing_that_was_kept() {
    let (device, mount) = moody(options());
    let (other, ino) = (mount.create("other"), mount.create("file"));
    let full = (0..).find(|mebibyte| mount.try_write(other, mebibyte << 20, &[7; 1 << 20]).is_err());
    mount.fsync_placed(other);
    block_on(mount.fs.store().checkpoint()).unwrap();
    assert!(full.unwrap() > 10);
    mount.truncate(other, 0).unwrap();
    device.fail.store(true, Ordering::SeqCst);
    let data = pattern(2, 8 << 20);
    let failed = || mount.fs.store().counters().checkpoints_failed;
    std::thread::scope(|scope| {
        let came = scope.spawn(|| mount.hand_over(ino, 0, &data));
        let deadline = Instant::now() + Duration::from_secs(20);
        while failed() == 0 && !came.is_finished() {
            assert!(Instant::now() < deadline, "it needs no checkpoint");
            std::thread::sleep(Duration::from_millis(1));
        }
        device.fail.store(false, Ordering::SeqCst);
        came.join().unwrap().unwrap();
    });
    assert!(failed() > 0);
    assert_eq!(mount.fs.counters().writes_lost, 0);
    mount.fsync(ino);
    assert!(mount.crash().read(ino, 0, 9 << 20) == data);
}
