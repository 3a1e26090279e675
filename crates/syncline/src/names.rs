//! Names: directories, links, renames, removal; and what can be said of a path.

use crate::error::{Error, Result};
use crate::filesystem::{Filesystem, timestamp};
use crate::metadata::Metadata;
use crate::walk::{Last, Place, Reference};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use syncline_device::block_on;
use syncline_fs::FsError;
use syncline_fs::types::{FileType, Ino, RenameFlags, SetAttributes, SetTime};

/// Permission bits of directories that are created.
const DIRECTORY_PERMISSIONS: u16 = 0o755;
/// Entries read at a time when a tree is removed.
const ENTRIES_EACH: usize = 256;

impl Filesystem {
    /// The whole contents of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open_file(path)?.contents()
    }

    /// Makes a file of these contents, in place of what it had. Not durable before it is synced.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(path)?.write_all_at(contents.as_ref(), 0)
    }

    /// What is known about what a path leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        block_on(self.shared.find(path.as_ref(), Last::Follow))
            .map(|(_, attributes)| Metadata::new(attributes))
    }

    /// The same, of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        block_on(self.shared.find(path.as_ref(), Last::Keep)).map(|(_, attributes)| Metadata::new(attributes))
    }

    /// True when a path leads to something; an error when that can't be told.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        block_on(async {
            let (parent, name) = match self.shared.walk(path.as_ref(), Last::Keep).await? {
                Place::There(..) => return Err(FsError::Exists.into()),
                Place::Nowhere(parent, name) => (parent, name),
            };
            let permissions = DIRECTORY_PERMISSIONS;
            let made = self.shared.engine.mkdir(self.shared.caller, parent.ino(), &name, permissions).await?;
            drop(Reference::counted(&self.shared, made.ino));
            Ok(())
        })
    }

    /// Creates a directory and all that lead to it, as far as they do not exist.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut so_far = PathBuf::from("/");
        for component in path.as_ref().components() {
            so_far.push(component);
            match self.create_dir(&so_far) {
                Ok(()) => {}
                Err(Error::Filesystem(FsError::Exists)) if self.metadata(&so_far)?.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes a name of anything but a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        block_on(async {
            let (parent, name) = self.shared.parent(path.as_ref()).await?;
            Ok(self.shared.engine.unlink(parent.ino(), &name).await?)
        })
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        block_on(async {
            let (parent, name) = self.shared.parent(path.as_ref()).await?;
            Ok(self.shared.engine.rmdir(parent.ino(), &name).await?)
        })
    }

    /// Removes a directory with everything in it. Symbolic links are removed, not followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        block_on(async {
            let (parent, name) = self.shared.parent(path.as_ref()).await?;
            let top = self.shared.engine.lookup(parent.ino(), &name).await?;
            let _top = Reference::counted(&self.shared, top.ino);
            if top.file_type != FileType::Directory {
                return Err(FsError::NotDirectory.into());
            }
            // The way down: each directory with its parent and its name there.
            let mut way = vec![(parent.ino(), name, top.ino)];
            while let Some((above, name, ino)) = way.pop() {
                match self.remove_entries(ino).await? {
                    Some((name_below, below)) => {
                        way.push((above, name, ino));
                        way.push((ino, name_below, below));
                    }
                    None => self.shared.engine.rmdir(above, &name).await?,
                }
            }
            Ok(())
        })
    }

    /// Removes what is not a directory from a directory, up to the first subdirectory.
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
            }
        }
    }

    /// Renames, replacing what is at `to`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::default())
    }

    /// Renames without replacing, or exchanges two names.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        block_on(async {
            let (parent, name) = self.shared.parent(from.as_ref()).await?;
            let (new_parent, new_name) = self.shared.parent(to.as_ref()).await?;
            Ok(self.shared.engine.rename(parent.ino(), &name, new_parent.ino(), &new_name, flags).await?)
        })
    }

    /// Gives a file another name.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        block_on(async {
            let (file, _) = self.shared.find(original.as_ref(), Last::Keep).await?;
            let (parent, name) = self.shared.parent(link.as_ref()).await?;
            let linked = self.shared.engine.link(file.ino(), parent.ino(), &name).await?;
            drop(Reference::counted(&self.shared, linked.ino));
            Ok(())
        })
    }

    /// Makes a symbolic link at `link` that leads to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        block_on(async {
            let (parent, name) = self.shared.parent(link.as_ref()).await?;
            let made = self.shared.engine.symlink(self.shared.caller, parent.ino(), &name, target).await?;
            drop(Reference::counted(&self.shared, made.ino));
            Ok(())
        })
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        block_on(async {
            let (link, _) = self.shared.find(path.as_ref(), Last::Keep).await?;
            let target = self.shared.engine.readlink(link.ino()).await?;
            Ok(PathBuf::from(OsString::from_vec(target.to_vec())))
        })
    }

    /// Changes permission bits.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: u16) -> Result<()> {
        let changes = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
        self.set_attributes(path.as_ref(), Last::Follow, changes)
    }

    /// Changes owner and group; of a symbolic link itself.
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set_attributes(path.as_ref(), Last::Keep, SetAttributes { uid, gid, ..SetAttributes::default() })
    }

    /// Changes the times of the last access and of the last change of the contents.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        let moment = |time: SystemTime| SetTime::To(timestamp(time));
        let (atime, mtime) = (accessed.map(moment), modified.map(moment));
        self.set_attributes(
            path.as_ref(),
            Last::Follow,
            SetAttributes { atime, mtime, ..SetAttributes::default() },
        )
    }

    fn set_attributes(&self, path: &Path, last: Last, changes: SetAttributes) -> Result<()> {
        block_on(async {
            let (file, _) = self.shared.find(path, last).await?;
            self.shared.engine.setattr(self.shared.caller, file.ino(), changes).await?;
            Ok(())
        })
    }
}
