//! Inodes without names.

use super::{CALLER, Mount, errno};
use crate::inode::Inode;
use crate::types::{FileType, Ino, ROOT, XattrMode};
use bytes::Bytes;
use syncline_device::block_on;
use syncline_format::items::inode::InodeItem;
use syncline_format::{Key, Kind};
use syncline_store::Transaction;

/// Number of items that an inode has left, including its orphan item.
fn items(mount: &Mount, ino: Ino) -> usize {
    let all = mount.fs.store().scan(
        Key { object: ino, kind: 0, offset: 0 },
        Key::new(ino, Kind::Parent, u64::MAX),
        1000,
    );
    let orphan = block_on(mount.fs.store().get(crate::names::orphan::key(ino))).unwrap();
    block_on(all).unwrap().items.len() + usize::from(orphan.is_some())
}

#[test]
fn an_unlinked_inode_lives_while_it_is_referred_to_or_open() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.open_file(file)).unwrap();
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
    assert_eq!(mount.getattr(file).nlink, 0);
    assert_eq!(errno(block_on(mount.fs.link(file, ROOT, b"again"))), 2);
    mount.fs.forget(file, 1);
    mount.settle();
    assert_eq!(items(&mount, file), 2);
    mount.fs.release_file(file);
    mount.settle();
    assert_eq!(items(&mount, file), 0);
    assert_eq!(errno(block_on(mount.fs.getattr(file))), 116);
    assert_eq!(mount.fs.statfs().objects, 1);
}

#[test]
fn references_are_counted() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.lookup(ROOT, b"file")).unwrap();
    block_on(mount.fs.link(file, ROOT, b"other")).unwrap();
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
    block_on(mount.fs.unlink(ROOT, b"other")).unwrap();
    mount.fs.forget(file, 2);
    mount.settle();
    assert_eq!(items(&mount, file), 2);
    mount.fs.forget(file, 1);
    mount.settle();
    assert_eq!(items(&mount, file), 0);
}

#[test]
fn everything_an_orphan_has_goes_with_it() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    for index in 0..300 {
        let name = format!("user.{index}");
        block_on(mount.fs.setxattr(file, name.as_bytes(), &[1; 600], XattrMode::Set)).unwrap();
    }
    block_on(mount.fs.setxattr(file, b"user.long", &[1; 65536], XattrMode::Set)).unwrap();
    assert!(items(&mount, file) > 300);
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
    mount.fs.forget(file, 1);
    mount.settle();
    assert_eq!(items(&mount, file), 0);
    assert_eq!(mount.fs.counters().orphans_removed, 1);
}

#[test]
fn orphans_of_a_crash_are_removed_at_the_next_mount() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    let dir = mount.mkdir(ROOT, "dir");
    block_on(mount.fs.open_file(file)).unwrap();
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
    block_on(mount.fs.rmdir(ROOT, b"dir")).unwrap();
    mount.sync();
    let mount = mount.crash();
    mount.settle();
    assert_eq!((items(&mount, file), items(&mount, dir)), (0, 0));
    assert_eq!(mount.fs.statfs().objects, 1);
}

#[test]
fn an_unmount_leaves_no_orphans() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.open_file(file)).unwrap();
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
    block_on(mount.fs.close()).unwrap();
    assert_eq!(items(&mount, file), 0);
    assert_eq!(mount.fs.statfs().objects, 1);
}

#[test]
fn a_change_of_a_removed_inode_does_not_bring_it_back() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    let held = block_on(mount.fs.inode(file)).unwrap();
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
    mount.fs.forget(file, 1);
    mount.settle();
    assert_eq!(errno(mount.fs.require_present(&held)), 116);
    assert_eq!(errno(block_on(mount.fs.open_file(file))), 116);
    assert_eq!(items(&mount, file), 0);
}

#[test]
fn a_file_without_a_name_goes_when_it_is_closed() {
    let mount = Mount::new();
    let made = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o640, true)).unwrap();
    assert_eq!((made.nlink, made.file_type, made.permissions), (0, FileType::Regular, 0o640));
    block_on(mount.fs.write(made.ino, 0, Bytes::from(vec![1; 50_000]), false)).unwrap();
    assert_eq!(items(&mount, made.ino), 2);
    mount.fs.forget(made.ino, 1);
    mount.settle();
    assert_eq!(items(&mount, made.ino), 2);
    mount.fs.release_file(made.ino);
    mount.settle();
    assert_eq!(items(&mount, made.ino), 0);
    assert_eq!(mount.fs.statfs().objects, 1);
}

#[test]
fn a_file_without_a_name_gets_its_first_one_with_its_contents() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    let ino = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o640, true)).unwrap().ino;
    let contents = vec![7; 50_000];
    block_on(mount.fs.write(ino, 0, Bytes::from(contents.clone()), false)).unwrap();
    mount.create(dir, "taken");
    assert_eq!(errno(block_on(mount.fs.link(ino, dir, b"taken"))), 17);
    assert_eq!(block_on(mount.fs.link(ino, dir, b"name")).unwrap().nlink, 1);
    assert!(block_on(mount.fs.store().get(crate::names::orphan::key(ino))).unwrap().is_none());
    assert_eq!(block_on(mount.fs.paths(ino)).unwrap(), [b"/dir/name"]);
    // Everything that came before the name survives with it, though the file was never synced.
    mount.sync();
    let mount = mount.crash();
    mount.settle();
    assert_eq!(mount.lookup(dir, "name").unwrap().size, 50_000);
    assert_eq!(block_on(mount.fs.read(ino, 0, 60_000)).unwrap().concat(), contents);
    assert_eq!(block_on(mount.fs.paths(ino)).unwrap(), [b"/dir/name"]);
}

#[test]
fn a_file_that_was_never_named_is_gone_after_a_crash() {
    let mount = Mount::new();
    let ino = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o640, true)).unwrap().ino;
    block_on(mount.fs.write(ino, 0, Bytes::from(vec![7; 50_000]), false)).unwrap();
    block_on(mount.fs.fsync(ino, false)).unwrap();
    let mount = mount.crash();
    mount.settle();
    assert_eq!(items(&mount, ino), 0);
    assert_eq!(mount.fs.statfs().objects, 1);
}

#[test]
fn only_what_began_without_a_name_can_be_named_again() {
    let mount = Mount::new();
    let never = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o640, false)).unwrap().ino;
    assert_eq!(errno(block_on(mount.fs.link(never, ROOT, b"never"))), 2);
    let once = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o640, true)).unwrap().ino;
    block_on(mount.fs.link(once, ROOT, b"once")).unwrap();
    block_on(mount.fs.link(once, ROOT, b"twice")).unwrap();
    block_on(mount.fs.unlink(ROOT, b"once")).unwrap();
    block_on(mount.fs.unlink(ROOT, b"twice")).unwrap();
    assert_eq!(errno(block_on(mount.fs.link(once, ROOT, b"again"))), 2);
    assert_eq!(mount.names(ROOT), [""; 0]);
}

/// A submission in progress has read size and contents, and its transaction names what it read.
#[test]
fn a_removal_waits_for_the_lease_before_it_takes_data_away() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.write(file, 0, Bytes::from(vec![1; 100]), false)).unwrap();
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
    let inode = block_on(mount.fs.inode(file)).unwrap();
    let lease = block_on(inode.lease.write());
    mount.fs.forget(file, 1);
    block_on(mount.fs.wait_for_orphans_leased());
    assert_eq!(inode.state.lock().attr.size, 100);
    drop(lease);
    mount.settle();
    assert_eq!(items(&mount, file), 0);
}

/// Sets the link count of an inode to 0, as damage might.
fn without_links(mount: Mount, ino: Ino, mark: bool) -> Mount {
    let store = mount.fs.store();
    let value = block_on(store.get(Inode::key(ino))).unwrap().unwrap();
    let item = InodeItem { nlink: 0, ..InodeItem::decode(&value).unwrap() };
    let mut transaction = Transaction::new();
    transaction.put(Inode::key(ino), item.encode());
    if mark {
        transaction.put(crate::names::orphan::key(ino), Vec::new());
    }
    store.commit(transaction).unwrap();
    mount.sync();
    mount.crash()
}

#[test]
fn a_damaged_link_count_removes_no_file_that_is_looked_at() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    let mount = without_links(mount, file, false);
    assert_eq!(mount.lookup(ROOT, "file").unwrap().ino, file);
    mount.settle();
    let mount = mount.reopen();
    assert_eq!(mount.lookup(ROOT, "file").unwrap().ino, file);
}

#[test]
fn nothing_removes_the_root() {
    for mark in [false, true] {
        let mount = without_links(Mount::new(), ROOT, mark);
        mount.settle();
        assert_eq!(mount.reopen().getattr(ROOT).ino, ROOT);
    }
}
