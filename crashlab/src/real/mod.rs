//! The kernel's own filesystems: a program's operations are done again on one of them, over a [disk]
//! that notes every write, and the trees are those that the filesystem itself makes of the disk after a
//! power cut.

mod disk;
mod explore;
mod program;
mod replay;
mod states;
mod validate;

pub use disk::Disk;
pub use explore::{OnDisk, Seen};
pub use replay::{Replay, Run};
pub use states::{Cut, DiskState, Kept, disk_states};
pub use validate::{Compared, Validation};

use crate::Error;
use crate::contents::Contents;
use crate::export::import;
use crate::tree::Tree;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The folder of a filesystem that has the program's files.
pub(crate) const FILES: &str = "files";
/// How long a filesystem may be busy when it is unmounted.
const BUSY: Duration = Duration::from_secs(5);

/// A filesystem of the kernel.
#[derive(Debug)]
pub struct Filesystem {
    /// Its name, which is also that of its model.
    pub name: &'static str,
    mkfs: &'static str,
    mkfs_options: &'static [&'static str],
    mib: u64,
    options: &'static str,
    /// The disk writes as much at once or not at all.
    pub sector: u64,
    /// It writes on its own after a second.
    pub commits_by_time: bool,
}

/// All filesystems that can be used.
pub static FILESYSTEMS: [Filesystem; 3] = [
    Filesystem {
        name: "ext4",
        mkfs: "mkfs.ext4",
        // As it does by itself from 512 MiB on.
        mkfs_options: &["-q", "-F", "-b", "4096", "-I", "256"],
        mib: 64,
        // Without the thread that goes on with mkfs's work in the background.
        options: "commit=1,noinit_itable",
        sector: 512,
        commits_by_time: true,
    },
    Filesystem {
        name: "xfs",
        mkfs: "mkfs.xfs",
        mkfs_options: &["-q", "-f"],
        mib: 300,
        options: "nouuid",
        sector: 512,
        commits_by_time: false,
    },
    Filesystem {
        name: "btrfs",
        mkfs: "mkfs.btrfs",
        mkfs_options: &["-q", "-f"],
        mib: 128,
        options: "commit=1",
        // Its superblock is 4 KiB with one checksum: it needs such disks.
        sector: 4096,
        commits_by_time: true,
    },
];

impl Filesystem {
    /// The filesystem with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FILESYSTEMS.iter().find(|filesystem| filesystem.name == name)
    }

    /// Where a write is torn within a block, if it can be.
    pub fn torn_at(&self) -> Option<u64> {
        (self.sector < 4096).then_some(states::TORN_AT)
    }

    /// An error that names what is missing here, if something is.
    pub fn check(&self) -> Result<(), Error> {
        let missing = |what: &str| Err(Error::Stopped(format!("{} can't be used here: {what}", self.name)));
        if !rustix::process::geteuid().is_root() {
            return missing("only root may mount it");
        }
        for path in ["/dev/fuse", "/dev/loop-control"] {
            if !Path::new(path).exists() {
                return missing(&format!("there is no {path}"));
            }
        }
        for program in ["losetup", self.mkfs] {
            let mut command = Command::new(program);
            command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if command.status().is_err() {
                return missing(&format!("{program} is not installed"));
            }
        }
        Ok(())
    }
}

/// A disk with a filesystem, fresh from mkfs.
pub struct Machine {
    /// Which.
    pub filesystem: &'static Filesystem,
    /// The disk.
    pub disk: Disk,
    fresh: Contents,
    mountpoint: TempDir,
}

impl Machine {
    /// Makes the filesystem, with room for as many bytes.
    pub fn new(filesystem: &'static Filesystem, room: u64) -> Result<Self, Error> {
        filesystem.check()?;
        let mountpoint = tempfile::Builder::new().prefix("crashlab-mount-").tempdir();
        let mountpoint = mountpoint.map_err(|error| Error::file(&std::env::temp_dir(), error))?;
        // Whole MiB.
        let disk = Disk::new((filesystem.mib + ((room * 2) >> 20)) << 20)?;
        let failed = |source| Error::Run { what: filesystem.mkfs.into(), source };
        let mut command = Command::new(filesystem.mkfs);
        command.args(filesystem.mkfs_options).arg(disk.device()).stdin(Stdio::null());
        let output = command.output().map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Stopped(format!("{} failed: {said}", filesystem.mkfs)));
        }
        let fresh = disk.image();
        Ok(Self { filesystem, disk, fresh, mountpoint })
    }

    /// Puts the fresh filesystem on the disk.
    pub fn renew(&self) -> Result<(), Error> {
        self.disk.put(&self.fresh)
    }

    /// Mounts what is on the disk.
    pub fn mount(&self) -> Result<Mounted<'_>, Error> {
        let (path, name) = (self.mountpoint.path(), self.filesystem.name);
        let options = CString::new(self.filesystem.options).unwrap_or_default();
        let flags = MountFlags::NOATIME;
        rustix::mount::mount(self.disk.device(), path, name, flags, options.as_c_str())
            .map_err(|error| Error::file(self.disk.device(), error.into()))?;
        Ok(Mounted { path, is_mounted: true })
    }

    /// The program's files as the filesystem finds them on this disk; or why it does not.
    pub fn tree(&self, image: &Contents) -> Result<Result<Tree, String>, Error> {
        self.disk.put(image)?;
        let mounted = match self.mount() {
            Ok(mounted) => mounted,
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::ResourceBusy => {
                return Err(Error::InUse(self.disk.device().to_owned()));
            }
            Err(error) => return Ok(Err(format!("{} refuses to mount: {error}", self.filesystem.name))),
        };
        let tree = import(&mounted.files(), None, |_| false, &AtomicBool::new(false));
        mounted.leave()?;
        let unreadable = |error| format!("{} mounts, and can't be read: {error}", self.filesystem.name);
        Ok(tree.map(|(tree, _)| tree).map_err(unreadable))
    }
}

/// A mounted filesystem; unmounted when dropped.
pub struct Mounted<'a> {
    path: &'a Path,
    is_mounted: bool,
}

impl Mounted<'_> {
    /// Its root.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// The folder with the program's files.
    pub fn files(&self) -> PathBuf {
        self.path.join(FILES)
    }

    /// Unmounts it.
    pub fn leave(mut self) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            match rustix::mount::unmount(self.path, UnmountFlags::empty()) {
                Ok(()) => break,
                Err(rustix::io::Errno::BUSY) if started.elapsed() < BUSY => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(Error::file(self.path, error.into())),
            }
        }
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = rustix::mount::unmount(self.path, UnmountFlags::DETACH);
        }
    }
}
