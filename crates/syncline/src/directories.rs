//! Creating directories, and removing them with their contents.

use crate::error::{Error, Result, about};
use crate::filesystem::Filesystem;
use crate::walk::{Last, Place, Reference};
use std::path::{Path, PathBuf};
use syncline_fs::FsError;
use syncline_fs::types::{FileType, Ino};

/// Entries read at a time when a tree is removed.
const ENTRIES_EACH: usize = 256;

/// Options for creating a directory, as in the standard library.
///
/// ```
/// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
/// syncline::DirBuilder::new().recursive(true).mode(0o700).create(&fs, "/private/keys")?;
/// assert_eq!(fs.metadata("/private")?.permissions(), 0o700);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct DirBuilder {
    recursive: bool,
    permissions: u16,
}

impl Default for DirBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl DirBuilder {
    /// Creates a single directory, with permission bits 0o755.
    pub fn new() -> Self {
        Self { recursive: false, permissions: 0o755 }
    }

    /// Whether to create missing parents too, and to accept an existing directory.
    pub fn recursive(&mut self, recursive: bool) -> &mut Self {
        self.recursive = recursive;
        self
    }

    /// Permission bits of each directory that is created.
    pub fn mode(&mut self, permissions: u16) -> &mut Self {
        self.permissions = permissions;
        self
    }

    /// Creates the directory.
    pub fn create(&self, filesystem: &Filesystem, path: impl AsRef<Path>) -> Result<()> {
        if !self.recursive {
            return self.create_one(filesystem, path.as_ref()).map_err(about("make", &path));
        }
        let mut so_far = PathBuf::from("/");
        let mut components = path.as_ref().components().peekable();
        while let Some(component) = components.next() {
            so_far.push(component);
            match self.create_one(filesystem, &so_far) {
                Ok(()) => {}
                Err(Error::Filesystem(FsError::Exists))
                    // If it is not a directory, creating the next component in it fails.
                    if components.peek().is_some()
                        || filesystem.metadata(&so_far).is_ok_and(|there| there.is_dir()) => {}
                Err(error) => return Err(about("make", &so_far)(error)),
            }
        }
        Ok(())
    }

    fn create_one(&self, filesystem: &Filesystem, path: &Path) -> Result<()> {
        let shared = &filesystem.shared;
        shared.call(async {
            let (parent, name) = match shared.walk(path, Last::Keep).await? {
                Place::There(..) => return Err(FsError::Exists.into()),
                Place::Nowhere(parent, name) => (parent, name),
            };
            let made = shared.engine.mkdir(shared.caller, parent.ino(), &name, self.permissions).await?;
            drop(Reference::counted(shared, made.ino));
            shared.settle(parent.ino()).await
        })
    }
}

impl Filesystem {
    /// Creates a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        DirBuilder::new().create(self, path)
    }

    /// Creates a directory and its missing parents.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        DirBuilder::new().recursive(true).create(self, path)
    }

    /// Removes a directory with everything in it. Symbolic links are removed, not followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.shared
            .call(async {
                let (parent, name) = self.shared.parent(path.as_ref()).await?;
                let top = self.shared.engine.lookup(parent.ino(), &name).await?;
                let _top = Reference::counted(&self.shared, top.ino);
                if top.file_type != FileType::Directory {
                    return Err(FsError::NotDirectory.into());
                }
                // The directories on the way down, each with its parent and its name there.
                let mut way = vec![(parent.ino(), name, top.ino)];
                while let Some((above, name, ino)) = way.pop() {
                    match self.remove_entries(ino).await? {
                        Some((name_below, below)) => {
                            way.push((above, name, ino));
                            way.push((ino, name_below, below));
                        }
                        None => {
                            self.shared.engine.rmdir(above, &name).await?;
                            self.shared.settle(above).await?;
                        }
                    }
                }
                Ok(())
            })
            .map_err(about("remove", &path))
    }

    /// Removes entries of a directory until it finds a subdirectory, and returns that; `None` once
    /// the directory is empty.
    async fn remove_entries(&self, ino: Ino) -> Result<Option<(Vec<u8>, Ino)>> {
        let engine = &self.shared.engine;
        loop {
            let entries = engine.readdir(ino, 0, ENTRIES_EACH).await?;
            let mut entries =
                entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..").peekable();
            if entries.peek().is_none() {
                return Ok(None);
            }
            for entry in entries {
                if entry.file_type == FileType::Directory {
                    return Ok(Some((entry.name, entry.ino)));
                }
                engine.unlink(ino, &entry.name).await?;
                self.shared.settle(ino).await?;
            }
        }
    }
}
