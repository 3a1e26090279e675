//! The attributes that stat(2) shows.

use crate::FsError;
use crate::attributes::flags::{require_changeable, require_growable};
use crate::attributes::privileges::without_privileges;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::{InodeChange, InodeChanges};
use crate::types::{Attributes, FileType, Ino, SetAttributes, SetTime, Timestamp};
use std::sync::Arc;
use syncline_store::{Admission, Canary, Transaction};

/// Nanoseconds of a second.
const NANOSECONDS: u32 = 1_000_000_000;

impl Filesystem {
    /// Attributes of an inode.
    pub async fn getattr(&self, ino: Ino) -> Result<Attributes, FsError> {
        let inode = self.inode(ino).await?;
        let state = inode.state.lock();
        let mut attributes = state.attributes();
        if self.store.breaks(Canary::StaleSize) && inode.file_type == FileType::Regular {
            attributes.size = state.data.logged.size();
        }
        Ok(attributes)
    }

    /// Changes all attributes but the size.
    pub(crate) async fn set_attributes(
        &self,
        inode: &Arc<Inode>,
        set: SetAttributes,
    ) -> Result<Attributes, FsError> {
        let _room = self.store.admit(Admission::Change).await?;
        let _lease = inode.lease.write().await;
        self.require_present(inode)?;
        require_settable(inode, &set)?;
        let chown = set.uid.is_some() || set.gid.is_some();
        let capability = if chown { self.find_capability(inode).await? } else { None };
        let acl = match set.permissions {
            Some(mode) => self.acl_for_mode(inode, mode).await?,
            None => None,
        };
        let now = self.now();
        let mut changes = InodeChanges::new();
        let mut transaction = Transaction::new();
        let change = changes.of(inode);
        set_owner_and_mode(change, set, chown);
        set_times(change, set, now);
        self.drop_capability(change, &mut transaction, capability);
        self.change_acl(change, &mut transaction, acl)?;
        let mut attributes = change.attributes();
        if !change.atime_set {
            attributes.atime = inode.state.lock().attr.atime;
        }
        changes.commit(self, transaction)?;
        Ok(attributes)
    }

    /// Refuses an inode whose removal has begun: a change now would bring its item back. The caller
    /// holds the lease.
    pub(crate) fn require_present(&self, inode: &Inode) -> Result<(), FsError> {
        if inode.state.lock().removing { Err(FsError::Stale) } else { Ok(()) }
    }
}

/// Refuses times that no item can have.
pub(crate) fn require_times(set: &SetAttributes) -> Result<(), FsError> {
    let bad = |time| matches!(time, Some(SetTime::To(time)) if time.nanoseconds >= NANOSECONDS);
    if bad(set.atime) || bad(set.mtime) { Err(FsError::Invalid("time")) } else { Ok(()) }
}

/// Refuses a change that the inode's flags forbid. Setting times to now needs only write
/// permission, and an append-only file may be written.
fn require_settable(inode: &Inode, set: &SetAttributes) -> Result<(), FsError> {
    let moment = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
    if set.permissions.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || moment(set.atime)
        || moment(set.mtime)
    {
        require_changeable(inode)
    } else {
        require_growable(inode)
    }
}

/// Sets owner, group and permissions. A change of owner clears setuid and setgid of everything but
/// directories, for every caller; an explicit mode in the same request is applied unchanged.
fn set_owner_and_mode(change: &mut InodeChange<'_>, set: SetAttributes, chown: bool) {
    let attr = &mut change.attr;
    let kill = (chown || set.kill_privileges) && attr.file_type != FileType::Directory;
    if kill {
        attr.permissions = without_privileges(attr.permissions);
    }
    if let Some(permissions) = set.permissions {
        attr.permissions = permissions & 0o7777;
    }
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
}

fn set_times(change: &mut InodeChange<'_>, set: SetAttributes, now: Timestamp) {
    let moment = |time| match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if let Some(atime) = set.atime {
        change.attr.atime = moment(atime);
        change.atime_set = true;
    }
    if let Some(mtime) = set.mtime {
        change.attr.mtime = moment(mtime);
        change.mtime_set = true;
    }
    change.attr.ctime = now;
}
