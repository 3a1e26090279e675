//! Access control lists and flags.

use super::{CALLER, Mount, Setup, errno};
use crate::Allocation;
use crate::types::{FileFlags, FileType, Ino, NewMode, ROOT, SetAttributes, XattrMode};
use bytes::Bytes;
use syncline_device::block_on;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// A list with this many users, and these permissions in the mask.
fn list(users: u32, mask: u16) -> Vec<u8> {
    let mut entries = vec![(1u16, 7u16, u32::MAX)];
    entries.extend((0..users).map(|user| (2, 6, 1000 + user)));
    entries.extend([(4, 5, u32::MAX), (16, mask, u32::MAX), (32, 4, u32::MAX)]);
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn get(mount: &Mount, ino: Ino, name: &[u8]) -> Option<Vec<u8>> {
    block_on(mount.fs.getxattr(ino, name)).ok().map(|value| value.to_vec())
}

#[test]
fn lists_of_any_length_are_handed_down_in_one_transaction() {
    for (users, hashes) in [(2, None), (200, None), (200, Some(1)), (8000, Some(1))] {
        let mount = Mount::with(Setup { hashes, ..Setup::default() });
        let dir = mount.mkdir(ROOT, "dir");
        block_on(mount.fs.setxattr(dir, DEFAULT, &list(users, 7), XattrMode::Set)).unwrap();
        let mode = NewMode { permissions: 0o2750, umask: 0o777 };
        let made = block_on(mount.fs.mkdir(CALLER, dir, b"below", mode)).unwrap();
        assert_eq!(made.permissions, 0o2750, "the umask counts for nothing");
        let file = block_on(mount.fs.mknod(CALLER, dir, b"file", FileType::Regular, 0o666, 0)).unwrap();
        mount.sync();
        let mount = mount.crash();
        assert_eq!(get(&mount, made.ino, DEFAULT), Some(list(users, 7)), "{users} users");
        let access = get(&mount, made.ino, ACCESS).unwrap();
        assert_eq!(access.len(), list(users, 5).len());
        assert_eq!(get(&mount, file.ino, DEFAULT), None);
        assert_eq!(mount.getattr(file.ino).permissions, 0o664);
        // Removes them again.
        block_on(mount.fs.removexattr(made.ino, ACCESS)).unwrap();
        block_on(mount.fs.removexattr(made.ino, DEFAULT)).unwrap();
        block_on(mount.fs.removexattr(made.ino, DEFAULT)).unwrap();
        assert_eq!(block_on(mount.fs.listxattr(made.ino)).unwrap(), b"");
    }
}

#[test]
fn a_chmod_changes_the_mask_wherever_the_list_lies() {
    for users in [1, 200] {
        let mount = Mount::new();
        let file = mount.create(ROOT, "file");
        block_on(mount.fs.setxattr(file, b"security.capability", &[1; 20], XattrMode::Set)).unwrap();
        block_on(mount.fs.set_acl(file, ACCESS, &list(users, 7), false)).unwrap();
        assert_eq!(mount.getattr(file).permissions, 0o774);
        // In one transaction with a change of owner, which clears the capabilities.
        let set = SetAttributes { permissions: Some(0o2754), uid: Some(7), ..SetAttributes::default() };
        block_on(mount.fs.setattr(CALLER, file, set)).unwrap();
        assert_eq!(get(&mount, file, ACCESS), Some(list(users, 5)));
        assert_eq!(get(&mount, file, b"security.capability"), None);
        block_on(mount.fs.set_acl(file, ACCESS, &list(users, 6), true)).unwrap();
        assert_eq!(mount.getattr(file).permissions, 0o764, "setgid went");
        let mount = mount.reopen();
        assert_eq!(get(&mount, file, ACCESS), Some(list(users, 6)));
        assert_eq!(errno(block_on(mount.fs.set_acl(file, DEFAULT, &list(1, 7), false))), 13);
    }
}

#[test]
fn flags_forbid_and_are_kept() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.write(file, 0, Bytes::from_static(b"one"), false)).unwrap();
    let append_only = FileFlags { append_only: true, ..FileFlags::default() };
    block_on(mount.fs.set_file_flags(file, append_only)).unwrap();
    block_on(mount.fs.append(file, Bytes::from_static(b" two"), false)).unwrap();
    assert_eq!(errno(block_on(mount.fs.write(file, 3, Bytes::from_static(b"x"), false))), 1);
    let shorter = SetAttributes { size: Some(1), ..SetAttributes::default() };
    assert_eq!(errno(block_on(mount.fs.setattr(CALLER, file, shorter))), 1);
    assert_eq!(errno(mount.rename((ROOT, "file"), (ROOT, "other"))), 1);
    for what in [Allocation::PunchHole, Allocation::ZeroRange { keep_size: true }] {
        assert_eq!(errno(block_on(mount.fs.allocate(file, what, 0, 2, false))), 1, "{what:?}");
    }
    let mount = mount.reopen();
    assert_eq!(block_on(mount.fs.file_flags(file)).unwrap(), append_only);
    assert_eq!(errno(block_on(mount.fs.unlink(ROOT, b"file"))), 1);
    let immutable = FileFlags { immutable: true, ..FileFlags::default() };
    block_on(mount.fs.set_file_flags(file, immutable)).unwrap();
    assert_eq!(errno(block_on(mount.fs.append(file, Bytes::from_static(b"x"), false))), 1);
    let preallocate = Allocation::Preallocate { keep_size: true };
    assert_eq!(errno(block_on(mount.fs.allocate(file, preallocate, 0, 2, false))), 1);
    let source = mount.create(ROOT, "source");
    block_on(mount.fs.write(source, 0, Bytes::from(vec![1; 8192]), false)).unwrap();
    assert_eq!(errno(block_on(mount.fs.copy_range((source, 0), (file, 0), 8192, false))), 1);
    block_on(mount.fs.set_file_flags(file, FileFlags::default())).unwrap();
    assert_eq!(block_on(mount.fs.read(file, 0, 100)).unwrap().concat(), b"one two");
    block_on(mount.fs.unlink(ROOT, b"file")).unwrap();
}

#[test]
fn dot_finds_whatever_the_number_means() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    let file = mount.create(dir, "file");
    for ino in [dir, file] {
        assert_eq!(mount.lookup(ino, ".").unwrap().ino, ino);
    }
    assert_eq!(mount.lookup(dir, "..").unwrap().ino, ROOT);
    assert_eq!(errno(mount.lookup(file, "..")), 20);
    assert_eq!(errno(mount.lookup(12345, ".")), 116);
}
