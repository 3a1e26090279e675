//! getattr and setattr.

use super::{CALLER, Mount, errno};
use crate::FsError;
use crate::types::{Attributes, FileType, Ino, ROOT, SetAttributes, SetTime, Timestamp, XattrMode};
use syncline_device::block_on;

fn set(mount: &Mount, ino: Ino, changes: SetAttributes) -> Result<Attributes, FsError> {
    block_on(mount.fs.setattr(CALLER, ino, changes))
}

fn permissions(permissions: u16) -> SetAttributes {
    SetAttributes { permissions: Some(permissions), ..Default::default() }
}

#[test]
fn what_is_set_is_seen_and_survives_a_remount() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    let now = mount.tick();
    let old = Timestamp { seconds: -5, nanoseconds: 999_999_999 };
    let changes = SetAttributes {
        permissions: Some(0o6711),
        atime: Some(SetTime::To(old)),
        mtime: Some(SetTime::Now),
        ..Default::default()
    };
    let changed = set(&mount, file, changes).unwrap();
    assert_eq!((changed.permissions, changed.atime, changed.mtime, changed.ctime), (0o6711, old, now, now));
    assert_eq!(changed, mount.getattr(file));
    let mount = mount.reopen();
    assert_eq!(changed, mount.getattr(file));
}

#[test]
fn a_new_owner_ends_setuid_setgid_and_capabilities() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    set(&mount, file, permissions(0o6755)).unwrap();
    block_on(mount.fs.setxattr(file, b"security.capability", &[1; 24], XattrMode::Set)).unwrap();
    let owner = SetAttributes { uid: Some(5), ..Default::default() };
    let changed = set(&mount, file, owner).unwrap();
    assert_eq!((changed.permissions, changed.uid, changed.gid), (0o755, 5, CALLER.gid));
    assert_eq!(errno(block_on(mount.fs.getxattr(file, b"security.capability"))), 61);
    // Without group execution, setgid has another meaning and stays.
    set(&mount, file, permissions(0o6745)).unwrap();
    assert_eq!(set(&mount, file, owner).unwrap().permissions, 0o2745);
    let dir = mount.mkdir(ROOT, "dir");
    set(&mount, dir, permissions(0o6755)).unwrap();
    assert_eq!(set(&mount, dir, owner).unwrap().permissions, 0o6755);
}

#[test]
fn a_write_ends_privileges() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    set(&mount, file, permissions(0o6755)).unwrap();
    block_on(mount.fs.setxattr(file, b"security.capability", &[1; 24], XattrMode::Set)).unwrap();
    let inode = block_on(mount.fs.inode(file)).unwrap();
    block_on(mount.fs.drop_privileges(&inode, false)).unwrap();
    assert_eq!(mount.getattr(file).permissions, 0o6755);
    assert_eq!(errno(block_on(mount.fs.getxattr(file, b"security.capability"))), 61);
    block_on(mount.fs.drop_privileges(&inode, true)).unwrap();
    assert_eq!(mount.getattr(file).permissions, 0o755);
    let op = mount.fs.store().last_op();
    block_on(mount.fs.drop_privileges(&inode, true)).unwrap();
    assert_eq!(mount.fs.store().last_op(), op, "nothing to clear, nothing logged");
}

#[test]
fn sizes_are_for_regular_files() {
    let mount = Mount::new();
    let size = SetAttributes { size: Some(0), ..Default::default() };
    assert_eq!(errno(set(&mount, ROOT, size)), 21);
    let pipe = block_on(mount.fs.mknod(CALLER, ROOT, b"pipe", FileType::Fifo, 0o600, 0)).unwrap();
    assert_eq!(errno(set(&mount, pipe.ino, size)), 22);
    let bad = SetTime::To(Timestamp { seconds: 0, nanoseconds: 1_000_000_000 });
    assert_eq!(errno(set(&mount, pipe.ino, SetAttributes { atime: Some(bad), ..Default::default() })), 22);
}
