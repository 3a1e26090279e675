//! `syncline trim`: tells the device below a filesystem which blocks are free.

use super::image;
use crate::failure::{Cause, Failure, Outcome};
use crate::size;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline::{Filesystem, ImageOptions};
use syncline_fuse::control::{self, ControlError};
use syncline_store::StoreError;

/// Arguments of `trim`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Skip shorter runs of free space
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    minimum: u64,
    /// Give free blocks of an image file back to its host, as holes: the host must have space when
    /// they are written again. On a mount, '-o discard=punch' allows it
    #[arg(long)]
    punch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let bar = image::spinner("telling the device which blocks are free");
    let bytes = if args.source.is_dir() { of_mount(&args) } else { of_image(&args) };
    bar.finish_and_clear();
    let bytes = bytes?;
    match args.json {
        true => say_text!("{:#}\n", json!({ "discarded_bytes": bytes })),
        false => say!("{}: {} discarded", args.source.display(), size::show(bytes)),
    }
    Ok(ExitCode::SUCCESS)
}

fn of_mount(args: &Args) -> Result<u64, Failure> {
    // FITRIM alone would also trim another kind of filesystem.
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
            Some(rustix::io::Errno::OPNOTSUPP) => {
                let text =
                    format!("{}: its image file keeps the room that it was made with", args.source.display());
                Failure::of(Cause::Other, text).next(
                    "to give it back to the host, mount with -o discard=punch, or unmount and use --punch",
                )
            }
            _ => error.into(),
        }
    })
}

fn of_image(args: &Args) -> Result<u64, Failure> {
    let image = &args.source;
    let about = |error: syncline::Error| Failure::from(error).about(image);
    let file = std::fs::metadata(image).is_ok_and(|metadata| metadata.is_file());
    if file && !args.punch {
        // Open it read-only, so that nothing is written: if it is not an image, that error comes
        // first.
        Filesystem::open(image, ImageOptions::read_only()).and_then(Filesystem::close).map_err(about)?;
        return Err(Failure::from(StoreError::KeepsRoom).about(image));
    }
    let options = ImageOptions::new().punch_holes(args.punch);
    let fs = Filesystem::open(image, options).map_err(about)?;
    let bytes = fs.trim(args.minimum).map_err(about)?;
    fs.close().map_err(about)?;
    Ok(bytes)
}
