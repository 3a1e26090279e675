//! Limits of names, symlink targets, sizes, times and xattrs; and many at once.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{as_nobody, no_fuse, not_root, tool};
use rustix::fs::{
    AtFlags, CWD, OFlags, Timespec, Timestamps, XattrFlags, getxattr, listxattr, removexattr, setxattr,
    utimensat,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;

#[test]
fn names_are_any_255_bytes() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let bytes: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    let names: BTreeSet<Vec<u8>> = (0..200usize)
        .map(|turn| (0..255).map(|at| bytes[(at * 7 + turn * 31) % bytes.len()]).collect())
        .collect();
    for name in &names {
        fs::write(ground.path("").join(OsStr::from_bytes(name)), name).unwrap();
    }
    for _ in 0..2 {
        let listed =
            fs::read_dir(ground.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_vec());
        assert_eq!(listed.collect::<BTreeSet<_>>(), names);
        for name in &names {
            assert_eq!(fs::read(ground.path("").join(OsStr::from_bytes(name))).unwrap(), *name);
        }
        ground.remount();
    }
    ground.end();
}

#[test]
fn targets_of_symbolic_links_have_up_to_4095_bytes() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let target = |len: usize| "d/".repeat(len / 2) + if len % 2 == 1 { "x" } else { "" };
    let lens = [1, 59, 60, 2047, 2048, 2049, 4094, 4095];
    for len in lens {
        symlink(target(len), ground.path(&len.to_string())).unwrap();
    }
    assert_eq!(errno(symlink("x".repeat(4096), ground.path("4096"))), Some(36));
    for _ in 0..2 {
        for len in lens {
            let path = ground.path(&len.to_string());
            assert_eq!(fs::read_link(&path).unwrap().to_str(), Some(&*target(len)));
            assert_eq!(fs::symlink_metadata(&path).unwrap().len(), len as u64);
        }
        ground.remount();
    }
    ground.end();
}

#[test]
fn a_file_may_be_as_large_as_an_offset() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let greatest = i64::MAX as u64;
    let path = ground.path("sparse");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.write_all_at(b"last", greatest - 4).unwrap();
    file.write_all_at(b"middle", greatest / 2).unwrap();
    assert_eq!(errno(file.write_all_at(b"beyond", greatest - 1)), Some(22));
    file.sync_all().unwrap();
    drop(file);
    for _ in 0..2 {
        let file = File::open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), greatest);
        assert!(file.metadata().unwrap().blocks() < 1000);
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, greatest / 2).unwrap();
        assert_eq!(&bytes, b"middle");
        let mut rest = [0; 4];
        file.read_exact_at(&mut rest, greatest - 4).unwrap();
        assert_eq!(&rest, b"last");
        drop(file);
        ground.remount();
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(3).unwrap();
    file.set_len(greatest).unwrap();
    drop(file);
    let mut bytes = [9; 6];
    File::open(&path).unwrap().read_exact_at(&mut bytes, greatest - 6).unwrap();
    assert_eq!(bytes, [0; 6]);
    ground.end();
}

#[test]
fn times_reach_far_in_both_directions() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    // Before 1970, before 1902, after 2038, after 2106, after 2446 (where ext4 ends), and far away.
    let seconds =
        [-1, -2_208_988_800, -30_000_000_000, 2_147_483_648, 4_294_967_296, 16_000_000_000, 1 << 40];
    for (index, &second) in seconds.iter().enumerate() {
        let path = ground.path(&index.to_string());
        fs::write(&path, "x").unwrap();
        let time = |nanoseconds| Timespec { tv_sec: second, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time(1), last_modification: time(999_999_999) };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    }
    for _ in 0..2 {
        for (index, &second) in seconds.iter().enumerate() {
            let found = fs::metadata(ground.path(&index.to_string())).unwrap();
            assert_eq!((found.mtime(), found.mtime_nsec()), (second, 999_999_999));
            assert_eq!((found.atime(), found.atime_nsec()), (second, 1));
        }
        ground.remount();
    }
    ground.end();
}

#[test]
fn thousands_of_extended_attributes_and_the_longest() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, "x").unwrap();
    let name = |index: usize| format!("user.attribute number {index:05}");
    let value = |index: usize| format!("{index}").repeat(index % 40 + 1);
    // A listing is limited to 64 KiB.
    let count = 65536 / (name(0).len() + 1);
    for index in 0..count {
        setxattr(&path, name(index), value(index).as_bytes(), XattrFlags::CREATE).unwrap();
    }
    assert_eq!(
        setxattr(&path, "user.one more than can be listed", b"", XattrFlags::CREATE),
        Err(rustix::io::Errno::NOSPC)
    );
    let long: Vec<u8> = (0..65536u32).map(|index| (index % 253) as u8).collect();
    setxattr(&path, name(0), &long, XattrFlags::REPLACE).unwrap();
    assert!(setxattr(&path, name(0), &vec![0; 65537], XattrFlags::REPLACE).is_err());
    let longest = format!("user.{}", "n".repeat(250));
    fs::write(ground.path("other"), "x").unwrap();
    setxattr(ground.path("other"), &*longest, &long, XattrFlags::CREATE).unwrap();
    for round in 0..2 {
        let mut buffer = vec![0; 65536];
        let listed = listxattr(&path, &mut buffer[..]).unwrap();
        assert_eq!(buffer[..listed].iter().filter(|&&byte| byte == 0).count(), count - round);
        for index in round..count {
            let len = getxattr(&path, name(index), &mut buffer[..]).unwrap();
            let expected = if index == 0 { long.clone() } else { value(index).into_bytes() };
            assert_eq!(buffer[..len], expected);
        }
        let len = getxattr(ground.path("other"), &*longest, &mut buffer[..]).unwrap();
        assert_eq!(buffer[..len], long);
        if round == 0 {
            removexattr(&path, name(0)).unwrap();
            ground.remount();
        }
    }
    ground.end();
}

#[test]
fn namespaces_of_extended_attributes_are_who_they_are_for() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    skip_if!(tool("getfattr", &["--version".as_ref()]).is_none().then_some("getfattr is not installed"));
    let mut ground = Ground::new();
    fs::set_permissions(ground.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = ground.path("file");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    for name in ["user.x", "trusted.x", "security.x"] {
        setxattr(&path, name, b"value", XattrFlags::empty()).unwrap();
    }
    assert_eq!(setxattr(&path, "system.x", b"", XattrFlags::empty()), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(setxattr(&path, "other.x", b"", XattrFlags::empty()), Err(rustix::io::Errno::OPNOTSUPP));
    ground.remount();
    let mut buffer = [0; 256];
    let len = listxattr(&path, &mut buffer[..]).unwrap();
    assert_eq!(buffer[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()).count(), 3);
    let mut list = Command::new("getfattr");
    list.args(["-d", "-m", "-", "--absolute-names"]).arg(&path);
    let seen = String::from_utf8(as_nobody(list).output().unwrap().stdout).unwrap();
    assert!(seen.contains("user.x") && seen.contains("security.x") && !seen.contains("trusted"), "{seen}");
    for (name, may) in [("user.y", true), ("trusted.y", false), ("security.y", false)] {
        let mut set = Command::new("setfattr");
        set.args(["-n", name, "-v", "value"]).arg(&path);
        assert_eq!(as_nobody(set).output().unwrap().status.success(), may, "{name}");
    }
    ground.end();
}

#[test]
fn many_writers_append_whole_records() {
    skip_if!(no_fuse());
    let none = OFlags::empty();
    for (flags, mount) in
        [(none, "rw"), (OFlags::SYNC, "rw"), (OFlags::DSYNC, "rw"), (OFlags::DSYNC, "direct_io=synced")]
    {
        let ground = Ground::with(&["-o", mount]);
        let path = ground.path("log");
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let path = &path;
                scope.spawn(move || {
                    let mut options = OpenOptions::new();
                    let mut log = options
                        .append(true)
                        .create(true)
                        .custom_flags(flags.bits() as i32)
                        .open(path)
                        .unwrap();
                    for round in 0..50usize {
                        log.write_all(&vec![b'a' + writer; 100 + round * 37]).unwrap();
                        log.write_all(b"\n").unwrap();
                    }
                });
            }
        });
        let contents = fs::read(&path).unwrap();
        let bytes = |writer: u8| contents.iter().filter(|&&byte| byte == b'a' + writer).count();
        assert!((0..4).all(|writer| bytes(writer) == (0..50).map(|round| 100 + round * 37).sum::<usize>()));
        assert_eq!(contents.iter().filter(|&&byte| byte == b'\n').count(), 200);
        ground.end();
    }
}

#[test]
fn locks_are_seen_by_others() {
    skip_if!(no_fuse());
    skip_if!(tool("flock", &["--version".as_ref()]).is_none().then_some("flock is not installed"));
    let ground = Ground::new();
    let path = ground.path("lock");
    let file = File::create(&path).unwrap();
    file.lock().unwrap();
    let others = || {
        let mut command = Command::new("flock");
        command.args(["--nonblock", "--exclusive"]).arg(&path).arg("true");
        command.status().unwrap().success()
    };
    assert!(!others());
    file.unlock().unwrap();
    assert!(others());
    drop(file);
    ground.end();
}

#[test]
fn data_moves_by_splice_and_sendfile() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let contents: Vec<u8> = (0..700_001u32).map(|index| (index % 251) as u8).collect();
    fs::write(ground.path("source"), &contents).unwrap();
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).open(ground.path(name)).unwrap()
    };
    let (source, sent, spliced) = (open("source"), open("sent"), open("spliced"));
    while rustix::fs::sendfile(&sent, &source, None, 1 << 20).unwrap() > 0 {}
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let none = rustix::pipe::SpliceFlags::empty();
    let mut offset = 0;
    loop {
        let mut moved = rustix::pipe::splice(&source, Some(&mut offset), &writer, None, 65536, none).unwrap();
        if moved == 0 {
            break;
        }
        while moved > 0 {
            moved -= rustix::pipe::splice(&reader, None, &spliced, None, moved, none).unwrap();
        }
    }
    spliced.sync_all().unwrap();
    drop((source, sent, spliced));
    assert!(fs::read(ground.path("sent")).unwrap() == contents);
    assert!(fs::read(ground.path("spliced")).unwrap() == contents);
    ground.end();
}

#[test]
fn direct_writers_of_one_file_do_not_disturb_each_other() {
    const BLOCK: usize = 4096;
    skip_if!(no_fuse());
    for mount in ["direct_io=never", "direct_io=synced"] {
        let mut ground = Ground::with(&["-o", mount]);
        let path = ground.path("file");
        let direct = OFlags::DIRECT.bits() as i32;
        File::create(&path).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4usize {
                let path = &path;
                scope.spawn(move || {
                    let mut memory = vec![b'a' + writer as u8; 2 * BLOCK];
                    let start = memory.as_ptr().align_offset(BLOCK);
                    let block = &mut memory[start..start + BLOCK];
                    let file = OpenOptions::new().write(true).custom_flags(direct).open(path).unwrap();
                    for round in 0..50usize {
                        file.write_all_at(block, ((round * 4 + writer) * BLOCK) as u64).unwrap();
                    }
                    file.sync_data().unwrap();
                });
            }
        });
        for _ in 0..2 {
            let contents = fs::read(&path).unwrap();
            assert_eq!(contents.len(), 200 * BLOCK);
            for (index, block) in contents.chunks(BLOCK).enumerate() {
                assert!(block.iter().all(|&byte| byte == b'a' + (index % 4) as u8), "block {index}");
            }
            ground.remount();
        }
        ground.end();
    }
}
