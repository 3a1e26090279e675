//! The regular files that paths on a command line stand for.

use crate::failure::Failure;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The file at `path`, or all regular files below it on the same filesystem. Symbolic links are not followed.
pub fn files_below(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in WalkDir::new(path).same_file_system(true) {
        let entry = entry.map_err(Failure::new)?;
        if entry.file_type().is_file() {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}
