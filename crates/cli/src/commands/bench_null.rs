//! The hidden `syncline bench-null`: serves the filesystem that keeps nothing, for as long as its
//! standard input is open.

use super::image;
use super::mount_options::MountChoices;
use crate::failure::Outcome;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use syncline_bench::null::{Null, READY};
use syncline_fuse::{MountError, Unmounter};
use syncline_image::{How, Image};

/// How often, and at what interval, to retry a busy unmount.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Arguments of the hidden command `bench-null`.
#[derive(clap::Args)]
pub struct Args {
    /// Empty directory to mount it at
    directory: PathBuf,
    /// How requests come from the kernel, as for `mount`
    #[arg(long, value_name = "WAY", default_value = "auto", overrides_with = "transport")]
    transport: String,
    /// Image that takes the writes, at no place in particular, and is flushed at each sync: its
    /// contents are lost
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    // A session of its own, as a daemon has, so that a signal that interrupts the measurement does
    // not end this process first.
    rustix::process::setsid()?;
    let choices = MountChoices::parse(&[format!("transport={}", args.transport)])?;
    let image = args.device.as_ref().map(|name| image::open(name, &How::default())).transpose()?;
    let null = Null::new(image.as_ref().map(Image::device));
    let mounted = null.mount(&args.directory, &choices.kernel(Path::new("null")))?;
    let unmounter = mounted.unmounter();
    thread::spawn(move || {
        // An error ends the input as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        unmount(&unmounter);
    });
    say!("{READY}");
    std::io::stdout().flush()?;
    mounted.run_until_unmounted()?;
    Ok(ExitCode::SUCCESS)
}

/// Unmounts; a mount that stays busy is detached, and ends when nobody uses it any more.
fn unmount(unmounter: &Unmounter) {
    for _ in 0..TRIES {
        match unmounter.unmount() {
            Ok(()) => return,
            Err(MountError::Busy { .. }) => thread::sleep(PAUSE),
            Err(_) => break,
        }
    }
    if let Err(error) = unmounter.detach() {
        tracing::error!(%error, "the null filesystem stays mounted");
        // The process that measures waits for our exit.
        std::process::exit(1);
    }
}
