//! The next step for an image that can't be opened for lack of permission: the same error has
//! several causes, each with a different remedy.

use std::borrow::Cow;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use syncline_device::DeviceError;

/// The next step after an error about permissions.
pub fn next_step(error: &DeviceError) -> Cow<'static, str> {
    match error {
        DeviceError::Open { path, .. } => of_opening(Path::new(path), error),
        DeviceError::Create { path, .. } => of_creating(Path::new(path)),
        DeviceError::Extend { .. } => {
            "'lsattr' tells whether it may only be appended to or not changed at all".into()
        }
        DeviceError::Io { .. } => "the device refuses it: see the kernel's log ('dmesg')".into(),
        _ => AS_SOMEBODY_ELSE.into(),
    }
}

/// Names the users who may ask a daemon, for a caller who may not. The kernel lets only the daemon's user in, not even
/// root, unless the mount allows others.
pub fn of_asking() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => {
            "it is another user's mount, without -o allow_other: ask as that user ('findmnt -o TARGET,OPTIONS' shows user_id)"
        }
        false => "ask as root, or as the user whose daemon it is",
    }
}

const AS_SOMEBODY_ELSE: &str = "run it as the owner of the image, or as root";

/// EPERM is about the file, EACCES about the caller.
fn is_about_the_file(error: &DeviceError) -> bool {
    const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    error.io_error().is_some_and(|error| error.raw_os_error() == Some(EPERM))
}

fn of_opening(path: &Path, error: &DeviceError) -> Cow<'static, str> {
    let name = path.display();
    let Ok(metadata) = fs::metadata(path) else {
        if rustix::process::geteuid().is_root() {
            return of_asking().into();
        }
        return "a directory above it may not be entered: run it as its owner, or as root".into();
    };
    let readable = File::open(path).is_ok();
    let only_read = if readable { ", or mount it with -o ro" } else { "" };
    if is_about_the_file(error) {
        return format!(
            "it is immutable or append-only ('lsattr {name}'): 'chattr -ia {name}' ends that{only_read}"
        )
        .into();
    }
    let user = rustix::process::geteuid();
    if user.as_raw() == metadata.uid() {
        let mode = metadata.mode() & 0o7777;
        return format!("its mode is {mode:04o}: 'chmod u+rw {name}' lets you write it{only_read}").into();
    }
    if user.is_root() {
        return format!(
            "root has no power over it here (a container, or a server that gives root none){only_read}"
        )
        .into();
    }
    format!("{AS_SOMEBODY_ELSE}{only_read}").into()
}

fn of_creating(path: &Path) -> Cow<'static, str> {
    if path.exists() {
        return AS_SOMEBODY_ELSE.into();
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    format!("files can't be made in {}: choose another place, or ask its owner", parent.display()).into()
}
