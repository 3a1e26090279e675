//! New inodes and new names.

use crate::FsError;
use crate::attributes::flags::{require_changeable, require_growable};
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::change::{InodeChanges, lease_all};
use crate::inode::{Inode, InodeState, Meta};
use crate::names::directory::{Entry, check_name, put_entry, require_alive};
use crate::types::{Attributes, Caller, FileType, Ino, NewMode, ROOT, Timestamp};
use syncline_store::{Canary, Transaction};

/// Most names that an inode can have, and most subdirectories of a directory less two.
const LINKS_MAX: u32 = i32::MAX as u32;
/// setgid, which directories pass on.
const SETGID: u16 = 0o2000;

/// An inode to be created.
pub(crate) struct NewInode {
    pub file_type: FileType,
    pub mode: NewMode,
    pub rdev: u32,
    pub size: u64,
    pub meta: Meta,
}

impl Filesystem {
    /// The transaction that mkfs commits: the root directory.
    pub fn initial_transaction(uid: u32, gid: u32, permissions: u16, now: Timestamp) -> Transaction {
        let caller = Caller { uid, gid };
        let new = NewInode::directory(permissions.into());
        let state = new.state(ROOT, ROOT, caller, now);
        let mut transaction = Transaction::new();
        state.put(&mut transaction);
        transaction.count_objects(1);
        transaction
    }

    /// Creates a file: regular, named pipe, socket or device node. Counts a kernel reference.
    pub async fn mknod(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        file_type: FileType,
        permissions: impl Into<NewMode>,
        rdev: u32,
    ) -> Result<Attributes, FsError> {
        let rdev = match file_type {
            FileType::Directory | FileType::Symlink => return Err(FsError::Invalid("file type")),
            FileType::CharDevice | FileType::BlockDevice => rdev,
            FileType::Regular | FileType::Fifo | FileType::Socket => 0,
        };
        let new = NewInode { file_type, mode: permissions.into(), rdev, size: 0, meta: Meta::default() };
        self.create(caller, parent, name, new, Transaction::new()).await
    }

    /// Creates a directory. Counts a kernel reference.
    pub async fn mkdir(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: impl Into<NewMode>,
    ) -> Result<Attributes, FsError> {
        let new = NewInode::directory(permissions.into());
        self.create(caller, parent, name, new, Transaction::new()).await
    }

    /// Creates an inode with its first name.
    async fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        transaction: Transaction,
    ) -> Result<Attributes, FsError> {
        let ino = self.store.new_object()?;
        self.create_as(ino, caller, parent, name, new, transaction).await
    }

    /// Creates an inode with its first name, under a number drawn before because items of it are in
    /// `transaction` already.
    pub(crate) async fn create_as(
        &self,
        ino: Ino,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        mut new: NewInode,
        mut transaction: Transaction,
    ) -> Result<Attributes, FsError> {
        check_name(name)?;
        self.prepare_compression(new.file_type).await?;
        let _room = self.admit_growth().await?;
        let dir = self.directory(parent).await?;
        let _lease = dir.lease.write().await;
        require_alive(&dir)?;
        require_growable(&dir)?;
        let search = self.search(parent, name).await?;
        if search.entry.is_some() {
            return Err(FsError::Exists);
        }
        self.admit_inode(&dir).await?;
        let offset = search.free()?;
        let file_type = new.file_type;
        let lists = self.inherit_acls((new.file_type, &mut new.mode), &dir).await?;
        let now = self.now();
        let mut state = new.inherit(self, &dir).state(ino, parent, caller, now);
        self.put_lists(&mut state.meta, (&mut transaction, ino), &lists);
        let held = self.hold_new(&state).await?;

        // Nothing waits from here to the commit.
        let mut changes = InodeChanges::new();
        changes.spend(held);
        changes.count(self.inherit_quota(&mut state));
        let change = changes.of(&dir);
        change.add_entry(now);
        if file_type == FileType::Directory {
            change.attr.nlink = more_links(change.attr.nlink)?;
        }
        let attributes = self.commit_new(state, (parent, name, offset), changes, transaction)?;
        self.references.add(ino);
        Ok(attributes)
    }

    /// Commits `transaction` and `changes` with a new inode and its first name, which goes to this offset of the
    /// directory.
    pub(crate) fn commit_new(
        &self,
        mut state: InodeState,
        (parent, name, offset): (Ino, &[u8], u64),
        changes: InodeChanges<'_>,
        mut transaction: Transaction,
    ) -> Result<Attributes, FsError> {
        let Attributes { ino, file_type, .. } = state.attr;
        put_entry(&mut transaction, parent, Entry { offset, ino, file_type }, name);
        self.put_first_parent(&mut state.meta, &mut transaction, ino, (parent, name));
        state.put(&mut transaction);
        transaction.count_objects(1);
        let attributes = state.attributes();
        let making = self.inodes.make(ino);
        state.name_op = changes.commit(self, transaction)?;
        self.store.give_way();
        making.finish(&Inode::new(state));
        self.store.give_way();
        self.counters.created.add(1);
        Ok(attributes)
    }

    /// Gives an inode another name, or the first one to a file that was made without. Counts a
    /// kernel reference.
    pub async fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Attributes, FsError> {
        check_name(new_name)?;
        let _room = self.admit_growth().await?;
        let inode = self.inode(ino).await?;
        if inode.file_type == FileType::Directory {
            return Err(FsError::NotPermitted);
        }
        let dir = self.directory(new_parent).await?;
        let _held = self.hold_for_name(&inode)?;
        if !self.store.breaks(Canary::LinkWithoutData) {
            // P3, before the leases, because the submission takes them itself. Build tools and git link
            // many files that nobody syncs, and a mail server has synced its own before.
            data::submit_placing(self, &inode).await?;
        }
        let _leases = lease_all(&[&inode, &dir]).await;
        require_alive(&dir)?;
        require_growable(&dir)?;
        let search = self.search(new_parent, new_name).await?;
        if search.entry.is_some() {
            return Err(FsError::Exists);
        }
        require_changeable(&inode)?;
        if self.quota_of(&inode) != self.quota_of(&dir) {
            return Err(FsError::CrossDevice);
        }
        let offset = search.free()?;
        let plan = self.plan_parents(&inode, None, Some((new_parent, new_name))).await?;
        let now = self.now();

        let mut changes = InodeChanges::new();
        let mut transaction = Transaction::new();
        let change = changes.of(&inode);
        let nameless = change.attr.nlink == 0;
        if nameless {
            // Another call may have given the inode its first name in between, which cleared
            // `linkable`; an unlink of that name did not set it again.
            if !inode.state.lock().linkable {
                return Err(FsError::NotFound);
            }
            if !self.store.breaks(Canary::LinkedOrphanStays) {
                transaction.delete(crate::names::orphan::key(ino));
            }
        }
        change.attr.nlink = more_links(change.attr.nlink)?;
        change.touch(now);
        change.name_changed = true;
        plan.carry_out(self, change, &mut transaction);
        let attributes = change.attributes();
        let change = changes.of(&dir);
        change.add_entry(now);
        put_entry(&mut transaction, new_parent, Entry { offset, ino, file_type: inode.file_type }, new_name);
        changes.commit(self, transaction)?;
        inode.state.lock().linkable = false;
        self.references.add(ino);
        self.counters.linked.add(1);
        Ok(attributes)
    }
}

/// The link count plus one.
pub(crate) fn more_links(nlink: u32) -> Result<u32, FsError> {
    if nlink < LINKS_MAX { Ok(nlink + 1) } else { Err(FsError::TooManyLinks) }
}

impl NewInode {
    fn directory(mode: NewMode) -> Self {
        Self { file_type: FileType::Directory, mode, rdev: 0, size: 0, meta: Meta::default() }
    }

    /// Applies what a directory passes on: some of its flags, its quota, and its group if it is
    /// setgid; new directories become setgid too.
    pub(crate) fn inherit(mut self, fs: &Filesystem, dir: &Inode) -> Inheriting {
        let state = dir.state.lock();
        self.meta.flags |= fs.flags_of_new(state.meta.flags, self.file_type);
        self.meta.quota = state.meta.quota;
        let setgid = state.attr.permissions & SETGID != 0;
        if setgid && self.file_type == FileType::Directory {
            self.mode.permissions |= SETGID;
        }
        Inheriting { gid: setgid.then_some(state.attr.gid), new: self }
    }

    fn state(self, ino: Ino, parent: Ino, caller: Caller, now: Timestamp) -> InodeState {
        Inheriting { gid: None, new: self }.state(ino, parent, caller, now)
    }
}

/// A new inode and the group it inherits.
pub(crate) struct Inheriting {
    gid: Option<u32>,
    new: NewInode,
}

impl Inheriting {
    pub(crate) fn state(self, ino: Ino, parent: Ino, caller: Caller, now: Timestamp) -> InodeState {
        let new = self.new;
        let directory = new.file_type == FileType::Directory;
        let attr = Attributes {
            ino,
            file_type: new.file_type,
            permissions: new.mode.permissions & 0o7777,
            nlink: if directory { 2 } else { 1 },
            uid: caller.uid,
            gid: self.gid.unwrap_or(caller.gid),
            rdev: new.rdev,
            size: new.size,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let meta = Meta { parent: if directory { parent } else { 0 }, ..new.meta };
        InodeState::new(attr, meta)
    }
}
