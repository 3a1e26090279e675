//! `syncline resize`: makes the filesystem in an image larger, mounted or not, or smaller.

use super::image::{self, close, progress_bar};
use crate::failure::{Cause, Failure, Outcome};
use crate::size;
use rustix::io::Errno;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use syncline_device::{Device, DeviceExt, FileDevice, OpenOptions, block_on};
use syncline_format::{BLOCK_BYTES, Geometry};
use syncline_fs::{Filesystem, FsError, shrink};
use syncline_fuse::control::{self, ControlError};
use syncline_image::How;
use syncline_store::{Store, StoreError, StoreOptions};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// A memtable so small that the space its checkpoint may need does not matter.
const MEMTABLE_BYTES: usize = 1 << 20;

/// Arguments of `resize`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    image: PathBuf,
    /// New size, such as 20GiB, or 'max': all of the present file or block device; 'min': the
    /// smallest possible
    size: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A size on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Max,
    Min,
    Bytes(u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            "min" => Ok(Self::Min),
            text => size::parse(text).map(Self::Bytes),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.image.is_dir() {
        return of_mount(&args);
    }
    let (present, device) = sizes(&args.image).map_err(|failure| match args.size {
        Target::Min => failure,
        Target::Max | Target::Bytes(_) => failure.or_its_directory(),
    })?;
    let wanted = match args.size {
        Target::Max => device,
        Target::Min => {
            recover(&args.image)?;
            // Snapshots stay: their blocks are not moved.
            least(&args.image)?.max(largest_snapshot(&args.image)?).min(present)
        }
        Target::Bytes(bytes) => bytes - bytes % BLOCK,
    };
    // A smaller difference is not worth moving the superblocks' copies for.
    if wanted.abs_diff(present) < Geometry::TAIL_BLOCKS * BLOCK {
        if args.size == Target::Bytes(present) && device > present {
            // The filesystem was made smaller before, but the file was not.
            image::open(&args.image, &How::default())?.shorten(present)?;
        }
        return tell(&args, present, present);
    }
    if wanted < present {
        let asked = if let Target::Bytes(bytes) = args.size { bytes } else { wanted };
        shrink(&args.image, asked, present)?;
        let now = if args.size == Target::Min { shrink_further(&args.image, wanted)? } else { wanted };
        return tell(&args, present, now);
    }
    grow(&args.image, wanted, device)?;
    tell(&args, present, wanted)
}

/// Reports the result.
fn tell(args: &Args, before_bytes: u64, now_bytes: u64) -> Outcome {
    if args.size == Target::Min {
        tell_of_snapshots(&args.image, now_bytes)?;
    }
    let (name, before) = (args.image.display(), size::show(before_bytes));
    match (args.json, before_bytes == now_bytes) {
        (true, _) => say_text!("{:#}\n", json!({ "bytes_before": before_bytes, "bytes": now_bytes })),
        (false, true) => say!("{name}: {before}, as before"),
        (false, false) => say!("{name}: {before} before, {} now", size::show(now_bytes)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says so if only snapshots keep the image from becoming smaller.
fn tell_of_snapshots(path: &Path, now_bytes: u64) -> Result<(), Failure> {
    let wanted = least(path)?;
    if now_bytes.saturating_sub(wanted) < Geometry::TAIL_BLOCKS * BLOCK {
        return Ok(());
    }
    let device: Arc<dyn Device> = image::open_read_only(path)?;
    if let Err(error) = block_on(syncline_store::require_shrinkable(&device, wanted / BLOCK)) {
        let wanted = size::show(wanted);
        note!("syncline: {}: {wanted} would do, but {error}", path.display());
    }
    Ok(())
}

/// Has the daemon do it while the filesystem is in use.
fn of_mount(args: &Args) -> Outcome {
    let directory = &args.image;
    // Distinguishes other filesystems from older daemons.
    control::text(directory, "daemon")?;
    let wanted = match args.size {
        Target::Max => None,
        Target::Min => return Err(smaller_while_mounted(directory)),
        Target::Bytes(bytes) => Some(bytes - bytes % BLOCK),
    };
    let done = control::resize(directory, wanted).map_err(|error| refused(directory, error))?;
    tell(args, done.before_bytes, done.now_bytes)
}

fn smaller_while_mounted(directory: &Path) -> Failure {
    let text = format!("{}: a mounted filesystem can't be made smaller", directory.display());
    Failure::of(Cause::InUse, text).next("unmount it, and name the image")
}

fn refused(directory: &Path, error: ControlError) -> Failure {
    let ControlError::Failed { source, .. } = &error else { return error.into() };
    let text = |what: &str| format!("{}: {what}", directory.display());
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM) => Failure::of(Cause::Permission, error)
            .next("only root and the user whose daemon it is may resize the filesystem"),
        Some(Errno::ROFS) => {
            Failure::of(Cause::Permission, text("the filesystem is read-only")).next("mount it for writing")
        }
        Some(Errno::BUSY) => smaller_while_mounted(directory),
        Some(Errno::RANGE) => Failure::of(Cause::Usage, text("the device below is smaller than that"))
            .next("choose a smaller size or 'max', or enlarge the device first"),
        Some(Errno::FBIG) => Failure::of(Cause::Usage, text("an image has at most 256 TiB")),
        Some(Errno::NOSPC | Errno::DQUOT) => {
            let text = text("there is no room for so long an image file where it lies");
            Failure::of(Cause::NoSpace, text)
                .next("free some space there, or choose a smaller size; nothing has changed")
        }
        _ => Failure::of(Cause::Device, error).next("the daemon's log says more"),
    }
}

/// The sizes of the filesystem and of its device, in bytes.
fn sizes(path: &Path) -> Result<(u64, u64), Failure> {
    let device = image::open_read_only(path)?;
    let slots = block_on(syncline_store::read_superblocks(&device));
    let slots = slots.map_err(|error| Failure::from(error).about(path))?;
    Ok((slots.superblock.geometry.total_blocks * BLOCK, device.size_bytes()))
}

/// First the file, durably, then the filesystem: a crash between the two leaves a file with unused
/// space behind its filesystem.
fn grow(path: &Path, wanted: u64, device_bytes: u64) -> Result<(), Failure> {
    let device = match syncline_image::is_remote(path) {
        true => {
            let device = image::open(path, &How::default())?.device();
            block_on(device.enlarge_to(wanted))?;
            device
        }
        false => extended(path, wanted, device_bytes)?,
    };
    let spawn = image::background()?;
    let grown = block_on(async {
        let (store, _) = Store::grow(device, StoreOptions::default(), spawn.clone(), wanted / BLOCK).await?;
        // Opened as a mount would, so that nothing is left to do for the next one.
        Ok::<_, Failure>(Filesystem::open(store, spawn, Default::default()).await?)
    });
    close(&grown.map_err(|failure| failure.about(path))?).map_err(|failure| failure.about(path))
}

/// An image file that is at least this long, or a block device.
fn extended(path: &Path, wanted: u64, device_bytes: u64) -> Result<Arc<dyn Device>, Failure> {
    let bar = progress_bar(wanted.saturating_sub(device_bytes), "making the image longer");
    let length = wanted + image::open(path, &How::reading())?.overhead_bytes();
    let extended =
        FileDevice::extend(path, length, OpenOptions::default(), &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    // Closed and opened again, so that it is opened with its lease, if it needs one.
    drop(extended?);
    Ok(image::open(path, &How::default())?.device())
}

/// The smallest possible size in bytes; changes nothing.
fn least(path: &Path) -> Result<u64, Failure> {
    let (device, spawn) = (image::open_read_only(path)?, image::background()?);
    let options = StoreOptions { read_only: true, ..StoreOptions::default() };
    let least = block_on(async {
        let (store, _) = Store::open(device, options, spawn.clone()).await?;
        let fs = Filesystem::open(store, spawn, Default::default()).await?;
        Ok::<_, Failure>(fs.least_blocks())
    });
    Ok(least.map_err(|failure| failure.about(path))? * BLOCK)
}

/// The size of the largest filesystem that there is a snapshot of, in bytes; 0 without one.
fn largest_snapshot(path: &Path) -> Result<u64, Failure> {
    let device = image::open_read_only(path)?;
    let (_, snapshots) = block_on(syncline_store::read_snapshots(&device))
        .map_err(|error| Failure::from(error).about(path))?;
    Ok(snapshots.iter().map(|snapshot| snapshot.total_blocks).max().unwrap_or(0) * BLOCK)
}

/// Opens and closes an image left by a crash, which removes nameless files that still take space.
fn recover(path: &Path) -> Result<(), Failure> {
    let (device, spawn) = (image::open(path, &How::default())?.device(), image::background()?);
    let opened = block_on(async {
        if syncline_store::read_superblocks(&device).await?.superblock.clean {
            return Ok(None);
        }
        let (store, _) = Store::open(device, StoreOptions::default(), spawn.clone()).await?;
        Ok::<_, Failure>(Some(Filesystem::open(store, spawn, Default::default()).await?))
    });
    match opened.map_err(|failure| failure.about(path))? {
        Some(fs) => close(&fs).map_err(|failure| failure.about(path)),
        None => Ok(()),
    }
}

/// A smaller filesystem needs less space for itself, so shrink again as long as that gains
/// something.
fn shrink_further(path: &Path, mut present: u64) -> Result<u64, Failure> {
    loop {
        let wanted = least(path)?.max(largest_snapshot(path)?).min(present);
        if present - wanted < Geometry::TAIL_BLOCKS * BLOCK {
            return Ok(present);
        }
        shrink(path, wanted, present)?;
        present = wanted;
    }
}

/// First the filesystem, durably, then the file: a crash between the two leaves a file with unused
/// space behind its filesystem.
fn shrink(path: &Path, asked: u64, present: u64) -> Result<(), Failure> {
    let wanted = asked - asked % BLOCK;
    recover(path)?;
    let device = image::open_read_only(path)?;
    // Checked before a smallest size is named that snapshots would make impossible.
    block_on(syncline_store::require_shrinkable(&device, wanted / BLOCK))
        .map_err(|error| in_the_way(path, error))?;
    drop(device);
    let least = least(path)?;
    if wanted < least {
        let text = format!(
            "{}: {} are too few to go to at once; the smallest size that will do is {} ({least} bytes)",
            path.display(),
            size::show(asked),
            size::show(least)
        );
        let next = if least < present {
            "name that size, or 'min', which shrinks it as far as possible; or delete something"
        } else {
            "delete something"
        };
        return Err(Failure::of(Cause::NoSpace, text).next(next));
    }
    let image = image::open(path, &How::default())?;
    let bar = progress_bar(present - wanted, "moving blocks from behind the new end");
    let options = StoreOptions { memtable_bytes: MEMTABLE_BYTES, ..StoreOptions::default() };
    let mut moved = |bytes| bar.set_position(bytes);
    let spawn = image::background()?;
    let work = shrink::shrink(image.device(), options, spawn, wanted / BLOCK, &mut moved);
    let done = block_on(work);
    bar.finish_and_clear();
    done.map_err(|error| in_the_way(path, error))?;
    Ok(image.shorten(wanted)?)
}

/// The image was read before, so it is one, and the obstacle is in its contents.
fn in_the_way(path: &Path, error: impl Into<FsError>) -> Failure {
    let error = error.into();
    let state = matches!(error, FsError::Store(StoreError::Unusable(_)));
    let failure = Failure::from(error).about(path);
    if state { failure.with_code(Cause::Other as u8) } else { failure }
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
