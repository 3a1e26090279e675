//! The client's end of quotas. `include/syncline.h` offers the same to C.

use super::client::{ControlError, ask_about, failed, open, pages, refused};
use super::wire::{ControlIn, LIMIT_STAYS, Question};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Limits the bytes and inodes of everything below a directory of a mount. A limit that is not
/// given stays as it is, and 0 removes it. Returns when everything already there has been counted.
/// For the daemon's owner and root, like all of these but [`quota`].
///
/// The daemon refuses with EBUSY if there is a quota above or below, and with EOPNOTSUPP if the
/// image's tree nodes leave no room for quotas.
pub fn set_quota(directory: &Path, bytes: Option<u64>, inodes: Option<u64>) -> Result<(), ControlError> {
    let limits = [bytes, inodes].map(|limit| limit.unwrap_or(LIMIT_STAYS).to_ne_bytes());
    about(directory, Question::SetQuota, &limits.concat())
}

/// Removes a directory's quota. ENOENT if there is none.
pub fn remove_quota(directory: &Path) -> Result<(), ControlError> {
    about(directory, Question::RemoveQuota, &[])
}

/// A directory's quota as JSON: its limits, and what the tree uses. ENOENT if there is none.
pub fn quota(directory: &Path) -> Result<String, ControlError> {
    text(directory, Question::Quota)
}

/// All quotas of the filesystem mounted at (or above) `path` as JSON: limits, use and directories.
pub fn quotas(path: &Path) -> Result<String, ControlError> {
    text(path, Question::Quotas)
}

fn about(directory: &Path, sort: Question, rest: &[u8]) -> Result<(), ControlError> {
    let question = ControlIn::new(sort, "", 0, 0).expect("an empty name fits");
    let asked = ask_about(&open(directory)?, &question, rest);
    asked.map(drop).map_err(|source| answered(directory, source))
}

fn text(directory: &Path, sort: Question) -> Result<String, ControlError> {
    let text = pages(&open(directory)?, sort, "").expect("an empty name fits");
    let text = text.and_then(|text| String::from_utf8(text).map_err(io::Error::other));
    text.map_err(|source| answered(directory, source))
}

/// Tells errnos that are answers about quotas from those of an older daemon or another filesystem.
fn answered(directory: &Path, source: io::Error) -> ControlError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP) => {
            ControlError::Failed { path: directory.to_owned(), source: Arc::new(source) }
        }
        Some(libc::EINVAL) => refused(directory, source),
        _ => failed(directory, "quota", source),
    }
}
