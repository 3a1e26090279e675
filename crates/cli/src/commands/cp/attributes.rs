//! Owner, permissions, extended attributes with access control lists, and times of a copy, set in
//! an order in which none undoes another.

use super::Told;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, lsetxattr, utimensat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;
use syncline::Metadata;

/// Extended attributes by name.
pub(super) type Xattrs = Vec<(OsString, Vec<u8>)>;

/// Gives all of it to the copy at `target`.
pub(super) fn give(metadata: &Metadata, xattrs: &Xattrs, target: &Path, told: &mut Told) -> io::Result<()> {
    let owned = give_owner(metadata, target, told)?;
    if !metadata.is_symlink() {
        // The change of owner cleared these bits; under another owner, setting them would grant
        // rights.
        let kept = if owned { 0o7777 } else { 0o1777 };
        std::fs::set_permissions(target, Permissions::from_mode(metadata.mode() & kept))?;
    }
    for (name, value) in xattrs {
        match lsetxattr(target, name, value, XattrFlags::empty()) {
            // Not for this user, or not on this filesystem.
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSPC | Errno::RANGE) => {
                told.left_out += 1;
            }
            given => given?,
        }
    }
    give_times(metadata, target)
}

/// True if the owners are those of the source.
fn give_owner(metadata: &Metadata, target: &Path, told: &mut Told) -> io::Result<bool> {
    match lchown(target, Some(metadata.uid()), Some(metadata.gid())) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            told.left_out += 1;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn give_times(metadata: &Metadata, target: &Path) -> io::Result<()> {
    let attributes = metadata.attributes();
    let time =
        |time: syncline::Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    let times = Timestamps { last_access: time(attributes.atime), last_modification: time(attributes.mtime) };
    Ok(utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
