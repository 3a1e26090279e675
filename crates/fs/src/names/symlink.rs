//! Symbolic links.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::{LinkTarget, Meta};
use crate::names::create::NewInode;
use crate::types::{Attributes, Caller, FileType, Ino};
use bytes::Bytes;
use syncline_store::Transaction;

/// Longest target: a path with its NUL takes 4096 bytes.
pub(crate) const TARGET_BYTES_MAX: usize = 4095;

impl Filesystem {
    /// Creates a symbolic link. Counts a kernel reference.
    pub async fn symlink(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, FsError> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let ino = self.store.new_object()?;
        let mut transaction = Transaction::new();
        let mut meta = Meta::default();
        let bytes = Bytes::copy_from_slice(target);
        meta.target = Some(Box::new(if target.len() <= self.limits.inline_bytes {
            LinkTarget::Here(bytes)
        } else {
            let chunks = meta.new_chunks(target.len());
            self.put_chunks(&mut transaction, ino, chunks, &bytes);
            LinkTarget::Chunks(chunks)
        }));
        let size = target.len() as u64;
        let new = NewInode { file_type: FileType::Symlink, mode: 0o777.into(), rdev: 0, size, meta };
        self.create_as(ino, caller, parent, name, new, transaction).await
    }

    /// The target of a symbolic link.
    pub async fn readlink(&self, ino: Ino) -> Result<Bytes, FsError> {
        let inode = self.inode(ino).await?;
        self.ease_access().await;
        let _lease = inode.lease.read().await;
        let target = inode.state.lock().meta.target.clone();
        let target = match target.map(|target| *target) {
            None => return Err(FsError::Invalid("not a symbolic link")),
            Some(LinkTarget::Here(bytes)) => bytes,
            Some(LinkTarget::Chunks(chunks)) => self.read_chunks(ino, chunks).await?,
        };
        self.touch_access(&inode);
        Ok(target)
    }
}
