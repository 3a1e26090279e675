//! Extended attributes. Names carry their namespace: `user.comment`.

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::walk::Last;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use syncline_device::block_on;
use syncline_fs::FsError;
use syncline_fs::types::XattrMode;

impl Filesystem {
    /// The value of an extended attribute, if it is set.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        block_on(async {
            let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
            match self.shared.engine.getxattr(file.ino(), name.as_ref().as_bytes()).await {
                Ok(value) => Ok(Some(value.to_vec())),
                Err(FsError::NoAttribute) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8]) -> Result<()> {
        let name = name.as_ref().as_bytes();
        block_on(async {
            let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
            Ok(self.shared.engine.setxattr(file.ino(), name, value, XattrMode::Set).await?)
        })
    }

    /// Removes an extended attribute; ENODATA if it is not set.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        block_on(async {
            let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
            Ok(self.shared.engine.removexattr(file.ino(), name.as_ref().as_bytes()).await?)
        })
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        block_on(async {
            let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
            let names = self.shared.engine.listxattr(file.ino()).await?;
            let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
            Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
        })
    }
}
