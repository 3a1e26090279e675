//! The difference between two snapshots, from the items in which their trees differ.

use super::contents::Range;
use crate::StreamError;
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent};
use syncline_format::items::inode::InodeItem;
use syncline_format::items::preallocation::Preallocation;
use syncline_format::items::unplaced::Piece;
use syncline_format::{BLOCK_BYTES, FormatError, Kind};
use syncline_fs::types::Ino;
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
        // A name may move to another slot without changing.
        let same: Vec<Name> = found.removed.intersection(&found.added).cloned().collect();
        for name in same {
            found.removed.remove(&name);
            found.added.remove(&name);
        }
        Ok(found)
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
        changed.resized = before.size != after.size;
        changed.xattrs = before.xattrs != after.xattrs || before.xattr_items != after.xattr_items;
        if before.data != after.data {
            let length = |item: &InodeItem<'_>| item.data.map_or(0, <[u8]>::len);
            let blocks = length(&before).max(length(&after)).div_ceil(BLOCK_BYTES) as u64;
            self.add_range(ino, (0, blocks.max(1)));
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

    /// Compares the extents of a group of blocks: what lies where it lay has not changed.
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
        let runs = after.iter().filter(|extent| extent.shared).map(|extent| extent.run());
        let runs = runs.map(|run| (run.start, run.end()));
        self.shared.extend(runs);
    }

    /// Sorts and joins what was gathered, and adds the inodes whose names changed: that touches
    /// them at the receiver.
    pub(super) fn tidy(&mut self) {
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
