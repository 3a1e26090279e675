//! Names: links, renames, listings, special files.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::no_fuse;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

#[test]
fn renames_replace_exchange_and_refuse() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let (one, two) = (ground.path("one"), ground.path("two"));
    fs::write(&one, "one").unwrap();
    fs::write(&two, "two").unwrap();
    let refused = renameat_with(CWD, &one, CWD, &two, RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&one).unwrap(), fs::read(&two).unwrap()), (b"two".to_vec(), b"one".to_vec()));
    fs::rename(&one, &two).unwrap();
    fs::create_dir_all(ground.path("a/b/c")).unwrap();
    fs::create_dir(ground.path("empty")).unwrap();
    fs::rename(ground.path("a/b"), ground.path("empty")).unwrap();
    assert_eq!(errno(fs::rename(ground.path("empty"), ground.path("empty/c/x"))), Some(22));
    for _ in 0..2 {
        assert_eq!(errno(fs::metadata(&one)), Some(2));
        assert_eq!(fs::read(&two).unwrap(), b"two");
        assert!(ground.path("empty/c").is_dir());
        assert_eq!(fs::metadata(ground.path("a")).unwrap().nlink(), 2);
        ground.remount();
    }
    ground.end();
}

#[test]
fn replace_by_rename_leaves_the_old_or_the_new() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let (path, temporary) = (ground.path("config"), ground.path("config.new"));
    for round in 0..100u8 {
        fs::write(&temporary, vec![round; 30_000]).unwrap();
        fs::rename(&temporary, &path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![round; 30_000]);
    }
    ground.end();
}

#[test]
fn links_of_both_sorts() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    fs::write(ground.path("file"), "found").unwrap();
    fs::hard_link(ground.path("file"), ground.path("second")).unwrap();
    symlink("file", ground.path("short")).unwrap();
    let long = format!("{}file", "./".repeat(1500));
    symlink(&long, ground.path("long")).unwrap();
    symlink("nowhere", ground.path("dangling")).unwrap();
    for _ in 0..2 {
        for name in ["second", "short", "long"] {
            assert_eq!(fs::read(ground.path(name)).unwrap(), b"found", "{name}");
        }
        assert_eq!(fs::read_link(ground.path("long")).unwrap().to_str(), Some(&*long));
        assert_eq!(errno(fs::read(ground.path("dangling"))), Some(2));
        assert_eq!(fs::metadata(ground.path("file")).unwrap().nlink(), 2);
        ground.remount();
    }
    fs::remove_file(ground.path("file")).unwrap();
    assert_eq!(fs::metadata(ground.path("second")).unwrap().nlink(), 1);
    ground.end();
}

#[test]
fn a_large_directory_is_listed_whole_while_it_changes() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let dir = ground.path("dir");
    fs::create_dir(&dir).unwrap();
    let names: BTreeSet<String> =
        (0..5000).map(|index| format!("a rather long name of a file, number {index}")).collect();
    for name in &names {
        fs::write(dir.join(name), "").unwrap();
    }
    let mut listed = Vec::new();
    for entry in fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if listed.len() % 10 == 0 {
            // Removing listed names and adding others does not disturb the listing.
            fs::remove_file(dir.join(&name)).unwrap();
            fs::write(dir.join(format!("new {}", listed.len())), "").unwrap();
        }
        listed.push(name);
    }
    let old: Vec<_> = listed.iter().filter(|name| !name.starts_with("new ")).collect();
    assert_eq!(old.len(), names.len(), "each once");
    assert!(old.into_iter().all(|name| names.contains(name)));
    fs::remove_dir_all(&dir).unwrap();
    ground.end();
}

#[test]
fn special_files_are_what_they_are() {
    use rustix::fs::{FileType, Mode, mknodat};
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    mknodat(CWD, ground.path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(ground.path("socket")).unwrap();
    drop(socket);
    if crate::support::is_root() {
        let null = rustix::fs::makedev(1, 3);
        mknodat(CWD, ground.path("null"), FileType::CharacterDevice, Mode::RUSR, null).unwrap();
    }
    for _ in 0..2 {
        assert!(fs::metadata(ground.path("fifo")).unwrap().file_type().is_fifo());
        assert!(fs::metadata(ground.path("socket")).unwrap().file_type().is_socket());
        if crate::support::is_root() {
            assert!(fs::metadata(ground.path("null")).unwrap().file_type().is_char_device());
            assert_eq!(fs::read(ground.path("null")).unwrap(), b"");
        }
        ground.remount();
    }
    ground.end();
}

/// Overlay filesystems need this of their upper layer.
#[test]
fn a_rename_can_leave_a_whiteout() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    fs::write(ground.path("file"), "contents").unwrap();
    fs::create_dir(ground.path("dir")).unwrap();
    for (from, to) in [("file", "moved file"), ("dir", "moved dir")] {
        renameat_with(CWD, ground.path(from), CWD, ground.path(to), RenameFlags::WHITEOUT).unwrap();
    }
    for _ in 0..2 {
        for name in ["file", "dir"] {
            let left = fs::symlink_metadata(ground.path(name)).unwrap();
            assert!(left.file_type().is_char_device(), "{name}");
            assert_eq!((left.rdev(), left.nlink(), left.mode() & 0o7777), (0, 1, 0), "{name}");
        }
        assert_eq!(fs::read(ground.path("moved file")).unwrap(), b"contents");
        assert!(ground.path("moved dir").is_dir());
        ground.remount();
    }
    ground.end();
}
