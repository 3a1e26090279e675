//! Parent pointers: every inode knows its names. They are kept in the inode item while they fit, so
//! that a change of a name logs no separate item for them; pointers that do not fit have items of
//! their own.
//!
//! A change of parent pointers is planned before its transaction, because it may have to read
//! items. It is planned under the lease of the inode, so that the plan is still right when the
//! transaction is made.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::change::InodeChange;
use crate::inode::{Inode, Meta, ParentName, Parents};
use crate::types::Ino;
use bytes::Bytes;
use smallvec::SmallVec;
use syncline_format::items::parent::{Parent, section_bytes};
use syncline_format::items::{SLOTS, hash_offsets};
use syncline_format::{Key, Kind};
use syncline_store::{Ablation, StoreError, Transaction};

/// Items read when pointers move back into the inode item; more than this never fit there.
const RETURNED_MAX: usize = 40;

/// A name of an inode: the directory that has it, and the name.
pub(crate) type NameIn<'a> = (Ino, &'a [u8]);

/// The changes that a transaction makes to the parent pointers of one inode.
pub(crate) struct ParentsPlan {
    parents: Parents,
    /// Offsets of items to delete.
    deleted: SmallVec<[u64; 2]>,
    put: SmallVec<[(u64, ParentName); 1]>,
    /// Number of names that move into the short form.
    shortened: u64,
    /// A name has left the short form.
    freed: bool,
}

/// Answer to a search for the item of a name.
struct Found {
    offset: Option<u64>,
    /// First offset where the item could go.
    free: Option<u64>,
}

/// Reads the item of a parent pointer.
pub(crate) fn decode_parent(key: Key, value: &Bytes) -> Result<Parent<'_>, FsError> {
    Parent::decode(value).map_err(|detail| FsError::Corrupt { ino: key.object, detail })
}

impl Filesystem {
    /// First and last offset at which the item of this name can lie.
    fn parent_offsets(&self, (parent, name): NameIn<'_>) -> (u64, u64) {
        let mut bytes = SmallVec::<[u8; 256]>::new();
        bytes.extend_from_slice(&parent.to_le_bytes());
        bytes.extend_from_slice(name);
        hash_offsets(self.hasher.hash(&bytes))
    }

    /// True when the short form has room for one more name.
    fn fits_short(&self, parents: &Parents, name: &[u8]) -> bool {
        !self.store.ablates(Ablation::ParentShortform)
            && parents.short_bytes() + section_bytes(name) <= self.limits.parent_bytes
    }

    /// Adds the first name of an inode that is being created.
    pub(crate) fn put_first_parent(
        &self,
        meta: &mut Meta,
        transaction: &mut Transaction,
        ino: Ino,
        name: NameIn<'_>,
    ) {
        if !self.parent_pointers {
            return;
        }
        let pointer = ParentName::new(name);
        if self.fits_short(&meta.parents, name.1) {
            meta.parents.short.push(pointer);
            self.counters.parents_short.add(1);
        } else {
            let offset = self.parent_offsets(name).0;
            transaction.put(Key::new(ino, Kind::Parent, offset), pointer.pointer().encode());
            meta.parents.items = 1;
            self.counters.parents_long.add(1);
        }
    }

    /// Plans the parent pointers of an inode that loses a name, gets one, or both. The caller holds
    /// its lease for writing until the plan is carried out.
    pub(crate) async fn plan_parents(
        &self,
        inode: &Inode,
        removed: Option<NameIn<'_>>,
        added: Option<NameIn<'_>>,
    ) -> Result<ParentsPlan, FsError> {
        let parents = inode.state.lock().meta.parents.clone();
        let (deleted, put) = (SmallVec::new(), SmallVec::new());
        let mut plan = ParentsPlan { parents, deleted, put, shortened: 0, freed: false };
        if !self.parent_pointers {
            return Ok(plan);
        }
        if let Some(name) = removed {
            self.plan_removal(&mut plan, inode.ino, name).await?;
        }
        if let Some(name) = added {
            self.plan_addition(&mut plan, inode.ino, name).await?;
        }
        self.plan_return(&mut plan, inode.ino).await?;
        Ok(plan)
    }

    async fn plan_removal(&self, plan: &mut ParentsPlan, ino: Ino, name: NameIn<'_>) -> Result<(), FsError> {
        if let Some(index) = plan.parents.short.iter().position(|known| known.is(name)) {
            plan.parents.short.remove(index);
            plan.freed = true;
            return Ok(());
        }
        let found = if plan.parents.items > 0 { self.search_parent(ino, name).await?.offset } else { None };
        if let Some(offset) = found {
            plan.deleted.push(offset);
            plan.parents.items -= 1;
        } else {
            // The directory entry is what counts, and it can be removed; a check finds the rest.
            tracing::warn!(ino, parent = name.0, "a name without its parent pointer is removed");
        }
        Ok(())
    }

    async fn plan_addition(&self, plan: &mut ParentsPlan, ino: Ino, name: NameIn<'_>) -> Result<(), FsError> {
        if plan.parents.short.iter().any(|known| known.is(name)) {
            return Ok(());
        }
        if self.fits_short(&plan.parents, name.1) {
            plan.parents.short.push(ParentName::new(name));
            plan.shortened += 1;
            return Ok(());
        }
        let found = if plan.parents.items > 0 {
            self.search_parent(ino, name).await?
        } else {
            Found { offset: None, free: Some(self.parent_offsets(name).0) }
        };
        if found.offset.is_none() {
            // 128 names have the same hash: with a secret seed this does not happen by chance.
            let free = found.free.ok_or(FsError::Store(StoreError::NoSpace))?;
            plan.put.push((free, ParentName::new(name)));
            plan.parents.items = plan.parents.items.saturating_add(1);
        }
        Ok(())
    }

    /// Moves names back into the inode item until it is full or all are there. Tried only when
    /// there may be room, so that adding or removing a name costs the same however many others
    /// there are.
    async fn plan_return(&self, plan: &mut ParentsPlan, ino: Ino) -> Result<(), FsError> {
        let own = plan.put.len() as u32;
        let roomy = plan.freed || plan.parents.short_bytes() * 2 < self.limits.parent_bytes;
        if plan.parents.items <= own || !roomy || !self.fits_short(&plan.parents, b"n") {
            return Ok(());
        }
        let (from, to) = (Key::new(ino, Kind::Parent, 0), Key::new(ino, Kind::Parent, u64::MAX));
        let chunk = self.store.scan(from, to, RETURNED_MAX).await?;
        for (key, value) in &chunk.items {
            let pointer = decode_parent(*key, value)?;
            let gone = plan.deleted.contains(&key.offset);
            if gone || plan.parents.items == 0 || !self.fits_short(&plan.parents, pointer.name) {
                continue;
            }
            plan.parents.short.push((&pointer).into());
            plan.shortened += 1;
            plan.deleted.push(key.offset);
            plan.parents.items -= 1;
        }
        Ok(())
    }

    /// Looks for the item of a name.
    async fn search_parent(&self, ino: Ino, name: NameIn<'_>) -> Result<Found, FsError> {
        let (first, last) = self.parent_offsets(name);
        let (from, to) = (Key::new(ino, Kind::Parent, first), Key::new(ino, Kind::Parent, last));
        let mut found = Found { offset: None, free: Some(first) };
        let each = |key: Key, value: &Bytes| {
            if found.free == Some(key.offset) {
                found.free = Some(key.offset + 1).filter(|&offset| offset <= last);
            }
            let pointer = decode_parent(key, value)?;
            if (pointer.parent, pointer.name) == name {
                found.offset = Some(key.offset);
            }
            Ok(())
        };
        self.each_item(from, to, SLOTS as usize, each).await?;
        Ok(found)
    }
}

impl ParentsPlan {
    /// Puts the plan into a transaction and its change of the inode.
    pub(crate) fn carry_out(
        self,
        fs: &Filesystem,
        change: &mut InodeChange<'_>,
        transaction: &mut Transaction,
    ) {
        let key = |offset| Key::new(change.attr.ino, Kind::Parent, offset);
        // A deleted item and a new one may have the same offset, so deletions come first.
        self.deleted.iter().for_each(|&offset| transaction.delete(key(offset)));
        for (offset, name) in &self.put {
            transaction.put(key(*offset), name.pointer().encode());
        }
        fs.counters.parents_short.add(self.shortened);
        fs.counters.parents_long.add(self.put.len() as u64);
        change.meta.parents = self.parents;
    }
}
