//! Attributes, plain and extended.

use super::TestMount;
use crate::support::{as_ordinary_user, errno, pattern};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

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
    // A change of owner clears setuid.
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
    // SAFETY: the strings are NUL-terminated, and the value has the length passed.
    match unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn getxattr(path: &Path, name: &str, room: usize) -> std::io::Result<Vec<u8>> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    let mut value = vec![0u8; room];
    // SAFETY: the strings are NUL-terminated, and the buffer has the length passed.
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
    // SAFETY: the string is NUL-terminated, and the buffer has the length passed.
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
    assert_eq!(errno(setxattr(&path, "system.other", b"", 0)), libc::EOPNOTSUPP);
    // An access control list without entries counts as none.
    setxattr(&path, "system.posix_acl_access", &[2, 0, 0, 0], 0).unwrap();
    assert_eq!(errno(getxattr(&path, "system.posix_acl_access", 100)), libc::ENODATA);
    let (c_path, c_name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), c"user.a");
    // SAFETY: both strings are NUL-terminated.
    assert_eq!(unsafe { libc::removexattr(c_path.as_ptr(), c_name.as_ptr()) }, 0);
    assert_eq!(errno(getxattr(&path, "user.a", 100)), libc::ENODATA);
    mount.unmount();
}
