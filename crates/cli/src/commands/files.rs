//! The regular files that paths on a command line stand for.

use crate::failure::{Cause, Failure};
use std::io;
use std::path::{Path, PathBuf};
use syncline_fuse::control;
use walkdir::WalkDir;

/// The file at `path`, or all regular files below it on the same filesystem. Symbolic links are not followed.
pub fn files_below(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in WalkDir::new(path).same_file_system(true) {
        let entry = entry.map_err(|error| not_walked(path, error))?;
        if entry.file_type().is_file() {
            files.push(entry.into_path());
        }
    }
    if files.is_empty() && path.is_dir() {
        // Nobody else would notice that this is not ours.
        control::text(path, "daemon")?;
    }
    Ok(files)
}

/// A failure that names its path, and what to do about it.
pub fn not_walked(path: &Path, error: walkdir::Error) -> Failure {
    let at = error.path().unwrap_or(path).to_owned();
    missing(&at, error.into_io_error().unwrap_or_else(|| io::Error::other("a loop of symbolic links")))
}

/// The same for a path that can't be looked at.
pub fn missing(path: &Path, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::of(Cause::MountPoint, format!("{}: {error}", path.display())).next("check the path")
        }
        _ => Failure::from(error).about(path),
    }
}
