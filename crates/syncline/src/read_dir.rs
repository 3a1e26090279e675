//! Listing directories.

use crate::error::{Result, about};
use crate::filesystem::{Filesystem, Shared};
use crate::metadata::Metadata;
use crate::walk::{Last, Reference};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_fs::FsError;
use syncline_fs::types::{DirectoryEntry, FileType};

/// Entries read at a time.
const ENTRIES_EACH: usize = 256;

/// The entries of a directory without `.` and `..`. Entries added or removed meanwhile may or may
/// not appear; every other entry appears once.
pub struct ReadDir {
    directory: Arc<Directory>,
    waiting: VecDeque<DirectoryEntry>,
    cookie: u64,
    ended: bool,
}

struct Directory {
    shared: Arc<Shared>,
    reference: Reference,
    path: PathBuf,
}

/// A directory entry.
#[derive(Clone)]
pub struct DirEntry {
    directory: Arc<Directory>,
    entry: DirectoryEntry,
}

impl Filesystem {
    /// Lists a directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref().to_owned();
        let found = self.shared.call(self.shared.find(&path, Last::Follow));
        let (reference, attributes) = found.map_err(about("list", &path))?;
        if attributes.file_type != FileType::Directory {
            return Err(about("list", &path)(FsError::NotDirectory.into()));
        }
        Ok(ReadDir::new(&self.shared, reference, path))
    }

    /// Lists a directory that a listing returned, even if the directory above was moved since. A
    /// symbolic link in its place is not followed.
    pub(crate) fn enter(&self, entry: &DirEntry) -> Result<ReadDir> {
        let Directory { shared, reference, .. } = &*entry.directory;
        let found = shared.call(shared.engine.lookup(reference.ino(), &entry.entry.name))?;
        let below = Reference::counted(shared, found.ino);
        if found.file_type != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        Ok(ReadDir::new(shared, below, entry.path()))
    }
}

impl ReadDir {
    fn new(shared: &Arc<Shared>, reference: Reference, path: PathBuf) -> Self {
        let directory = Arc::new(Directory { shared: shared.clone(), reference, path });
        Self { directory, waiting: VecDeque::new(), cookie: 0, ended: false }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(entry) = self.waiting.pop_front() {
                if entry.name != b"." && entry.name != b".." {
                    return Some(Ok(DirEntry { directory: self.directory.clone(), entry }));
                }
            }
            if self.ended {
                return None;
            }
            let Directory { shared, reference, .. } = &*self.directory;
            match shared.call(shared.engine.readdir(reference.ino(), self.cookie, ENTRIES_EACH)) {
                Ok(entries) => {
                    match entries.last() {
                        Some(last) => self.cookie = last.cookie,
                        None => self.ended = true,
                    }
                    self.waiting.extend(entries);
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error.into()));
                }
            }
        }
    }
}

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.entry.name.clone())
    }

    /// The path of the directory, as it was given, joined with the name.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(self.file_name())
    }

    /// The type of the file.
    pub fn file_type(&self) -> FileType {
        self.entry.file_type
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.entry.ino
    }

    /// Metadata of the file. A symbolic link is not followed.
    pub fn metadata(&self) -> Result<Metadata> {
        let Directory { shared, reference, .. } = &*self.directory;
        let attributes = shared.call(shared.engine.lookup(reference.ino(), &self.entry.name))?;
        drop(Reference::counted(shared, attributes.ino));
        Ok(Metadata::new(attributes))
    }
}

impl std::fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadDir").field(&self.directory.path).finish()
    }
}
