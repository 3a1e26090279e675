//! Everything below a directory.

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::read_dir::{DirEntry, ReadDir};
use std::path::Path;
use syncline_fs::types::FileType;

/// All entries below a directory, each before what is in it. Symbolic links are told of, not followed.
#[derive(Debug)]
pub struct WalkDir {
    filesystem: Filesystem,
    /// From the top down to where it is.
    open: Vec<ReadDir>,
    /// A directory that was told of and is entered next.
    enter: Option<DirEntry>,
}

impl Filesystem {
    /// Walks through everything below a directory. What can't be read is told of once, and the rest follows.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.create_dir_all("/music/bach")?;
    /// fs.write("/music/bach/aria.flac", "...")?;
    /// let paths: syncline::Result<Vec<std::path::PathBuf>> = fs.walk_dir("/music")?.map(|entry| entry.map(|entry| entry.path())).collect();
    /// assert_eq!(paths?, ["/music/bach", "/music/bach/aria.flac"].map(std::path::PathBuf::from));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn walk_dir(&self, path: impl AsRef<Path>) -> Result<WalkDir> {
        Ok(WalkDir { filesystem: self.clone(), open: vec![self.read_dir(path)?], enter: None })
    }
}

impl WalkDir {
    /// Leaves out what is in the directory that was told of last. Without effect after anything else.
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
                // Somebody removed it since.
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
