//! Counting the inodes that a tree has already.
//!
//! A directory counts before its entries are read. From then on, an inode made in it counts as
//! well, and no inode is moved in from elsewhere. So only the entries that are read are left to
//! count, whatever is removed or renamed in the directory meanwhile.

use crate::FsError;
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::InodeChanges;
use crate::inode::quotas::Delta;
use crate::names::directory::decode_entry;
use crate::types::{FileType, Ino};
use std::sync::Arc;
use syncline_format::{Key, Kind};
use syncline_store::Transaction;

/// Entries read at a time.
const ENTRIES_EACH: usize = 1024;

impl Filesystem {
    /// Makes everything below `root` count in its quota. `root` itself counts already.
    pub(super) async fn count_tree(&self, root: &Arc<Inode>, number: u64) -> Result<(), FsError> {
        let mut directories = vec![root.ino];
        while let Some(dir) = directories.pop() {
            for child in self.children(dir).await? {
                if self.count_inode(child, number).await? {
                    directories.push(child);
                }
            }
        }
        Ok(())
    }

    /// The inodes in a directory at one moment; none if the directory is gone.
    async fn children(&self, dir: Ino) -> Result<Vec<Ino>, FsError> {
        let dir = match self.directory(dir).await {
            Err(FsError::Stale) => return Ok(Vec::new()),
            dir => dir?,
        };
        let _lease = dir.lease.read().await;
        let mut children = Vec::new();
        let (from, to) = (Key::new(dir.ino, Kind::Dirent, 0), Key::new(dir.ino, Kind::Dirent, u64::MAX));
        let each = |key: Key, value: &bytes::Bytes| {
            children.push(decode_entry(key, value)?.0.ino);
            Ok(())
        };
        self.each_item(from, to, ENTRIES_EACH, each).await?;
        Ok(children)
    }

    /// Makes an inode count, in a transaction of its own; true if it is a directory, whose entries
    /// must be counted next.
    async fn count_inode(&self, ino: Ino, number: u64) -> Result<bool, FsError> {
        let inode = match self.inode(ino).await {
            // Removed meanwhile.
            Err(FsError::Stale) => return Ok(false),
            inode => inode?,
        };
        let directory = inode.file_type == FileType::Directory;
        match self.quota_of(&inode) {
            0 => {}
            own if own == number => return Ok(directory),
            _ if directory => return Err(FsError::QuotaNested),
            // The file also has a name in another tree, and counts there.
            _ => return Ok(false),
        }
        let _room = self.admit_growth().await?;
        // No data of the inode may be dirty or in flight when it begins to count.
        let writeback = inode.state.lock().data.writeback();
        let _writeback = writeback.lock().await;
        let _lease = data::lease_settled(self, &[&inode]).await?;
        let units = {
            let state = inode.state.lock();
            if state.removing || state.attr.nlink == 0 {
                return Ok(false);
            }
            state.logged_units() as i64
        };
        let mut changes = InodeChanges::new();
        changes.of(&inode).meta.quota = number;
        changes.count(Delta { number, units, inodes: 1, ..Delta::default() });
        changes.commit(self, Transaction::new())?;
        if inode.file_type == FileType::Regular {
            inode.state.lock().data.charge_to(number);
        }
        Ok(directory)
    }
}
