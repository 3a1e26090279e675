//! Extended attributes in trees with quotas: they count where they have items of their own, they
//! are refused past the limit, and what they used is given back when they go. Images made without
//! counting them go on without.

use super::quota::exceeded;
use super::*;
use crate::types::XattrMode;

/// Bytes that an attribute of this name and length counts for.
fn counted(name: &str, len: usize) -> u64 {
    (name.len() + len).div_ceil(512) as u64 * 512
}

/// An access control list with this many users.
fn list_of(users: u32) -> Vec<u8> {
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let mut list = 2u32.to_le_bytes().to_vec();
    list.extend(entry(1, none));
    (0..users).for_each(|user| list.extend(entry(2, 1000 + user)));
    [4, 0x10, 0x20].iter().for_each(|tag| list.extend(entry(*tag, none)));
    list
}

impl Mount {
    fn set_xattr(&self, ino: Ino, name: &str, value: &[u8]) -> Result<(), FsError> {
        block_on(self.fs.setxattr(ino, name.as_bytes(), value, XattrMode::Set))
    }

    fn remove_xattr(&self, ino: Ino, name: &str) {
        block_on(self.fs.removexattr(ino, name.as_bytes())).unwrap();
    }

    fn xattr_len(&self, ino: Ino, name: &str) -> Option<usize> {
        block_on(self.fs.getxattr(ino, name.as_bytes())).ok().map(|value| value.len())
    }
}

#[test]
fn attributes_count_and_what_goes_is_given_back() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 100_000, 0);
    let file = mount.create_in(dir, "file");
    mount.set_xattr(file, "user.small", &[1; 100]).unwrap();
    assert_eq!(mount.quota(dir).used_bytes, 0, "it lies in the inode");
    mount.set_xattr(file, "user.long", &[1; 60_000]).unwrap();
    assert_eq!(mount.quota(dir).used_bytes, counted("user.long", 60_000));
    assert_eq!(mount.blocks(file), counted("user.long", 60_000) / 512);
    mount.set_xattr(dir, "user.middle", &[1; 2_000]).unwrap();
    assert_eq!(mount.blocks(dir), 4);
    mount.check_settled(dir);
    // Beyond the limit, a change is refused and has no effect.
    exceeded(mount.set_xattr(file, "user.more", &[2; 40_000]));
    exceeded(mount.set_xattr(dir, "user.middle", &[2; 50_000]));
    assert_eq!(
        (mount.xattr_len(file, "user.more"), mount.xattr_len(dir, "user.middle")),
        (None, Some(2_000))
    );
    exceeded(mount.try_write(file, 0, &[1; 40_000]));
    // A replacement counts for the difference.
    mount.set_xattr(file, "user.long", &[3; 65_000]).unwrap();
    mount.set_xattr(file, "user.long", &[3; 1_000]).unwrap();
    assert_eq!(mount.quota(dir).used_bytes, counted("user.long", 1_000) + 2_048);
    mount.write(file, 0, &pattern(1, 80_000));
    mount.fsync(file);
    exceeded(mount.set_xattr(file, "user.long", &[3; 30_000]));
    assert_eq!(mount.blocks(file), 20 * 8 + counted("user.long", 1_000) / 512);
    mount.check_settled(dir);
    let usage = mount.quota(dir);
    let mount = mount.crash();
    assert_eq!((mount.quota(dir), mount.blocks(file)), (usage, 20 * 8 + 2));
    mount.remove_xattr(file, "user.long");
    assert_eq!(mount.blocks(file), 20 * 8);
    mount.remove_in(dir, "file", file);
    assert_eq!(mount.quota(dir).used_bytes, 2_048);
    mount.remove_xattr(dir, "user.middle");
    mount.check_settled(dir);
    assert_eq!(mount.reopen().quota(dir).used_bytes, 0);
}

#[test]
fn attributes_go_with_their_files() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 70_000, 0);
    for round in 0..5 {
        let file = mount.create_in(dir, "file");
        mount.set_xattr(file, "user.long", &[round; 60_000]).unwrap();
        // The next round waits until this file's usage is given back.
        block_on(mount.fs.unlink(dir, b"file")).unwrap();
        mount.fs.forget(file, u64::MAX);
    }
    block_on(mount.fs.wait_for_orphans());
    mount.check_settled(dir);
    assert_eq!(mount.quota(dir).used_bytes, 0);
}

#[test]
fn lists_that_are_handed_down_count() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    let list = list_of(100);
    mount.set_xattr(dir, "system.posix_acl_default", &list).unwrap();
    let (access, default) =
        (counted("system.posix_acl_access", list.len()), counted("system.posix_acl_default", list.len()));
    let set = mount.set_quota(dir, 4 * default, 0);
    assert_eq!(set.used_bytes, default, "the directory's own");
    let file = mount.create_in(dir, "file");
    assert_eq!(mount.blocks(file), access / 512);
    let below = mount.mkdir_in(dir, "below");
    assert_eq!(mount.quota(dir).used_bytes, 2 * (access + default));
    assert_eq!(mount.quota(dir).used_bytes, 4 * default);
    exceeded(mount.try_create_in(below, "more"));
    exceeded(block_on(mount.fs.tmpfile(CALLER, dir, 0o600, true)));
    exceeded(mount.set_xattr(file, "system.posix_acl_access", &list_of(300)));
    // A change of the mode changes the list, but not its length.
    let mode = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
    block_on(mount.fs.setattr(CALLER, file, mode)).unwrap();
    mount.check_settled(dir);
    mount.set_xattr(file, "system.posix_acl_access", &list_of(1)).unwrap();
    mount.create_in(below, "more");
    mount.check_settled(dir);
    mount.crash().check_quotas();
}

#[test]
fn attributes_that_are_there_already_count() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    let file = mount.create_in(dir, "file");
    mount.set_xattr(file, "user.long", &[1; 5_000]).unwrap();
    mount.set_xattr(dir, "user.long", &[1; 5_000]).unwrap();
    let link = block_on(mount.fs.symlink(CALLER, dir, b"link", b"target")).unwrap().ino;
    mount.set_xattr(link, "trusted.long", &[1; 5_000]).unwrap();
    let set = mount.set_quota(dir, 10_000, 0);
    assert_eq!(set.used_bytes, 2 * counted("user.long", 5_000) + counted("trusted.long", 5_000));
    exceeded(mount.set_xattr(file, "user.more", &[1; 5_000]));
    mount.check_settled(dir);
}

#[test]
fn images_from_before_go_on_without_counting() {
    let mount = Mount::uncounted();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 10_000, 0);
    let file = mount.create_in(dir, "file");
    mount.set_xattr(file, "user.long", &[1; 60_000]).unwrap();
    assert_eq!((mount.quota(dir).used_bytes, mount.blocks(file)), (0, 0));
    mount.fsync(file);
    let mount = mount.crash();
    mount.check_quotas();
    mount.remove_xattr(file, "user.long");
    mount.remove_in(dir, "file", file);
    mount.check_settled(dir);
    assert_eq!(mount.quota(dir).used_bytes, 0);
}
