//! The regular files that paths on a command line stand for.

use crate::failure::{Cause, Failure};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use syncline_fuse::control::{self, ControlError};
use walkdir::{DirEntry, WalkDir};

/// The most bytes synced with one call: half of the limit of a call, since files grow.
const PORTION_BYTES: u64 = 32 << 20;
/// The most files open at once.
const PORTION_FILES: usize = 512;

/// The file at `path`, or all regular files below it on the same filesystem. Symbolic links are not
/// followed.
pub fn files_below(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    require_syncline(path)?;
    for entry in WalkDir::new(path).same_file_system(true) {
        let entry = entry.map_err(|error| not_walked(path, error))?;
        if entry.file_type().is_file() {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// The file or directory at `path`, and for `recursive` all regular files and directories below it
/// on the same filesystem. Symbolic links are not followed.
pub fn files_and_directories(
    path: &Path,
    recursive: bool,
) -> Result<impl Iterator<Item = Result<DirEntry, Failure>>, Failure> {
    require_syncline(path)?;
    let depth = if recursive { usize::MAX } else { 0 };
    let walk = WalkDir::new(path).max_depth(depth).same_file_system(true).sort_by_file_name();
    Ok(walk.into_iter().filter_map(move |entry| match entry {
        Ok(entry) if entry.file_type().is_file() || entry.file_type().is_dir() => Some(Ok(entry)),
        Ok(entry) if entry.depth() == 0 => {
            let text = format!("{} is neither a file nor a directory", path.display());
            Some(Err(Failure::of(Cause::Usage, text).next("name files and directories of a mount")))
        }
        Ok(_) => None,
        Err(error) => Some(Err(not_walked(path, error))),
    }))
}

/// Refuses a directory on another filesystem by its own name, rather than by that of the first file
/// below it, or not at all.
pub fn require_syncline(path: &Path) -> Result<(), ControlError> {
    if path.is_dir() { control::text(path, "daemon").map(drop) } else { Ok(()) }
}

/// A failure that names its path, and what to do about it.
pub fn not_walked(path: &Path, error: walkdir::Error) -> Failure {
    let at = error.path().unwrap_or(path).to_owned();
    missing(&at, error.into_io_error().unwrap_or_else(|| io::Error::other("a loop of symbolic links")))
}

/// The failure for a path that can't be examined.
pub fn missing(path: &Path, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::of(Cause::MountPoint, format!("{}: {error}", path.display())).next("check the path")
        }
        _ => Failure::from(error).about(path),
    }
}

/// Syncs these files, so that dirty data gets its place on the device. Many files share a flush:
/// one for each would take longer than everything else.
pub fn settle<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), ControlError> {
    let (mut portion, mut bytes, mut device) = (Vec::new(), 0, None);
    for path in paths {
        let metadata = path.symlink_metadata().map_err(|source| cannot_open(path, source))?;
        let (size, its) = (metadata.size().next_multiple_of(4096), Some(metadata.dev()));
        if portion.len() == PORTION_FILES || bytes + size > PORTION_BYTES || device != its {
            settle_portion(&portion)?;
            portion.clear();
            bytes = 0;
        }
        portion.push(path);
        (bytes, device) = (bytes + size, its);
    }
    settle_portion(&portion)
}

fn settle_portion(portion: &[&Path]) -> Result<(), ControlError> {
    const EFBIG: i32 = rustix::io::Errno::FBIG.raw_os_error();
    match control::sync_files(portion) {
        // Too much for one all-or-nothing batch, which is not needed here.
        Err(ControlError::Failed { source, .. }) if source.raw_os_error() == Some(EFBIG) => {
            portion.iter().try_for_each(|path| {
                File::open(path).and_then(|file| file.sync_all()).map_err(|source| cannot_open(path, source))
            })
        }
        settled => settled,
    }
}

/// The failure for a file that can't be opened or examined.
pub fn cannot_open(path: &Path, source: io::Error) -> ControlError {
    ControlError::Open { path: path.to_owned(), source: source.into() }
}

/// A failure that names the next step if only an owner may do this.
pub fn owners_only(error: ControlError) -> Failure {
    const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    let denied =
        matches!(&error, ControlError::Failed { source, .. } if source.raw_os_error() == Some(EPERM));
    if denied {
        let failure = Failure::of(Cause::Permission, error);
        return failure
            .next("only root and the file's owner may, and nobody if the file is immutable: see 'lsattr'");
    }
    error.into()
}
