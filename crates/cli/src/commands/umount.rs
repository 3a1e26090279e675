//! `syncline umount`: unmount and wait until the image is clean.

use crate::failure::{Failure, Outcome};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use syncline_fuse::{FILESYSTEM_TYPE, control, mounts};

/// Arguments of `umount`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory that an image is mounted at
    directory: PathBuf,
    /// Seconds to wait for the last checkpoint
    #[arg(long, default_value_t = 300)]
    timeout: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let directory = std::fs::canonicalize(&args.directory)
        .map_err(|error| Failure::new(format!("{}: {error}", args.directory.display())))?;
    let mounted = mounts()?.into_iter().rfind(|entry| entry.mount_point == directory);
    if mounted.is_none_or(|entry| entry.filesystem_type != FILESYSTEM_TYPE) {
        return Err(Failure::new(format!("no Syncline filesystem is mounted at {}", directory.display())));
    }
    let daemon = control::text(&directory, "daemon").ok();
    let daemon: Value = daemon.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    unmount(&directory)?;
    let Some(pid) = daemon["pid"].as_i64() else { return Ok(ExitCode::SUCCESS) };
    wait_for_exit(pid, Duration::from_secs(args.timeout))?;
    if let Some(image) = daemon["image"].as_str() {
        require_clean(Path::new(image))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Unmounts as root, or through fusermount3.
fn unmount(directory: &Path) -> Result<(), Failure> {
    let program = if rustix::process::geteuid().is_root() { "umount" } else { "fusermount3" };
    let mut command = Command::new(program);
    if program == "fusermount3" {
        command.arg("-u");
    }
    let output = command.arg("--").arg(directory).output();
    let output =
        output.map_err(|error| Failure::new(format!("cannot run {program}: {error}; install it")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!(
        "{}; close the files that are open there ('fuser -vm' shows who has them)",
        said.trim()
    )))
}

fn wait_for_exit(pid: i64, timeout: Duration) -> Result<(), Failure> {
    let started = Instant::now();
    let process = PathBuf::from(format!("/proc/{pid}"));
    // A zombie has let go of the image, whoever still has to reap it.
    let alive = || {
        std::fs::read_to_string(process.join("stat"))
            .is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
    };
    while alive() {
        if started.elapsed() > timeout {
            return Err(Failure::new(format!(
                "it is unmounted, but process {pid} is still writing; wait for it to end"
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The daemon is gone: its last superblock says whether it got everything done.
fn require_clean(image: &Path) -> Result<(), Failure> {
    use syncline_device::{Device, FileDevice, OpenOptions, block_on};
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let Ok(device) = FileDevice::open(image, options) else {
        return Ok(()); // Somebody mounted it again at once.
    };
    let device: std::sync::Arc<dyn Device> = device;
    let slots = block_on(syncline_store::read_superblocks(&device))?;
    if slots.superblock.clean {
        return Ok(());
    }
    let text = "it is unmounted, but its last checkpoint did not end well; nothing that was synced is lost: mount it again to recover";
    Err(Failure::new(format!("{}: {text}", image.display())))
}
