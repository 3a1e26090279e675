//! Making a filesystem what another one was: inodes under given numbers, all attributes as given.
//!
//! For the receiver of a stream, which works on a branch that nobody else sees. Everything else it
//! does by the calls that everybody has.

use crate::filesystem::Filesystem;
use crate::inode::change::InodeChanges;
use crate::inode::{Inode, LinkTarget, Meta};
use crate::names::create::NewInode;
use crate::names::symlink::TARGET_BYTES_MAX;
use crate::options::AccessTime;
use crate::types::{Caller, FileType, Ino, Timestamp};
use crate::{FsError, Options, data};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::extent::FILE_BLOCKS_MAX;
use syncline_format::items::inode::{
    FLAG_APPEND, FLAG_CAPABILITY, FLAG_IMMUTABLE, FLAG_UNPLACED, sound_flags,
};
use syncline_store::{Admission, Store, Transaction};

/// Flags that tell of other items of the inode, and are set with these.
const FLAGS_OF_ITEMS: u32 = FLAG_CAPABILITY | FLAG_UNPLACED;

/// An inode to be made under a given number.
#[derive(Clone, Debug)]
pub struct Remade {
    /// The number.
    pub ino: Ino,
    /// The type.
    pub file_type: FileType,
    /// Device number, of device nodes.
    pub rdev: u32,
    /// Target, of symlinks.
    pub target: Bytes,
}

/// All attributes that can be given to an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoredAttributes {
    /// Permission bits (07777).
    pub permissions: u16,
    /// The flags of the inode item. Flags that stand for other items stay as they are.
    pub flags: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Filesystem {
    /// Opens the filesystem of a branch of this one's store. It changes nothing by itself: no access
    /// times, no compression.
    pub async fn open_branch(&self, store: Arc<Store>) -> Result<Arc<Self>, FsError> {
        let options = Options {
            access_time: AccessTime::Never,
            compression: None,
            durability: Options::default().durability,
            receipts_max: 0,
            ..self.options.clone()
        };
        Self::open(store, self.spawn.clone(), options).await
    }

    /// Makes an inode under a number that no inode has. The caller has made sure that the store
    /// never hands it out.
    pub async fn remake(self: &Arc<Self>, parent: Ino, name: &[u8], what: Remade) -> Result<(), FsError> {
        let Remade { ino, file_type, rdev, target } = what;
        if self.store.get(Inode::key(ino)).await?.is_some() {
            return Err(FsError::Exists);
        }
        let mut transaction = Transaction::new();
        let mut meta = Meta::default();
        if file_type == FileType::Symlink {
            if target.is_empty() || target.len() > TARGET_BYTES_MAX {
                return Err(FsError::Invalid("target of a symbolic link"));
            }
            meta.target = Some(Box::new(if target.len() <= self.limits.inline_bytes {
                LinkTarget::Here(target.clone())
            } else {
                let chunks = meta.new_chunks(target.len());
                self.put_chunks(&mut transaction, ino, chunks, &target);
                LinkTarget::Chunks(chunks)
            }));
        } else if !target.is_empty() {
            return Err(FsError::Invalid("only a symbolic link has a target"));
        }
        let rdev = match file_type {
            FileType::CharDevice | FileType::BlockDevice => rdev,
            _ => 0,
        };
        let new = NewInode { file_type, mode: 0.into(), rdev, size: target.len() as u64, meta };
        let root = Caller { uid: 0, gid: 0 };
        self.create_as(ino, root, parent, name, new, transaction).await?;
        self.forget(ino, 1);
        Ok(())
    }

    /// Takes the flags away that forbid changes of an inode.
    pub async fn relax(&self, ino: Ino) -> Result<(), FsError> {
        let inode = self.inode(ino).await?;
        const FORBID: u32 = FLAG_IMMUTABLE | FLAG_APPEND;
        if inode.state.lock().meta.flags & FORBID == 0 {
            return Ok(());
        }
        let _room = self.store.admit(Admission::Change).await?;
        let _lease = inode.lease.write().await;
        let mut changes = InodeChanges::new();
        changes.of(&inode).meta.flags &= !FORBID;
        changes.commit(self, Transaction::new())?;
        Ok(())
    }

    /// All attributes of an inode, to set them again.
    pub async fn attributes_to_restore(&self, ino: Ino) -> Result<RestoredAttributes, FsError> {
        let inode = self.inode(ino).await?;
        let state = inode.state.lock();
        let attr = state.attr;
        Ok(RestoredAttributes {
            permissions: attr.permissions,
            flags: state.meta.flags & !FLAGS_OF_ITEMS,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
        })
    }

    /// Sets all attributes of an inode.
    pub async fn restore_attributes(&self, ino: Ino, to: RestoredAttributes) -> Result<(), FsError> {
        let _room = self.store.admit(Admission::Change).await?;
        let inode = self.inode(ino).await?;
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        let mut changes = InodeChanges::new();
        let change = changes.of(&inode);
        let kept = change.meta.flags & FLAGS_OF_ITEMS;
        change.meta.flags = sound_flags(to.flags) & !FLAGS_OF_ITEMS | kept;
        let attr = &mut change.attr;
        (attr.permissions, attr.uid, attr.gid) = (to.permissions & 0o7777, to.uid, to.gid);
        (attr.atime, attr.mtime, attr.ctime, attr.btime) = (to.atime, to.mtime, to.ctime, to.btime);
        (change.atime_set, change.mtime_set) = (true, true);
        changes.commit(self, Transaction::new())?;
        Ok(())
    }

    /// Makes `blocks` blocks of a file those of another, or of another part of the same file,
    /// whatever the sizes; sizes stay. False if they can't be shared and must be copied.
    ///
    /// Offsets are in blocks. The source has nothing but zeros where the destination has ended.
    pub async fn clone_blocks(&self, from: (Ino, u64), to: (Ino, u64), blocks: u64) -> Result<bool, FsError> {
        let (source, destination) = (self.inode(from.0).await?, self.inode(to.0).await?);
        let end = |first: u64| first.checked_add(blocks).filter(|end| *end <= FILE_BLOCKS_MAX);
        let (Some(from_end), Some(to_end)) = (end(from.1), end(to.1)) else { return Err(FsError::TooLarge) };
        let [from_end, to_end, len] = [from_end, to_end, blocks].map(|blocks| blocks * BLOCK_BYTES as u64);
        let (from_offset, to_offset) = (from_end - len, to_end - len);
        if from.0 == to.0 && from_offset < to_end && to_offset < from_end {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        let span = data::Span { from: &source, from_offset, to: &destination, to_offset, len };
        span.clone_blocks(self).await
    }

    /// Waits until inodes without names that nobody has open are removed: their numbers may be given
    /// to [`remake`](Self::remake) then.
    pub async fn settle_nameless(&self) {
        self.wait_for_orphans().await;
    }

    /// Writes back what is dirty in a file, so that it is stored as the file's flags say now.
    pub async fn settle_contents(&self, ino: Ino) -> Result<(), FsError> {
        let inode = self.inode(ino).await?;
        data::write_back(self, &inode).await
    }

    /// The same for all files.
    pub async fn settle_all_contents(&self) -> Result<(), FsError> {
        self.write_back().await
    }
}
