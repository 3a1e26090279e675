//! The block device that is the source of a mount.
//!
//! The kernel passes sync(2) and syncfs(2) on to a FUSE mount only if that has a block device, and
//! then also waits for the daemon at the end of the mount, and numbers the mount like the device. For
//! an image on a block device this is that device. For other images a loop device is made, which only
//! gives the mount its name: the daemon goes on using the image by itself.
//!
//! The kernel claims the device exclusively (promise P7), so the daemon gives its own claim up right
//! before. From then on the kernel's claim keeps others away, as for ext4; the locks, which keep other
//! Syncline programs away, stay.

use super::{FileDevice, loops};
use parking_lot::Mutex;
use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long an unnamed file's name may be for memfd_create(2), with the zero at its end.
const NAME_BYTES_MAX: usize = 249;
/// Its size: a page, so that any block size fits.
const NAMED_FILE_BYTES: u64 = 1 << 16;
/// How long the kernel may take to let go of a device whose mount has ended.
const LET_GO_WAIT: Duration = Duration::from_secs(1);

/// A block device for a mount.
pub struct MountDevice {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    /// The image itself.
    Image(Arc<FileDevice>),
    /// A loop device, which is kept until the kernel has it.
    Loop(Mutex<Option<File>>),
}

impl fmt::Debug for MountDevice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.path, out)
    }
}

impl FileDevice {
    /// The block device for a mount of this image. A loop device gets the number that belongs to
    /// `wish`, if it is free.
    pub fn for_mount(self: &Arc<Self>, wish: u32) -> io::Result<MountDevice> {
        if self.is_block_device() {
            let path = fs::canonicalize(&self.size.path)?;
            return Ok(MountDevice { path, kind: Kind::Image(self.clone()) });
        }
        // Another open file than the one that has the lock, which must not outlive the daemon.
        let mut how = File::options();
        how.read(true).write(!self.options.read_only);
        over(&how.open(own_path(&self.file.file))?, wish)
    }

    /// Claims the block device again.
    fn claim(&self) -> io::Result<()> {
        let claim = super::ways::open_alone(&own_path(&self.file.file), File::options().read(true))?;
        *self.file.others.own.lock() = Some(claim);
        Ok(())
    }
}

impl MountDevice {
    /// The block device for a mount of an image that is no file: a loop device over a small file in
    /// memory that is called `name`, and that nobody can change.
    pub fn called(name: &str, wish: u32) -> io::Result<Self> {
        let mut name = name.as_bytes().to_vec();
        name.truncate(NAME_BYTES_MAX);
        let name = CString::new(name)?;
        // SAFETY: the name is NUL-terminated.
        let descriptor =
            unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and ours.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(NAMED_FILE_BYTES)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: no memory is passed.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => over(&file, wish),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the image itself is the device.
    pub fn is_image(&self) -> bool {
        matches!(self.kind, Kind::Image(_))
    }

    /// Gives up our claim, so that the kernel can take it.
    pub fn give(&self) {
        if let Kind::Image(image) = &self.kind {
            image.file.others.own.lock().take();
        }
    }

    /// Takes the claim again, which fails if somebody else has taken it since.
    pub fn take_back(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Image(image) => image.claim(),
            Kind::Loop(_) => Ok(()),
        }
    }

    /// The kernel has it: from now on it lives as long as the mount.
    pub fn leave_to_mount(&self) {
        if let Kind::Loop(device) = &self.kind {
            device.lock().take();
        }
    }

    /// Waits a moment until the kernel has let go of it, after the end of the mount, and removes a loop
    /// device that was made for it.
    pub fn remove(&self) {
        let Kind::Loop(device) = &self.kind else { return };
        device.lock().take();
        let started = Instant::now();
        let name = self.path.file_name().unwrap_or_default();
        let file = Path::new("/sys/block").join(name).join("loop/backing_file");
        while file.exists() && started.elapsed() < LET_GO_WAIT {
            sleep(Duration::from_millis(2));
        }
        loops::tidy();
    }
}

/// A loop device over this file.
fn over(file: &File, wish: u32) -> io::Result<MountDevice> {
    let (path, device) = loops::attach(file, wish)?;
    Ok(MountDevice { path, kind: Kind::Loop(Mutex::new(Some(device))) })
}

fn own_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
