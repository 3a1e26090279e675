//! Copies a filesystem's tree into a directory of the host, for checkers on machines where nothing
//! can be mounted.

use crate::{CutsError, tree};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use syncline_device::block_on;
use syncline_fs::types::{FileType, Ino, ROOT};
use syncline_fs::{Filesystem, FsError};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// Copies the tree into `directory`, which must be empty: directories, files with their
/// permissions, and symlinks. Other types are left out, and hard links become separate files.
pub fn export(fs: &Filesystem, directory: &Path) -> Result<(), CutsError> {
    let mut todo = vec![(ROOT, directory.to_owned())];
    while let Some((ino, path)) = todo.pop() {
        for entry in block_on(tree::entries(fs, ino)).map_err(engine)? {
            let path = path.join(OsStr::from_bytes(&entry.name));
            let failed = |error| CutsError::file(&path, error);
            match entry.file_type {
                FileType::Directory => {
                    fs::create_dir(&path).map_err(failed)?;
                    todo.push((entry.ino, path));
                }
                FileType::Regular => regular(fs, entry.ino, &path)?,
                FileType::Symlink => {
                    let target = block_on(fs.readlink(entry.ino)).map_err(engine)?;
                    let target = PathBuf::from(OsStr::from_bytes(&target));
                    std::os::unix::fs::symlink(target, &path).map_err(failed)?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn engine(error: FsError) -> CutsError {
    CutsError::Engine(error.into())
}

fn regular(fs: &Filesystem, ino: Ino, path: &Path) -> Result<(), CutsError> {
    let failed = |error: io::Error| CutsError::file(path, error);
    let attributes = block_on(fs.getattr(ino)).map_err(engine)?;
    let file = File::create_new(path).map_err(failed)?;
    file.set_len(attributes.size).map_err(failed)?;
    let mut at = 0;
    while let Some(start) = next_data(fs, ino, at)? {
        at = start;
        for piece in block_on(fs.read(ino, start, READ_BYTES)).map_err(engine)? {
            file.write_all_at(&piece, at).map_err(failed)?;
            at += piece.len() as u64;
        }
    }
    file.set_permissions(Permissions::from_mode(u32::from(attributes.permissions))).map_err(failed)
}

fn next_data(fs: &Filesystem, ino: Ino, at: u64) -> Result<Option<u64>, CutsError> {
    match block_on(fs.seek_data(ino, at)) {
        Ok(start) => Ok(Some(start)),
        Err(FsError::NoSuchAddress) => Ok(None),
        Err(error) => Err(engine(error)),
    }
}
