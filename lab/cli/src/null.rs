//! The hidden `syncline-lab bench-null`: serves the filesystem that keeps nothing, for as long as its
//! standard input is open.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use syncline_bench::BenchError;
use syncline_bench::null::{Null, READY};
use syncline_fuse::{MountError, MountOptions, Transport, Unmounter};
use syncline_image::{How, Image};

/// How often, and at what interval, to retry a busy unmount.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Arguments of the hidden command `bench-null`.
#[derive(clap::Args)]
pub struct Args {
    /// Empty directory to mount it at
    directory: PathBuf,
    /// How requests come from the kernel, as for 'syncline mount'
    #[arg(long, value_name = "WAY", default_value = "auto", overrides_with = "transport")]
    #[arg(value_parser = ["auto", "uring", "classic"])]
    transport: String,
    /// Image that takes the writes, at no place in particular, and is flushed at each sync: its
    /// contents are lost
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), BenchError> {
    // A session of its own, as a daemon has, so that a signal that interrupts the measurement does
    // not end this process first.
    rustix::process::setsid().map_err(std::io::Error::from)?;
    let mut options = MountOptions::new(Path::new("null"));
    options.transport = match args.transport.as_str() {
        "uring" => Transport::Uring,
        "classic" => Transport::Classic,
        _ => Transport::Auto,
    };
    let failed = |said: String| BenchError::Engine { what: "the null filesystem", said };
    let image = args.device.as_ref().map(|name| Image::open(name, &How::default())).transpose();
    let image = image.map_err(|error| failed(error.to_string()))?;
    let null = Null::new(image.as_ref().map(Image::device));
    let mounted = null.mount(&args.directory, &options).map_err(|error| failed(error.to_string()))?;
    let unmounter = mounted.unmounter();
    thread::spawn(move || {
        // An error ends the input as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        unmount(&unmounter);
    });
    let mut output = std::io::stdout();
    writeln!(output, "{READY}").and_then(|()| output.flush())?;
    mounted.run_until_unmounted().map_err(|error| failed(error.to_string()))
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
        eprintln!("syncline-lab: the null filesystem stays mounted: {error}");
        // The process that measures waits for our exit.
        std::process::exit(1);
    }
}
