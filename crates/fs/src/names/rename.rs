//! Renaming: one transaction, whether it replaces, moves or exchanges.

use crate::FsError;
use crate::attributes::flags::{require_changeable, require_growable};
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::change::{InodeChanges, Leases, lease_all};
use crate::inode::quotas::Delta;
use crate::inode::{Inode, InodeState, Meta};
use crate::names::create::{NewInode, more_links};
use crate::names::directory::{Entry, check_name, delete_entry, put_entry, require_alive};
use crate::names::parents::{NameIn, ParentsPlan};
use crate::names::unlink::require_empty;
use crate::types::{Caller, FileType, Ino, ROOT, RenameFlags};
use std::sync::Arc;
use syncline_store::{Admission, Canary, Transaction};
use syncline_sync::asynchronous::MutexGuard;

/// Number of parents followed before the image is considered damaged: a cycle has no end.
const DEPTH_MAX: usize = 1 << 20;

/// The inodes of a rename, found without leases and confirmed under them.
struct Concerned {
    from: Arc<Inode>,
    to: Arc<Inode>,
    source: Arc<Inode>,
    source_entry: Entry,
    /// The inode that has the new name now, and its entry.
    target: Option<(Arc<Inode>, Entry)>,
}

/// The requested rename.
#[derive(Clone, Copy)]
struct Request<'a> {
    name: &'a [u8],
    new_name: &'a [u8],
    flags: RenameFlags,
}

/// The leases held while names change.
struct Held<'a> {
    _rename: Option<MutexGuard<'a, ()>>,
    _leases: Leases<'a>,
}

impl Filesystem {
    /// Renames, replacing an inode that has the new name unless the flags say otherwise.
    pub async fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<(), FsError> {
        check_name(name)?;
        check_name(new_name)?;
        if (flags.no_replace || flags.whiteout.is_some()) && flags.exchange {
            return Err(FsError::Invalid("rename flags"));
        }
        let _room = match flags.whiteout {
            Some(_) => self.admit_growth().await?,
            None => self.store.admit(Admission::Change).await?,
        };
        let from = self.directory(parent).await?;
        let to = self.directory(new_parent).await?;
        let request = Request { name, new_name, flags };
        loop {
            let concerned = self.concerned(from.clone(), to.clone(), request).await?;
            // This comes before the leases, because the submission takes them itself. Anything
            // written after this point was written after the rename began, and P3 does not cover
            // it.
            self.submit_before_rename(&concerned, flags).await?;
            self.store.give_way();
            let held = self.hold(&concerned).await;
            if !self.confirmed(&concerned, request).await? {
                continue;
            }
            let gone = self.rename_held(&concerned, request).await?;
            drop(held);
            if let Some(gone) = gone {
                self.remove_if_unused(&gone);
            }
            return Ok(());
        }
    }

    /// Looks up the entries and inodes of the names.
    async fn concerned(
        &self,
        from: Arc<Inode>,
        to: Arc<Inode>,
        request: Request<'_>,
    ) -> Result<Concerned, FsError> {
        loop {
            let source_entry = self.find(from.ino, request.name).await?.ok_or(FsError::NotFound)?;
            let target_entry = self.find(to.ino, request.new_name).await?;
            let named = async {
                let source = self.named(from.ino, source_entry).await?;
                let target = match target_entry {
                    Some(entry) => Some((self.named(to.ino, entry).await?, entry)),
                    None => None,
                };
                Ok((source, target))
            };
            match named.await {
                Ok((source, target)) => return Ok(Concerned { from, to, source, source_entry, target }),
                Err(error) => {
                    // An inode that vanished together with its name is no error.
                    if self.find(from.ino, request.name).await? == Some(source_entry)
                        && self.find(to.ino, request.new_name).await? == target_entry
                    {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// P3: the data of a file reaches the log before its new name does. If that is impossible, the
    /// rename fails and no part of it is logged.
    async fn submit_before_rename(&self, concerned: &Concerned, flags: RenameFlags) -> Result<(), FsError> {
        if self.store.breaks(Canary::RenameWithoutData) {
            return Ok(());
        }
        let exchanged = concerned.target.as_ref().filter(|_| flags.exchange).map(|(target, _)| target);
        for inode in [Some(&concerned.source), exchanged].into_iter().flatten() {
            // This costs nothing when there is nothing to submit.
            data::submit_dirty(self, inode).await?;
        }
        Ok(())
    }

    /// Takes the rename lease if a directory changes its parent, then the leases of all inodes that
    /// will change.
    async fn hold<'a>(&'a self, concerned: &'a Concerned) -> Held<'a> {
        let rename = if concerned.moves_directory() { Some(self.rename_lease.lock().await) } else { None };
        let target = concerned.target.as_ref().map_or(&concerned.source, |(target, _)| target);
        let leases = lease_all(&[&concerned.from, &concerned.to, &concerned.source, target]).await;
        Held { _rename: rename, _leases: leases }
    }

    /// True when the names still mean what they meant before the leases were held.
    async fn confirmed(&self, concerned: &Concerned, request: Request<'_>) -> Result<bool, FsError> {
        let target_entry = concerned.target.as_ref().map(|(_, entry)| *entry);
        Ok(self.find(concerned.from.ino, request.name).await? == Some(concerned.source_entry)
            && self.find(concerned.to.ino, request.new_name).await? == target_entry)
    }

    /// Renames under the leases; returns the inode that lost its last name.
    async fn rename_held(
        &self,
        concerned: &Concerned,
        request: Request<'_>,
    ) -> Result<Option<Arc<Inode>>, FsError> {
        require_alive(&concerned.from)?;
        require_alive(&concerned.to)?;
        if let Some((target, _)) = &concerned.target {
            if request.flags.no_replace {
                return Err(FsError::Exists);
            }
            if target.ino == concerned.source.ino {
                // Two names of one inode, or the same name twice: POSIX requires that nothing
                // happens.
                return Ok(None);
            }
        } else if request.flags.exchange {
            return Err(FsError::NotFound);
        }
        concerned.require_permitted()?;
        self.require_same_trees(concerned, request.flags)?;
        self.refuse_loops(concerned, request.flags).await?;
        if request.flags.whiteout.is_some() {
            self.admit_inode(&concerned.from).await?;
        }
        match &concerned.target {
            Some((target, target_entry)) if request.flags.exchange => {
                let (here, there) = concerned.places(request);
                let plan = self.plan_parents(&concerned.source, Some(here), Some(there)).await?;
                let target_plan = self.plan_parents(target, Some(there), Some(here)).await?;
                self.exchange(concerned, (target, *target_entry), [plan, target_plan], request)?;
                Ok(None)
            }
            Some((target, target_entry)) => {
                may_replace(&concerned.source, target)?;
                let (here, there) = concerned.places(request);
                let plan = self.plan_parents(&concerned.source, Some(here), Some(there)).await?;
                let target_plan = self.plan_parents(target, Some(there), None).await?;
                self.replace(concerned, Some((target, target_plan)), (target_entry.offset, plan), request)
            }
            None => {
                let offset = self.search(concerned.to.ino, request.new_name).await?.free()?;
                let (here, there) = concerned.places(request);
                let plan = self.plan_parents(&concerned.source, Some(here), Some(there)).await?;
                self.replace(concerned, None, (offset, plan), request)
            }
        }
    }

    /// Refuses to let names cross the border of a tree with a quota.
    fn require_same_trees(&self, concerned: &Concerned, flags: RenameFlags) -> Result<(), FsError> {
        let Concerned { from, to, source, target, .. } = concerned;
        self.require_same_tree(source, from, to)?;
        match target.as_ref().filter(|_| flags.exchange) {
            Some((target, _)) => self.require_same_tree(target, to, from),
            None => Ok(()),
        }
    }

    /// Refuses to move a directory below itself. The rename lease is held whenever a directory
    /// changes its parent, so the parents on the way up do not change.
    async fn refuse_loops(&self, concerned: &Concerned, flags: RenameFlags) -> Result<(), FsError> {
        if !concerned.moves_directory() {
            return Ok(());
        }
        if concerned.source.file_type == FileType::Directory
            && self.is_within(&concerned.to, concerned.source.ino).await?
        {
            return Err(FsError::Invalid("a directory can't move below itself"));
        }
        if let Some((target, _)) = concerned.target.as_ref().filter(|_| flags.exchange)
            && target.file_type == FileType::Directory
            && self.is_within(&concerned.from, target.ino).await?
        {
            return Err(FsError::Invalid("a directory can't move below itself"));
        }
        Ok(())
    }

    /// True when `dir` is `ancestor` or lies below it.
    pub(crate) async fn is_within(&self, dir: &Arc<Inode>, ancestor: Ino) -> Result<bool, FsError> {
        let mut dir = dir.clone();
        for _ in 0..DEPTH_MAX {
            if dir.ino == ancestor {
                return Ok(true);
            }
            if dir.ino == ROOT {
                return Ok(false);
            }
            let parent = dir.state.lock().meta.parent;
            dir = match self.directory(parent).await {
                Err(FsError::Stale | FsError::NotDirectory) => {
                    return Err(FsError::corrupt(dir.ino, "inode", "parent"));
                }
                other => other?,
            };
        }
        Err(FsError::corrupt(dir.ino, "inode", "parent"))
    }

    /// Moves the source to `offset` of the new directory, in place of `target` if there is one.
    fn replace(
        &self,
        concerned: &Concerned,
        target: Option<(&Arc<Inode>, ParentsPlan)>,
        (offset, plan): (u64, ParentsPlan),
        request: Request<'_>,
    ) -> Result<Option<Arc<Inode>>, FsError> {
        let Concerned { from, to, source, source_entry, .. } = concerned;
        let now = self.now();
        let directory = source.file_type == FileType::Directory;
        let mut changes = InodeChanges::new();
        let mut transaction = Transaction::new();
        let whiteout =
            request.flags.whiteout.map(|owner| self.whiteout(&mut transaction, concerned, request, owner));
        let whiteout = whiteout.transpose()?.map(|(state, counted)| {
            changes.count(counted);
            state
        });
        let change = changes.of(from);
        if whiteout.is_some() {
            change.touch_entries(now);
        } else {
            delete_entry(&mut transaction, from.ino, *source_entry);
            change.remove_entry(now);
        }
        put_entry(&mut transaction, to.ino, Entry { offset, ..*source_entry }, request.new_name);
        if directory {
            change.attr.nlink = change.attr.nlink.saturating_sub(1);
        }
        let change = changes.of(to);
        if target.is_none() {
            change.add_entry(now);
        } else {
            change.touch_entries(now);
        }
        // A replaced directory was a subdirectory, as is the one that replaces it: the count stays.
        if directory && target.is_none() {
            change.attr.nlink = more_links(change.attr.nlink)?;
        }
        let change = changes.of(source);
        change.touch(now);
        change.name_changed = true;
        if directory {
            change.meta.parent = to.ino;
        }
        plan.carry_out(self, change, &mut transaction);
        let gone = target.and_then(|(target, plan)| {
            self.drop_link(&mut changes, (target, plan), &mut transaction, now).then(|| target.clone())
        });
        let making = whiteout.map(|state| (self.inodes.make(state.attr.ino), state));
        let op = changes.commit(self, transaction)?;
        if let Some((making, mut state)) = making {
            state.name_op = op;
            making.finish(&Inode::new(state));
            self.counters.created.add(1);
        }
        self.counters.renamed.add(1);
        Ok(gone)
    }

    /// Puts a whiteout in the place of the source's old name: a character device 0/0 that nobody
    /// may open.
    fn whiteout(
        &self,
        transaction: &mut Transaction,
        concerned: &Concerned,
        request: Request<'_>,
        owner: Caller,
    ) -> Result<(InodeState, Delta), FsError> {
        let from = &concerned.from;
        let new = NewInode {
            file_type: FileType::CharDevice,
            mode: 0.into(),
            rdev: 0,
            size: 0,
            meta: Meta::default(),
        };
        let ino = self.store.new_object()?;
        let mut state = new.inherit(self, from).state(ino, from.ino, owner, self.now());
        let entry = Entry { offset: concerned.source_entry.offset, ino, file_type: FileType::CharDevice };
        put_entry(transaction, from.ino, entry, request.name);
        self.put_first_parent(&mut state.meta, transaction, ino, (from.ino, request.name));
        let counted = self.inherit_quota(&mut state);
        state.put(transaction);
        transaction.count_objects(1);
        Ok((state, counted))
    }

    /// Gives each of two inodes the other's name.
    fn exchange(
        &self,
        concerned: &Concerned,
        (target, target_entry): (&Arc<Inode>, Entry),
        [plan, target_plan]: [ParentsPlan; 2],
        request: Request<'_>,
    ) -> Result<(), FsError> {
        let Concerned { from, to, source, source_entry, .. } = concerned;
        let now = self.now();
        let mut changes = InodeChanges::new();
        let mut transaction = Transaction::new();
        let (there, here) = (target_entry.offset, source_entry.offset);
        put_entry(&mut transaction, to.ino, Entry { offset: there, ..*source_entry }, request.new_name);
        put_entry(&mut transaction, from.ino, Entry { offset: here, ..target_entry }, request.name);
        changes.of(from).touch_entries(now);
        changes.of(to).touch_entries(now);
        for (inode, old, new, plan) in [(source, from, to, plan), (target, to, from, target_plan)] {
            let change = changes.of(inode);
            change.touch(now);
            change.name_changed = true;
            plan.carry_out(self, change, &mut transaction);
            if inode.file_type == FileType::Directory {
                change.meta.parent = new.ino;
                let change = changes.of(old);
                change.attr.nlink = change.attr.nlink.saturating_sub(1);
                let change = changes.of(new);
                change.attr.nlink = more_links(change.attr.nlink)?;
            }
        }
        changes.commit(self, transaction)?;
        self.counters.renamed.add(1);
        Ok(())
    }
}

impl Concerned {
    /// The source's old place and its new one.
    fn places<'a>(&self, request: Request<'a>) -> (NameIn<'a>, NameIn<'a>) {
        ((self.from.ino, request.name), (self.to.ino, request.new_name))
    }

    /// Checks the flags of all inodes that the rename changes.
    fn require_permitted(&self) -> Result<(), FsError> {
        require_changeable(&self.from)?;
        require_changeable(&self.source)?;
        match &self.target {
            Some((target, _)) => {
                require_changeable(&self.to)?;
                require_changeable(target)
            }
            None => require_growable(&self.to),
        }
    }

    /// True when a directory gets another parent.
    fn moves_directory(&self) -> bool {
        let directory = |inode: &Arc<Inode>| inode.file_type == FileType::Directory;
        self.from.ino != self.to.ino
            && (directory(&self.source) || self.target.as_ref().is_some_and(|(target, _)| directory(target)))
    }
}

/// Refuses a replacement that POSIX forbids for these types. Both leases are held.
fn may_replace(source: &Inode, target: &Inode) -> Result<(), FsError> {
    match (source.file_type == FileType::Directory, target.file_type == FileType::Directory) {
        (true, true) => require_empty(target),
        (true, false) => Err(FsError::NotDirectory),
        (false, true) => Err(FsError::IsDirectory),
        (false, false) => Ok(()),
    }
}
