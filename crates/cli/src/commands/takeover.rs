//! `syncline takeover`: takes an image from the host that has it, and leaves it free for the next
//! one.

use super::image;
use crate::failure::{Failure, Outcome};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use syncline_device::OpenOptions;
use syncline_image::{How, TakeOver};

/// Arguments of `takeover`.
#[derive(clap::Args)]
pub struct Args {
    /// NBD export, RBD image, or block device that was made with 'mkfs --shared'
    image: PathBuf,
}

/// Runs the command. The engine is not started: the next mount recovers from a crash.
pub fn run(args: Args) -> Outcome {
    let began = Instant::now();
    let how = How::new(OpenOptions::default());
    let taken = image::open(&args.image, &How { take_over: Some(TakeOver::WhenExpired), ..how })?;
    if !taken.is_kept_from_other_hosts() {
        let text = format!("{}: no other host can have it: it has no lease", args.image.display());
        return Err(Failure::usage(text).next(
            "on this host 'syncline umount' ends its mount; if several hosts reach this device, 'syncline label --shared on' makes them take turns",
        ));
    }
    let released = taken.release();
    drop(taken);
    let (image, seconds) = (args.image.display(), began.elapsed().as_secs_f64());
    let now = match released {
        true => format!("free after {seconds:.1} s"),
        false => format!(
            "taken after {seconds:.1} s, and the next host waits for up to 15 s, since it could not be given back"
        ),
    };
    say!("{image}: {now}; the former holder can't write to it any more");
    Ok(ExitCode::SUCCESS)
}
