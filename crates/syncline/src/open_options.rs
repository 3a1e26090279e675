//! Options for opening files.

use crate::error::{Error, Result, about};
use crate::file::{Access, File};
use crate::filesystem::{Filesystem, Shared};
use crate::walk::{Last, Place, Reference};
use std::path::Path;
use std::sync::Arc;
use syncline_fs::FsError;
use syncline_fs::types::{FileType, SetAttributes};

/// Options for opening a file, as in the standard library.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    access: Access,
    truncate: bool,
    create: bool,
    create_new: bool,
    permissions: u16,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Options with every access off.
    pub fn new() -> Self {
        let access = Access { read: false, write: false, append: false };
        Self { access, truncate: false, create: false, create_new: false, permissions: 0o644 }
    }

    /// Opens for reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.access.read = read;
        self
    }

    /// Opens for writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.access.write = write;
        self
    }

    /// Opens for writing at the end only.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.access.append = append;
        self
    }

    /// Truncates the file to zero length.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Creates the file, and fails if it exists.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is created. Default 0o644.
    pub fn mode(&mut self, permissions: u16) -> &mut Self {
        self.permissions = permissions;
        self
    }

    /// Opens `path`. A directory can be opened for reading, so that it can be synced;
    /// [`Filesystem::read_dir`] lists its entries.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// use std::io::Write;
    /// let mut log = syncline::OpenOptions::new().append(true).create(true).open(&fs, "/log")?;
    /// log.write_all(b"one line\n")?;
    /// log.sync_data()?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn open(&self, filesystem: &Filesystem, path: impl AsRef<Path>) -> Result<File> {
        let Access { read, write, append } = self.access;
        if !(read || write || append) {
            return Err(Error::Invalid("neither reading nor writing nor appending"));
        }
        if (self.truncate || self.create || self.create_new) && !(write || append) {
            return Err(Error::Invalid("creating or truncating needs writing"));
        }
        if self.truncate && append {
            return Err(Error::Invalid("truncating and appending"));
        }
        filesystem.shared.call(self.open_in(&filesystem.shared, path.as_ref())).map_err(about("open", &path))
    }

    async fn open_in(&self, shared: &Arc<Shared>, path: &Path) -> Result<File> {
        let last = if self.create_new { Last::Keep } else { Last::Follow };
        loop {
            match shared.walk(path, last).await? {
                Place::There(..) if self.create_new => return Err(FsError::Exists.into()),
                Place::There(reference, attributes) => {
                    return match attributes.file_type {
                        FileType::Regular => self.open_existing(shared, reference).await,
                        // To sync it, or to read and change its attributes.
                        FileType::Directory if !self.access.writes() && !self.create => {
                            File::new(shared, reference, self.access).await
                        }
                        FileType::Directory => Err(FsError::IsDirectory.into()),
                        _ => Err(Error::Invalid("neither a file nor a directory")),
                    };
                }
                Place::Nowhere(..) if !self.create && !self.create_new => {
                    return Err(FsError::NotFound.into());
                }
                Place::Nowhere(parent, name) => {
                    let create = shared.engine.mknod(
                        shared.caller,
                        parent.ino(),
                        &name,
                        FileType::Regular,
                        self.permissions,
                        0,
                    );
                    match create.await {
                        Ok(created) => {
                            let reference = Reference::counted(shared, created.ino);
                            shared.settle(parent.ino()).await?;
                            return File::new(shared, reference, self.access).await;
                        }
                        // Another thread created it first.
                        Err(FsError::Exists) if !self.create_new => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    async fn open_existing(&self, shared: &Arc<Shared>, reference: Reference) -> Result<File> {
        let ino = reference.ino();
        let file = File::new(shared, reference, self.access).await?;
        if self.truncate {
            let kill_privileges = shared.kill_privileges();
            let empty = SetAttributes { size: Some(0), kill_privileges, ..SetAttributes::default() };
            shared.engine.setattr(shared.caller, ino, empty).await?;
            shared.settle(ino).await?;
        }
        Ok(file)
    }
}

impl Filesystem {
    /// Opens a file for reading.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing, empty; creates it if it does not exist.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// Opens a new file without a name, for reading and writing, in the filesystem of `directory`.
    /// Closing it, or a crash, removes it, unless [`File::link`] gives it a name; then it appears
    /// with its complete contents.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// let file = fs.create_unnamed("/")?;
    /// file.write_all_at(b"complete", 0)?;
    /// file.link("/report")?;
    /// assert_eq!(fs.read("/report")?, b"complete");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn create_unnamed(&self, directory: impl AsRef<Path>) -> Result<File> {
        self.shared
            .call(async {
                let shared = &self.shared;
                let (parent, _) = shared.find(directory.as_ref(), Last::Follow).await?;
                let made = shared.engine.tmpfile(shared.caller, parent.ino(), 0o644, true).await?;
                let access = Access { read: true, write: true, append: false };
                Ok(File::opened(Reference::counted(shared, made.ino), shared, access))
            })
            .map_err(about("make a file in", &directory))
    }
}
