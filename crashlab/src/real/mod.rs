//! Real filesystems: a program's operations are done again on one of them, over a [disk] that notes every
//! write, and the trees are those that the filesystem itself makes of the disk after a power cut.

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
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The folder of a filesystem that has the program's files.
pub(crate) const FILES: &str = "files";
/// How long a filesystem may be busy when it is unmounted.
const BUSY: Duration = Duration::from_secs(5);

/// Mounts a filesystem.
#[derive(Debug)]
enum Driver {
    /// The kernel; its name for this type of filesystem.
    Kernel(&'static str),
    /// This program, over FUSE: `PROGRAM mount -o OPTIONS DEVICE DIRECTORY`, and `PROGRAM umount DIRECTORY`,
    /// which waits until it has left the device.
    Program(&'static str),
}

/// A real filesystem.
#[derive(Debug)]
pub struct Filesystem {
    /// Its name, which is also that of its model.
    pub name: &'static str,
    driver: Driver,
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
pub static FILESYSTEMS: [Filesystem; 5] = [
    Filesystem {
        name: "ext4",
        driver: Driver::Kernel("ext4"),
        mkfs: "mkfs.ext4",
        mkfs_options: EXT4_OPTIONS,
        mib: 64,
        // Without the thread that goes on with mkfs's work in the background.
        options: "commit=1,noinit_itable",
        sector: 512,
        commits_by_time: true,
    },
    Filesystem {
        name: "ext4-journal",
        driver: Driver::Kernel("ext4"),
        mkfs: "mkfs.ext4",
        mkfs_options: EXT4_OPTIONS,
        mib: 64,
        options: "data=journal,commit=1,noinit_itable",
        sector: 512,
        commits_by_time: true,
    },
    Filesystem {
        name: "xfs",
        driver: Driver::Kernel("xfs"),
        mkfs: "mkfs.xfs",
        mkfs_options: &["-q", "-f"],
        mib: 300,
        options: "nouuid",
        sector: 512,
        commits_by_time: false,
    },
    Filesystem {
        name: "btrfs",
        driver: Driver::Kernel("btrfs"),
        mkfs: "mkfs.btrfs",
        mkfs_options: &["-q", "-f"],
        mib: 128,
        options: "commit=1",
        // Its superblock is 4 KiB with one checksum: it needs such disks.
        sector: 4096,
        commits_by_time: true,
    },
    Filesystem {
        name: "syncline",
        driver: Driver::Program("syncline"),
        mkfs: "syncline",
        mkfs_options: &["mkfs", "-q"],
        mib: 64,
        // As fuseblk, sync(2) reaches it. The machine's switch for io_uring stays as it is.
        options: "noatime,fuseblk=always,transport=available,commit=1",
        sector: 512,
        commits_by_time: true,
    },
];

/// As mkfs.ext4 chooses by itself from 512 MiB on.
const EXT4_OPTIONS: &[&str] = &["-q", "-F", "-b", "4096", "-I", "256"];

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
            let mut command = command(program);
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
    options: String,
}

impl Machine {
    /// Makes the filesystem, with room for as many bytes; `options` are for its mount, with commas between
    /// them.
    pub fn new(filesystem: &'static Filesystem, room: u64, options: &str) -> Result<Self, Error> {
        filesystem.check()?;
        let mountpoint = tempfile::Builder::new().prefix("crashlab-mount-").tempdir();
        let mountpoint = mountpoint.map_err(|error| Error::file(&std::env::temp_dir(), error))?;
        // Whole MiB.
        let disk = Disk::new((filesystem.mib + ((room * 2) >> 20)) << 20)?;
        make(filesystem, disk.device())?;
        let fresh = disk.image();
        let own = [filesystem.options, options].into_iter().filter(|options| !options.is_empty());
        let options = own.collect::<Vec<_>>().join(",");
        Ok(Self { filesystem, disk, fresh, mountpoint, options })
    }

    /// Puts the fresh filesystem on the disk.
    pub fn renew(&self) -> Result<(), Error> {
        self.disk.put(&self.fresh)
    }

    /// Mounts what is on the disk.
    pub fn mount(&self) -> Result<Mounted<'_>, Error> {
        let (path, device, options) = (self.mountpoint.path(), self.disk.device(), self.options.as_str());
        match self.filesystem.driver {
            Driver::Kernel(kind) => {
                let data = CString::new(options).unwrap_or_default();
                let mounted = rustix::mount::mount(device, path, kind, MountFlags::NOATIME, data.as_c_str());
                mounted.map_err(|error| {
                    let error = io::Error::from(error);
                    let text = format!("{error}; the options of the mount are {options}");
                    Error::file(device, io::Error::new(error.kind(), text))
                })?;
            }
            Driver::Program(program) => {
                run(command(program).args(["mount", "-q", "-o", options]).arg(device).arg(path))?;
            }
        }
        Ok(Mounted { path, driver: &self.filesystem.driver, is_mounted: true })
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

/// Makes a filesystem. mkfs.btrfs opens every loop device in the table of mounts and fails at one that has
/// lost its file, so it gets an empty table then.
fn make(filesystem: &Filesystem, device: &Path) -> Result<(), Error> {
    let mkfs = command(filesystem.mkfs);
    let run_after = |words: &[&str]| {
        let words = words.iter().map(OsStr::new).chain([mkfs.get_program()]);
        let words = words.chain(filesystem.mkfs_options.iter().map(OsStr::new)).chain([device.as_os_str()]);
        let words: Vec<&OsStr> = words.collect();
        run(Command::new(words[0]).args(&words[1..]))
    };
    run_after(&[]).or_else(|error| {
        let script = "mount -t tmpfs none /proc && mkdir /proc/self && : >/proc/self/mounts && exec \"$@\"";
        let words = ["unshare", "--mount", "--propagation", "slave", "--", "sh", "-c", script, "sh"];
        run_after(&words).map_err(|_| error)
    })
}

/// True if a filesystem is mounted there.
fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    path.parent().is_some_and(|parent| device(parent) != device(path))
}

/// The program with this name that is beside crashlab, as Syncline's is, or else in the PATH.
fn command(name: &str) -> Command {
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name(name));
    Command::new(beside.filter(|path| path.is_file()).unwrap_or_else(|| name.into()))
}

/// Runs a program; an error has its last words.
fn run(command: &mut Command) -> Result<(), Error> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| Error::Run { what: what.clone(), source })?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::Stopped(format!("{what} failed: {said}")))
        }
    }
}

/// A mounted filesystem; unmounted when dropped.
pub struct Mounted<'a> {
    path: &'a Path,
    driver: &'a Driver,
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
        if let Driver::Program(program) = self.driver {
            let left = run(command(program).args(["umount", "-q"]).arg(self.path));
            self.is_mounted = left.is_err() && is_mount_point(self.path);
            // A process with mounts of its own may have got a copy of this one.
            return left.map_err(|error| match self.is_mounted {
                true => error,
                false => Error::InUse(self.path.to_owned()),
            });
        }
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
