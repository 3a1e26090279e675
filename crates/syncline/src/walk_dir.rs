//! Walking a directory tree.

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::read_dir::{DirEntry, ReadDir};
use std::path::Path;
use syncline_fs::types::FileType;

/// All entries below a directory, each directory before its contents. Symbolic links are returned,
/// not followed.
#[derive(Debug)]
pub struct WalkDir {
    filesystem: Filesystem,
    /// The open listings, from the top down to the current directory.
    open: Vec<ReadDir>,
    /// The directory that was just returned, to be entered next.
    enter: Option<DirEntry>,
}

impl Filesystem {
    /// Walks everything below a directory. A directory that can't be read yields one error, and the
    /// walk continues.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.create_dir_all("/music/bach")?;
    /// fs.write("/music/bach/aria.flac", "...")?;
    /// let paths: syncline::Result<Vec<std::path::PathBuf>> =
    ///     fs.walk_dir("/music")?.map(|entry| entry.map(|entry| entry.path())).collect();
    /// assert_eq!(paths?, ["/music/bach", "/music/bach/aria.flac"].map(std::path::PathBuf::from));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn walk_dir(&self, path: impl AsRef<Path>) -> Result<WalkDir> {
        Ok(WalkDir { filesystem: self.clone(), open: vec![self.read_dir(path)?], enter: None })
    }
}

impl WalkDir {
    /// Skips the contents of the directory that was returned last. No effect if the last entry was
    /// not a directory.
    pub fn skip_directory(&mut self) {
        self.enter = None;
    }
}

impl Iterator for WalkDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.enter.take() {
            match self.filesystem.enter(&entry) {
                Ok(entries) => self.open.push(entries),
                // The directory was removed since.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Some(Err(error)),
            }
        }
        loop {
            match self.open.last_mut()?.next() {
                None => drop(self.open.pop()),
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(entry)) => {
                    if entry.file_type() == FileType::Directory {
                        self.enter = Some(entry.clone());
                    }
                    return Some(Ok(entry));
                }
            }
        }
    }
}
