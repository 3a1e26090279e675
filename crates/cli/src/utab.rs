//! Telling umount(8) of a mount, so that it leaves the work to `umount.fuse.syncline`.
//!
//! Where root names a directory by its full path, umount(8) asks statfs(2) for the type, which is the same for every FUSE filesystem,
//! and so finds no helper of this one. It looks properly where `/run/mount/utab` has a line for the directory. mount(8) and umount(8)
//! write that file, under a lock of their own, and "fake" calls of them do nothing else.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use syncline_fuse::{FILESYSTEM_TYPE, mounts};

/// Where umount(8) looks for the helper. Without it there is nobody to leave the work to.
const HELPER: &str = "/sbin/umount.fuse.syncline";

/// How long that may take: others may hold the file's lock.
const TIME_MAX: Duration = Duration::from_secs(2);

/// The line of a mount; it goes when this is dropped.
pub struct Line {
    directory: PathBuf,
}

impl Line {
    /// Enters a mount that root has made. Nothing but what umount(8) waits for depends on it.
    pub fn enter(image: &Path, directory: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new(HELPER).exists() {
            return None;
        }
        let directory = directory.canonicalize().ok()?;
        let of_type = ["-f", "-t", FILESYSTEM_TYPE, "-o", "x-syncline"].map(OsStr::new);
        let places = [image.as_os_str(), directory.as_os_str()];
        fake("mount", of_type.into_iter().chain(places)).then_some(Self { directory })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let same = |directory: &Path| directory == self.directory;
        // Whoever has mounted there since has a line, too, and it is the same one.
        if mounts().is_ok_and(|mounts| !mounts.iter().any(|entry| same(&entry.mount_point))) {
            fake("umount", [OsStr::new("--fake"), self.directory.as_os_str()]);
        }
    }
}

/// Has a program change its table only. It looks at no path: it would wait for whoever serves what lies there.
fn fake<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> bool {
    let mut command = Command::new(program);
    command.args(["-i", "--no-canonicalize"]).args(arguments);
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = started.inspect_err(|error| tracing::debug!(%error, "{program} can't be run")) else {
        return false;
    };
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if started.elapsed() < TIME_MAX => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                tracing::debug!("{program} does not end");
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}
