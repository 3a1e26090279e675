//! Mounts and loop devices that a killed crashlab has left. Nobody answers on such a mount, and mkfs.btrfs
//! fails for every disk of the machine while one is in the table of mounts.

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PREFIX: &str = "crashlab-";

/// The source of this process's mounts in the table of mounts.
pub fn source() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// Removes them. What can't be removed stays.
pub fn remove() {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts: Vec<Mount> = table.lines().filter_map(Mount::parse).collect();
    for dead in mounts.iter().filter(|mount| mount.is_dead()) {
        for device in devices(dead.path) {
            let on_device = mounts.iter().filter(|mount| Path::new(mount.source) == device);
            on_device.for_each(|mount| unmount(mount.path));
            let _ = quiet("losetup").arg("-d").arg(device).status();
        }
        unmount(dead.path);
    }
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
        process.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
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

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
