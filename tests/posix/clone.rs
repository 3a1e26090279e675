//! `syncline clone`: the copy is what `cp -a` would make, shares all data, and is durable.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, as_nobody, is_root, no_fuse, not_root, program, run, tool};
use rustix::fs::{
    CWD, FileType, IFlags, Mode, XattrFlags, ioctl_getflags, ioctl_setflags, mknodat, setxattr,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

fn clone(from: &Path, to: &Path) -> Answer {
    let mut command = program();
    command.arg("clone").arg(from).arg(to);
    run(command)
}

fn set_times(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    let times = fs::FileTimes::new().set_modified(time).set_accessed(time);
    File::open(path).unwrap().set_times(times).unwrap();
}

/// Makes a tree with all kinds of content.
fn plant(root: &Path) {
    fs::create_dir_all(root.join("deep/er/still")).unwrap();
    fs::write(root.join("small"), "in its inode item").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    let large: Vec<u8> = (0..3_000_001u32).flat_map(|index| [(index % 251) as u8]).collect();
    fs::write(root.join("deep/large"), large).unwrap();
    fs::hard_link(root.join("deep/large"), root.join("deep/er/again")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 10_000], 5 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    symlink("nowhere/at/all", root.join("deep/link")).unwrap();
    mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    setxattr(root.join("small"), "user.short", b"value", XattrFlags::CREATE).unwrap();
    setxattr(root.join("deep/large"), "user.long", &[3; 20_000], XattrFlags::CREATE).unwrap();
    setxattr(root.join("deep"), "user.of-a-directory", b"", XattrFlags::CREATE).unwrap();
    // Readable by user 12345, as set by `setfacl -m u:12345:r`.
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 12345), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    setxattr(root.join("small"), "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    setxattr(root.join("deep/er"), "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(root.join("deep/er/still"), fs::Permissions::from_mode(0o1777)).unwrap();
    let flags = |path: &str, flags| ioctl_setflags(File::open(root.join(path)).unwrap(), flags).unwrap();
    flags("sparse", IFlags::NOATIME | IFlags::NODUMP);
    if is_root() {
        mknodat(CWD, root.join("device"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3))
            .unwrap();
        std::os::unix::fs::lchown(root.join("deep/link"), Some(1234), Some(4321)).unwrap();
        std::os::unix::fs::chown(root.join("empty"), Some(1234), Some(4321)).unwrap();
        fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o4751)).unwrap();
    }
    for (index, path) in ["small", "deep/large", "deep/er/still", "deep/er", "deep", ""].iter().enumerate() {
        set_times(&root.join(path), 1_000_000_000 + index as u64);
    }
    if is_root() {
        flags("deep/large", IFlags::IMMUTABLE);
        flags("deep", IFlags::IMMUTABLE);
    }
}

/// Everything that must be the same in the copy, by path.
fn described(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut firsts: BTreeMap<u64, String> = BTreeMap::new();
    for entry in walk(root) {
        let metadata = entry.symlink_metadata().unwrap();
        let name = entry.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let first =
            if metadata.is_dir() { &name } else { firsts.entry(metadata.ino()).or_insert(name.clone()) };
        let mut text = format!(
            "{:o} {}:{} {} {} {}.{:09} blocks {} links {} first {first}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.rdev(),
            if metadata.is_dir() { 0 } else { metadata.len() },
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.blocks(),
            metadata.nlink(),
        );
        if metadata.is_symlink() {
            text += &format!(" to {:?}", fs::read_link(&entry).unwrap());
        }
        let mut room = vec![0; 65536];
        let len = rustix::fs::llistxattr(&entry, &mut room[..]).unwrap();
        let mut names: Vec<Vec<u8>> = room[..len].split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
        names.sort();
        for name in names.iter().filter(|name| !name.is_empty()) {
            let len = rustix::fs::lgetxattr(&entry, name.as_slice(), &mut room[..]).unwrap();
            text += &format!(" {}={:?}", String::from_utf8_lossy(name), crc(&room[..len]));
        }
        if metadata.is_file() || metadata.is_dir() {
            text += &format!(" flags {:?}", ioctl_getflags(File::open(&entry).unwrap()).unwrap());
        }
        if metadata.is_file() {
            text += &format!(" contents {:?}", crc(&fs::read(&entry).unwrap()));
        }
        found.insert(name, text);
    }
    found
}

fn crc(bytes: &[u8]) -> u32 {
    syncline_format::crc(bytes)
}

fn walk(root: &Path) -> Vec<std::path::PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut at = 0;
    while at < found.len() {
        if found[at].symlink_metadata().unwrap().is_dir() {
            found.extend(fs::read_dir(&found[at]).unwrap().map(|entry| entry.unwrap().path()));
        }
        at += 1;
    }
    found
}

/// Clears flags so that the tree can be removed.
fn clear_flags(root: &Path) {
    for path in walk(root).into_iter().filter(|path| !path.is_symlink() && (path.is_file() || path.is_dir()))
    {
        ioctl_setflags(File::open(path).unwrap(), IFlags::empty()).unwrap();
    }
}

#[test]
fn a_clone_is_the_tree_again_shares_its_data_and_survives_a_crash() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let (from, to) = (ground.path("tree"), ground.path("copy"));
    plant(&from);
    File::open(from.join("deep/large")).unwrap().sync_all().unwrap();
    let expected = described(&from);
    let data =
        |ground: &Ground| ground.mount.as_ref().unwrap().stats()["store"]["data_bytes"].as_u64().unwrap();
    syncline_fuse::control::sync(&ground.path("")).unwrap();
    let before = data(&ground);
    let answer = clone(&from, &to).ok();
    assert!(answer.out.contains("4 files") && answer.out.contains("1 hard link,"), "{answer:?}");
    assert_eq!(described(&to), expected);
    assert_eq!(data(&ground), before, "no data was written");
    // The result of `cp -a` is the same, except for flags, which it does not copy.
    let cp = ground.path("cp");
    if tool("cp", &["-a".as_ref(), from.as_ref(), cp.as_ref()]).is_some() {
        // The room that a small file takes is known only once it has been logged.
        syncline_fuse::control::sync(&ground.path("")).unwrap();
        let without = |all: BTreeMap<String, String>| -> BTreeMap<String, String> {
            let cut = |text: String| {
                let (head, rest) =
                    text.split_once(" flags ").map_or((&*text, ""), |(head, rest)| (head, rest));
                format!("{head}{}", rest.split_once(" contents").map_or("", |(_, contents)| contents))
            };
            all.into_iter().map(|(name, text)| (name, cut(text))).collect()
        };
        assert_eq!(without(described(&cp)), without(described(&to)));
    }
    // Original and copy change independently.
    ground.mount.as_mut().unwrap().kill();
    let path = ground.mount.take().unwrap().path.clone();
    ground.mount = Some(super::Mount::new(&ground.place.image(), &path, &[]));
    assert_eq!(described(&to), expected);
    clear_flags(&to);
    fs::write(to.join("deep/large"), "changed").unwrap();
    clear_flags(&from);
    assert_eq!(fs::read(from.join("deep/er/again")).unwrap().len(), 3_000_001);
    fs::remove_dir_all(&from).unwrap();
    ground.end();
}

#[test]
fn one_file_is_cloned_and_what_cannot_be_is_refused() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let file = ground.path("file");
    fs::write(&file, vec![9; 100_000]).unwrap();
    clone(&file, &ground.path("copy")).ok();
    assert_eq!(fs::read(ground.path("copy")).unwrap(), vec![9; 100_000]);
    symlink("file", ground.path("link")).unwrap();
    clone(&ground.path("link"), &ground.path("link copy")).ok();
    assert_eq!(fs::read_link(ground.path("link copy")).unwrap(), Path::new("file"));
    fs::create_dir_all(ground.path("tree/below")).unwrap();
    clone(&file, &ground.path("copy")).fails(2, &["exists already", "choose another name"]);
    clone(&ground.path("tree"), &ground.path("tree/below/copy")).fails(2, &["lies inside"]);
    clone(&ground.path("tree"), &ground.place.path().join("outside"))
        .fails(2, &["another filesystem", "cp -a"]);
    clone(&ground.path("none"), &ground.path("x")).fails(6, &["No such file"]);
    clone(&ground.path("tree"), &ground.path("none/x")).fails(1, &["none"]);
    let elsewhere = tempfile::tempdir().unwrap();
    clone(elsewhere.path(), &elsewhere.path().join("x")).fails(6, &["not on a mounted Syncline filesystem"]);
    assert!(!ground.path("x").exists() && !ground.path("tree/below/copy").exists());
    ground.end();
}

/// A failed clone of a file leaves nothing.
#[test]
fn a_clone_that_finds_no_room_leaves_nothing() {
    skip_if!(no_fuse());
    let ground = Ground::with(&[]);
    fs::write(ground.path("file"), vec![7; 1 << 20]).unwrap();
    fs::File::open(ground.path("file")).unwrap().sync_all().unwrap();
    let mut filler = fs::File::create(ground.path("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[1; 1 << 20]).is_ok() {}
    while std::io::Write::write_all(&mut filler, &[1; 64 << 10]).is_ok() {}
    while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
    drop(filler);
    let copy = ground.path("copy");
    let answer = clone(&ground.path("file"), &copy).fails(10, &["nothing is left of the copy"]);
    assert!(!copy.exists(), "{answer:?}");
    fs::remove_file(ground.path("filler")).unwrap();
    ground.end();
}

/// A failed clone reports the files that it leaves.
#[test]
fn a_clone_that_fails_says_what_is_left() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = Ground::with(&["-o", "allow_other"]);
    fs::create_dir(ground.path("tree")).unwrap();
    fs::write(ground.path("tree/a"), "for all").unwrap();
    fs::write(ground.path("tree/b"), "for root").unwrap();
    fs::set_permissions(ground.path("tree/b"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(ground.path("theirs")).unwrap();
    fs::set_permissions(ground.path("theirs"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(ground.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = ground.place.copy_of_program("syncline");
    let by_nobody = |from: &str, to: &str| {
        let mut command = Command::new(&copy);
        command.arg("clone").arg(ground.path(from)).arg(ground.path(to));
        run(as_nobody(command))
    };
    by_nobody("tree", "theirs/copy").fails(9, &["tree/b", "left unfinished", "rm -r"]);
    assert!(ground.path("theirs/copy").exists());
    by_nobody("tree/b", "theirs/b").fails(9, &["nothing is left"]);
    // Their copy of another user's file belongs to them.
    let answer = by_nobody("tree/a", "theirs/a").ok();
    assert!(answer.out.contains("left out"), "{answer:?}");
    assert_eq!(ground.path("theirs/a").metadata().unwrap().uid(), crate::support::NOBODY);
    // A copy of a file that its owner may not write to has the attributes all the same.
    let own = ground.path("theirs/own");
    fs::write(&own, "own").unwrap();
    setxattr(&own, "user.colour", b"blue", XattrFlags::empty()).unwrap();
    std::os::unix::fs::chown(&own, Some(crate::support::NOBODY), Some(crate::support::NOBODY)).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o444)).unwrap();
    let answer = by_nobody("theirs/own", "theirs/again").ok();
    assert!(!answer.out.contains("left out"), "{answer:?}");
    ground.end();
}

/// Programs replace and remove files while their tree is copied.
#[test]
fn a_tree_that_changes_meanwhile_is_cloned() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let (from, to) = (ground.path("tree"), ground.path("copy"));
    fs::create_dir(&from).unwrap();
    let name = |index: u32| format!("{index:04}");
    for index in 0..2000 {
        fs::write(from.join(name(index)), "contents").unwrap();
    }
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The names up to 1000 are replaced again and again, the others are removed.
            for index in (0..1000).cycle() {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                let new = from.join("new");
                fs::write(&new, "contents").unwrap();
                fs::rename(&new, from.join(name(index))).unwrap();
                let _ = fs::remove_file(from.join(name(1000 + index)));
            }
        });
        let answer = clone(&from, &to);
        has_ended.store(true, Ordering::Relaxed);
        answer.ok();
    });
    for index in 0..1000 {
        assert_eq!(fs::read_to_string(to.join(name(index))).unwrap(), "contents");
    }
    let beyond = fs::read_dir(&to).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    assert!(beyond.into_iter().all(|contents| contents == "contents"));
    ground.end();
}

/// Of two clones to one name, one is refused, and its message tells nobody to remove the other.
#[test]
fn two_clones_to_one_name_leave_one_whole_copy() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let (from, to) = (ground.path("tree"), ground.path("copy"));
    fs::create_dir(&from).unwrap();
    for index in 0..300 {
        fs::write(from.join(format!("{index}")), "contents").unwrap();
    }
    for _ in 0..6 {
        let other = std::thread::spawn({
            let (from, to) = (from.clone(), to.clone());
            move || clone(&from, &to)
        });
        let answers = [clone(&from, &to), other.join().unwrap()];
        let refused: Vec<_> = answers.iter().filter(|answer| answer.code != 0).collect();
        assert_eq!(refused.len(), 1, "{answers:?}");
        assert!(!refused[0].err.contains("rm -r"), "{refused:?}");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 300);
        fs::remove_dir_all(&to).unwrap();
    }
    ground.end();
}

/// Root without the capabilities to open files by their numbers copies step by step, as in a container.
#[test]
fn root_of_a_container_reaches_no_other_files() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = Ground::new();
    fs::create_dir(ground.path("tree")).unwrap();
    fs::write(ground.path("tree/file"), "contents").unwrap();
    let requests = || {
        let stats = ground.mount.as_ref().unwrap().stats();
        stats["requests"]["CopyFileRange"]
            .as_u64()
            .or(stats["requests"]["CopyFileRange64"].as_u64())
            .unwrap_or(0)
    };
    for (dropped, copied) in [(None, 0), (Some("-dac_read_search"), 1), (Some("-sys_admin"), 2)] {
        let mut command = Command::new("setpriv");
        command.args(dropped.map(|name| format!("--bounding-set={name}")));
        let copy = ground.path(&format!("copy {copied}"));
        command.arg(program().get_program()).arg("clone").arg(ground.path("tree")).arg(&copy);
        run(command).ok();
        assert_eq!(fs::read_to_string(copy.join("file")).unwrap(), "contents");
        assert_eq!(requests(), copied, "{dropped:?}");
    }
    ground.end();
}
