//! The client's end of growing a mounted filesystem.

use super::client::{ControlError, ask_about, failed, open};
use super::wire::{ControlIn, Question, SIZE_MAX};
use std::path::Path;

/// The sizes of a filesystem before and after growing, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resized {
    /// Size before.
    pub before_bytes: u64,
    /// Size now.
    pub now_bytes: u64,
}

/// Grows the filesystem mounted at (or above) `path` to this size, and its image file if that is
/// shorter; without a size, to the size of its device. Returns when the change is durable. For the
/// daemon's owner and root.
///
/// The daemon refuses with EBUSY a size smaller than the filesystem, with ERANGE one larger than
/// its block device, with EFBIG one larger than an image may be, and with ENOSPC if the image file
/// can't be extended. A difference of less than 64 KiB is no change.
pub fn resize(path: &Path, size_bytes: Option<u64>) -> Result<Resized, ControlError> {
    let size = size_bytes.unwrap_or(SIZE_MAX);
    let question = ControlIn::new(Question::Resize, "", 0, size).expect("an empty name fits");
    let (answer, _) =
        ask_about(&open(path)?, &question, &[]).map_err(|source| failed(path, "resize", source))?;
    Ok(Resized { before_bytes: answer.snapshot, now_bytes: answer.total })
}
