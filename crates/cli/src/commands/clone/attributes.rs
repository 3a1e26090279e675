//! Owner, permissions, extended attributes with access control lists, times, flags: read before
//! reading can change any of them, and set in an order in which none undoes another.

use super::{At, AtPath, Report};
use rustix::fs::{
    AtFlags, CWD, IFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags, ioctl_getflags, ioctl_setflags,
    lgetxattr, llistxattr, lsetxattr, utimensat,
};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// Longest value of an extended attribute, and longest list of names.
const XATTR_BYTES_MAX: usize = 65536;
/// Access control lists are attributes that not every listing shows.
const LISTS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];

/// Everything about a file except its contents and names.
pub(super) struct Attributes {
    metadata: Metadata,
    xattrs: Vec<(CString, Vec<u8>)>,
    flags: IFlags,
}

/// Opens without following a link or waiting for a FIFO's other end.
pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

impl Attributes {
    pub(super) fn read(path: &Path, metadata: &Metadata) -> Result<Self, At> {
        let mut flags = IFlags::empty();
        if metadata.is_dir() || metadata.is_file() {
            let file = open(path, OFlags::RDONLY).at(path)?;
            flags = ioctl_getflags(&file).at(path)?;
        }
        Ok(Self { metadata: metadata.clone(), xattrs: xattrs(path).at(path)?, flags })
    }

    /// Sets all of it on the copy at `place`.
    pub(super) fn give(&self, place: &Path, report: &mut Report) -> Result<(), At> {
        self.give_all_but_flags(place, report)?;
        self.give_flags(place, report)
    }

    /// Sets everything that does not prevent a further hard link.
    pub(super) fn give_all_but_flags(&self, place: &Path, report: &mut Report) -> Result<(), At> {
        let owned = self.give_owner(place, report)?;
        let (lists, others): (Vec<_>, Vec<_>) =
            self.xattrs.iter().partition(|(name, _)| LISTS.contains(&name.as_c_str()));
        // The permissions may forbid its owner to set these.
        give_xattrs(&others, place, report)?;
        if !self.metadata.is_symlink() {
            // The change of owner cleared these bits; under another owner, setting them would grant
            // rights.
            let kept = if owned { 0o7777 } else { 0o1777 };
            let mode = Permissions::from_mode(self.metadata.mode() & kept);
            std::fs::set_permissions(place, mode).at(place)?;
        }
        give_xattrs(&lists, place, report)?;
        let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps {
            last_access: time(self.metadata.atime(), self.metadata.atime_nsec()),
            last_modification: time(self.metadata.mtime(), self.metadata.mtime_nsec()),
        };
        utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW).at(place)
    }

    /// Sets the flags; some of them prevent any further change.
    pub(super) fn give_flags(&self, place: &Path, report: &mut Report) -> Result<(), At> {
        if !self.flags.is_empty() {
            let file = open(place, OFlags::RDONLY).at(place)?;
            match ioctl_setflags(&file, self.flags) {
                Err(Errno::PERM) if !is_root() => report.left_out += 1,
                given => given.at(place)?,
            }
        }
        Ok(())
    }

    /// True if the owners are those of the source.
    fn give_owner(&self, place: &Path, report: &mut Report) -> Result<bool, At> {
        let (uid, gid) = (self.metadata.uid(), self.metadata.gid());
        let made = place.symlink_metadata().at(place)?;
        if (made.uid(), made.gid()) == (uid, gid) {
            return Ok(true);
        }
        match lchown(place, Some(uid), Some(gid)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_root() => {
                report.left_out += 1;
                Ok(false)
            }
            Err(error) => Err(error).at(place),
        }
    }
}

fn give_xattrs(xattrs: &[&(CString, Vec<u8>)], place: &Path, report: &mut Report) -> Result<(), At> {
    for (name, value) in xattrs {
        match lsetxattr(place, name.as_c_str(), value, XattrFlags::empty()) {
            Err(Errno::PERM | Errno::ACCESS) if !is_root() => report.left_out += 1,
            given => given.at(place)?,
        }
    }
    Ok(())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// All extended attributes that this user sees.
fn xattrs(path: &Path) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut room = vec![0; XATTR_BYTES_MAX];
    let len = llistxattr(path, &mut room[..])?;
    let mut names: Vec<CString> = room[..len]
        .split_inclusive(|&byte| byte == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
        .map(CStr::to_owned)
        .collect();
    names.extend(LISTS.into_iter().map(CStr::to_owned));
    names.sort_unstable();
    names.dedup();
    let mut xattrs = Vec::new();
    for name in names {
        match lgetxattr(path, name.as_c_str(), &mut room[..]) {
            Ok(len) => xattrs.push((name, room[..len].to_vec())),
            // It went away meanwhile, there is no such list, or links can't have one.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(xattrs)
}
