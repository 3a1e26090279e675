//! Access times: when they move, and that they survive a sync, an unmount, a checkpoint, and the
//! passing of time.

use super::{CALLER, Mount, Setup};
use crate::AccessTime;
use crate::types::{Ino, ROOT, Timestamp};
use std::time::{Duration, Instant};
use syncline_device::block_on;

#[test]
fn access_times_are_relative() {
    let mount = Mount::new();
    let link = block_on(mount.fs.symlink(CALLER, ROOT, b"link", b"target")).unwrap();
    let first = mount.tick();
    block_on(mount.fs.readlink(link.ino)).unwrap();
    assert_eq!(mount.getattr(link.ino).atime, first);
    mount.tick();
    block_on(mount.fs.readlink(link.ino)).unwrap();
    assert_eq!(mount.getattr(link.ino).atime, first, "read since the last change");
    mount.clock.advance(25 * 3600 * 1_000_000_000);
    let later = mount.fs.now();
    block_on(mount.fs.readlink(link.ino)).unwrap();
    assert_eq!(mount.getattr(link.ino).atime, later);
}

/// A file, a directory and a symbolic link, all durable.
fn three(mount: &Mount) -> [Ino; 3] {
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.write(file, 0, vec![1; 10_000].into(), false)).unwrap();
    let dir = mount.mkdir(ROOT, "dir");
    let link = block_on(mount.fs.symlink(CALLER, ROOT, b"link", b"target")).unwrap().ino;
    block_on(mount.fs.syncfs()).unwrap();
    [file, dir, link]
}

/// Reads all three, at a time later than everything before.
fn read(mount: &Mount, [file, dir, link]: [Ino; 3]) -> Timestamp {
    let now = mount.tick();
    block_on(mount.fs.read(file, 0, 4096)).unwrap();
    block_on(mount.fs.readdir(dir, 0, 10)).unwrap();
    block_on(mount.fs.readlink(link)).unwrap();
    now
}

fn times(mount: &Mount, inos: [Ino; 3]) -> [Timestamp; 3] {
    inos.map(|ino| mount.getattr(ino).atime)
}

const OPTIONS: [AccessTime; 2] = [AccessTime::Relative, AccessTime::Always];

fn mount_with(access_time: AccessTime) -> Mount {
    Mount::with(Setup { access_time, ..Setup::default() })
}

#[test]
fn access_times_outlive_an_unmount() {
    for option in OPTIONS {
        let mount = mount_with(option);
        let inos = three(&mount);
        let read_at = read(&mount, inos);
        let mount = mount.reopen();
        assert_eq!(times(&mount, inos), [read_at; 3], "{option:?}");
    }
}

#[test]
fn an_fsync_takes_the_access_time_along() {
    for option in OPTIONS {
        let mount = mount_with(option);
        let inos = three(&mount);
        let read_at = read(&mount, inos);
        inos.iter().for_each(|&ino| block_on(mount.fs.fsync(ino, false)).unwrap());
        let mount = mount.crash();
        assert_eq!(times(&mount, inos), [read_at; 3], "{option:?}");
        // With data that was written after the read, and for several files.
        let (written_at, [file, ..]) = (read(&mount, inos), inos);
        block_on(mount.fs.write(file, 0, vec![2; 5000].into(), false)).unwrap();
        block_on(mount.fs.sync_many(&inos, 0)).unwrap();
        let mount = mount.crash();
        let expected = if option == AccessTime::Always { written_at } else { read_at };
        assert_eq!(times(&mount, inos), [expected; 3], "{option:?}");
    }
}

#[test]
fn fdatasync_does_not_wait_for_access_times() {
    let mount = Mount::new();
    let inos = three(&mount);
    read(&mount, inos);
    let before = mount.fs.store().last_op();
    block_on(mount.fs.fsync(inos[0], true)).unwrap();
    assert_eq!(mount.fs.store().last_op(), before);
}

#[test]
fn a_checkpoint_of_everything_and_a_snapshot_have_the_access_times() {
    for with_snapshot in [false, true] {
        let mount = Mount::new();
        let inos = three(&mount);
        let read_at = read(&mount, inos);
        if with_snapshot {
            block_on(mount.fs.create_snapshot("kept")).unwrap();
        } else {
            block_on(mount.fs.syncfs()).unwrap();
        }
        let mount = mount.crash();
        assert_eq!(times(&mount, inos), [read_at; 3]);
    }
}

#[test]
fn access_times_are_logged_when_they_are_as_old_as_dirty_data_may_become() {
    let mount = Mount::new();
    let inos = three(&mount);
    let read_at = read(&mount, inos);
    let before = mount.fs.store().last_op();
    // An administrator may set the clock back meanwhile.
    mount.clock.set(0);
    mount.clock.advance(6_000_000_000);
    let started = Instant::now();
    while mount.fs.store().last_op().0 < before.0 + 3 {
        assert!(started.elapsed() < Duration::from_secs(120), "they wait for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
    mount.sync();
    let mount = mount.crash();
    assert_eq!(times(&mount, inos), [read_at; 3]);
}
