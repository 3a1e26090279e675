//! A kernel that keeps writes (`-o writeback_cache`): what it has not handed over is asked for.

mod lost;

use crate::files::Mapping;
use crate::pattern;
use crate::shell::Caches;
use crate::support::{Setup, TestFilesystem, TestMount, errno};
use io_uring::{IoUring, opcode, types};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use syncline_device::block_on;
use syncline_fs::types::{Attributes, ROOT};
use syncline_fuse::{Transport, control};

const PAGE: usize = 4096;
const SET_FLAGS: libc::c_ulong = 0x4008_6602;
const APPEND_ONLY: libc::c_int = 0x20;
const SYNCHRONOUS: libc::c_int = 0x08;

/// All tests of this program once more, on mounts whose kernel keeps writes.
#[test]
fn the_other_tests_hold_too() {
    if Setup::default().writeback_cache {
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.env(crate::support::WRITEBACK_CACHE, "1");
    // Openings are requests, a store behind the end can't be told from a write (see DIFFERENCES), and the
    // times of a direct write come behind it.
    let others = [
        "files_are_made_and_opened_without_asking",
        "what_was_stored_behind_the_end_is_gone_when_a_file_grows",
        "a_synced_direct_write_costs_one_flush",
        "wakes::",
        "switches::",
        "kept_writes::",
    ];
    again.args(others.iter().flat_map(|name| ["--skip", name]));
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn setup() -> Setup {
    Setup { writeback_cache: true, ..Setup::default() }
}

/// A mount with an image file, which tells after a kill what would be left.
fn mount_in_file() -> Option<TestMount> {
    TestMount::with(Setup { in_file: true, ..setup() })
}

fn make(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn found(left: &TestFilesystem, name: &str) -> Attributes {
    block_on(left.fs.lookup(ROOT, name.as_bytes())).unwrap()
}

fn contents(left: &TestFilesystem, name: &str) -> Vec<u8> {
    let ino = found(left, name).ino;
    block_on(left.fs.read(ino, 0, 1 << 24)).unwrap().concat()
}

/// Makes everything durable that was done before, without touching other files.
fn sync_another(mount: &TestMount) {
    let file = File::create(mount.path().join("another")).unwrap();
    file.sync_all().unwrap();
}

fn set_flags(file: &File, flags: libc::c_int) -> std::io::Result<()> {
    // SAFETY: the command reads an int at the pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), SET_FLAGS as _, &raw const flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn seek(file: &File, offset: usize, whence: i32) -> usize {
    // SAFETY: takes no memory.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    usize::try_from(found).unwrap_or_else(|_| panic!("{}", std::io::Error::last_os_error()))
}

#[test]
fn small_writes_come_together() {
    let Some(mount) = TestMount::with(setup()) else { return };
    let mut file = make(&mount.path().join("file"));
    for _ in 0..5000 {
        file.write_all(&[7; 100]).unwrap();
    }
    assert_eq!(file.metadata().unwrap().len(), 500_000);
    drop(file);
    let writes = mount.requests("Write");
    assert!((1..=10).contains(&writes), "{writes} requests for 5000 writes");
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), [7; 500_000]);
    mount.unmount();
}

/// P3, without any fsync of the file.
#[test]
fn a_file_that_is_still_open_is_whole_under_its_new_name() {
    let Some(mut mount) = mount_in_file() else { return };
    let root = mount.path();
    let path = |name: &str| root.join(name);
    let data = pattern(300_000, 1);
    let mut open = Vec::new();
    let mut written = |file: File| {
        (&file).write_all(&data).unwrap();
        open.push(file);
    };
    for name in ["renamed", "exchanged", "both"] {
        fs::write(path(name), "before").unwrap();
    }
    sync_another(&mount);
    written(make(&path("temporary")));
    fs::rename(path("temporary"), path("renamed")).unwrap();
    written(make(&path("other")));
    rustix::fs::renameat_with(
        rustix::fs::CWD,
        path("exchanged"),
        rustix::fs::CWD,
        path("other"),
        rustix::fs::RenameFlags::EXCHANGE,
    )
    .unwrap();
    let nameless = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&root).unwrap();
    let descriptor = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    written(nameless);
    rustix::fs::linkat(
        rustix::fs::CWD,
        descriptor,
        rustix::fs::CWD,
        path("born"),
        rustix::fs::AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    // What a mapping has, too.
    let mapped = make(&path("mapped"));
    mapped.set_len(data.len() as u64).unwrap();
    let mapping = Mapping::new(&mapped, data.len(), libc::MAP_SHARED);
    data.iter().enumerate().for_each(|(at, byte)| mapping.set(at, *byte));
    fs::rename(path("mapped"), path("both")).unwrap();
    File::open(&root).unwrap().sync_all().unwrap();
    mount.kill_daemon();
    let left = TestFilesystem::open(&mount.image());
    for name in ["renamed", "exchanged", "born", "both"] {
        assert!(contents(&left, name) == data, "{name}");
    }
    assert_eq!(contents(&left, "other"), b"before");
    left.close();
}

/// One thread serves all requests, while each rename waits for writes that have to come through it.
#[test]
fn many_rename_what_they_have_open() {
    let Some(mount) = TestMount::with(Setup { workers: 1, ..setup() }) else { return };
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let root = mount.path();
            scope.spawn(move || {
                let kept = root.join(format!("kept{thread}"));
                for round in 0..10 {
                    let temporary = root.join(format!("temporary{thread}"));
                    let mut file = make(&temporary);
                    file.write_all(&pattern(20_000, thread + round)).unwrap();
                    fs::rename(&temporary, &kept).unwrap();
                    assert!(fs::read(&kept).unwrap() == pattern(20_000, thread + round));
                }
            });
        }
    });
    mount.unmount();
}

#[test]
fn a_sync_of_everything_and_of_several_files_has_what_is_kept() {
    let Some(mut mount) = mount_in_file() else { return };
    let root = mount.path();
    let path = |name: &str| root.join(name);
    let data = pattern(200_000, 2);
    let files = ["one", "two", "three"].map(|name| make(&path(name)));
    for file in &files {
        file.write_all_at(&data, 0).unwrap();
    }
    // As another language calls it: nobody has pushed pages out before.
    let inodes = [files[0].metadata().unwrap().ino(), files[1].metadata().unwrap().ino()];
    let message: Vec<u8> =
        [2u32.to_ne_bytes().to_vec(), vec![0; 4], inodes.iter().flat_map(|ino| ino.to_ne_bytes()).collect()]
            .concat();
    // SAFETY: the number says how many bytes the kernel reads at the pointer.
    let synced = unsafe { libc::ioctl(files[0].as_raw_fd(), 0x4018_f554, message.as_ptr()) };
    assert_eq!(synced, 0, "{}", std::io::Error::last_os_error());
    let copy = mount.image().with_extension("copy");
    fs::copy(mount.image(), &copy).unwrap();
    let left = TestFilesystem::open(&copy);
    assert!(contents(&left, "one") == data && contents(&left, "two") == data);
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64
        - found(&left, "one").mtime.seconds;
    assert!(age < 60, "it has the mtime of a write");
    left.close();
    control::sync(&mount.path()).unwrap();
    mount.kill_daemon();
    let left = TestFilesystem::open(&mount.image());
    assert!(contents(&left, "three") == data);
    left.close();
}

/// Streams into a file of this size while everything is synced, and fails if that ends with the writer.
fn sync_beside_a_writer(size: u64) {
    // The kernel hands pages over one by one, at less than this speed on most machines.
    const LEN_MAX: u64 = 3 << 30;
    const PAUSE: Duration = Duration::from_millis(2);
    let Some(mount) = TestMount::with(setup()) else { return };
    let file = make(&mount.path().join("written"));
    file.set_len(size).unwrap();
    let (ends, piece) = (AtomicBool::new(false), vec![1; 1 << 20]);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let mut at = 0;
            while at < LEN_MAX && !ends.load(Ordering::Relaxed) {
                file.write_all_at(&piece, at).unwrap();
                at += piece.len() as u64;
                std::thread::sleep(PAUSE);
            }
            at
        });
        std::thread::sleep(Duration::from_millis(200));
        control::sync(&mount.path()).unwrap();
        ends.store(true, Ordering::Relaxed);
        let written = written.join().unwrap();
        assert!(written < LEN_MAX, "it ended with the writer, to a file of size {size}");
    });
    drop(file);
    mount.unmount();
}

/// The kernel looks at a file's pages in their order, as many as it has by then.
#[test]
fn a_sync_of_everything_follows_no_file_that_is_written() {
    // The second one is as large as it is to be before it is filled.
    [0, 8 << 30].into_iter().for_each(sync_beside_a_writer);
}

#[test]
fn holes_are_not_where_something_was_written() {
    let Some(mount) = TestMount::with(setup()) else { return };
    let path = mount.path().join("sparse");
    let file = make(&path);
    file.write_all_at(&[1; PAGE], 40 * PAGE as u64).unwrap();
    file.write_all_at(&[2; 10], 90 * PAGE as u64 + 7).unwrap();
    assert_eq!(seek(&file, 0, libc::SEEK_DATA), 40 * PAGE);
    assert_eq!(seek(&file, 40 * PAGE, libc::SEEK_HOLE), 41 * PAGE);
    file.write_all_at(&[3; 10], 70 * PAGE as u64).unwrap();
    assert_eq!(seek(&file, 41 * PAGE, libc::SEEK_DATA), 70 * PAGE);
    assert_eq!(seek(&file, 90 * PAGE, libc::SEEK_HOLE), 90 * PAGE + 17);
    let copy = mount.path().join("copy");
    file.write_all_at(&[4; 10], 20 * PAGE as u64).unwrap();
    assert!(Command::new("cp").arg(&path).arg(&copy).status().unwrap().success());
    assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap());
    assert_eq!(fs::read(&copy).unwrap().iter().filter(|&&byte| byte != 0).count(), PAGE + 30);
    drop(file);
    mount.unmount();
}

/// The kernel hands over what it has of the range, and the size comes with what is behind. (A read
/// for which a thread waits is tried through the cache where it ends.)
#[test]
fn a_direct_read_that_nobody_waits_for_finds_the_hole_before_what_is_kept() {
    let Some(mount) = TestMount::with(setup()) else { return };
    let path = mount.path().join("sparse");
    let file = make(&path);
    file.write_all_at(&[1; PAGE], 1 << 20).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut ring = IoUring::new(2).unwrap();
    for (offset, expected) in [(0, 0), (1 << 20, 1)] {
        let mut found = [7; PAGE];
        let read = opcode::Read::new(types::Fd(direct.as_raw_fd()), found.as_mut_ptr(), PAGE as u32);
        // SAFETY: file and buffer live until the read has completed.
        unsafe { ring.submission().push(&read.offset(offset).build()).unwrap() };
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), PAGE as i32);
        assert_eq!(found, [expected; PAGE]);
    }
    drop((file, direct));
    mount.unmount();
}

/// Sizes that the kernel knows and the daemon doesn't, and bytes between the two.
#[test]
fn growing_and_shrinking_keep_what_is_kept() {
    let Some(mount) = TestMount::with(setup()) else { return };
    let path = mount.path().join("file");
    for (first, sizes) in
        [(6000usize, &[100_000usize, 7000, 9000][..]), (100, &[200, 50, 5000]), (4096, &[1, 4097])]
    {
        for came in [0, 50, 5000] {
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            let mut expected = pattern(first.max(came), 3);
            file.write_all_at(&expected[..came], 0).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(&expected, 0).unwrap();
            for &size in sizes {
                file.set_len(size as u64).unwrap();
                expected.resize(size, 0);
                assert_eq!(file.metadata().unwrap().len(), size as u64);
                assert!(fs::read(&path).unwrap() == expected, "{first} {came} {size}");
            }
            drop(file);
            drop_pages(&path);
            assert!(fs::read(&path).unwrap() == expected, "{first} {came}, from the daemon");
        }
    }
    mount.unmount();
}

/// Has the kernel forget the pages of a file that is clean.
fn drop_pages(path: &Path) {
    let file = File::open(path).unwrap();
    // SAFETY: takes no memory.
    let done = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(done, 0);
}

fn mtime(path: &Path) -> (i64, i64) {
    let found = fs::metadata(path).unwrap();
    (found.mtime(), found.mtime_nsec())
}

#[test]
fn times_are_those_of_the_writes_whoever_tells_them() {
    let Some(mut mount) = mount_in_file() else { return };
    let root = mount.path();
    let path = |name: &str| root.join(name);
    let file = make(&path("pushed"));
    file.write_all_at(&pattern(3 << 20, 1), 0).unwrap();
    let shown = mtime(&path("pushed"));
    std::thread::sleep(Duration::from_millis(50));
    // Write-back in the background, which does not wait.
    // SAFETY: takes no memory.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    std::thread::sleep(Duration::from_millis(50));
    drop(file);
    assert_eq!(mtime(&path("pushed")), shown);
    let set = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    let file = make(&path("set"));
    file.write_all_at(b"contents", 0).unwrap();
    file.set_modified(set).unwrap();
    drop(file);
    let file = make(&path("set by its path"));
    file.write_all_at(b"contents", 0).unwrap();
    drop(file);
    assert!(
        Command::new("touch")
            .args(["-m", "-d", "@1000000000"])
            .arg(path("set by its path"))
            .status()
            .unwrap()
            .success()
    );
    fs::write(path("renamed before"), "contents").unwrap();
    let of_renamed = mtime(&path("renamed before"));
    fs::rename(path("renamed before"), path("renamed")).unwrap();
    let names = ["pushed", "set", "set by its path", "renamed"];
    let shown = names.map(|name| mtime(&path(name)));
    assert_eq!((shown[1], shown[2].0, shown[3]), ((1_000_000_000, 5), 1_000_000_000, of_renamed));
    // What the kernel asks again when it has forgotten everything.
    Caches::alone().drop_all();
    assert_eq!(names.map(|name| mtime(&path(name))), shown);
    crate::support::unmount(&root);
    mount.wait_for_the_end();
    let left = TestFilesystem::open(&mount.image());
    let kept = names.map(|name| found(&left, name).mtime);
    assert_eq!(kept.map(|mtime| (mtime.seconds, i64::from(mtime.nanoseconds))), shown);
    left.close();
}

#[test]
fn what_is_strict_is_durable_at_once() {
    let Some(mut mount) = mount_in_file() else { return };
    let path = mount.path().join("file");
    let file = make(&path);
    assert_eq!(errno(set_flags(&file, SYNCHRONOUS)), libc::EBUSY);
    drop(file);
    set_flags(&File::open(&path).unwrap(), SYNCHRONOUS).unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"durable").unwrap();
    let before = SystemTime::now();
    std::thread::sleep(Duration::from_millis(20));
    file.write_all(b" at once").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"durable at once");
    fs::rename(&path, mount.path().join("renamed")).unwrap();
    mount.kill_daemon();
    let left = TestFilesystem::open(&mount.image());
    assert_eq!(contents(&left, "renamed"), b"durable at once");
    let mtime = found(&left, "renamed").mtime;
    let mtime = SystemTime::UNIX_EPOCH + Duration::new(mtime.seconds as u64, mtime.nanoseconds);
    assert!(mtime > before, "the rename has not set it back");
    left.close();
}

#[test]
fn logs_that_may_only_grow_grow() {
    let Some(mount) = TestMount::with(setup()) else { return };
    let path = mount.path().join("log");
    fs::write(&path, "one\n").unwrap();
    let file = File::open(&path).unwrap();
    let open_before = OpenOptions::new().write(true).open(&path).unwrap();
    set_flags(&file, APPEND_ONLY).unwrap();
    for line in ["two\n", "three\n"] {
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        log.write_all(line.as_bytes()).unwrap();
        log.sync_all().unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
    assert_eq!(errno(OpenOptions::new().write(true).open(&path)), libc::EPERM);
    open_before.write_all_at(b"ONE", 0).unwrap();
    assert_eq!(errno(open_before.sync_all()), libc::EPERM, "told late, but told");
    drop(open_before);
    // The kernel is told to forget the page that was refused, a moment later.
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::read(&path).unwrap() != b"one\ntwo\nthree\n" {
        assert!(Instant::now() < deadline, "the page stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    set_flags(&file, 0).unwrap();
    drop(file);
    mount.unmount();
}

#[test]
fn requests_go_over_dev_fuse_and_contradictions_are_refused() {
    let Some(mount) = TestMount::with(setup()) else { return };
    assert_eq!(control::text(&mount.path(), "transport").unwrap(), "classic");
    assert_eq!(crate::TRANSPORT, Transport::Classic);
    let elsewhere = tempfile::tempdir().unwrap();
    for contradiction in [Setup { direct_io: true, ..setup() }, Setup { synchronous: true, ..setup() }] {
        let (mut daemon, mut output) = crate::support::start_daemon(elsewhere.path(), contradiction);
        let refusal = crate::support::wait_until_ready(&mut output).unwrap_err();
        assert!(refusal.contains("together with writeback_cache"), "{refusal}");
        daemon.wait().unwrap();
    }
    mount.unmount();
}
