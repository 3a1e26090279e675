//! `syncline trim`: tells the device below a filesystem what is free.

use super::image;
use crate::failure::{Cause, Failure, Outcome};
use crate::size;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Filesystem, ImageOptions};
use syncline_fuse::control::{self, ControlError};

/// Arguments of `trim`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Leave alone what is free in shorter pieces
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    minimum: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let bar = image::spinner("telling the device what is free");
    let bytes = if args.source.is_dir() { of_mount(&args) } else { of_image(&args.source, args.minimum) };
    bar.finish_and_clear();
    let bytes = bytes?;
    match args.json {
        true => println!("{:#}", json!({ "discarded_bytes": bytes })),
        false => println!("{}: {} discarded", args.source.display(), size::show(bytes)),
    }
    Ok(ExitCode::SUCCESS)
}

fn of_mount(args: &Args) -> Result<u64, Failure> {
    // FITRIM alone would also trim a filesystem of another kind.
    control::text(&args.source, "daemon")?;
    control::trim(&args.source, args.minimum).map_err(|error| {
        let errno = match &error {
            ControlError::Failed { source, .. } => source.raw_os_error(),
            _ => None,
        };
        match errno.map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::PERM) => Failure::of(Cause::Permission, error)
                .next("only root and the user whose daemon it is may trim the filesystem"),
            Some(rustix::io::Errno::ROFS) => {
                let text = format!("{}: the filesystem is read-only", args.source.display());
                Failure::of(Cause::Permission, text).next("mount it for writing")
            }
            _ => error.into(),
        }
    })
}

fn of_image(image: &Path, minimum: u64) -> Result<u64, Failure> {
    let about = |error: syncline::Error| Failure::from(error).about(image);
    let fs = Filesystem::open(image, ImageOptions::default()).map_err(about)?;
    let bytes = fs.trim(minimum).map_err(about)?;
    fs.close().map_err(about)?;
    Ok(bytes)
}
