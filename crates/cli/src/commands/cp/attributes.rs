//! Owner, permissions, extended attributes with access control lists, and times of a copy, set in
//! an order in which none undoes another.

use super::Told;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, lremovexattr, lsetxattr, utimensat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;
use syncline::Metadata;

/// Extended attributes by name.
pub(super) type Xattrs = Vec<(OsString, Vec<u8>)>;

/// The access control lists among them.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Gives all of it to the copy at `target`.
pub(super) fn give(metadata: &Metadata, xattrs: &Xattrs, target: &Path, told: &mut Told) -> io::Result<()> {
    let owned = give_owner(metadata, target, told)?;
    if !metadata.is_symlink() {
        let (lists, others): (Vec<_>, Vec<_>) =
            xattrs.iter().partition(|(name, _)| LISTS.iter().any(|list| name == list));
        // The permissions may forbid its owner to set these.
        give_xattrs(&others, target, told)?;
        // The change of owner cleared these bits; under another owner, setting them would grant
        // rights.
        let kept = if owned { 0o7777 } else { 0o1777 };
        std::fs::set_permissions(target, Permissions::from_mode(metadata.mode() & kept))?;
        give_xattrs(&lists, target, told)?;
        // Those of the directory that it was made in would grant rights that the source does not.
        let inherited = LISTS.iter().filter(|list| lists.iter().all(|(name, _)| name != *list));
        for list in inherited {
            match lremovexattr(target, *list) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    give_times(metadata, target)
}

fn give_xattrs(xattrs: &[&(OsString, Vec<u8>)], target: &Path, told: &mut Told) -> io::Result<()> {
    for (name, value) in xattrs {
        match lsetxattr(target, name, value, XattrFlags::empty()) {
            // Not for this user, or not on this filesystem.
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSPC | Errno::RANGE) => {
                told.left_out += 1;
            }
            given => given?,
        }
    }
    Ok(())
}

/// True if the owners are those of the source.
fn give_owner(metadata: &Metadata, target: &Path, told: &mut Told) -> io::Result<bool> {
    match lchown(target, Some(metadata.uid()), Some(metadata.gid())) {
        Ok(()) => Ok(true),
        // A number that this user namespace does not have is invalid there.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => {
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
