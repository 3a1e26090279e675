//! Files created without a name (O_TMPFILE), which may be given one.

use crate::FsError;
use crate::attributes::flags::require_growable;
use crate::filesystem::Filesystem;
use crate::inode::quotas::Held;
use crate::inode::{Inode, Meta};
use crate::names::create::NewInode;
use crate::types::{Attributes, Caller, FileType, Ino, NewMode};
use std::sync::Arc;
use syncline_store::{Canary, Transaction};

impl Filesystem {
    /// Creates a regular file without a name, with what a file in `parent` would inherit, and opens
    /// it. If `linkable`, it can be given a name with [`Filesystem::link`] while it is open. A
    /// crash before that removes it: the inode and its orphan item are one transaction. Counts a
    /// kernel reference.
    pub async fn tmpfile(
        &self,
        caller: Caller,
        parent: Ino,
        permissions: impl Into<NewMode>,
        linkable: bool,
    ) -> Result<Attributes, FsError> {
        self.prepare_compression(FileType::Regular).await?;
        let _room = self.admit_growth().await?;
        let dir = self.directory(parent).await?;
        let _lease = dir.lease.read().await;
        let mut new = NewInode {
            file_type: FileType::Regular,
            mode: permissions.into(),
            rdev: 0,
            size: 0,
            meta: Meta::default(),
        };
        let ino = self.store.new_object()?;
        require_growable(&dir)?;
        if dir.state.lock().attr.nlink == 0 {
            // ext4 returns this error in a removed directory.
            return Err(FsError::NotPermitted);
        }
        self.admit_inode(&dir).await?;
        let lists = self.inherit_acls((new.file_type, &mut new.mode), &dir).await?;
        let mut state = new.inherit(self, &dir).state(ino, parent, caller, self.now());
        state.attr.nlink = 0;
        state.linkable = linkable;
        state.opens = 1;
        let mut transaction = Transaction::new();
        self.put_lists(&mut state.meta, (&mut transaction, ino), &lists);
        let mut held = self.hold_new(&state).await?;

        let used = held.as_ref().map(Held::used).unwrap_or_default();
        let counted = self.inherit_quota(&mut state);
        state.put(&mut transaction);
        self.put_orphan(&mut transaction, ino);
        transaction.count_objects(1);
        let attributes = state.attributes();
        let making = self.inodes.make(ino);
        (state.name_op, _) = self.quotas.commit(&self.store, transaction, &[counted, used])?;
        held.as_mut().map(Held::take);
        making.finish(&Inode::new(state));
        self.references.add(ino);
        self.counters.created.add(1);
        Ok(attributes)
    }

    /// Puts the orphan item of an inode without names.
    pub(crate) fn put_orphan(&self, transaction: &mut Transaction, ino: Ino) {
        if !self.store.breaks(Canary::OrphanNotListed) {
            transaction.put(crate::names::orphan::key(ino), bytes::Bytes::new());
        }
    }

    /// Holds an inode that is about to get a name. One without names must be linkable, and stays
    /// open until then, so that its removal does not begin.
    pub(crate) fn hold_for_name(&self, inode: &Arc<Inode>) -> Result<Option<HeldOpen>, FsError> {
        match HeldOpen::of_linkable(self, inode.clone()) {
            None if inode.state.lock().attr.nlink == 0 => Err(FsError::NotFound),
            held => Ok(held),
        }
    }
}

/// Keeps an inode without a name open for as long as this lives.
pub(crate) struct HeldOpen {
    fs: Arc<Filesystem>,
    inode: Arc<Inode>,
}

impl HeldOpen {
    /// Holds an inode that can be given its first name.
    pub(crate) fn of_linkable(fs: &Filesystem, inode: Arc<Inode>) -> Option<Self> {
        {
            let mut state = inode.state.lock();
            if state.attr.nlink > 0 || !state.linkable || state.removing {
                return None;
            }
            state.opens += 1;
        }
        Some(Self { fs: fs.arc(), inode })
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        self.fs.release_inode(&self.inode);
    }
}
