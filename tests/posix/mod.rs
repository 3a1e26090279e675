//! The calls that programs make on a filesystem, tested on a real mount.

mod acl;
mod allocate;
mod block_mounts;
mod clone;
mod cut_streams;
mod defragment;
mod durability;
mod explain;
mod flags;
mod fork;
mod fork_copies;
mod fork_refusals;
mod keys;
mod limits;
mod names;
mod opens;
mod options;
mod pasted;
mod paths;
mod privileges;
mod quotas;
mod reflink;
mod requests;
mod resize;
mod run_and_status;
mod scrub;
mod service;
mod snapshots;
mod streams;
mod sync_many;
mod synced;
mod tmpfile;
mod trim;
mod unprivileged;

use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, program, run};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A mounted image, which is checked when the test has succeeded.
struct Ground {
    place: Place,
    mount: Option<Mount>,
}

impl Ground {
    fn new() -> Self {
        Self::with(&[])
    }

    /// A mounted image with these options.
    fn with(options: &[&str]) -> Self {
        let place = Place::with_image("128MiB");
        let mount = Mount::new(&place.image(), &place.directory("mount"), options);
        Self { place, mount: Some(mount) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.as_ref().expect("it is mounted").path.join(name)
    }

    /// Remounts, so that nothing is cached.
    fn remount(&mut self) {
        let mount = self.mount.take().expect("it is mounted");
        let path = mount.path.clone();
        mount.unmount().ok();
        self.mount = Some(Mount::new(&self.place.image(), &path, &[]));
    }

    fn end(mut self) {
        self.mount.take().expect("it is mounted").unmount().ok();
        self.place.check_clean();
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn files_keep_what_is_written_to_them() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let large: Vec<u8> = (0..3_000_001u32).map(|index| (index % 253) as u8).collect();
    fs::write(ground.path("small"), "small").unwrap();
    fs::write(ground.path("large"), &large).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(ground.path("large")).unwrap();
    file.write_all_at(b"patch", 1_000_003).unwrap();
    let mut expected = large;
    expected[1_000_003..1_000_008].copy_from_slice(b"patch");
    drop(file);
    let mut log = OpenOptions::new().append(true).open(ground.path("small")).unwrap();
    log.write_all(b" and more").unwrap();
    drop(log);
    for _ in 0..2 {
        assert_eq!(fs::read(ground.path("small")).unwrap(), b"small and more");
        assert!(fs::read(ground.path("large")).unwrap() == expected);
        ground.remount();
    }
    ground.end();
}

#[test]
fn holes_sizes_and_truncation() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("sparse");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(5 << 30)).unwrap();
    file.write_all(b"beyond four gigabytes").unwrap();
    file.set_len((5 << 30) + 6).unwrap();
    assert!(file.metadata().unwrap().blocks() < 1000, "the hole takes no room");
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert_eq!(data, 5 << 30);
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
    assert_eq!(hole, (5 << 30) + 6);
    file.set_len(10_000).unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    file.set_len(5_001).unwrap();
    file.set_len(20_000).unwrap();
    drop(file);
    for _ in 0..2 {
        let contents = fs::read(&path).unwrap();
        assert_eq!(contents.len(), 20_000);
        assert!(contents[..5_001].iter().all(|&byte| byte == 1));
        assert!(contents[5_001..].iter().all(|&byte| byte == 0), "what was cut off does not come back");
        ground.remount();
    }
    ground.end();
}

#[test]
fn attributes_survive() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let when = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_789);
    let times = fs::FileTimes::new().set_modified(when).set_accessed(when);
    File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    if crate::support::is_root() {
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
    }
    for _ in 0..2 {
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
        assert_eq!(metadata.modified().unwrap(), when);
        if crate::support::is_root() {
            assert_eq!((metadata.uid(), metadata.gid()), (1234, 4321));
        }
        ground.remount();
    }
    ground.end();
}

#[test]
fn extended_attributes_of_all_sizes() {
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, "x").unwrap();
    let value = |len: usize| -> Vec<u8> { (0..len).map(|index| index as u8).collect() };
    let sizes = [0, 1, 50, 500, 5_000, 60_000];
    for len in sizes {
        setxattr(&path, format!("user.{len}"), &value(len), XattrFlags::CREATE).unwrap();
    }
    assert_eq!(setxattr(&path, "user.50", b"", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(setxattr(&path, "user.51", b"", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
    for _ in 0..2 {
        let mut buffer = vec![0; 65536];
        for len in sizes {
            let got = getxattr(&path, format!("user.{len}"), &mut buffer[..]).unwrap();
            assert_eq!(&buffer[..got], value(len));
        }
        let listed = listxattr(&path, &mut buffer[..]).unwrap();
        assert_eq!(buffer[..listed].iter().filter(|&&byte| byte == 0).count(), sizes.len());
        ground.remount();
    }
    removexattr(&path, "user.60000").unwrap();
    assert_eq!(getxattr(&path, "user.60000", &mut [0; 8][..]), Err(rustix::io::Errno::NODATA));
    ground.end();
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let path = ground.path("file");
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(&[9; 200_000]).unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut contents = Vec::new();
    file.read_to_end(&mut contents).unwrap();
    assert_eq!(contents, [9; 200_000]);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    ground.end();
}

#[test]
fn appends_from_several_threads_do_not_overwrite_each_other() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let path = ground.path("log");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let path = &path;
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for _ in 0..200 {
                    log.write_all(&[b'a' + thread; 100]).unwrap();
                }
            });
        }
    });
    let contents = fs::read(&path).unwrap();
    assert_eq!(contents.len(), 4 * 200 * 100);
    assert!(contents.chunks(100).all(|record| record.iter().all(|&byte| byte == record[0])));
    ground.end();
}

#[test]
fn an_fsync_costs_one_flush() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let mount = ground.mount.as_ref().unwrap();
    let file = File::create(ground.path("file")).unwrap();
    file.sync_all().unwrap();
    let flushes = || mount.stats()["store"]["flushes_issued"].as_u64().unwrap();
    let before = flushes();
    for index in 0..50 {
        file.write_all_at(&[3; 65536], index * 65536).unwrap();
        file.sync_all().unwrap();
    }
    let issued = flushes() - before;
    // A checkpoint may run in between, with two flushes of its own.
    assert!((50..=52).contains(&issued), "{issued} flushes for 50 fsyncs");
    drop(file);
    ground.end();
}

#[test]
fn statistics_and_information_are_told() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    fs::write(ground.path("file"), "x").unwrap();
    let space = rustix::fs::statvfs(ground.path("")).unwrap();
    assert!(space.f_blocks * space.f_frsize > 100 << 20 && space.f_bavail < space.f_blocks);
    let mut command = program();
    command.arg("stats").arg(ground.path("file"));
    let answer = run(command).ok();
    for word in ["read-write", "fsyncs", "flushes", "requests", "errors      none"] {
        assert!(answer.out.contains(word), "{word}: {answer:?}");
    }
    assert!(answer.out.lines().count() <= 10, "{answer:?}");
    assert!(answer.out.lines().skip(1).all(|line| line.len() <= 90), "{answer:?}");
    let mut command = program();
    command.args(["stats", "--all"]).arg(ground.path("file"));
    let answer = run(command).ok();
    for word in ["store", "flushes_issued", "requests", "Write"] {
        assert!(answer.out.contains(word), "{word}: {answer:?}");
    }
    ground.end();
}

#[test]
fn a_signal_unmounts_and_leaves_the_image_clean() {
    skip_if!(no_fuse());
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let place = Place::with_image("32MiB");
        let mount = place.mount("mount");
        fs::write(mount.path.join("file"), "written, not synced").unwrap();
        let pid = mount.pid();
        rustix::process::kill_process(pid, signal).unwrap();
        crate::support::wait_for_end(pid);
        drop(mount);
        let info = run_info(&place.image());
        assert_eq!(info["clean"], true);
        assert_eq!(info["log_batches"], 0);
        let again = place.mount("again");
        assert_eq!(fs::read(again.path.join("file")).unwrap(), b"written, not synced");
        again.unmount().ok();
    }
}

fn run_info(image: &Path) -> serde_json::Value {
    let mut command = program();
    command.arg("info").arg(image).arg("--json");
    serde_json::from_str(&run(command).ok().out).unwrap()
}

#[test]
fn a_mount_can_make_its_image() {
    skip_if!(no_fuse());
    let place = Place::new();
    let mount = Mount::new(&place.image(), &place.directory("mount"), &["--create", "32MiB"]);
    fs::write(mount.path.join("file"), "x").unwrap();
    mount.unmount().ok();
    assert_eq!(fs::metadata(place.image()).unwrap().len(), 32 << 20);
    place.check_clean();
}

#[test]
fn errors_have_the_numbers_that_programs_know() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    fs::create_dir(ground.path("dir")).unwrap();
    fs::write(ground.path("dir/file"), "").unwrap();
    assert_eq!(errno(fs::read(ground.path("none"))), Some(2));
    assert_eq!(errno(fs::create_dir(ground.path("dir"))), Some(17));
    assert_eq!(errno(fs::read(ground.path("dir/file/below"))), Some(20));
    assert_eq!(errno(fs::write(ground.path("dir"), "")), Some(21));
    assert_eq!(errno(fs::remove_dir(ground.path("dir"))), Some(39));
    assert_eq!(errno(fs::write(ground.path(&"n".repeat(256)), "")), Some(36));
    assert_eq!(errno(fs::hard_link(ground.path("dir"), ground.path("link"))), Some(1));
    assert_eq!(errno(fs::rename(ground.path("dir"), ground.path("dir/inside"))), Some(22));
    ground.end();
}
