//! The demo's mount, which is removed however the demo ends.

use super::counts::Counts;
use crate::failure::Failure;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use syncline_fuse::control;

/// Seconds that the daemon may take for its last checkpoint.
const CHECKPOINT_SECONDS: &str = "120";

/// A mount; dropping it unmounts.
pub struct Mounted {
    directory: PathBuf,
    mounted: bool,
}

impl Mounted {
    /// Mounts an image as a user would, with a daemon. A refusal has the exit code of 'mount'.
    pub fn new(image: &Path, directory: &Path) -> Result<Self, Failure> {
        // A demo leaves the machine's switch for FUSE over io_uring as it is.
        run(own("mount")?.arg(image).arg(directory).args(["-o", "transport=available"]))?;
        Ok(Self { directory: directory.to_owned(), mounted: true })
    }

    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The daemon's count of its requests to the device.
    pub fn counts(&self) -> Result<Counts, Failure> {
        let stats: Value = serde_json::from_str(&control::stats(&self.directory)?).map_err(Failure::new)?;
        let count = |name: &str| {
            let count = stats["store"][name].as_u64();
            count.ok_or_else(|| Failure::new(format!("the daemon does not count {name}")))
        };
        Ok(Counts {
            flushes: count("flushes_issued")?,
            writes: count("device_writes")?,
            write_bytes: count("device_write_bytes")?,
        })
    }

    /// Unmounts, and waits until everything is on the device.
    pub fn end(mut self) -> Result<(), Failure> {
        self.unmount()?;
        self.mounted = false;
        Ok(())
    }

    fn unmount(&self) -> Result<(), Failure> {
        run(own("umount")?.arg(&self.directory).args(["--timeout", CHECKPOINT_SECONDS]))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted && self.unmount().is_err() {
            // If even this fails there is nothing left to try.
            let _ = own("umount").and_then(|mut umount| run(umount.arg("--lazy").arg(&self.directory)));
        }
    }
}

/// A command of this program.
fn own(name: &str) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("syncline").arg(name);
    Ok(command)
}

/// Runs a command of this program, whose message already says what is wrong and what to do.
fn run(command: &mut Command) -> Result<(), Failure> {
    // A file and no pipe: a daemon keeps it open.
    let mut said = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone()?);
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    let text = text(&mut said)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Err(Failure::new(text.strip_prefix("syncline: ").unwrap_or(&text)).with_code(code))
}

/// Everything that was written to a file, on one line.
fn text(file: &mut File) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" "))
}
