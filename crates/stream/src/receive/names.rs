//! Names. Inodes that have none so far, or none for the moment, have one in the staging directory.

use super::apply::{Fault, Target, staged};
use syncline_fs::FsError;
use syncline_fs::types::{FileType, Ino, RenameFlags};

const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, exchange: false, whiteout: None };

impl Target<'_> {
    pub(super) async fn park(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.change(dir).await?;
        if self.find(dir, name).await?.0 != ino {
            return Err(Fault::Impossible("another inode has the name"));
        }
        self.change(ino).await?;
        Ok(self.fs.rename(dir, name, self.staging, &staged(ino), NO_REPLACE).await?)
    }

    pub(super) async fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.change(dir).await?;
        let (ino, _) = self.find(dir, name).await?;
        self.change(ino).await?;
        Ok(self.fs.unlink(dir, name).await?)
    }

    pub(super) async fn place(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.change(dir).await?;
        self.change(ino).await?;
        match self.find(self.staging, &staged(ino)).await {
            Ok(_) => Ok(self.fs.rename(self.staging, &staged(ino), dir, name, NO_REPLACE).await?),
            Err(Fault::Filesystem(FsError::NotFound)) => {
                self.fs.link(ino, dir, name).await?;
                self.fs.forget(ino, 1);
                Ok(())
            }
            Err(fault) => Err(fault),
        }
    }

    pub(super) async fn drop_parked(&mut self, ino: Ino) -> Result<(), Fault> {
        self.change(ino).await?;
        match self.find(self.staging, &staged(ino)).await?.1 {
            FileType::Directory => Ok(self.fs.rmdir(self.staging, &staged(ino)).await?),
            _ => Ok(self.fs.unlink(self.staging, &staged(ino)).await?),
        }
    }

    /// The inode that has a name, and its type.
    async fn find(&self, dir: Ino, name: &[u8]) -> Result<(Ino, FileType), Fault> {
        let attributes = self.fs.lookup(dir, name).await?;
        self.fs.forget(attributes.ino, 1);
        Ok((attributes.ino, attributes.file_type))
    }
}
