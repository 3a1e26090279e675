//! Opening and making images, as several commands do.

use crate::failure::Failure;
use crate::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline_device::{Background, FileDevice, OpenOptions, Spawn, WorkerOptions, block_on};
use syncline_fs::Filesystem;
use syncline_fs::types::Timestamp;
use syncline_store::FormatOptions;

/// Size of a new image unless told otherwise.
pub const DEFAULT_SIZE: &str = "8GiB";

/// Starts the engine's background thread.
pub fn background() -> Result<Arc<dyn Spawn>, Failure> {
    let started = Background::start(WorkerOptions::default());
    let background = started.map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    Ok(Arc::new(background))
}

/// A progress bar in bytes; silent when standard error is not a terminal.
pub fn progress_bar(total_bytes: u64, what: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let style = style.expect("the template is well-formed");
    ProgressBar::with_draw_target(Some(total_bytes), target).with_style(style).with_message(what.to_owned())
}

/// Makes an image file, fully allocated and written, or takes a device or file that exists.
pub fn create(path: &Path, size_bytes: Option<u64>, force: bool) -> Result<Arc<FileDevice>, Failure> {
    let bar = progress_bar(size_bytes.unwrap_or(0), "writing the image");
    let device = FileDevice::create(path, size_bytes, force, OpenOptions::default(), &mut |bytes| {
        bar.set_position(bytes)
    });
    bar.finish_and_clear();
    Ok(device?)
}

/// Makes a filesystem on a device.
pub fn format(device: Arc<FileDevice>, options: FormatOptions) -> Result<(), Failure> {
    let spawn = background()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() };
    let options = FormatOptions { created_ns: now.as_nanos() as u64, ..options };
    let root = Filesystem::initial_transaction(uid, gid, 0o755, moment);
    block_on(syncline_store::format(device, options, root, spawn))?;
    Ok(())
}

/// The whole way from a path to a filesystem in it.
pub fn make(
    path: &Path,
    size_bytes: Option<u64>,
    force: bool,
    options: FormatOptions,
) -> Result<(), Failure> {
    let device = create(path, size_bytes, force)?;
    use syncline_device::Device;
    let size_bytes = device.size_bytes();
    format(device, options)?;
    tracing::info!("{}: {}", path.display(), size::show(size_bytes));
    Ok(())
}
