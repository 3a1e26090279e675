//! `syncline resize`: makes the filesystem in an image larger.

use super::image::{self, progress_bar};
use super::mount::close;
use crate::failure::{Cause, Failure, Outcome};
use crate::size;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use syncline_device::{Device, FileDevice, OpenOptions, block_on};
use syncline_format::{BLOCK_BYTES, Geometry};
use syncline_fs::Filesystem;
use syncline_fuse::control;
use syncline_store::{Store, StoreOptions};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Arguments of `resize`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The size from now on, such as 20GiB, or 'max': all of the file or block device as it is
    size: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A size on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Max,
    Bytes(u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            text => size::parse(text).map(Self::Bytes),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.image.is_dir() {
        // Either it is no mount at all, or one that must go first.
        control::text(&args.image, "daemon")?;
        let text = format!("{}: a filesystem is not resized while it is mounted", args.image.display());
        return Err(Failure::of(Cause::InUse, text).next("unmount it, and name the image"));
    }
    let (present, device) = sizes(&args.image)?;
    let wanted = match args.size {
        Target::Max => device,
        Target::Bytes(bytes) => bytes - bytes % BLOCK,
    };
    let (name, before) = (args.image.display(), size::show(present));
    // Less than that is not worth moving the superblocks' copies for.
    if wanted.abs_diff(present) < Geometry::TAIL_BLOCKS * BLOCK {
        told(&args, present, present);
        return Ok(ExitCode::SUCCESS);
    }
    if wanted < present {
        let failure = Failure::new(format!("{name}: the filesystem has {before}, and can't be made smaller"));
        return Err(failure.next("make a smaller image, mount both, and copy with 'cp -a'"));
    }
    grow(&args.image, wanted, device)?;
    told(&args, present, wanted);
    Ok(ExitCode::SUCCESS)
}

/// Says what came of it.
fn told(args: &Args, before: u64, now: u64) {
    let name = args.image.display();
    match (args.json, before == now) {
        (true, _) => println!("{:#}", json!({ "bytes_before": before, "bytes": now })),
        (false, true) => println!("{name}: {}, as before", size::show(before)),
        (false, false) => println!("{name}: {} before, {} now", size::show(before), size::show(now)),
    }
}

/// Sizes of the filesystem and of what it lies in, in bytes.
fn sizes(path: &Path) -> Result<(u64, u64), Failure> {
    let device: Arc<dyn Device> = image::open_read_only(path)?;
    let slots = block_on(syncline_store::read_superblocks(&device));
    let slots = slots.map_err(|error| Failure::from(error).about(path))?;
    Ok((slots.superblock.geometry.total_blocks * BLOCK, device.size_bytes()))
}

/// First the file, durably, then the filesystem: a crash between the two leaves a file with something behind its filesystem.
fn grow(path: &Path, wanted: u64, device_bytes: u64) -> Result<(), Failure> {
    let bar = progress_bar(wanted.saturating_sub(device_bytes), "making the image longer");
    let extended =
        FileDevice::extend(path, wanted, OpenOptions::default(), &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let (device, spawn) = (extended?, image::background()?);
    let grown = block_on(async {
        let (store, _) = Store::grow(device, StoreOptions::default(), spawn.clone(), wanted / BLOCK).await?;
        // Opened as a mount does, so that nothing is left to do for the next one.
        Ok::<_, Failure>(Filesystem::open(store, spawn, Default::default()).await?)
    });
    close(&grown.map_err(|failure| failure.about(path))?).map_err(|failure| failure.about(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_sizes_or_all_there_is() {
        assert_eq!("max".parse(), Ok(Target::Max));
        assert_eq!("20GiB".parse(), Ok(Target::Bytes(20 << 30)));
        assert!("more".parse::<Target>().is_err());
    }
}
