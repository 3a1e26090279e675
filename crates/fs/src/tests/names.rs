//! Creating, looking up, listing and removing names.

use super::{CALLER, Mount, Setup, errno};
use crate::types::{FileType, Ino, ROOT};
use std::collections::BTreeSet;
use syncline_device::block_on;
use syncline_format::OBJECTS_END;
use syncline_format::items::inode::SIZE_MAX;

#[test]
fn what_is_created_is_found_and_survives_a_remount() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    let file = mount.create(dir, "file");
    let (fs, name) = (&mount.fs, b"device");
    let device = block_on(fs.mknod(CALLER, dir, name, FileType::CharDevice, 0o600, 0x0103)).unwrap();
    assert_eq!(device.rdev, 0x0103);
    assert_eq!(mount.getattr(ROOT).nlink, 3);
    let before = (mount.getattr(dir), mount.getattr(file), device);
    let mount = mount.reopen();
    let after =
        (mount.getattr(dir), mount.lookup(dir, "file").unwrap(), mount.lookup(dir, "device").unwrap());
    assert_eq!(before, after);
    assert_eq!(mount.names(dir), ["device", "file"]);
    assert_eq!(mount.getattr(dir).size, 2);
    assert_eq!(mount.fs.statfs().objects, 4);
}

#[test]
fn a_directory_whose_size_is_exaggerated_stays_readable() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    // A size that a damaged image may have.
    block_on(mount.fs.inode(dir)).unwrap().state.lock().attr.size = SIZE_MAX;
    mount.create(dir, "first");
    mount.rename((dir, "first"), (dir, "second")).unwrap();
    block_on(mount.fs.link(mount.lookup(dir, "second").unwrap().ino, dir, b"third")).unwrap();
    let mount = mount.reopen();
    assert_eq!(mount.names(dir), ["second", "third"]);
}

#[test]
fn what_was_synced_survives_a_crash() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "synced");
    mount.sync();
    let mount = mount.crash();
    assert_eq!(mount.lookup(ROOT, "synced").unwrap().ino, file);
}

#[test]
fn errors_are_those_of_posix() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    let file = mount.create(ROOT, "file");
    assert_eq!(errno(mount.try_create(ROOT, "file")), 17);
    assert_eq!(errno(mount.try_create(file, "below")), 20);
    assert_eq!(errno(mount.lookup(ROOT, "missing")), 2);
    assert_eq!(errno(mount.lookup(ROOT, &"n".repeat(256))), 36);
    assert_eq!(errno(mount.try_create(ROOT, "a/b")), 22);
    assert_eq!(errno(block_on(mount.fs.unlink(ROOT, b"missing"))), 2);
    assert_eq!(errno(block_on(mount.fs.unlink(ROOT, b"dir"))), 21);
    assert_eq!(errno(block_on(mount.fs.rmdir(ROOT, b"file"))), 20);
    mount.create(dir, "child");
    assert_eq!(errno(block_on(mount.fs.rmdir(ROOT, b"dir"))), 39);
    assert_eq!(errno(block_on(mount.fs.link(dir, ROOT, b"hard"))), 1);
    assert_eq!(errno(block_on(mount.fs.getattr(999_999))), 116);
    mount.create(ROOT, &"n".repeat(255));
    assert_eq!(mount.lookup(ROOT, &"n".repeat(255)).unwrap().nlink, 1);
}

#[test]
fn times_and_link_counts_of_parents_follow() {
    let mount = Mount::new();
    let now = mount.tick();
    let dir = mount.mkdir(ROOT, "dir");
    let root = mount.getattr(ROOT);
    assert_eq!((root.mtime, root.ctime, root.nlink), (now, now, 3));
    let file = mount.create(dir, "file");
    let now = mount.tick();
    block_on(mount.fs.link(file, dir, b"second")).unwrap();
    let attributes = mount.getattr(file);
    assert_eq!((attributes.nlink, attributes.ctime), (2, now));
    assert!(attributes.mtime < now);
    let now = mount.tick();
    block_on(mount.fs.unlink(dir, b"file")).unwrap();
    assert_eq!((mount.getattr(file).nlink, mount.getattr(file).ctime), (1, now));
    assert_eq!(mount.getattr(dir).mtime, now);
    block_on(mount.fs.unlink(dir, b"second")).unwrap();
    block_on(mount.fs.rmdir(ROOT, b"dir")).unwrap();
    assert_eq!(mount.getattr(ROOT).nlink, 2);
    // The directory is removed but still known to the kernel: nothing can be created in it.
    assert_eq!(errno(mount.try_create(dir, "late")), 2);
}

#[test]
fn setgid_directories_hand_down_their_group() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    let set = crate::types::SetAttributes { gid: Some(55), permissions: Some(0o2775), ..Default::default() };
    block_on(mount.fs.setattr(CALLER, dir, set)).unwrap();
    let file = mount.getattr(mount.create(dir, "file"));
    assert_eq!((file.gid, file.permissions), (55, 0o644));
    let below = mount.getattr(mount.mkdir(dir, "below"));
    assert_eq!((below.gid, below.permissions), (55, 0o2755));
}

#[test]
fn symlinks_of_every_length() {
    for node_bytes in [4096, 16384, 65536] {
        let mount = Mount::with(Setup { node_bytes, ..Setup::default() });
        let lengths = [1, 500, 512, 513, 2048, 2049, 4095];
        for len in lengths {
            let target = vec![b'a' + (len % 26) as u8; len];
            let made =
                block_on(mount.fs.symlink(CALLER, ROOT, format!("{len}").as_bytes(), &target)).unwrap();
            assert_eq!((made.size, made.permissions), (len as u64, 0o777));
        }
        assert_eq!(errno(block_on(mount.fs.symlink(CALLER, ROOT, b"long", &[b'x'; 4096]))), 36);
        let mount = mount.reopen();
        for len in lengths {
            let link = mount.lookup(ROOT, &format!("{len}")).unwrap();
            let target = block_on(mount.fs.readlink(link.ino)).unwrap();
            assert_eq!(target, vec![b'a' + (len % 26) as u8; len]);
        }
        assert_eq!(errno(block_on(mount.fs.readlink(ROOT))), 22);
    }
}

#[test]
fn names_with_one_hash_share_its_slots() {
    let mount = Mount::with(Setup { hashes: Some(1), ..Setup::default() });
    for index in 0..128 {
        mount.create(ROOT, &format!("name{index}"));
    }
    assert_eq!(errno(mount.try_create(ROOT, "one too many")), 28);
    block_on(mount.fs.unlink(ROOT, b"name0")).unwrap();
    block_on(mount.fs.unlink(ROOT, b"name77")).unwrap();
    assert_eq!(errno(mount.lookup(ROOT, "name77")), 2);
    mount.create(ROOT, "again");
    let mount = mount.reopen();
    assert_eq!(mount.names(ROOT).len(), 127);
    for index in (0..128).filter(|index| ![0, 77].contains(index)) {
        mount.lookup(ROOT, &format!("name{index}")).unwrap();
    }
    mount.lookup(ROOT, "again").unwrap();
    assert_eq!(errno(mount.lookup(ROOT, "name0")), 2);
}

/// Lists in pieces while names come and go: every name that exists throughout appears exactly once.
#[test]
fn cookies_are_stable_while_the_directory_changes() {
    let mount = Mount::with(Setup { hashes: Some(40), ..Setup::default() });
    for index in 0..200 {
        mount.create(ROOT, &format!("stays{index}"));
        mount.create(ROOT, &format!("goes{index}"));
    }
    let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0);
    loop {
        let entries = block_on(mount.fs.readdir(ROOT, cookie, 11)).unwrap();
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        seen.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        for index in round * 10..(round + 1) * 10 {
            let _ = block_on(mount.fs.unlink(ROOT, format!("goes{index}").as_bytes()));
            mount.create(ROOT, &format!("comes{index}"));
        }
        round += 1;
    }
    let stayed: Vec<&String> = seen.iter().filter(|name| name.starts_with("stays")).collect();
    let distinct: BTreeSet<&&String> = stayed.iter().collect();
    assert_eq!((stayed.len(), distinct.len()), (200, 200));
}

#[test]
fn listings_with_attributes_count_references() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    let files: Vec<Ino> = (0..20).map(|index| mount.create(dir, &format!("{index}"))).collect();
    let mount = mount.reopen();
    assert_eq!(mount.fs.counters().inodes_referenced, 0);
    let listing = block_on(mount.fs.readdir_plus(dir, 0, 100)).unwrap();
    assert_eq!(listing.len(), 22);
    assert_eq!((&listing[0].0.name[..], listing[0].1.ino), (&b"."[..], dir));
    assert_eq!((&listing[1].0.name[..], listing[1].1.ino), (&b".."[..], ROOT));
    for (entry, attributes) in &listing[2..] {
        assert!(files.contains(&entry.ino));
        assert_eq!((entry.ino, entry.file_type), (attributes.ino, attributes.file_type));
    }
    assert_eq!(mount.fs.counters().inodes_referenced, 20);
    files.iter().for_each(|&ino| mount.fs.forget(ino, 1));
    assert_eq!(mount.fs.counters().inodes_referenced, 0);
}

#[test]
fn the_cache_stays_within_its_bound() {
    let mount = Mount::with(Setup { cached_inodes_max: 64, ..Setup::default() });
    for index in 0..2000 {
        mount.create(ROOT, &format!("{index}"));
    }
    assert!(mount.fs.counters().inodes_cached < 400, "{}", mount.fs.counters().inodes_cached);
    for index in 0..2000 {
        assert_eq!(mount.lookup(ROOT, &format!("{index}")).unwrap().nlink, 1);
    }
    assert!(mount.fs.counters().inodes_cached < 400);
    assert_eq!(mount.fs.counters().inodes_referenced, 2000);
}

/// Only a damaged image says so. No decoder takes the number after the last.
#[test]
fn nothing_is_created_when_no_number_is_left() {
    let mount = Mount::new();
    mount.fs.store().keep_numbers_below(OBJECTS_END - 1);
    assert_eq!(mount.create(ROOT, "last"), OBJECTS_END - 1);
    for name in ["one more", "and another"] {
        assert_eq!(mount.try_create(ROOT, name).unwrap_err().errno(), 28);
    }
    let mount = mount.reopen();
    assert_eq!(mount.names(ROOT), ["last"]);
    assert_eq!(mount.try_create(ROOT, "one more").unwrap_err().errno(), 28);
}
