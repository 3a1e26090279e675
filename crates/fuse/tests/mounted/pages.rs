//! Pages of the kernel's cache, as two programs at once see them.

use super::TestMount;
use super::files::Mapping;
use crate::support::Setup;
use rustix::fs::{IFlags, ioctl_setflags};
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use syncline_device::AlignedBuf;

/// Far longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);
const WRITES: usize = 20_000;
const PAGE: usize = 4096;

fn make(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn set_flags(file: &File, flags: i32) {
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }, 0);
}

/// The kernel puts the flags of that moment into a WRITE, so one through the cache, for which it holds a
/// page, may say O_DIRECT.
#[test]
fn switching_direct_io_on_and_off_hangs_nobody() {
    let Some(mut mount) = TestMount::with(Setup::default()) else { return };
    let path = mount.path().join("file");
    let file = Arc::new(make(&path));
    let (ended, ends) = mpsc::channel();
    let written = Arc::new(AtomicBool::new(false));
    for _ in 0..2 {
        let (file, ended) = (file.clone(), ended.clone());
        thread::spawn(move || {
            let done = (0..WRITES).try_for_each(|_| file.write_all_at(&[1; 512], 512));
            let _ = ended.send(done.is_ok());
        });
    }
    let (switched, is_written) = (file.clone(), written.clone());
    let switching = thread::spawn(move || {
        while !is_written.load(Ordering::Relaxed) {
            set_flags(&switched, libc::O_RDWR | libc::O_DIRECT);
            set_flags(&switched, libc::O_RDWR);
        }
    });
    let outcomes: Vec<_> = (0..2).map(|_| ends.recv_timeout(LONG)).collect();
    written.store(true, Ordering::Relaxed);
    switching.join().unwrap();
    if outcomes.iter().any(Result::is_err) {
        // The waiting threads can't be killed, and the mount can't be used or removed.
        mount.abort();
    }
    assert_eq!(outcomes, [Ok(true); 2]);
    drop(file);
    mount.unmount();
}

/// The kernel writes stored data back up to 30 seconds later, or when the mapping goes.
#[test]
fn times_and_modes_that_are_set_after_a_store_stay() {
    let Some(mount) = TestMount::or_skip() else { return };
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for (name, is_written) in [("hole", false), ("written", true)] {
        let path = mount.path().join(name);
        let file = make(&path);
        match is_written {
            // No page has to be read to be mapped.
            true => file.write_all_at(&[7; 2 * PAGE], 0).unwrap(),
            false => file.set_len(2 * PAGE as u64).unwrap(),
        }
        let mapping = Mapping::new(&file, 2 * PAGE, libc::MAP_SHARED);
        for page in [0, 1] {
            mapping.set(page * PAGE, 1);
            file.set_times(FileTimes::new().set_modified(long_ago)).unwrap();
            mapping.sync();
            assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago, "{name}");
        }
        mapping.set(5, 2);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let changed = || fs::metadata(&path).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
        let before = changed();
        mapping.sync();
        assert_eq!(changed(), before, "{name}: the store was before chmod");
        // A store that comes afterwards counts.
        file.set_times(FileTimes::new().set_modified(long_ago)).unwrap();
        mapping.set(6, 3);
        drop(mapping);
        assert_ne!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago, "{name}");
        assert_eq!(fs::read(&path).unwrap()[..7][5..], [2, 3], "{name}");
    }
    mount.unmount();
}

#[test]
fn what_was_stored_before_a_file_became_immutable_is_kept() {
    let Some(mount) = TestMount::or_skip() else { return };
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        let path = mount.path().join(format!("{flag:?}"));
        // All pages come through descriptors that can't be mapped.
        fs::write(&path, [7; 2 * PAGE]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapping = Mapping::new(&file, 2 * PAGE, libc::MAP_SHARED);
        mapping.set(5, 1);
        ioctl_setflags(File::open(&path).unwrap(), flag).unwrap();
        let on_the_device = || {
            let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let mut found = AlignedBuf::zeroed(PAGE);
            direct.read_exact_at(&mut found, 0).unwrap();
            (found[5], found[6])
        };
        assert_eq!(on_the_device(), (1, 7), "{flag:?}");
        // A later store is refused: its program is told, and no process goes on seeing the stored byte.
        mapping.set(6, 2);
        assert!(!mapping.is_synced(), "{flag:?}");
        let deadline = Instant::now() + LONG;
        while mapping.get(6) != 7 {
            assert!(Instant::now() < deadline, "{flag:?}: the page stays");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((mapping.get(5), on_the_device()), (1, (1, 7)), "{flag:?}");
        ioctl_setflags(File::open(&path).unwrap(), IFlags::empty()).unwrap();
    }
    mount.unmount();
}

#[derive(Clone, Copy, Debug)]
enum Growth {
    Write,
    DirectWrite,
    Allocate,
    Truncate,
    Copy,
}

fn grow(file: &File, path: &Path, growth: Growth, end: u64) {
    match growth {
        Growth::Write => file.write_all_at(b"y", end - 1).unwrap(),
        Growth::DirectWrite => {
            let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
            direct.write_all_at(b"y", end - 1).unwrap();
        }
        Growth::Allocate => rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, end).unwrap(),
        Growth::Truncate => file.set_len(end).unwrap(),
        Growth::Copy => {
            let (mut from, mut to) = (0, end - 1);
            assert_eq!(
                rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), 1).unwrap(),
                1
            );
        }
    }
}

#[test]
fn what_was_stored_behind_the_end_is_gone_when_a_file_grows_within_its_page() {
    for setup in [Setup::default(), Setup { direct_io: true, ..Setup::default() }] {
        let Some(mount) = TestMount::with(setup) else { return };
        for growth in [Growth::Write, Growth::DirectWrite, Growth::Allocate, Growth::Truncate, Growth::Copy] {
            let path = mount.path().join(format!("{growth:?}"));
            let file = make(&path);
            file.write_all_at(&[b'y'; 100], 0).unwrap();
            let mapping = Mapping::new(&file, PAGE, libc::MAP_SHARED);
            for at in [50, 100, 200, PAGE - 1] {
                mapping.set(at, 1);
            }
            grow(&file, &path, growth, 1001);
            // This byte is part of the file now.
            mapping.set(300, 2);
            let mut expected = vec![b'y'; 100];
            expected[50] = 1;
            expected.resize(1001, 0);
            expected[300] = 2;
            if !matches!(growth, Growth::Allocate | Growth::Truncate) {
                expected[1000] = b'y';
            }
            assert!(mapping.contents()[..1001] == expected, "{growth:?}, as it is mapped");
            mapping.sync();
            assert!(fs::read(&path).unwrap() == expected, "{growth:?}, as it is read");
            let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let mut found = vec![0; PAGE];
            assert_eq!(direct.read_at(&mut found, 0).unwrap(), 1001);
            assert!(found[..1001] == expected, "{growth:?}, as it was written back");
        }
        mount.unmount();
    }
}

/// A reader of a log that grows past the cache sees the data that was written, and no zeros out of the page
/// in which the file ended.
#[test]
fn readers_of_a_file_that_grows_past_the_cache_see_no_zeros() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("log");
    let reader = make(&path);
    let is_written = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut options = OpenOptions::new();
            let log = options.append(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(&path).unwrap();
            for line in 0..5000 {
                std::io::Write::write_all(&mut &log, format!("line {line:07}\n").as_bytes()).unwrap();
            }
            is_written.store(true, Ordering::Release);
        });
        let (mut at, mut seen) = (0, Vec::new());
        loop {
            let ends = is_written.load(Ordering::Acquire);
            let size = reader.metadata().unwrap().len();
            let mut found = vec![0; (size - at) as usize];
            let len = reader.read_at(&mut found, at).unwrap();
            assert!(!found[..len].contains(&0), "at {at}");
            seen.extend_from_slice(&found[..len]);
            at += len as u64;
            if ends && at == size {
                break;
            }
        }
        let expected: String = (0..5000).map(|line| format!("line {line:07}\n")).collect();
        assert!(seen == expected.as_bytes());
    });
    drop(reader);
    mount.unmount();
}
