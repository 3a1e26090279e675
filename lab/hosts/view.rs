//! The state that a host finds on the image when it comes.

use super::writers::{cell_of, files_of, log_of};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The records of one mount that are on the image.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Found {
    pub log: Vec<u8>,
    pub files: BTreeMap<u64, Vec<u8>>,
}

impl Found {
    pub fn read(directory: &Path, mount: u64) -> io::Result<Self> {
        let log = or_nothing(fs::read(log_of(directory, mount)))?;
        let mut files = BTreeMap::new();
        let entries = match fs::read_dir(files_of(directory, mount)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { log, files }),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let number = number.ok_or_else(|| io::Error::other(format!("{entry:?} is nobody's")))?;
            files.insert(number, fs::read(entry.path())?);
        }
        Ok(Self { log, files })
    }

    /// Takes it away, so that the image does not fill up.
    pub fn remove(directory: &Path, mount: u64) -> io::Result<()> {
        // A host that lost its image early may have left nothing.
        or_nothing(fs::remove_file(log_of(directory, mount)))?;
        or_nothing(fs::remove_dir_all(files_of(directory, mount)))
    }
}

/// The contents of the cell.
pub fn read_cell(directory: &Path) -> io::Result<Vec<u8>> {
    or_nothing(fs::read(cell_of(directory)))
}

fn or_nothing<T: Default>(done: io::Result<T>) -> io::Result<T> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        done => done,
    }
}
