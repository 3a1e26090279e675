//! Mounting and unmounting a FUSE connection.

mod apart;
mod elsewhere;
mod fusermount;
mod privileged;

use crate::error::MountError;
pub(crate) use privileged::own_uid;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::{FILESYSTEM_TYPES, MountDevice};

pub use elsewhere::{Elsewhere, is_connected, mounted_elsewhere};
pub use privileged::{is_frozen_for_sleep, namespace_outlives_us, remount};
pub use syncline_device::{MountEntry, mounts};

/// The filesystem type that `mount` and `findmnt` show for a mount without a block device.
const PLAIN_TYPE: &str = FILESYSTEM_TYPES[0];
/// And for one with a block device.
const BLOCK_TYPE: &str = FILESYSTEM_TYPES[1];
/// The part of the filesystem type after "fuse.".
const SUBTYPE: &str = "syncline";
/// How far the kernel reads ahead in a sequential read: as much as one READ carries. Its own
/// default is 128 KiB, with which sequential readers and the daemon take turns waiting for the
/// device.
const READ_AHEAD_KIB: u32 = 1024;
/// The device that every FUSE connection begins with.
const FUSE_DEVICE: &str = "/dev/fuse";

/// Mount options that the kernel is told.
#[derive(Clone, Debug)]
pub struct KernelOptions {
    /// The source that `mount` and `findmnt` show: the image's path.
    pub source: OsString,
    /// The block device to be the source instead, if root mounts and the kernel allows it. The kernel
    /// then passes sync(2) on, and its unmount waits for the daemon. Default: none.
    pub device: Option<Arc<MountDevice>>,
    /// Refuse all changes. Default: no.
    pub read_only: bool,
    /// Let users other than the mounting one in (permission bits apply either way). Default: yes
    /// for root, no for others, who may only ask for it where `/etc/fuse.conf` has
    /// `user_allow_other`.
    pub allow_other: Option<bool>,
    /// Ignore setuid and setgid on execution. Default: no (for users other than root always yes).
    pub no_suid: bool,
    /// Refuse to open device nodes. Default: no (for users other than root always yes).
    pub no_devices: bool,
    /// Refuse to execute files. Default: no.
    pub no_execution: bool,
    /// Refuse to follow symbolic links. Default: no.
    pub no_symlinks: bool,
}

impl KernelOptions {
    /// The defaults.
    pub fn new(source: impl Into<OsString>) -> Self {
        let source = source.into();
        Self {
            source,
            device: None,
            read_only: false,
            allow_other: None,
            no_suid: false,
            no_devices: false,
            no_execution: false,
            no_symlinks: false,
        }
    }
}

/// How the filesystem was mounted, which decides how it must be unmounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Method {
    /// By mount(2).
    Direct,
    /// By mount(2), with a block device. The kernel asks the daemon before such a mount ends, and
    /// waits for the answer.
    Block,
    /// By fusermount3.
    Helper,
}

/// A mount of ours. Dropping it detaches the mount, which then ends as soon as nobody uses it any
/// more.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    method: Method,
    mounted: bool,
    /// The block device, of a mount that has one.
    device: Option<Arc<MountDevice>>,
    /// Why it has none though one was asked for.
    without_device: Option<io::Error>,
    /// Requests are answered.
    served: bool,
    /// The connection has ended: another daemon may have mounted at the path since.
    ended: Arc<AtomicBool>,
}

/// Mounts at `path`. The connection's first request, INIT, is then waiting at the descriptor.
pub fn mount(path: &Path, options: &KernelOptions) -> Result<(OwnedFd, MountPoint), MountError> {
    let path = examine(path)?;
    let mut without_device = None;
    if let Some(device) = options.device.as_ref().filter(|_| privileged::may_mount()) {
        match privileged::mount_device(&path, options, device)? {
            Ok(descriptor) => {
                let mount_point = MountPoint::new(path, Method::Block, Some(device.clone()), None);
                return Ok((descriptor, mount_point));
            }
            Err(refused) => without_device = Some(refused),
        }
    }
    let (descriptor, method) = if privileged::may_mount() {
        match privileged::mount(&path, options) {
            // Root without the capability, as in a container: the helper may have it.
            Err(MountError::NotPermitted { source }) => match fusermount::mount(&path, options) {
                Err(MountError::FusermountMissing) => return Err(MountError::NotPermitted { source }),
                mounted => (mounted?, Method::Helper),
            },
            mounted => (mounted?, Method::Direct),
        }
    } else {
        (fusermount::mount(&path, options)?, Method::Helper)
    };
    Ok((descriptor, MountPoint::new(path, method, None, without_device)))
}

/// Fails where [`mount`] is certain to fail, without mounting: a path where nothing can be mounted,
/// a machine without FUSE.
pub fn require_mountable(path: &Path) -> Result<(), MountError> {
    examine(path)?;
    fs::metadata(FUSE_DEVICE).map(drop).map_err(MountError::fuse_device)
}

/// Checks that something can be mounted at `path`, and resolves it.
fn examine(path: &Path) -> Result<PathBuf, MountError> {
    let failed = |source| MountError::mount_point(path, source);
    let resolved = fs::canonicalize(path).map_err(failed)?;
    if !fs::metadata(&resolved).map_err(failed)?.is_dir() {
        return Err(MountError::NotDirectory { path: path.to_owned() });
    }
    let here = mounts().map_err(failed)?.into_iter().rfind(|entry| entry.mount_point == resolved);
    if let Some(entry) = here.filter(MountEntry::is_ours) {
        return Err(MountError::AlreadyMounted { path: path.to_owned(), source_path: entry.image });
    }
    if fs::read_dir(&resolved).map_err(failed)?.next().is_some() {
        return Err(MountError::NotEmpty { path: path.to_owned() });
    }
    Ok(resolved)
}

impl MountPoint {
    fn new(
        path: PathBuf,
        method: Method,
        device: Option<Arc<MountDevice>>,
        without_device: Option<io::Error>,
    ) -> Self {
        let ended = Arc::default();
        Self { path, method, mounted: true, device, without_device, served: false, ended }
    }

    /// The mount point, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the mount has a block device.
    pub fn has_device(&self) -> bool {
        self.method == Method::Block
    }

    /// Why it has no block device though one was asked for.
    pub fn why_without_device(&self) -> Option<&io::Error> {
        self.without_device.as_ref()
    }

    /// Called when requests are about to be answered.
    pub fn serve(&mut self) {
        self.served = true;
        if let Some(device) = &self.device {
            device.leave_to_mount();
        }
    }

    /// Raises the kernel's read-ahead. (INIT can only lower it.) Only root may do that; without it
    /// reading works all the same. Call this after INIT.
    pub fn read_ahead(&self) {
        if let Err(error) = self.set_limit("read_ahead_kb", READ_AHEAD_KIB) {
            tracing::debug!(%error, "the kernel reads ahead as far as it does by itself");
        }
    }

    /// Sets a limit that the kernel has for the mount.
    fn set_limit(&self, name: &str, value: u32) -> io::Result<()> {
        let ours = mounts()?.into_iter().rfind(|entry| entry.mount_point == self.path);
        let entry = ours.ok_or(io::ErrorKind::NotFound)?;
        // The block device has limits of its own under its number.
        let kind = if self.has_device() { "-fuseblk" } else { "" };
        fs::write(format!("/sys/class/bdi/{}{kind}/{name}", entry.device), value.to_string())
    }

    /// Unmounts. Fails with [`MountError::Busy`] while files are open there.
    pub fn unmount(&mut self) -> Result<(), MountError> {
        self.unmount_as(false)
    }

    /// Detaches the mount; it ends when the last open file there is closed.
    pub fn detach(&mut self) -> Result<(), MountError> {
        self.unmount_as(true)
    }

    /// The flag to set when the connection has ended.
    pub fn ended(&self) -> Arc<AtomicBool> {
        self.ended.clone()
    }

    fn unmount_as(&mut self, lazy: bool) -> Result<(), MountError> {
        if self.mounted && self.is_ours() {
            let dead = !self.served || self.ended.load(Ordering::Acquire);
            match self.method {
                Method::Direct => privileged::unmount(&self.path, lazy)?,
                Method::Helper => fusermount::unmount(&self.path, lazy)?,
                // Nobody answers when the kernel asks, so it must not ask.
                Method::Block if dead => privileged::abort(&self.path)?,
                Method::Block => apart::unmount(&self.path, lazy)?,
            }
        }
        self.mounted = false;
        Ok(())
    }

    /// True unless our mount is known to be gone, in which case unmounting would hit another.
    fn is_ours(&self) -> bool {
        let mounted = mounts().map_or(true, |mounts| {
            let top = mounts.iter().rfind(|entry| entry.mount_point == self.path);
            top.is_some_and(MountEntry::is_ours)
        });
        // An aborted connection leaves its mount behind, dead. An unmounted one leaves none:
        // whatever is mounted there now is somebody else's.
        mounted && (!self.ended.load(Ordering::Acquire) || is_dead(&self.path))
    }
}

/// True for a mount whose daemon has gone.
fn is_dead(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| daemon_has_gone(&error))
}

/// True for the errors that the kernel returns in place of a daemon that has gone: `ENOTCONN`;
/// `ECONNABORTED` for requests in flight while the connection was torn down, which can outlast the
/// process; and `ECANCELED` for a request about to enter its io_uring.
pub fn daemon_has_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!(%error, "a mount was left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_mount_point_is_called_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(matches!(examine(&missing), Err(MountError::MountPointMissing { .. })));
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(examine(&file), Err(MountError::NotDirectory { .. })));
        assert!(matches!(examine(&file.join("below")), Err(MountError::NotDirectory { .. })));
        assert!(matches!(examine(dir.path()), Err(MountError::NotEmpty { .. })));
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        std::os::unix::fs::symlink(&empty, dir.path().join("link")).unwrap();
        assert_eq!(examine(&dir.path().join("link")).unwrap(), fs::canonicalize(&empty).unwrap());
    }

    #[test]
    fn messages_name_the_next_step() {
        let path = PathBuf::from("/mnt/x");
        let missing =
            MountError::mount_point(&path, std::io::Error::from_raw_os_error(libc::ENOENT)).to_string();
        assert!(missing.contains("mkdir /mnt/x"), "{missing}");
        assert!(MountError::NoFuseDevice.to_string().contains("modprobe fuse"));
        assert!(MountError::FusermountMissing.to_string().contains("install fuse3"));
    }
}
