//! Clearing privileges that must not survive a write or a change of owner: setuid, setgid,
//! capabilities.

use crate::FsError;
use crate::attributes::flags::require_growable;
use crate::attributes::xattr_place::Place;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::{InodeChange, InodeChanges};
use crate::types::{FileType, Ino};
use std::sync::Arc;
use syncline_format::items::inode::FLAG_CAPABILITY;
use syncline_store::{Admission, Transaction};

/// The xattr that holds file capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o0010;

/// Permissions without setuid, and without setgid if the group may execute the file. (Without group
/// execution, setgid once meant mandatory locking, and Linux leaves it.)
pub(crate) fn without_privileges(permissions: u16) -> u16 {
    let setgid = if permissions & GROUP_EXECUTE != 0 { SETGID } else { 0 };
    permissions & !(SETUID | setgid)
}

impl Filesystem {
    /// Clears what a write or truncate must clear: setuid and setgid if `kill_mode` is set (the
    /// writer is not privileged), and always the capabilities. Costs nothing when there is nothing
    /// to clear. The caller holds the inode's lease for writing and was admitted.
    pub(crate) async fn drop_privileges(&self, inode: &Arc<Inode>, kill_mode: bool) -> Result<(), FsError> {
        let (clear_mode, clear_capability) = {
            let state = inode.state.lock();
            let permissions = state.attr.permissions;
            (
                kill_mode && without_privileges(permissions) != permissions,
                state.meta.flags & FLAG_CAPABILITY != 0,
            )
        };
        if !clear_mode && !clear_capability {
            return Ok(());
        }
        Box::pin(self.clear_privileges(inode, clear_mode)).await
    }

    async fn clear_privileges(&self, inode: &Arc<Inode>, clear_mode: bool) -> Result<(), FsError> {
        let capability = self.find_capability(inode).await?;
        let mut changes = InodeChanges::new();
        let mut transaction = Transaction::new();
        let change = changes.of(inode);
        if clear_mode {
            change.attr.permissions = without_privileges(change.attr.permissions);
        }
        self.drop_capability(change, &mut transaction, capability);
        change.touch(self.now());
        changes.commit(self, transaction)?;
        Ok(())
    }

    /// Clears setgid, even if the group may not execute the file: a caller outside the group is
    /// about to change the file. A crash before that change leaves the file without setgid, which
    /// is acceptable.
    pub async fn clear_setgid(&self, ino: Ino) -> Result<(), FsError> {
        let _room = self.store.admit(Admission::Change).await?;
        let inode = self.inode(ino).await?;
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        let has = inode.state.lock().attr.permissions & SETGID != 0;
        if !has || inode.file_type == FileType::Directory || require_growable(&inode).is_err() {
            return Ok(());
        }
        let mut changes = InodeChanges::new();
        let change = changes.of(&inode);
        change.attr.permissions &= !SETGID;
        change.touch(self.now());
        changes.commit(self, Transaction::new())?;
        Ok(())
    }

    /// The place of a file's capabilities, if it has any. The caller holds the lease.
    pub(crate) async fn find_capability(&self, inode: &Arc<Inode>) -> Result<Option<Place>, FsError> {
        let has =
            inode.file_type != FileType::Directory && inode.state.lock().meta.flags & FLAG_CAPABILITY != 0;
        if has { Ok(self.search_xattr(inode, CAPABILITY).await?.place) } else { Ok(None) }
    }

    /// Removes the capabilities.
    pub(crate) fn drop_capability(
        &self,
        change: &mut InodeChange<'_>,
        transaction: &mut Transaction,
        place: Option<Place>,
    ) {
        if let Some(place) = place {
            let ino = change.attr.ino;
            self.delete_xattr(&mut change.meta, (transaction, ino), CAPABILITY, &place);
            change.meta.flags &= !FLAG_CAPABILITY;
            self.counters.xattrs_logged.add(1);
        }
    }
}
