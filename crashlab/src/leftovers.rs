//! Mounts and loop devices that a killed crashlab has left. Nobody answers on such a mount, and XFS tries
//! forever to write to such a disk: sync(2) waits for it, and the process can't end. A [`Guard`] removes
//! them; if it was killed too, the next crashlab does.

use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// From one look at a process, or at its mounts, to the next.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a guard tries.
const PATIENCE: Duration = Duration::from_secs(20);

/// The source of this process's mounts in the table of mounts.
pub fn source() -> String {
    format!("{}{}", prefix(), std::process::id())
}

/// The beginning of the sources in this namespace of processes.
fn prefix() -> String {
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    format!("crashlab-{namespace}-")
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
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts: Vec<Mount> = String::from_utf8_lossy(&table).lines().filter_map(Mount::parse).collect();
    let dead: Vec<&Mount> = mounts.iter().filter(|mount| mount.is_dead()).collect();
    for dead in &dead {
        for device in devices(&dead.path) {
            for error in ["EIO", "default"] {
                let name = device.file_name().unwrap_or_default();
                let tries = Path::new("/sys/fs/xfs")
                    .join(name)
                    .join("error/metadata")
                    .join(error)
                    .join("max_retries");
                let _ = fs::write(tries, "0");
            }
            let on_device = mounts.iter().filter(|mount| Path::new(&mount.source) == device);
            on_device.for_each(|mount| unmount(&mount.path));
            let _ = quiet("losetup").arg("-d").arg(device).status();
        }
        unmount(&dead.path);
    }
    !dead.is_empty()
}

/// A line of the table.
struct Mount {
    path: PathBuf,
    source: String,
    options: String,
}

impl Mount {
    /// Number, parent, device, root, path, options, optional fields, a dash, type, source, options.
    fn parse(line: &str) -> Option<Self> {
        let (first, last) = line.split_once(" - ")?;
        let mut last = last.split(' ').skip(1);
        let path = PathBuf::from(OsString::from_vec(unescaped(first.split(' ').nth(4)?)));
        Some(Self { path, source: last.next()?.into(), options: last.next()?.into() })
    }

    /// True if a crashlab of this user mounted it, and its process is gone.
    fn is_dead(&self) -> bool {
        let process = self.source.strip_prefix(&prefix()).and_then(|id| id.parse().ok());
        let user = format!("user_id={}", rustix::process::geteuid().as_raw());
        let is_own = self.options.split(',').any(|option| option == user);
        // Asked last: it waits for a server that is only stopped.
        process.is_some_and(|id| !is_alive(id)) && is_own && statfs(&self.path).err() == Some(Errno::NOTCONN)
    }
}

/// A path of the table, which has some bytes in octal.
fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(part.len().min(3));
        bytes.extend(u8::from_str_radix(digits, 8));
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

/// The loop devices on the disk in this folder.
fn devices(folder: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let is_in = |device: &fs::DirEntry| -> io::Result<bool> {
        let file = fs::read_to_string(device.path().join("loop/backing_file"))?;
        Ok(Path::new(file.trim_end_matches('\n')).parent() == Some(folder))
    };
    let own = devices.filter(|device| is_in(device).unwrap_or(false));
    own.map(|device| Path::new("/dev").join(device.file_name())).collect()
}

fn unmount(path: &Path) {
    // A user has to ask fusermount3.
    if rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) == Err(Errno::PERM) {
        let _ = quiet("fusermount3").args(["-u", "-z"]).arg(path).status();
    }
    let _ = fs::remove_dir(path);
}

fn quiet(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_understood() {
        let line = "44 27 0:41 / /tmp/a\\040b\\134c rw - fuse crashlab-4026531836-17 rw,user_id=0,group_id=0";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.path.to_str(), &*mount.source), (Some("/tmp/a b\\c"), "crashlab-4026531836-17"));
        assert_eq!(mount.options, "rw,user_id=0,group_id=0");
        assert!(Mount::parse("44 27 0:41 / /tmp rw").is_none());
    }
}
