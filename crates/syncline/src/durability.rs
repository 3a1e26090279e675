//! Durability classes of files and directories.

use crate::error::{Result, about};
use crate::filesystem::{Filesystem, Shared};
use crate::walk::Last;
use std::path::Path;
use syncline_fs::Durability;
use syncline_fs::types::Ino;

impl Filesystem {
    /// Sets when changes become durable: those of a file, or those of a directory and of everything
    /// made in it from now on; `None`: as [`ImageOptions::durability`](crate::ImageOptions::durability)
    /// says.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// use syncline::{Durability, receipt::Cover};
    ///
    /// fs.create_dir("/cache")?;
    /// fs.set_durability("/cache", Some(Durability::Ordered(5)))?;
    /// let file = fs.create_file("/cache/page")?;
    /// file.write_all_at(b"can be made again", 0)?;
    /// file.sync_all()?; // Its place in history is fixed; a flush begins within five seconds.
    /// assert_eq!(file.last_receipt().map(|receipt| receipt.cover), Some(Cover::Ordered));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn set_durability(&self, path: impl AsRef<Path>, class: Option<Durability>) -> Result<()> {
        self.shared
            .call(async {
                let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
                self.shared.engine.set_durability(file.ino(), class).await?;
                self.shared.settle(file.ino()).await
            })
            .map_err(about("set the durability of", &path))
    }

    /// When changes of a file or directory become durable.
    pub fn durability(&self, path: impl AsRef<Path>) -> Result<Durability> {
        self.shared
            .call(async {
                let (file, _) = self.shared.find(path.as_ref(), Last::Follow).await?;
                Ok(self.shared.engine.durability(file.ino()).await?.1)
            })
            .map_err(about("ask for the durability of", &path))
    }
}

impl Shared {
    /// Ends a change of an inode: makes it durable if its class is `strict`.
    pub(crate) async fn settle(&self, ino: Ino) -> Result<()> {
        Ok(self.engine.settle(ino).await?)
    }
}
