//! The whole way of a request: program, kernel, daemon, filesystem and back, on a real mount.

mod support;

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use support::{ORDINARY_USER, Setup, TestMount, errno};

#[test]
#[ignore = "run as a process of its own by the other tests"]
fn daemon_process() {
    support::run_daemon();
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(31).wrapping_add(index >> 9).wrapping_add(seed)) as u8).collect()
}

#[test]
fn files_hold_what_is_written() {
    for setup in [Setup::default(), Setup { direct_io: true, ..Setup::default() }] {
        let Some(mount) = TestMount::with(setup) else { return };
        let path = mount.path().join("file");
        // Longer than one WRITE can be, and of no round length.
        let data = pattern((3 << 20) + 12345, 1);
        fs::write(&path, &data).unwrap();
        assert!(fs::read(&path).unwrap() == data);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&pattern(70_000, 2), 4095).unwrap();
        let mut back = vec![0; 70_002];
        file.read_exact_at(&mut back, 4094).unwrap();
        assert_eq!(back[0], data[4094]);
        assert!(back[1..70_001] == pattern(70_000, 2));
        assert_eq!(back[70_001], data[74_095]);
        assert_eq!(file.read_at(&mut back, 1 << 40).unwrap(), 0);
        file.set_len(10_000).unwrap();
        file.set_len(20_000).unwrap();
        file.read_exact_at(&mut back[..10_000], 10_000).unwrap();
        assert!(back[..10_000].iter().all(|&byte| byte == 0));
        assert_eq!(file.metadata().unwrap().len(), 20_000);
        file.sync_all().unwrap();
        drop(file);
        // O_TRUNC goes with OPEN.
        File::create(&path).unwrap().write_all(b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        assert!(mount.requests("Write") >= 5);
        mount.unmount();
    }
}

#[test]
fn appends_of_several_processes_do_not_overwrite_each_other() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("log");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for line in 0..200 {
                    file.write_all(format!("{thread} {line:04}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let text = fs::read_to_string(&path).unwrap();
    let lines: BTreeSet<&str> = text.lines().collect();
    assert_eq!((lines.len(), text.len()), (800, 800 * 7));
    mount.unmount();
}

#[test]
fn names_come_go_and_move() {
    let Some(mount) = TestMount::or_skip() else { return };
    let root = mount.path();
    let at = |name: &str| root.join(name);
    fs::create_dir(at("a")).unwrap();
    fs::create_dir(at("b")).unwrap();
    fs::write(at("a/one"), "1").unwrap();
    fs::write(at("b/two"), "2").unwrap();
    assert_eq!(errno(File::create_new(at("a/one"))), libc::EEXIST);
    assert_eq!(errno(fs::create_dir(at("a"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(at("a"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(at("none"))), libc::ENOENT);
    // Known not to exist, then made.
    assert!(!at("a/three").exists());
    fs::rename(at("b/two"), at("a/three")).unwrap();
    assert_eq!(fs::read(at("a/three")).unwrap(), b"2");
    assert!(!at("b/two").exists());
    fs::rename(at("a/one"), at("a/three")).unwrap();
    assert_eq!(fs::read(at("a/three")).unwrap(), b"1");

    fs::hard_link(at("a/three"), at("b/link")).unwrap();
    assert_eq!(fs::metadata(at("a/three")).unwrap().nlink(), 2);
    fs::remove_file(at("a/three")).unwrap();
    assert_eq!(fs::metadata(at("b/link")).unwrap().nlink(), 1);
    symlink("b/link", at("sym")).unwrap();
    assert_eq!(fs::read_link(at("sym")).unwrap(), Path::new("b/link"));
    assert_eq!(fs::read(at("sym")).unwrap(), b"1");
    fs::remove_dir(at("a")).unwrap();
    assert!(!at("a").exists());
    assert_eq!(fs::metadata(&root).unwrap().nlink(), 3);
    mount.unmount();
}

fn rename2(old: &Path, new: &Path, flags: u32) -> std::io::Result<()> {
    let c = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (old, new) = (c(old), c(new));
    // SAFETY: both pointers are NUL-terminated strings that outlive the call.
    match unsafe { libc::renameat2(libc::AT_FDCWD, old.as_ptr(), libc::AT_FDCWD, new.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn renames_can_refuse_to_replace_or_exchange() {
    let Some(mount) = TestMount::or_skip() else { return };
    let (x, y) = (mount.path().join("x"), mount.path().join("y"));
    fs::write(&x, "x").unwrap();
    fs::write(&y, "y").unwrap();
    assert_eq!(errno(rename2(&x, &y, libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename2(&x, &y, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((fs::read(&x).unwrap(), fs::read(&y).unwrap()), (b"y".to_vec(), b"x".to_vec()));
    assert_eq!(errno(rename2(&x, &y, libc::RENAME_WHITEOUT)), libc::EINVAL);
    rename2(&x, &mount.path().join("z"), libc::RENAME_NOREPLACE).unwrap();
    assert!(!x.exists());
    mount.unmount();
}

#[test]
fn large_directories_are_listed_whole() {
    let Some(mount) = TestMount::or_skip() else { return };
    let directory = mount.path().join("many");
    fs::create_dir(&directory).unwrap();
    let mut expected = BTreeSet::new();
    for index in 0..10_000 {
        // Of all lengths, and some not of this world's encodings.
        let mut name = format!("{index:05}").into_bytes();
        name.extend(std::iter::repeat_n(b'a' + (index % 26) as u8, index % 60));
        if index % 100 == 0 {
            name.extend([0xff, b'\n', b' ', 0x80]);
        }
        File::create_new(directory.join(OsStr::from_bytes(&name))).unwrap();
        expected.insert(name);
    }
    fs::create_dir(directory.join("d")).unwrap();
    expected.insert(b"d".to_vec());
    for _ in 0..2 {
        let mut listed = Vec::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.file_type().unwrap().is_dir(), entry.file_name() == "d");
            listed.push(entry.file_name().into_vec());
        }
        assert_eq!(listed.len(), expected.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    }
    // `ls -l` gets attributes along with the names.
    let lookups = mount.requests("Lookup");
    let listing = Command::new("ls").arg("-lU").arg(&directory).output().unwrap();
    assert!(listing.status.success());
    assert!(listing.stdout.iter().filter(|&&byte| byte == b'\n').count() > 10_000);
    assert!(mount.requests("Lookup") - lookups < 100);
    // Removing while listing misses nothing.
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "d" {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    mount.unmount();
}

#[test]
fn an_open_file_outlives_its_name() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("gone");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&pattern(100_000, 3)).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert!(back[..100_000] == pattern(100_000, 3) && &back[100_000..] == b"more");
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"another");
    // A working directory that was removed.
    let directory = mount.path().join("dir");
    fs::create_dir(&directory).unwrap();
    let open = File::open(&directory).unwrap();
    fs::remove_dir(&directory).unwrap();
    open.sync_all().unwrap();
    drop(open);
    mount.unmount();
}

#[test]
fn mapped_files_and_written_files_are_the_same() {
    for setup in [Setup::default(), Setup { direct_io: true, ..Setup::default() }] {
        let Some(mount) = TestMount::with(setup) else { return };
        let path = mount.path().join("mapped");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let len = 1 << 20;
        file.write_all_at(&pattern(len, 4), 0).unwrap();
        // SAFETY: a new mapping, of a descriptor that is open.
        let map = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: the mapping has `len` bytes, and only this thread touches it.
        let memory = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), len) };
        assert!(memory == pattern(len, 4));
        memory[5000] = 42;
        memory[len - 1] = 43;
        // SAFETY: the range is that of the mapping.
        assert_eq!(unsafe { libc::msync(map, len, libc::MS_SYNC) }, 0);
        let mut back = [0];
        file.read_exact_at(&mut back, 5000).unwrap();
        assert_eq!(back, [42]);
        // SAFETY: the mapping is not used any more.
        assert_eq!(unsafe { libc::munmap(map, len) }, 0);
        drop(file);
        let back = fs::read(&path).unwrap();
        assert_eq!((back[5000], back[len - 1], back[0]), (42, 43, pattern(1, 4)[0]));
        mount.unmount();
    }
}

#[test]
fn synchronous_writes_are_synced() {
    for direct_io in [false, true] {
        let Some(mount) = TestMount::with(Setup { direct_io, ..Setup::default() }) else { return };
        let path = mount.path().join("synced");
        let mut options = OpenOptions::new();
        options.write(true).create(true).custom_flags(libc::O_DSYNC);
        let mut file = options.open(&path).unwrap();
        let before = mount.requests("FSync");
        file.write_all(b"data").unwrap();
        // For cached files the kernel asks for it; for direct ones the daemon does it with the write.
        assert_eq!(mount.requests("FSync") - before, u64::from(!direct_io));
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        File::open(mount.path()).unwrap().sync_all().unwrap();
        // Again and again: the kernel must not have concluded that there is nothing to do.
        file.sync_all().unwrap();
        assert_eq!(mount.requests("FSync") - before, u64::from(!direct_io) + 3);
        assert_eq!(mount.requests("FSyncDir"), 1);
        drop(file);
        mount.unmount();
    }
}

#[test]
fn attributes_are_kept() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("file");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
    file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
    let found = fs::metadata(&path).unwrap();
    // A change of owner takes setuid away.
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o751, 1234, 5678));
    assert_eq!((found.mtime(), found.mtime_nsec()), (1_000_000_007, 123_456_789));
    assert!(found.created().unwrap() <= std::time::SystemTime::now());
    assert!(found.created().unwrap() > std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30));
    drop(file);
    fs::write(&path, pattern(100_000, 5)).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert!(found.blocks() * 512 >= 100_000, "space is counted before it is written back");
    assert!(found.mtime() > 1_000_000_007);
    let fifo = mount.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let device = mount.path().join("null");
    assert!(Command::new("mknod").arg(&device).args(["c", "1", "3"]).status().unwrap().success());
    assert_eq!(fs::metadata(&device).unwrap().rdev(), libc::makedev(1, 3));
    fs::write(&device, "goes to the device").unwrap();
    assert_eq!(fs::metadata(&device).unwrap().len(), 0);
    mount.unmount();
}

/// Runs a shell command as an ordinary user.
fn as_ordinary_user(script: &str) -> std::process::Output {
    use std::os::unix::process::CommandExt;
    Command::new("sh").arg("-c").arg(script).uid(ORDINARY_USER).gid(ORDINARY_USER).output().unwrap()
}

#[test]
fn a_write_by_another_user_takes_setuid_away_at_once() {
    let Some(mount) = TestMount::or_skip() else { return };
    fs::set_permissions(mount.path().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = mount.path().join("tool");
    for script in ["echo more >>", "echo anew >"] {
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
        let output = as_ordinary_user(&format!("{script} {}", path.display()));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{script}");
    }
    // And permissions are enforced.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_ordinary_user(&format!("cat {}", path.display())).status.success());
    mount.unmount();
}

fn setxattr(path: &Path, name: &str, value: &[u8], flags: i32) -> std::io::Result<()> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    // SAFETY: the strings are NUL-terminated, the value has the length that is told.
    match unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn getxattr(path: &Path, name: &str, room: usize) -> std::io::Result<Vec<u8>> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    let mut value = vec![0u8; room];
    // SAFETY: the strings are NUL-terminated, the buffer has the length that is told.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), room) };
    if len < 0 {
        return Err(std::io::Error::last_os_error());
    }
    value.truncate(len as usize);
    Ok(value)
}

fn listxattr(path: &Path) -> Vec<String> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut names = vec![0u8; 65536];
    // SAFETY: the string is NUL-terminated, the buffer has the length that is told.
    let len = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    assert!(len >= 0);
    let names = names[..len as usize].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn extended_attributes_are_kept() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("file");
    fs::write(&path, "x").unwrap();
    assert_eq!(errno(getxattr(&path, "user.a", 100)), libc::ENODATA);
    assert_eq!(errno(setxattr(&path, "user.a", b"", libc::XATTR_REPLACE)), libc::ENODATA);
    setxattr(&path, "user.a", b"value", libc::XATTR_CREATE).unwrap();
    assert_eq!(errno(setxattr(&path, "user.a", b"", libc::XATTR_CREATE)), libc::EEXIST);
    let long = pattern(3000, 6);
    setxattr(&path, "user.b/with slash", &long, 0).unwrap();
    setxattr(&path, "trusted.t", b"", 0).unwrap();
    assert_eq!(getxattr(&path, "user.a", 100).unwrap(), b"value");
    assert_eq!(getxattr(&path, "user.b/with slash", 3000).unwrap(), long);
    assert_eq!(errno(getxattr(&path, "user.b/with slash", 2999)), libc::ERANGE);
    assert_eq!(getxattr(&path, "trusted.t", 10).unwrap(), b"");
    assert_eq!(listxattr(&path), ["trusted.t", "user.a", "user.b/with slash"]);
    assert_eq!(errno(setxattr(&path, "system.posix_acl_access", &[2, 0, 0, 0], 0)), libc::EOPNOTSUPP);
    let (c_path, c_name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), c"user.a");
    // SAFETY: both strings are NUL-terminated.
    assert_eq!(unsafe { libc::removexattr(c_path.as_ptr(), c_name.as_ptr()) }, 0);
    assert_eq!(errno(getxattr(&path, "user.a", 100)), libc::ENODATA);
    mount.unmount();
}

#[test]
fn holes_are_found_and_copies_made() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("sparse");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&pattern(65536, 7), 1 << 20).unwrap();
    file.set_len(4 << 20).unwrap();
    file.sync_all().unwrap();
    let seek = |offset: i64, whence: i32| {
        // SAFETY: takes no memory.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
        if found < 0 { Err(std::io::Error::last_os_error()) } else { Ok(found) }
    };
    let data = seek(0, libc::SEEK_DATA).unwrap();
    assert!(data <= 1 << 20);
    let hole = seek(1 << 20, libc::SEEK_HOLE).unwrap();
    assert!(((1 << 20) + 65536..=4 << 20).contains(&hole));
    assert_eq!(errno(seek(5 << 20, libc::SEEK_DATA)), libc::ENXIO);
    // copy_file_range, which falls back to reading and writing.
    let copy = mount.path().join("copy");
    assert_eq!(fs::copy(&path, &copy).unwrap(), 4 << 20);
    assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap());
    drop(file);
    mount.unmount();
}

#[test]
fn many_threads_at_once() {
    let Some(mount) = TestMount::or_skip() else { return };
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let root = mount.path();
            std::thread::spawn(move || {
                let mine = root.join(format!("thread{thread}"));
                fs::create_dir(&mine).unwrap();
                for round in 0..60 {
                    let temporary = mine.join("temporary");
                    let mut file = File::create(&temporary).unwrap();
                    let data = pattern(1000 * (round + 1), thread);
                    file.write_all(&data).unwrap();
                    file.sync_all().unwrap();
                    drop(file);
                    fs::rename(&temporary, mine.join("final")).unwrap();
                    assert!(fs::read(mine.join("final")).unwrap() == data);
                    File::create(root.join(format!("shared{round}"))).unwrap();
                    let _ = fs::remove_file(root.join(format!("shared{}", round / 2)));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    mount.unmount();
}

#[test]
fn the_daemon_answers_questions() {
    let Some(mount) = TestMount::or_skip() else { return };
    use syncline_fuse::control::{self, ControlError};
    let stats = control::stats(&mount.path()).unwrap();
    assert_eq!(stats, format!("{{\"long\":\"{}\"}}", "x".repeat(100_000)));
    fs::write(mount.path().join("file"), "x").unwrap();
    assert!(control::text(&mount.path().join("file"), "requests").unwrap().contains("\"Write\":1"));
    assert!(matches!(control::text(&mount.path(), "nothing"), Err(ControlError::Unknown { .. })));
    assert!(matches!(control::text(&mount.path(), "panics"), Err(ControlError::Failed { .. })));
    control::sync(&mount.path()).unwrap();
    // Others get what they expect of a foreign command.
    let file = File::open(mount.path().join("file")).unwrap();
    let mut number = 0i32;
    // SAFETY: the command writes one int.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCGPGRP, &raw mut number) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    drop(file);
    mount.unmount();
}

#[test]
fn mounts_are_listed_refused_and_removed() {
    let Some(mount) = TestMount::or_skip() else { return };
    let entry =
        syncline_fuse::mounts().unwrap().into_iter().find(|entry| entry.mount_point == mount.path()).unwrap();
    assert_eq!(entry.filesystem_type, "fuse.syncline");
    assert_eq!(entry.source, "/images/test image,1.img");
    // A second daemon for the same place.
    let (mut second, mut output) = support::start_daemon(&mount.path(), Setup::default());
    let refusal = support::wait_until_ready(&mut output).unwrap_err();
    assert!(refusal.contains("already mounted"), "{refusal}");
    second.wait().unwrap();
    // Files in use.
    let open = File::create(mount.path().join("open")).unwrap();
    assert!(!Command::new("umount").arg(mount.path()).output().unwrap().status.success());
    drop(open);
    mount.unmount();
}

#[test]
fn a_daemon_that_ends_leaves_its_successor_alone() {
    let Some(mut mount) = TestMount::or_skip() else { return };
    let path = mount.path();
    for _ in 0..3 {
        fs::write(path.join("file"), pattern(1 << 20, 8)).unwrap();
    }
    support::unmount(&path);
    let (mut second, mut output) = support::start_daemon(&path, Setup::default());
    support::wait_until_ready(&mut output).unwrap();
    mount.wait_for_the_end();
    fs::write(path.join("anew"), "x").unwrap();
    assert!(!path.join("file").exists() && path.join("anew").exists());
    support::unmount(&path);
    assert!(second.wait().unwrap().success());
}

#[test]
fn a_killed_daemon_leaves_errors_not_hangs() {
    let Some(mut mount) = TestMount::or_skip() else { return };
    let path = mount.path();
    fs::write(path.join("file"), "x").unwrap();
    mount.kill_daemon();
    assert_eq!(errno(fs::read_dir(&path)), libc::ENOTCONN);
    let (mut second, mut output) = support::start_daemon(&path, Setup::default());
    let refusal = support::wait_until_ready(&mut output).unwrap_err();
    assert!(refusal.contains("daemon has gone"), "{refusal}");
    second.wait().unwrap();
}

#[test]
fn ordinary_users_mount_through_fusermount() {
    if let Some(reason) = support::reason_not_to_mount_as_ordinary_user() {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(mut mount) = TestMount::with(Setup { user: Some(ORDINARY_USER), ..Setup::default() }) else {
        return;
    };
    let entry =
        syncline_fuse::mounts().unwrap().into_iter().find(|entry| entry.mount_point == mount.path()).unwrap();
    assert_eq!(entry.filesystem_type, "fuse.syncline");
    assert_eq!(entry.source, "/images/test image,1.img");
    let path = mount.path();
    let script = format!(
        "set -e; cd {0}; mkdir d; echo hello > d/f; mv d/f d/g; cat d/g; ls d; rm d/g; rmdir d; cd /; fusermount3 -u {0}",
        path.display()
    );
    let output = as_ordinary_user(&script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\ng\n", "{output:?}");
    assert!(output.status.success());
    mount.wait_for_the_end();
}
