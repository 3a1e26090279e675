//! Opening, creating and closing images, for several commands.

use crate::failure::Failure;
use crate::known;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline::FormatOptions;
use syncline_check::Readable;
use syncline_device::{
    Background, Device, DeviceError, FileDevice, OpenOptions, Spawn, WorkerOptions, block_on,
};
use syncline_format::BLOCK_BYTES;
use syncline_format::space::MAX_BLOCKS;
use syncline_fs::Filesystem;
use syncline_image::{How, Image, Progress};
use syncline_store::read_superblocks;

/// Size of the smallest image.
pub const LEAST_BYTES: u64 = 16 << 20;

/// Starts the engine's background thread.
pub fn background() -> Result<Arc<dyn Spawn>, Failure> {
    let started = Background::start(WorkerOptions::default());
    let background = started.map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    Ok(Arc::new(background))
}

/// Opens an image for reading; others may read it at the same time.
pub fn open_read_only(path: &Path) -> Result<Arc<dyn Device>, Failure> {
    Ok(open(path, &How::reading())?.device())
}

/// Opens an image, wherever it is. Reports a wait for another host's device lease.
pub fn open(path: &Path, how: &How) -> Result<Image, DeviceError> {
    Image::open(path, &telling(path, how))
}

/// These options, with messages about waits.
fn telling(path: &Path, how: &How) -> How {
    // One that lives is found within a third of its lease, and then this is refused.
    const TOLD_AFTER: Duration = Duration::from_secs(4);
    let (told, image, began) = (AtomicBool::new(false), path.display().to_string(), Instant::now());
    let waiting = move |progress: &Progress<'_>| {
        if let Progress::Holder { lease, left } = progress
            && began.elapsed() > TOLD_AFTER
            && !told.swap(true, Ordering::Relaxed)
        {
            note!(
                "syncline: {image}: waiting up to {} s for the lease of {} (process {}) to end",
                left.as_secs() + 1,
                lease.holder.host_text(),
                lease.holder.pid
            );
        }
        ControlFlow::Continue(())
    };
    How { waiting: Some(Arc::new(waiting)), ..how.clone() }
}

/// The failure where an image's path leads nowhere, as opening it would have it.
pub fn without_path(path: &Path, error: std::io::Error) -> Failure {
    DeviceError::Open { path: path.display().to_string(), source: Arc::new(error) }.into()
}

/// The name that an image has from everywhere on this host.
pub fn whole_name(path: &Path) -> Result<PathBuf, Failure> {
    if syncline_image::is_remote(path) {
        return Ok(path.to_owned());
    }
    std::fs::canonicalize(path).map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let failure = without_path(path, error);
        match is_missing {
            true => {
                failure.next("check the path, or make an image with 'syncline mkfs' or with --create SIZE")
            }
            false => failure,
        }
    })
}

/// Writes everything back and leaves an image with nothing to recover.
pub fn close(fs: &Arc<Filesystem>) -> Result<(), Failure> {
    let closed = block_on(fs.close());
    // Even if some data could not be written, the rest is worth a checkpoint.
    let checkpointed = match fs.has_unwritten() {
        true => block_on(fs.store().close_incomplete()),
        false => block_on(fs.store().close()),
    };
    closed?;
    checkpointed.map_err(|error| {
        let failure = Failure::from(error);
        Failure::new(format!("the last checkpoint failed: {failure}")).with_code(failure.code())
    })
}

/// Where progress is shown: nowhere if standard error is not a terminal.
fn draw_target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() && !crate::logging::is_quiet() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// A spinner for work of unknown length; silent where a progress bar is.
pub fn spinner(what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
    let bar = ProgressBar::with_draw_target(None, draw_target());
    let bar = bar.with_style(style.expect("the template is well-formed")).with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A progress bar in bytes; silent if standard error is not a terminal.
pub fn progress_bar(total_bytes: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let style = style.expect("the template is well-formed");
    ProgressBar::with_draw_target(Some(total_bytes), draw_target())
        .with_style(style)
        .with_message(what.to_owned())
}

/// Creates an image file, fully allocated and written, or takes over an existing device or file.
fn create(
    path: &Path,
    size_bytes: Option<u64>,
    force: bool,
    shared: bool,
    how: &How,
) -> Result<Image, Failure> {
    if !force {
        refuse_known(path)?;
    }
    // An existing file that keeps its length is written completely, too.
    let present = || path.metadata().map_or(0, |metadata| metadata.len());
    let bar = progress_bar(size_bytes.unwrap_or_else(present), "writing the image");
    let how = telling(path, how);
    let device = Image::create(path, size_bytes, force, shared, &how, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    Ok(device?)
}

/// The name of the format at a place, if it is known and can be read here.
pub fn known_contents(path: &Path) -> Option<String> {
    if syncline_image::is_remote(path) {
        return known::recognize(&syncline_image::start_of_remote(path, known::LOOK_AT_BYTES)?);
    }
    let mut start = Vec::new();
    // Opening a FIFO would wait for its other end.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).ok()?;
    let kind = file.metadata().ok()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    file.take(known::LOOK_AT_BYTES as u64).read_to_end(&mut start).ok()?;
    known::recognize(&start)
}

/// The part that a read-only mount would show of an image that nobody has open.
pub fn what_can_be_read(path: &Path) -> Readable {
    let (Ok(device), Ok(spawn)) = (open_read_only(path), background()) else { return Readable::Nothing };
    block_on(syncline_check::what_can_be_read(device, spawn))
}

/// The next step for an image whose present state can't be mounted.
pub fn without_present(readable: &Readable) -> String {
    match readable {
        Readable::Snapshot(name) => format!(
            "a mount can show its snapshots only: 'syncline mount --snapshot {name}' shows the newest, 'syncline snapshot rollback' goes back to it"
        ),
        _ => "no mount can show anything of it".to_owned(),
    }
}

/// True if one of our filesystems is there whose start is unreadable: its superblocks have copies
/// at the end.
fn has_superblock_at_its_end(path: &Path) -> bool {
    // Of an image on a network, only the first bytes are looked at.
    if syncline_image::is_remote(path) {
        return false;
    }
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let Ok(device) = FileDevice::open(path, options) else { return false };
    let device: Arc<dyn Device> = device;
    syncline_image::peek_keys(path).is_some() || block_on(read_superblocks(&device)).is_ok()
}

/// Refuses a place with known contents. If it can't be read here, the next open reports that.
pub fn refuse_known(path: &Path) -> Result<(), Failure> {
    let ours =
        || has_superblock_at_its_end(path).then(|| "a Syncline filesystem whose start is gone".to_owned());
    match known_contents(path).or_else(ours) {
        None => Ok(()),
        Some(what) => {
            refuse_used(path)?;
            Err(Failure::new(format!("{} holds {what}", path.display()))
                .next("add --force if it is not needed any more"))
        }
    }
}

/// Refuses a place that somebody has, which no force would overwrite.
fn refuse_used(path: &Path) -> Result<(), Failure> {
    if syncline_image::is_remote(path) {
        return Ok(());
    }
    match FileDevice::open(path, OpenOptions::default()) {
        Err(error @ DeviceError::InUse { .. }) => Err(error.into()),
        // Creating it reports what else is wrong.
        _ => Ok(()),
    }
}

/// Refuses a size that no filesystem can have, before anything is overwritten.
fn require_size(size_bytes: Option<u64>, is_encrypted: bool) -> Result<(), Failure> {
    let least_bytes = LEAST_BYTES + if is_encrypted { syncline_image::OVERHEAD_BYTES } else { 0 };
    match size_bytes {
        Some(size) if size > MAX_BLOCKS * BLOCK_BYTES as u64 => {
            Err(Failure::usage("an image has at most 256 TiB").next("choose a smaller --size"))
        }
        Some(size) if (BLOCK_BYTES as u64..least_bytes).contains(&size) => {
            let text = match is_encrypted {
                true => "an encrypted image has at least 16 MiB and 260 KiB",
                false => "an image has at least 16 MiB",
            };
            Err(Failure::usage(text).next("choose a larger --size"))
        }
        _ => Ok(()),
    }
}

/// Creates a filesystem at a path, from start to end. Nobody else can have it until the device is
/// dropped.
pub fn make(
    path: &Path,
    size_bytes: Option<u64>,
    force: bool,
    shared: bool,
    how: &How,
    options: &FormatOptions,
) -> Result<Image, Failure> {
    // Unless a size is given, it is the length of the file that is overwritten.
    let present = || path.metadata().ok().filter(|file| force && file.is_file()).map(|file| file.len());
    require_size(size_bytes.or_else(present), options.is_encrypted())?;
    let mut image = create(path, size_bytes, force, shared, how)?;
    if options.is_encrypted() {
        let created = image.clone();
        image = image.encrypt(path).inspect_err(|_| created.take_away())?;
    }
    // Also where its storage asks for the lease without being told.
    let options = options.clone().shared(image.has_lease());
    if let Err(error) = syncline::format_device(image.device(), &options) {
        image.take_away();
        return Err(Failure::from(error).about(path));
    }
    Ok(image)
}
