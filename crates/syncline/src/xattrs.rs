//! Extended attributes. Names carry their namespace: `user.comment`.

use crate::error::{Result, about};
use crate::file::File;
use crate::filesystem::{Filesystem, Shared};
use crate::walk::Last;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use syncline_fs::FsError;
use syncline_fs::types::{Ino, XattrMode};

impl Filesystem {
    /// The value of an extended attribute, if it is set.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.write("/photo", "...")?;
    /// fs.set_xattr("/photo", "user.camera", b"Leica")?;
    /// assert_eq!(fs.xattr("/photo", "user.camera")?.as_deref(), Some(&b"Leica"[..]));
    /// assert_eq!(fs.xattr("/photo", "user.lens")?, None);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        self.shared
            .call(async {
                let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
                self.shared.xattr(file.ino(), name.as_ref()).await
            })
            .map_err(about("read an attribute of", &path))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8]) -> Result<()> {
        self.set_xattr_with(path, name, value, XattrMode::Set)
    }

    /// Sets an extended attribute only if it is not set, or only if it is.
    pub fn set_xattr_with(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.shared
            .call(async {
                let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
                self.shared.engine.setxattr(file.ino(), name.as_ref().as_bytes(), value, mode).await?;
                self.shared.settle(file.ino()).await
            })
            .map_err(about("set an attribute of", &path))
    }

    /// Removes an extended attribute; ENODATA if it is not set.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref().as_bytes();
        self.shared
            .call(async {
                let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
                self.shared.engine.removexattr(file.ino(), name).await?;
                self.shared.settle(file.ino()).await
            })
            .map_err(about("remove an attribute of", &path))
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.shared
            .call(async {
                let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
                self.shared.xattrs(file.ino()).await
            })
            .map_err(about("list the attributes of", &path))
    }
}

impl File {
    /// The value of an extended attribute, if it is set.
    pub fn xattr(&self, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        self.shared().call(self.shared().xattr(self.ino(), name.as_ref()))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: &[u8]) -> Result<()> {
        let name = name.as_ref().as_bytes();
        self.shared().call(async {
            self.shared().engine.setxattr(self.ino(), name, value, XattrMode::Set).await?;
            self.shared().settle(self.ino()).await
        })
    }

    /// Removes an extended attribute; ENODATA if it is not set.
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.shared().call(async {
            self.shared().engine.removexattr(self.ino(), name.as_ref().as_bytes()).await?;
            self.shared().settle(self.ino()).await
        })
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self) -> Result<Vec<OsString>> {
        self.shared().call(self.shared().xattrs(self.ino()))
    }
}

impl Shared {
    async fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Option<Vec<u8>>> {
        match self.engine.getxattr(ino, name.as_bytes()).await {
            Ok(value) => Ok(Some(value.to_vec())),
            Err(FsError::NoAttribute) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<OsString>> {
        let names = self.engine.listxattr(ino).await?;
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
    }
}
