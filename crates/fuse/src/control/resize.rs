//! The asker's end of making a mounted filesystem larger.

use super::client::{ControlError, ask_about, failed, open};
use super::wire::{ControlIn, Question, SIZE_MAX};
use std::path::Path;

/// The sizes of a filesystem that was made larger, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resized {
    /// Before.
    pub before_bytes: u64,
    /// Now.
    pub now_bytes: u64,
}

/// Makes the filesystem mounted at (or above) `path` so large, and the image file that it lies in, if that is shorter; without a size
/// as large as its device is. Returns when it is durable. For the daemon's owner and root.
///
/// The daemon refuses with EBUSY what is smaller than the filesystem, ERANGE what is more than its block device has, EFBIG what is
/// more than an image may have, and ENOSPC if the image file can't be made so long. Less than 64 KiB is no change.
pub fn resize(path: &Path, size_bytes: Option<u64>) -> Result<Resized, ControlError> {
    let size = size_bytes.unwrap_or(SIZE_MAX);
    let question = ControlIn::new(Question::Resize, "", 0, size).expect("an empty name fits");
    let (answer, _) =
        ask_about(&open(path)?, &question, &[]).map_err(|source| failed(path, "resize", source))?;
    Ok(Resized { before_bytes: answer.snapshot, now_bytes: answer.total })
}
