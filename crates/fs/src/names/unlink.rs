//! Removing names.

use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::{InodeChanges, lease_all};
use crate::names::directory::{check_name, delete_entry};
use crate::names::parents::ParentsPlan;
use crate::types::{FileType, Ino};
use std::sync::Arc;
use syncline_store::{Admission, Transaction};

impl Filesystem {
    /// Removes a name of anything but a directory.
    pub async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.remove(parent, name, false).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        match name {
            b"." => Err(FsError::Invalid("name")),
            b".." => Err(FsError::NotEmpty),
            _ => self.remove(parent, name, true).await,
        }
    }

    async fn remove(&self, parent: Ino, name: &[u8], directory: bool) -> Result<(), FsError> {
        check_name(name)?;
        let _room = self.store.admit(Admission::Shrink).await?;
        let dir = self.directory(parent).await?;
        loop {
            // The child's number decides the order of the leases, so the name is looked up before
            // taking them and again under them.
            let entry = self.find(parent, name).await?.ok_or(FsError::NotFound)?;
            match (directory, entry.file_type == FileType::Directory) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                _ => {}
            }
            let child = match self.named(parent, entry).await {
                Ok(child) => child,
                // The inode may have been removed completely since.
                Err(error) if self.find(parent, name).await? == Some(entry) => return Err(error),
                Err(_) => continue,
            };
            let leases = lease_all(&[&dir, &child]).await;
            if self.find(parent, name).await? != Some(entry) {
                continue;
            }
            require_changeable(&dir)?;
            require_changeable(&child)?;
            if directory {
                require_empty(&child)?;
            }
            let plan = self.plan_parents(&child, Some((parent, name)), None).await?;
            let now = self.now();

            let mut changes = InodeChanges::new();
            let mut transaction = Transaction::new();
            delete_entry(&mut transaction, parent, entry);
            let change = changes.of(&dir);
            change.remove_entry(now);
            if directory {
                change.attr.nlink = change.attr.nlink.saturating_sub(1);
            }
            let gone = self.drop_link(&mut changes, (&child, plan), &mut transaction, now);
            changes.commit(self, transaction)?;
            self.counters.unlinked.add(1);
            drop(leases);
            if gone {
                self.remove_if_unused(&child);
            }
            return Ok(());
        }
    }

    /// Takes one name from an inode; a directory has only one. Losing the last name makes the inode
    /// an orphan, in the same transaction; returns true then. `plan` removes the name from the
    /// inode's parent pointers.
    pub(crate) fn drop_link<'a>(
        &self,
        changes: &mut InodeChanges<'a>,
        (inode, plan): (&'a Arc<Inode>, ParentsPlan),
        transaction: &mut Transaction,
        now: crate::types::Timestamp,
    ) -> bool {
        let change = changes.of(inode);
        change.touch(now);
        change.name_changed = true;
        plan.carry_out(self, change, transaction);
        change.attr.nlink = match inode.file_type {
            FileType::Directory => 0,
            _ => change.attr.nlink.saturating_sub(1),
        };
        let gone = change.attr.nlink == 0;
        if gone {
            // A damaged inode may have had more parent pointers than its last name.
            change.meta.parents.short.clear();
        }
        if gone {
            self.put_orphan(transaction, inode.ino);
        }
        gone
    }
}

/// Refuses a directory that has entries. The caller holds its lease. A directory's size is the
/// number of its entries, so this costs nothing, however many there were.
pub(crate) fn require_empty(inode: &Inode) -> Result<(), FsError> {
    if inode.state.lock().attr.size == 0 { Ok(()) } else { Err(FsError::NotEmpty) }
}
