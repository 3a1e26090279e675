//! Names: links, renames, removal; and attributes by path.

use crate::error::{Result, about};
use crate::filesystem::{Filesystem, timestamp};
use crate::metadata::Metadata;
use crate::walk::{Last, Place, Reference};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use syncline_fs::FsError;
use syncline_fs::types::{RenameFlags, SetAttributes, SetTime};

impl Filesystem {
    /// Metadata of the file that a path leads to. Symbolic links are followed.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.shared
            .call(self.shared.find(path.as_ref(), Last::Follow))
            .map(|(_, attributes)| Metadata::new(attributes))
            .map_err(about("look at", &path))
    }

    /// Metadata of the file that a path names. A symbolic link at its end is not followed.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.shared
            .call(self.shared.find(path.as_ref(), Last::Keep))
            .map(|(_, attributes)| Metadata::new(attributes))
            .map_err(about("look at", &path))
    }

    /// True if a path leads to a file or directory; an error if that can't be determined.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True if a path leads to a file or directory; false also if that can't be determined.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.metadata(path).is_ok()
    }

    /// The path of the same file from the root of the image, without symbolic links, `.` and `..`.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.create_dir_all("/releases/7")?;
    /// fs.symlink("releases/7", "/current")?;
    /// assert_eq!(fs.canonicalize("current/../7/.")?.to_str(), Some("/releases/7"));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn canonicalize(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let mut names = Vec::new();
        let place = self.shared.call(self.shared.walk_naming(path.as_ref(), Last::Follow, &mut names));
        match place.map_err(about("look at", &path))? {
            Place::There(..) => {}
            Place::Nowhere(..) => return Err(about("look at", &path)(FsError::NotFound.into())),
        }
        let mut canonical = PathBuf::from("/");
        canonical.extend(names.into_iter().map(OsString::from_vec));
        Ok(canonical)
    }

    /// Removes a name of anything but a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.shared
            .call(async {
                let (parent, name) = self.shared.parent(path.as_ref()).await?;
                self.shared.engine.unlink(parent.ino(), &name).await?;
                self.shared.settle(parent.ino()).await
            })
            .map_err(about("remove", &path))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.shared
            .call(async {
                let (parent, name) = self.shared.parent(path.as_ref()).await?;
                self.shared.engine.rmdir(parent.ino(), &name).await?;
                self.shared.settle(parent.ino()).await
            })
            .map_err(about("remove", &path))
    }

    /// Renames, replacing an existing file at `to`.
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
        self.shared
            .call(async {
                let (parent, name) = self.shared.parent(from.as_ref()).await?;
                let onto = self.shared.parent(to.as_ref()).await;
                let (new_parent, new_name) = onto.map_err(about("rename to", &to))?;
                let (from, to) = (parent.ino(), new_parent.ino());
                self.shared.engine.rename(from, &name, to, &new_name, flags).await?;
                self.shared.settle(from).await?;
                self.shared.settle(to).await
            })
            .map_err(about("rename", &from))
    }

    /// Gives a file another name.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        self.shared
            .call(async {
                let (file, _) = self.shared.find(original.as_ref(), Last::Keep).await?;
                let (parent, name) =
                    self.shared.parent(link.as_ref()).await.map_err(about("link at", &link))?;
                let linked = self.shared.engine.link(file.ino(), parent.ino(), &name).await?;
                drop(Reference::counted(&self.shared, linked.ino));
                self.shared.settle(parent.ino()).await?;
                self.shared.settle(file.ino()).await
            })
            .map_err(about("link", &original))
    }

    /// Makes a symbolic link at `link` that leads to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.shared
            .call(async {
                let (parent, name) = self.shared.parent(link.as_ref()).await?;
                let made =
                    self.shared.engine.symlink(self.shared.caller, parent.ino(), &name, target).await?;
                drop(Reference::counted(&self.shared, made.ino));
                self.shared.settle(parent.ino()).await
            })
            .map_err(about("link", &link))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.shared
            .call(async {
                let (link, _) = self.shared.find(path.as_ref(), Last::Keep).await?;
                let target = self.shared.engine.readlink(link.ino()).await?;
                Ok(PathBuf::from(OsString::from_vec(target.to_vec())))
            })
            .map_err(about("read the link", &path))
    }

    /// Changes permission bits.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: u16) -> Result<()> {
        let changes = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
        self.set_attributes(path.as_ref(), Last::Follow, changes)
    }

    /// Changes owner and group; for a symbolic link, those of the link itself.
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
        self.shared
            .call(async {
                let (file, _) = self.shared.find(path, last).await?;
                self.shared.engine.setattr(self.shared.caller, file.ino(), changes).await?;
                self.shared.settle(file.ino()).await
            })
            .map_err(about("change", path))
    }
}
