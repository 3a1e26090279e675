//! The difference between two snapshots, from the items in which their trees differ.

use super::contents::{BLOCK, Range};
use super::decode;
use super::kinds::Kinds;
use crate::StreamError;
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent};
use syncline_format::items::inode::{InodeItem, MODE_TYPE};
use syncline_format::items::preallocation::Preallocation;
use syncline_format::items::unplaced::Piece;
use syncline_format::{BLOCK_BYTES, FormatError, Key, Kind};
use syncline_fs::types::{FileType, Ino};
use syncline_fs::{Filesystem, FsError};
use syncline_store::Difference;

/// A name in a directory.
pub(super) type Name = (Ino, Vec<u8>, Ino);

/// How an inode exists in the two snapshots. One without a name counts as absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// In both.
    Stays,
    /// Only in the later one.
    New,
    /// Only in the earlier one, or in neither.
    Gone,
}

/// The differences of an inode.
#[derive(Debug)]
pub(super) struct Changed {
    pub fate: Fate,
    /// The blocks of the file that differ, in order and joined.
    pub ranges: Vec<Range>,
    /// The size differs.
    pub resized: bool,
    /// Extended attributes may differ.
    pub xattrs: bool,
}

/// All that differs.
#[derive(Default)]
pub(super) struct Found {
    pub inodes: BTreeMap<Ino, Changed>,
    pub removed: BTreeSet<Name>,
    pub added: BTreeSet<Name>,
    /// Device blocks that changed extents lie on and share, as runs.
    pub shared: Vec<(u64, u64)>,
    /// Files that have grown, with the blocks by which.
    grown: Vec<(Ino, Range)>,
    /// Files that have become shorter, with the block behind their last one.
    shrunk: Vec<(Ino, u64)>,
    /// An inode that is another one before and after.
    unrelated: Option<Ino>,
    /// Symlinks in both.
    links: Vec<Ino>,
    /// Blocks of files that are in the log before or after.
    logged: BTreeSet<(Ino, u64)>,
    /// The extents of one group of blocks of one file: before and after.
    group: Group,
    corrupt: Option<(Ino, FormatError)>,
}

#[derive(Default)]
struct Group {
    of: (Ino, u64),
    before: Vec<Extent>,
    after: Vec<Extent>,
}

impl Found {
    /// Compares two snapshots of one image.
    pub(super) async fn between(before: &Filesystem, after: &Filesystem) -> Result<Self, StreamError> {
        let mut found = Self::default();
        let visit = &mut |difference: Difference| found.take(difference);
        after.store().differences(before.store(), visit).await?;
        found.end_group();
        if let Some((ino, detail)) = found.corrupt {
            return Err(FsError::Corrupt { ino, detail }.into());
        }
        found.require_related(before, after).await?;
        for (ino, blocks) in std::mem::take(&mut found.grown) {
            found.add_stale(before, ino, blocks).await?;
        }
        for (ino, end) in std::mem::take(&mut found.shrunk) {
            found.add_reserved(after, ino, end).await?;
        }
        for (ino, block) in std::mem::take(&mut found.logged) {
            found.add_below(after, ino, block).await?;
        }
        // A name may move to another slot without changing.
        let same: Vec<Name> = found.removed.intersection(&found.added).cloned().collect();
        for name in same {
            found.removed.remove(&name);
            found.added.remove(&name);
        }
        found.tidy();
        found.forget_nameless(after).await?;
        Ok(found)
    }

    /// Fails if an inode number stands for two inodes. Snapshots that were received from different
    /// filesystems lie in one image, and their numbers overlap.
    async fn require_related(&self, before: &Filesystem, after: &Filesystem) -> Result<(), StreamError> {
        if let Some(ino) = self.unrelated {
            return Err(StreamError::Unrelated(ino));
        }
        for ino in &self.links {
            if before.readlink(*ino).await? != after.readlink(*ino).await? {
                return Err(StreamError::Unrelated(*ino));
            }
        }
        Ok(())
    }

    /// Adds the blocks behind the former end of a file that has grown over them. They were no contents,
    /// so the receiver does not have them, and now they may be contents: by sharing blocks a file can
    /// get the same ones at the same place.
    async fn add_stale(
        &mut self,
        before: &Filesystem,
        ino: Ino,
        (first, end): Range,
    ) -> Result<(), StreamError> {
        let near = first.saturating_sub(EXTENT_BLOCKS_MAX);
        let mut extents = Kinds::from(before, ino, Kind::Extent, near);
        while let Some((block, value)) = extents.next().await? {
            let extent = Extent::decode(block, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
            if extent.file_block >= end {
                break;
            }
            if extent.end() > first {
                self.add_range(ino, (extent.file_block.max(first), extent.end().min(end)));
                self.add_shared(&extent);
            }
        }
        Ok(())
    }

    /// Adds the shared blocks below a block that was in the log: the extent there may be the same as
    /// before.
    async fn add_below(&mut self, after: &Filesystem, ino: Ino, block: u64) -> Result<(), StreamError> {
        let near = block.saturating_sub(EXTENT_BLOCKS_MAX);
        let mut extents = Kinds::from(after, ino, Kind::Extent, near);
        while let Some((first, value)) = extents.next().await?.filter(|(first, _)| *first <= block) {
            let extent = Extent::decode(first, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
            if extent.end() > block {
                self.add_shared(&extent);
            }
        }
        Ok(())
    }

    /// Adds preallocated room behind the new end of a file: a receiver that makes the file shorter
    /// gives it up.
    async fn add_reserved(&mut self, after: &Filesystem, ino: Ino, end: u64) -> Result<(), StreamError> {
        let mut reserved = Kinds::from(after, ino, Kind::Preallocation, 0);
        while let Some((block, value)) = reserved.next().await? {
            let run =
                Preallocation::decode(block, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
            if run.end() > end {
                self.add_range(ino, (run.file_block.max(end), run.end()));
            }
        }
        Ok(())
    }

    /// Inodes that got their entry by other items than their own may have no names.
    async fn forget_nameless(&mut self, after: &Filesystem) -> Result<(), StreamError> {
        for (ino, changed) in self.inodes.iter_mut().filter(|(_, changed)| changed.fate == Fate::Stays) {
            let value = after.store().get(Key::new(*ino, Kind::Inode, 0)).await?;
            let is_named = match &value {
                Some(value) => decode(*ino, value)?.nlink > 0,
                None => false,
            };
            if !is_named {
                changed.fate = Fate::Gone;
            }
        }
        Ok(())
    }

    fn add_shared(&mut self, extent: &Extent) {
        let run = extent.run();
        self.shared.extend(extent.shared.then_some((run.start, run.end())));
    }

    fn take(&mut self, difference: Difference) {
        let object = difference.key.object;
        if object != 0
            && let Err(detail) = self.try_take(difference)
        {
            self.corrupt.get_or_insert((object, detail));
        }
    }

    fn try_take(&mut self, Difference { key, before, after }: Difference) -> Result<(), FormatError> {
        let (before, after) = (before.as_deref(), after.as_deref());
        match Kind::from_u8(key.kind) {
            Some(Kind::Inode) => self.take_inode(key.object, before, after)?,
            Some(Kind::Dirent) => {
                let name =
                    |value| Dirent::decode(value).map(|entry| (key.object, entry.name.to_vec(), entry.ino));
                self.removed.extend(before.map(name).transpose()?);
                self.added.extend(after.map(name).transpose()?);
            }
            Some(Kind::Extent) => {
                let of = (key.object, key.offset / EXTENT_BLOCKS_MAX);
                if of != self.group.of {
                    self.end_group();
                    self.group.of = of;
                }
                let extent = |value| Extent::decode(key.offset, value);
                self.group.before.extend(before.map(extent).transpose()?);
                self.group.after.extend(after.map(extent).transpose()?);
            }
            Some(Kind::Unplaced) => {
                let value = before.or(after).unwrap_or_default();
                let block = Piece::decode(key.offset, value)?.file_block;
                self.add_range(key.object, (block, block + 1));
                self.logged.insert((key.object, block));
            }
            Some(Kind::Preallocation) => {
                for value in [before, after].into_iter().flatten() {
                    let run = Preallocation::decode(key.offset, value)?;
                    self.add_range(key.object, (run.file_block, run.end()));
                }
            }
            Some(Kind::Xattr | Kind::Chunk) => self.changed(key.object).xattrs = true,
            _ => {}
        }
        Ok(())
    }

    fn take_inode(
        &mut self,
        ino: Ino,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<(), FormatError> {
        let before = before.map(InodeItem::decode).transpose()?;
        let after = after.map(InodeItem::decode).transpose()?;
        let named = |item: &Option<InodeItem<'_>>| item.as_ref().is_some_and(|item| item.nlink > 0);
        let fate = match (named(&before), named(&after)) {
            (true, true) => Fate::Stays,
            (false, true) => Fate::New,
            _ => Fate::Gone,
        };
        let changed = self.changed(ino);
        changed.fate = fate;
        let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
        let lasting = |item: &InodeItem<'_>| (item.mode & MODE_TYPE, item.rdev, item.btime);
        if fate == Fate::Stays && lasting(&before) != lasting(&after) {
            self.unrelated.get_or_insert(ino);
            return Ok(());
        }
        let file_type = FileType::from_number((after.mode >> 12) as u8);
        changed.resized = before.size != after.size;
        changed.xattrs = before.xattrs != after.xattrs || before.xattr_items != after.xattr_items;
        if before.data != after.data {
            let length = |item: &InodeItem<'_>| item.data.map_or(0, <[u8]>::len);
            let blocks = length(&before).max(length(&after)).div_ceil(BLOCK_BYTES) as u64;
            self.add_range(ino, (0, blocks.max(1)));
        }
        match file_type {
            _ if fate != Fate::Stays => {}
            Some(FileType::Regular) if before.size < after.size => {
                self.grown.push((ino, (before.size.div_ceil(BLOCK), after.size.div_ceil(BLOCK))));
            }
            Some(FileType::Regular) if before.size > after.size => {
                self.shrunk.push((ino, after.size.div_ceil(BLOCK)));
            }
            Some(FileType::Symlink) => self.links.push(ino),
            _ => {}
        }
        Ok(())
    }

    /// The entry of an inode. Its item comes before its other items, so that an inode that gets an
    /// entry by these is in both snapshots, with the same item.
    fn changed(&mut self, ino: Ino) -> &mut Changed {
        let nothing = || Changed { fate: Fate::Stays, ranges: Vec::new(), resized: false, xattrs: false };
        self.inodes.entry(ino).or_insert_with(nothing)
    }

    fn add_range(&mut self, ino: Ino, (first, end): Range) {
        let changed = self.changed(ino);
        match changed.ranges.last_mut() {
            _ if changed.fate != Fate::Stays => {}
            Some(last) if last.0 <= first && last.1 >= first => last.1 = last.1.max(end),
            _ => changed.ranges.push((first, end)),
        }
    }

    /// Compares the extents of a group of blocks: a block at the same place as before has not changed.
    fn end_group(&mut self) {
        let Group { of: (ino, group), before, after } = std::mem::take(&mut self.group);
        if before.is_empty() && after.is_empty() {
            return;
        }
        let first = group * EXTENT_BLOCKS_MAX;
        for block in first..first + EXTENT_BLOCKS_MAX {
            if place(&before, block) != place(&after, block) {
                self.add_range(ino, (block, block + 1));
            }
        }
        after.iter().for_each(|extent| self.add_shared(extent));
    }

    /// Sorts and joins the gathered changes, and adds the inodes whose names changed: a changed name
    /// touches its inode at the receiver.
    fn tidy(&mut self) {
        let names: Vec<(Ino, Ino)> =
            self.removed.iter().chain(&self.added).map(|(dir, _, ino)| (*dir, *ino)).collect();
        for (dir, ino) in names {
            self.changed(dir);
            self.changed(ino);
        }
        self.shared = joined(std::mem::take(&mut self.shared));
        for changed in self.inodes.values_mut() {
            changed.ranges = joined(std::mem::take(&mut changed.ranges));
        }
    }
}

/// Where a block of a file lies: address, and place in the unit there.
fn place(extents: &[Extent], block: u64) -> Option<(u64, Option<u64>)> {
    let extent = extents.iter().find(|extent| extent.file_block <= block && block < extent.end())?;
    let skip = block - extent.file_block;
    Some(match extent.packed {
        None => (extent.addr + skip, None),
        Some(packed) => (extent.addr, Some(packed.skip + skip)),
    })
}

fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut joined: Vec<Range> = Vec::with_capacity(ranges.len());
    for (first, end) in ranges {
        match joined.last_mut() {
            Some(last) if last.1 >= first => last.1 = last.1.max(end),
            _ => joined.push((first, end)),
        }
    }
    joined
}
