//! The plan of a transaction: each step with the inodes it is about, checked so far that carrying
//! it out can only fail if the device does.
//!
//! The plan is made while nothing else changes the filesystem, and is carried out at once.

mod names;

use super::known::{Known, Node, World};
use super::room::blocks_of;
use super::step::{Action, NotCommitted, Step};
use super::walk::{Last, Place};
use crate::FsError;
use crate::attributes::acl::is_acl;
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::quotas::UNIT_BYTES;
use crate::names::create::more_links;
use crate::names::directory;
use crate::names::symlink::TARGET_BYTES_MAX;
use crate::names::tmpfile::HeldOpen;
use crate::types::{FileType, Ino, XattrMode};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::inode::SIZE_MAX;
use syncline_format::items::xattr::{LIST_BYTES_MAX, VALUE_BYTES_MAX, is_xattr_name};
use syncline_store::StoreError;

/// Units that a block counts for in a quota.
const BLOCK_UNITS: u64 = BLOCK_BYTES as u64 / UNIT_BYTES;
/// Most bytes of an access control list that a new inode may get from its directory. A directory
/// gets two.
const DEFAULT_ACL_BYTES_MAX: usize = 4 + 127 * 8;
/// Units that these lists take at most.
const INHERITED_UNITS: u64 = 2 * BLOCK_UNITS;
/// Bytes of the names of these lists.
const INHERITED_LIST_BYTES: u32 = 64;

/// The effect of one step, and its inodes.
pub(super) enum Deed<'a> {
    /// Makes the inode of this step.
    Create {
        dir: Node,
        name: Vec<u8>,
        permissions: u16,
    },
    /// Gives a file its first name; if another has that, by way of a name that nobody has.
    Link {
        file: Ino,
        dir: Node,
        name: Vec<u8>,
        by_way_of: Option<Vec<u8>>,
    },
    Mkdir {
        dir: Node,
        name: Vec<u8>,
        permissions: u16,
    },
    Symlink {
        dir: Node,
        name: Vec<u8>,
        target: &'a [u8],
    },
    Write {
        file: Node,
        offset: u64,
        data: Bytes,
    },
    SetLen {
        file: Node,
        size: u64,
    },
    SetPermissions {
        node: Node,
        permissions: u16,
    },
    SetXattr {
        node: Node,
        name: &'a [u8],
        value: &'a [u8],
        mode: XattrMode,
    },
    RemoveXattr {
        node: Node,
        name: &'a [u8],
    },
    Rename {
        from: (Node, Vec<u8>),
        to: (Node, Vec<u8>),
        source: Node,
    },
    Remove {
        dir: Node,
        name: Vec<u8>,
        directory: bool,
    },
}

/// The effects of a transaction.
pub(super) struct Planned<'a> {
    /// Each with the index of its step.
    pub deeds: Vec<(usize, Deed<'a>)>,
    /// Existing regular files that it writes, cuts or renames.
    pub files: Vec<Arc<Inode>>,
    /// Files without a name that get one.
    pub _held: Vec<HeldOpen>,
}

/// A plan that is being made.
pub(super) struct Plan<'a> {
    fs: &'a Filesystem,
    world: World,
    files: BTreeMap<Ino, Arc<Inode>>,
    /// Files without a name that get one: a close meanwhile must not remove them.
    held: Vec<HeldOpen>,
    /// Units and inodes that the steps take of each quota, at most.
    quotas: BTreeMap<u64, (u64, u64)>,
}

impl<'a> Plan<'a> {
    pub(super) async fn make(fs: &'a Filesystem, steps: &'a [Step]) -> Result<Planned<'a>, NotCommitted> {
        let mut plan = Self {
            fs,
            world: World::default(),
            files: BTreeMap::new(),
            held: Vec::new(),
            quotas: BTreeMap::new(),
        };
        let mut deeds = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            match plan.step(index, step).await {
                Ok(Some(deed)) => deeds.push((index, deed)),
                Ok(None) => {}
                Err(error) => return Err(NotCommitted::Refused { step: index, error }),
            }
        }
        Ok(Planned { deeds, files: plan.files.into_values().collect(), _held: plan.held })
    }

    /// Plans a step; `None` if nothing is to be done.
    async fn step(&mut self, index: usize, step: &'a Step) -> Result<Option<Deed<'a>>, FsError> {
        let path = &step.path;
        match &step.action {
            Action::Create { permissions, exclusive } => {
                self.create(index, path, *permissions, *exclusive).await
            }
            Action::Link { ino, exclusive } => self.link(*ino, path, *exclusive).await.map(Some),
            Action::Mkdir { permissions } => {
                let (dir, name) = match self.world.walk(self.fs, path, Last::Keep).await? {
                    Place::There(_) => return Err(FsError::Exists),
                    Place::Nowhere(dir, name) => (dir, name),
                };
                self.add(index, (dir, &name), FileType::Directory, None).await?;
                Ok(Some(Deed::Mkdir { dir, name, permissions: *permissions }))
            }
            Action::Symlink { target } => self.symlink(index, path, target).await.map(Some),
            Action::Write { offset, data } => self.write(path, *offset, data).await,
            Action::SetLen { size } => self.set_len(path, *size).await.map(Some),
            Action::SetPermissions { permissions } => {
                let node = self.world.reach(self.fs, path).await?;
                self.world.known(node).require_changeable()?;
                // An access list that changes with the mode keeps its size.
                Ok(Some(Deed::SetPermissions { node, permissions: *permissions }))
            }
            Action::SetXattr { name, value, mode } => {
                let node = self.world.reach(self.fs, path).await?;
                self.set_xattr(node, name, value, *mode).await?;
                Ok(Some(Deed::SetXattr { node, name, value, mode: *mode }))
            }
            Action::RemoveXattr { name } => {
                let node = self.world.reach(self.fs, path).await?;
                self.remove_xattr(node, name).await?;
                Ok(Some(Deed::RemoveXattr { node, name }))
            }
            Action::Rename { to } => self.rename(path, to).await,
            Action::RemoveFile => self.remove(path, false).await.map(Some),
            Action::RemoveDir => self.remove(path, true).await.map(Some),
        }
    }

    async fn create(
        &mut self,
        index: usize,
        path: &[u8],
        permissions: u16,
        exclusive: bool,
    ) -> Result<Option<Deed<'a>>, FsError> {
        let last = if exclusive { Last::Keep } else { Last::Follow };
        match self.world.walk(self.fs, path, last).await? {
            Place::There(_) if exclusive => Err(FsError::Exists),
            Place::There(node) => self.world.known(node).require_regular().map(|()| None),
            Place::Nowhere(dir, name) => {
                self.add(index, (dir, &name), FileType::Regular, None).await?;
                Ok(Some(Deed::Create { dir, name, permissions }))
            }
        }
    }

    async fn symlink(&mut self, index: usize, path: &[u8], target: &'a [u8]) -> Result<Deed<'a>, FsError> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let (dir, name) = self.world.parent_of(self.fs, path).await?;
        if self.world.find(self.fs, dir, &name).await?.is_some() {
            return Err(FsError::Exists);
        }
        self.add(index, (dir, &name), FileType::Symlink, Some(target.to_vec())).await?;
        Ok(Deed::Symlink { dir, name, target })
    }

    /// Adds the inode that this step makes, under a name that its directory does not have.
    async fn add(
        &mut self,
        index: usize,
        (dir, name): (Node, &[u8]),
        file_type: FileType,
        target: Option<Vec<u8>>,
    ) -> Result<(), FsError> {
        directory::check_name(name)?;
        let known = self.world.known(dir);
        if !known.is_directory() {
            return Err(FsError::NotDirectory);
        }
        known.require_growable()?;
        if file_type == FileType::Directory {
            more_links(known.links)?;
        }
        let quota = known.quota;
        // One that the transaction makes has the list of its parent.
        if let Some(inode) = known.inode.clone()
            && self.fs.default_acl_bytes(&inode).await? > DEFAULT_ACL_BYTES_MAX
        {
            return Err(FsError::LongDefaultAcl);
        }
        self.spend(quota, INHERITED_UNITS, 1)?;
        let new = Known {
            file_type,
            inode: None,
            links: if file_type == FileType::Directory { 2 } else { 1 },
            size: 0,
            flags: 0,
            parent: None,
            quota,
            target,
            xattrs: HashMap::new(),
            list_bytes: INHERITED_LIST_BYTES,
        };
        self.world.nodes.insert(Node::New(index), new);
        self.world.put_name(dir, name, Node::New(index));
        Ok(())
    }

    /// Takes so much more of a quota.
    fn spend(&mut self, quota: u64, units: u64, inodes: u64) -> Result<(), FsError> {
        if quota == 0 {
            return Ok(());
        }
        let spent = self.quotas.entry(quota).or_default();
        *spent = (spent.0 + units, spent.1 + inodes);
        if self.fs.quotas.holds(quota, spent.0, spent.1) { Ok(()) } else { Err(FsError::QuotaExceeded) }
    }

    /// Notes that the data of a file changes, or that its name does: what waits of it is submitted
    /// before.
    fn note_file(&mut self, node: Node) {
        if let Some(inode) = &self.world.known(node).inode
            && inode.file_type == FileType::Regular
        {
            self.files.insert(inode.ino, inode.clone());
        }
    }

    async fn write(&mut self, path: &[u8], offset: u64, data: &Bytes) -> Result<Option<Deed<'a>>, FsError> {
        let file = self.world.reach(self.fs, path).await?;
        let known = self.world.known(file);
        known.require_regular()?;
        known.require_writable(offset)?;
        if data.is_empty() {
            return Ok(None);
        }
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= SIZE_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        known.size = known.size.max(end);
        known.drop_capability();
        let quota = known.quota;
        // A block that is replaced as a whole need not be readable.
        let block = BLOCK_BYTES as u64;
        let first = (!offset.is_multiple_of(block)).then_some(offset);
        let last = (!end.is_multiple_of(block)).then_some(end - 1);
        self.probe(file, [first, last]).await?;
        self.note_file(file);
        self.spend(quota, (blocks_of(offset, data.len()) + 1) * BLOCK_UNITS, 0)?;
        Ok(Some(Deed::Write { file, offset, data: data.clone() }))
    }

    /// Reads the blocks of an existing file in which these bytes lie: what can't be read, or
    /// changed in part, is found out now.
    async fn probe(&self, file: Node, bytes: [Option<u64>; 2]) -> Result<(), FsError> {
        let Some(inode) = self.world.nodes.get(&file).and_then(|known| known.inode.as_ref()) else {
            return Ok(());
        };
        for at in bytes.into_iter().flatten() {
            data::probe(self.fs, inode, at).await?;
        }
        Ok(())
    }

    async fn set_len(&mut self, path: &[u8], size: u64) -> Result<Deed<'a>, FsError> {
        let file = self.world.reach(self.fs, path).await?;
        let known = self.world.known(file);
        known.require_regular()?;
        known.require_changeable()?;
        if size > SIZE_MAX {
            return Err(FsError::TooLarge);
        }
        known.size = size;
        known.drop_capability();
        let quota = known.quota;
        self.probe(file, [Some(size), Some(0)]).await?;
        self.note_file(file);
        self.spend(quota, 2 * BLOCK_UNITS, 0)?;
        Ok(Deed::SetLen { file, size })
    }

    async fn set_xattr(
        &mut self,
        node: Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        require_settable(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(FsError::ListTooLong);
        }
        let there = self.has_xattr(node, name).await?;
        match (mode, there) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let known = self.world.known(node);
        known.require_changeable()?;
        if !there {
            known.list_bytes = known.list_bytes.saturating_add(name.len() as u32 + 1);
        }
        if known.list_bytes > LIST_BYTES_MAX {
            return Err(StoreError::NoSpace.into());
        }
        known.xattrs.insert(name.to_vec(), true);
        let quota = known.quota;
        self.spend(quota, ((name.len() + value.len()) as u64).div_ceil(UNIT_BYTES), 0)
    }

    async fn remove_xattr(&mut self, node: Node, name: &[u8]) -> Result<(), FsError> {
        require_settable(name)?;
        let there = self.has_xattr(node, name).await?;
        let known = self.world.known(node);
        known.require_changeable()?;
        if !there {
            return Err(FsError::NoAttribute);
        }
        known.list_bytes = known.list_bytes.saturating_sub(name.len() as u32 + 1);
        known.xattrs.insert(name.to_vec(), false);
        Ok(())
    }

    async fn has_xattr(&mut self, node: Node, name: &[u8]) -> Result<bool, FsError> {
        let known = self.world.known(node);
        if let Some(there) = known.xattrs.get(name) {
            return Ok(*there);
        }
        let Some(inode) = known.inode.clone() else { return Ok(false) };
        let _lease = inode.lease.read().await;
        Ok(self.fs.search_xattr(&inode, name).await?.place.is_some())
    }
}

/// Refuses names of attributes that a transaction does not change.
fn require_settable(name: &[u8]) -> Result<(), FsError> {
    if !is_xattr_name(name) {
        return Err(FsError::Range);
    }
    // A list changes the mode with it, and what new files inherit.
    if is_acl(name) { Err(FsError::NotSupported) } else { Ok(()) }
}
