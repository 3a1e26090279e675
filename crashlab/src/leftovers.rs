//! Mounts and loop devices that a killed crashlab has left. Nobody answers on such a mount, and XFS tries
//! forever to write to such a disk: sync(2) waits for it, and the process can't end. A [`Guard`] removes
//! them; if it was killed too, the next crashlab does.

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PREFIX: &str = "crashlab-";
/// From one look at a process, or at its mounts, to the next.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a guard tries.
const PATIENCE: Duration = Duration::from_secs(20);

/// The source of this process's mounts in the table of mounts.
pub fn source() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// A process that waits until this one has been killed, and removes what it leaves.
pub struct Guard(Option<Child>);

impl Guard {
    /// Starts it. It has a process group of its own, so that a signal to the group does not reach it.
    pub fn start() -> Self {
        let guard = || {
            quiet(std::env::current_exe()?)
                .args(["guard", &std::process::id().to_string()])
                .process_group(0)
                .spawn()
        };
        // Without one, the next crashlab cleans up.
        Self(guard().ok())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(guard) = &mut self.0 {
            let _ = guard.kill();
            let _ = guard.wait();
        }
    }
}

/// Waits until this process has ended, and removes what it has left.
pub fn guard(process: u32) {
    while is_alive(process) {
        std::thread::sleep(PAUSE);
    }
    let ended = Instant::now();
    while remove() && ended.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
}

/// False for a process that has ended, even if one of its threads still waits for the kernel.
fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name of the program, which may have any characters.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Removes them. Returns true if there were any.
pub fn remove() -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts: Vec<Mount> = table.lines().filter_map(Mount::parse).collect();
    let dead: Vec<&Mount> = mounts.iter().filter(|mount| mount.is_dead()).collect();
    for dead in &dead {
        for device in devices(dead.path) {
            for error in ["EIO", "default"] {
                let name = device.file_name().unwrap_or_default();
                let tries = Path::new("/sys/fs/xfs")
                    .join(name)
                    .join("error/metadata")
                    .join(error)
                    .join("max_retries");
                let _ = fs::write(tries, "0");
            }
            let on_device = mounts.iter().filter(|mount| Path::new(mount.source) == device);
            on_device.for_each(|mount| unmount(mount.path));
            let _ = quiet("losetup").arg("-d").arg(device).status();
        }
        unmount(dead.path);
    }
    !dead.is_empty()
}

/// A line of the table.
struct Mount<'a> {
    path: &'a Path,
    source: &'a str,
}

impl<'a> Mount<'a> {
    /// Number, parent, device, root, path, options, optional fields, a dash, type, source.
    fn parse(line: &'a str) -> Option<Self> {
        let (first, last) = line.split_once(" - ")?;
        Some(Self { path: Path::new(first.split(' ').nth(4)?), source: last.split(' ').nth(1)? })
    }

    /// True if a crashlab mounted it, and its process is gone.
    fn is_dead(&self) -> bool {
        let process = self.source.strip_prefix(PREFIX).and_then(|id| id.parse::<u32>().ok());
        // Asked last: a lookup waits for a server that is only stopped.
        process.is_some_and(|id| !is_alive(id))
            && fs::metadata(self.path)
                .is_err_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
    }
}

/// The loop devices on files in this folder.
fn devices(folder: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let is_in = |device: &fs::DirEntry| -> io::Result<bool> {
        let file = fs::read_to_string(device.path().join("loop/backing_file"))?;
        Ok(Path::new(file.trim_end()).starts_with(folder))
    };
    let own = devices.filter(|device| is_in(device).unwrap_or(false));
    own.map(|device| Path::new("/dev").join(device.file_name())).collect()
}

fn unmount(path: &Path) {
    // A user has to ask fusermount3.
    if rustix::mount::unmount(path, UnmountFlags::DETACH) == Err(Errno::PERM) {
        let _ = quiet("fusermount3").args(["-u", "-z"]).arg(path).status();
    }
    let _ = fs::remove_dir(path);
}

fn quiet(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
