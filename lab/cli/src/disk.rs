//! `syncline-lab disk`: serves a disk whose flushes take a chosen time, for as long as its standard
//! input is open.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;
use syncline_bench::BenchError;
use syncline_bench::slow_disk::SlowDisk;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Args {
    /// File that has the bytes
    backing: PathBuf,
    /// Empty directory, where the disk is the file "disk"; put a loop device over it
    directory: PathBuf,
    /// Time that each flush takes, such as 300us or 2ms
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    flush: Duration,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), BenchError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::NotRoot { what: "serving a disk".into() });
    }
    // A signal that interrupts a measurement must not end the disk before the filesystem on it.
    rustix::process::setsid().map_err(io::Error::from)?;
    // Otherwise each flush takes 50 µs more than it should. Its threads inherit this.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).map_err(io::Error::from)?;
    let backing = File::options().read(true).write(true).open(&args.backing)?;
    let disk = SlowDisk::new(backing, &args.directory, args.flush)?;
    let mut output = io::stdout();
    writeln!(output, "{}", disk.path().display()).and_then(|()| output.flush())?;
    // An error ends the input as well.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}
