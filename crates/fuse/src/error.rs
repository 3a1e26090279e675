//! Why a mount, an unmount or a session fails, and what to do about it.

use crate::mount::daemon_has_gone;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a mount, a session or an unmount failed. Every text names the cause and, where there is one,
/// the next step.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MountError {
    /// There is nothing at the mount point.
    #[error("the mount point {path} does not exist: create it with `mkdir {path}`", path = .path.display())]
    MountPointMissing {
        /// As given.
        path: PathBuf,
    },
    /// The mount point is no directory.
    #[error("the mount point {path} is not a directory: name an empty directory", path = .path.display())]
    NotDirectory {
        /// As given.
        path: PathBuf,
    },
    /// The mount point holds files that the mount would hide.
    #[error("the mount point {path} is not empty: name an empty directory", path = .path.display())]
    NotEmpty {
        /// As given.
        path: PathBuf,
    },
    /// Syncline is already mounted there.
    #[error("{source_path} is already mounted at {path}: unmount it first with `umount {path}`", path = .path.display())]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// The image mounted there.
        source_path: String,
    },
    /// There is a FUSE mount whose daemon has gone.
    #[error(
        "{path} is a mount, and its daemon has gone: remove the mount with 'syncline umount', and mount the image again",
        path = .path.display()
    )]
    DeadMount {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point can't be examined.
    #[error("the mount point {path} cannot be examined: {source}", path = .path.display())]
    MountPoint {
        /// As given.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The mount point belongs to another user, and only root may mount there.
    #[error("the mount point {path} is another user's: name an empty directory of your own, or mount as root", path = .path.display())]
    MountPointOfAnother {
        /// As given.
        path: PathBuf,
    },
    /// The kernel has no FUSE.
    #[error(
        "/dev/fuse does not exist: load the kernel module with `modprobe fuse` (in a container, pass the device in with \
         `--device /dev/fuse`), or use Syncline as a library, which needs no mount"
    )]
    NoFuseDevice,
    /// /dev/fuse can't be opened.
    #[error(
        "/dev/fuse cannot be opened: {source}; mount as root, or open it to everybody with `chmod 666 /dev/fuse`, as \
         distributions do"
    )]
    FuseDevice {
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// Only root may mount, and the helper that does it for others is missing.
    #[error(
        "only root may mount, and fusermount3, which does it for other users, was not found: install fuse3, or mount as root"
    )]
    FusermountMissing,
    /// The helper refused.
    #[error("fusermount3 refused: {message}")]
    Fusermount {
        /// Its message.
        message: String,
    },
    /// mount(2) was not permitted.
    #[error("mounting is not permitted here: {source}; mount as root, or install fuse3 for its fusermount3")]
    NotPermitted {
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// mount(2) failed otherwise.
    #[error("mounting at {path} failed: {source}", path = .path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The image's block device could not be opened again after the kernel had refused to mount it.
    #[error("{device} could not be opened again: {source}; see whether `lsblk {device}` still shows it, and mount again", device = .device.display())]
    DeviceLost {
        /// The block device.
        device: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// Somebody else has claimed the image's block device just when the kernel was to have it.
    #[error("another program took {device} while it was being mounted: {source}; 'lsblk {device}' and 'fuser -v {device}' tell more", device = .device.display())]
    DeviceTaken {
        /// The block device.
        device: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// A path can't be passed to the kernel.
    #[error("{path} contains a NUL byte", path = .path.display())]
    PathWithNul {
        /// The path.
        path: PathBuf,
    },
    /// The kernel's FUSE is too old.
    #[error(
        "the kernel speaks FUSE {major}.{minor}; Syncline needs 7.31 (Linux 5.4) or newer: use a newer kernel, or Syncline as a library"
    )]
    KernelTooOld {
        /// Major version that it offers.
        major: u32,
        /// Minor version that it offers.
        minor: u32,
    },
    /// The kernel's first message was not a valid INIT.
    #[error("the kernel did not begin the session: {detail}")]
    Handshake {
        /// A description of the reply that came instead.
        detail: String,
    },
    /// A thread or ring to serve requests could not be made.
    #[error("the threads that serve requests could not be started: {source}")]
    Workers {
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// Requests can't come over io_uring.
    #[error("this mount cannot go over io_uring: {reason}; or choose --transport classic")]
    NoUring {
        /// The reason, and what to do about it.
        reason: String,
    },
    /// Reading requests failed with a permanent error.
    #[error("the connection to the kernel broke: {source}")]
    Connection {
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// Files on the mount are in use.
    #[error(
        "{path} is in use: close the files that are open there and leave its directories (`fuser -vm {path}` lists who has them)",
        path = .path.display()
    )]
    Busy {
        /// The mount point.
        path: PathBuf,
    },
    /// Unmounting failed otherwise.
    #[error("unmounting {path} failed: {source}", path = .path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
}

impl MountError {
    /// The image's block device could not be claimed again.
    pub(crate) fn device(device: &Path, source: io::Error) -> Self {
        let (device, is_busy) = (device.to_owned(), source.raw_os_error() == Some(libc::EBUSY));
        let source = Arc::new(source);
        if is_busy { Self::DeviceTaken { device, source } } else { Self::DeviceLost { device, source } }
    }

    pub(crate) fn mount_point(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT) => Self::MountPointMissing { path },
            Some(libc::ENOTDIR) => Self::NotDirectory { path },
            _ if daemon_has_gone(&source) => Self::DeadMount { path },
            _ => Self::MountPoint { path, source: Arc::new(source) },
        }
    }

    pub(crate) fn fuse_device(source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Self::NoFuseDevice,
            _ => Self::FuseDevice { source: Arc::new(source) },
        }
    }

    pub(crate) fn mount(path: &Path, source: io::Error) -> Self {
        let (path, source) = (path.to_owned(), Arc::new(source));
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { source },
            Some(libc::ENODEV) => Self::NoFuseDevice,
            _ => Self::Mount { path, source },
        }
    }

    pub(crate) fn unmount(path: &Path, source: io::Error) -> Self {
        let (path, source) = (path.to_owned(), Arc::new(source));
        match source.raw_os_error() {
            Some(libc::EBUSY) => Self::Busy { path },
            _ => Self::Unmount { path, source },
        }
    }

    pub(crate) fn workers(source: io::Error) -> Self {
        Self::Workers { source: Arc::new(source) }
    }

    pub(crate) fn rings(source: io::Error) -> Self {
        Self::NoUring { reason: source.to_string() }
    }

    pub(crate) fn connection(source: io::Error) -> Self {
        Self::Connection { source: Arc::new(source) }
    }
}
