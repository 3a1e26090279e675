//! Attributes and names of an open file.

use crate::error::Result;
use crate::file::File;
use crate::filesystem::timestamp;
use crate::metadata::Metadata;
use crate::walk::Reference;
use std::path::Path;
use std::time::SystemTime;
use syncline_fs::types::{SetAttributes, SetTime};

impl File {
    /// Truncates or extends the file; an extension reads as zeros.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.require_write()?;
        let kill_privileges = self.shared().kill_privileges();
        self.set(SetAttributes { size: Some(size), kill_privileges, ..SetAttributes::default() })
    }

    /// Current metadata of the file.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(Metadata::new(self.shared().call(self.shared().engine.getattr(self.ino()))?))
    }

    /// Changes the permission bits.
    pub fn set_permissions(&self, permissions: u16) -> Result<()> {
        self.set(SetAttributes { permissions: Some(permissions), ..SetAttributes::default() })
    }

    /// Changes the time of the last change of the contents.
    pub fn set_modified(&self, time: SystemTime) -> Result<()> {
        self.set_times(None, Some(time))
    }

    /// Changes the times of the last access and of the last change of the contents.
    pub fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> Result<()> {
        let moment = |time: SystemTime| SetTime::To(timestamp(time));
        let (atime, mtime) = (accessed.map(moment), modified.map(moment));
        self.set(SetAttributes { atime, mtime, ..SetAttributes::default() })
    }

    /// Changes owner and group.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(SetAttributes { uid, gid, ..SetAttributes::default() })
    }

    fn set(&self, changes: SetAttributes) -> Result<()> {
        self.shared().call(async {
            self.shared().engine.setattr(self.shared().caller, self.ino(), changes).await?;
            self.shared().settle(self.ino()).await
        })
    }

    /// Gives the file another name, or its first
    /// ([`Filesystem::create_unnamed`](crate::Filesystem::create_unnamed)). EEXIST if the name is
    /// taken.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<()> {
        self.shared().call(async {
            let (parent, name) = self.shared().parent(path.as_ref()).await?;
            let linked = self.shared().engine.link(self.ino(), parent.ino(), &name).await?;
            drop(Reference::counted(self.shared(), linked.ino));
            self.shared().settle(parent.ino()).await?;
            self.shared().settle(self.ino()).await
        })
    }
}
