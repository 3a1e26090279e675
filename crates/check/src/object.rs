//! Checks one object: its inode item, and whether its other items agree with it.

use crate::finding::FindingKind;
use crate::items::Shared;
use crate::names::InodeFacts;
use crate::parents::NameFacts;
use crate::preallocation::Covered;
use crate::unplaced::{Owner, Pieces, Wrong};
use crate::xattrs::Xattrs;
use bytes::Bytes;
use syncline_format::Key;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::Extent;
use syncline_format::items::hash_offsets;
use syncline_format::items::inode::{
    FLAG_CAPABILITY, FLAG_UNPLACED, InodeItem, Target, inline_bytes_max, sound_flags, xattr_bytes_max,
    xattr_section_bytes,
};
use syncline_format::items::parent::{Parent, parent_bytes_max};
use syncline_format::items::preallocation::Preallocation;
use syncline_format::items::unplaced::PIECES;

pub(crate) const REGULAR: u8 = 0o10;
pub(crate) const DIRECTORY: u8 = 0o04;
/// The unit of an inode's block count.
pub(crate) const UNIT_BYTES: u64 = 512;
pub(crate) const UNITS_PER_BLOCK: u64 = 8;
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// State of an object whose items are being read.
pub(crate) struct Object {
    number: u64,
    inode: Option<Inode>,
    /// The inode item can't be decoded, so nothing is compared with it.
    inode_malformed: bool,
    entries: Entries,
    /// First file block after the last extent.
    extent_end: u64,
    extent_blocks: u64,
    covered: Covered,
    unplaced: Pieces,
    xattrs: Xattrs,
    /// Parent pointers with items of their own.
    parent_items: u32,
}

/// The parts of the inode item that other items are compared with.
struct Inode {
    file_type: u8,
    nlink: u32,
    size: u64,
    blocks: u64,
    parent: u64,
    /// The file may have data in the log.
    unplaced: bool,
    inline_bytes: Option<u64>,
    xattr_items: u32,
    xattr_list_bytes: u32,
    xattr_units: u32,
    parent_items: u32,
}

/// Entries of a directory.
#[derive(Default)]
struct Entries {
    count: u64,
    subdirectories: u32,
    /// Hash of `names`, which are all the names with this hash so far.
    hash: u64,
    names: Vec<Vec<u8>>,
}

impl Object {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            inode: None,
            inode_malformed: false,
            entries: Entries::default(),
            extent_end: 0,
            extent_blocks: 0,
            covered: Covered::default(),
            unplaced: Pieces::default(),
            xattrs: Xattrs::default(),
            parent_items: 0,
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn inode(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        if key.offset != 0 {
            let text = format!("a second inode item, at offset {}", key.offset);
            shared.report.object(FindingKind::ItemMalformed, self.number, text);
            return;
        }
        let item = match InodeItem::decode(value) {
            Ok(item) => item,
            Err(error) => {
                self.inode_malformed = true;
                shared.report.object(FindingKind::ItemMalformed, self.number, error.to_string());
                return;
            }
        };
        self.consistency(&item, shared);
        shared.quotas.inode(self.number, &item);
        for (name, _) in &item.xattrs {
            self.xattrs.small(self.number, name, shared.report);
        }
        self.xattrs.expect(item.next_chunk);
        if let Some(Target::Chunks(chunks)) = item.target {
            self.xattrs.refer(self.number, chunks, shared.report);
        }
        self.inode = Some(Inode {
            file_type: (item.mode >> 12) as u8,
            nlink: item.nlink,
            size: item.size,
            blocks: item.blocks,
            parent: item.parent,
            unplaced: item.flags & FLAG_UNPLACED != 0,
            inline_bytes: item.data.map(|data| data.len() as u64),
            xattr_items: item.xattr_items,
            xattr_list_bytes: item.xattr_list_bytes,
            xattr_units: item.xattr_units,
            parent_items: item.parent_items,
        });
        for pointer in &item.parents {
            self.point(pointer, shared);
        }
    }

    /// Checks that the parts of an inode item agree with each other.
    fn consistency(&self, item: &InodeItem<'_>, shared: &mut Shared<'_>) {
        let node_bytes = shared.geometry.node_bytes;
        let mut wrong = |text: String| {
            shared.report.object(FindingKind::InodeContradiction, self.number, text);
        };
        if let Some(data) = item.data.filter(|data| data.len() > inline_bytes_max(node_bytes)) {
            wrong(format!("{} bytes of data in the inode item are more than it may hold", data.len()));
        }
        let target_bytes = item.target.map(|target| match target {
            Target::Here(target) => target.len() as u64,
            Target::Chunks(chunks) => u64::from(chunks.len_bytes),
        });
        if let Some(bytes) = target_bytes.filter(|&bytes| bytes != item.size || bytes == 0) {
            wrong(format!("the target of the symbolic link has {bytes} bytes, its size says {}", item.size));
        }
        let small: usize = item.xattrs.iter().map(|(name, value)| xattr_section_bytes(name, value)).sum();
        if small > xattr_bytes_max(node_bytes) {
            wrong(format!(
                "{small} bytes of extended attributes in the inode item are more than it may hold"
            ));
        }
        let parents: usize = item.parents.iter().map(Parent::section_bytes).sum();
        if parents > parent_bytes_max(node_bytes) {
            wrong(format!("{parents} bytes of parent pointers in the inode item are more than it may hold"));
        }
        let capability = item.xattrs.iter().any(|(name, _)| *name == CAPABILITY);
        if capability && item.flags & FLAG_CAPABILITY == 0 {
            wrong("a file capability is set that the flags do not tell of".into());
        }
        if item.flags != sound_flags(item.flags) {
            wrong(format!("unknown or contradicting flags {:#x}", item.flags));
        }
    }

    pub(crate) fn entry(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        let malformed = |shared: &mut Shared<'_>, text: String| {
            shared.report.object(FindingKind::ItemMalformed, self.number, text);
        };
        let entry = match Dirent::decode(value) {
            Ok(entry) => entry,
            Err(error) => return malformed(shared, format!("entry at offset {}: {error}", key.offset)),
        };
        if self.inode.as_ref().is_some_and(|inode| inode.file_type != DIRECTORY) {
            return malformed(shared, "a directory entry in an inode that is no directory".into());
        }
        shared.report.names += 1;
        self.entries.count += 1;
        self.entries.subdirectories += u32::from(entry.file_type == DIRECTORY);
        let name_hash = shared.name_hash(entry.name);
        shared.facts.entry(entry.ino, self.number, entry.file_type, name_hash);
        let hash = shared.hash(entry.name);
        let (first, last) = hash_offsets(hash);
        if !(first..=last).contains(&key.offset) {
            let text =
                format!("{:?} lies at offset {}, not in {first}..={last}", printable(entry.name), key.offset);
            shared.report.object(FindingKind::NameHash, self.number, text);
            return;
        }
        let known = &mut self.entries;
        if known.hash != hash {
            known.hash = hash;
            known.names.clear();
        }
        if known.names.iter().any(|name| name == entry.name) {
            let text = format!("{:?} is there twice", printable(entry.name));
            shared.report.object(FindingKind::DuplicateName, self.number, text);
        }
        known.names.push(entry.name.to_vec());
    }

    pub(crate) async fn extent(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        let report = &mut *shared.report;
        let extent = match Extent::decode(key.offset, value) {
            Ok(extent) => extent,
            Err(error) => {
                let text = format!("extent at file block {}: {error}", key.offset);
                return report.object(FindingKind::ItemMalformed, self.number, text);
            }
        };
        if self.inode.as_ref().is_some_and(|inode| inode.file_type != REGULAR) {
            return report.object(
                FindingKind::ItemMalformed,
                self.number,
                "an extent of an inode that is no regular file",
            );
        }
        if extent.file_block < self.extent_end {
            let text = format!(
                "the extent at file block {} begins before the one before it ends, at {}",
                extent.file_block, self.extent_end
            );
            report.object(FindingKind::ExtentOverlap, self.number, text);
        }
        self.extent_end = self.extent_end.max(extent.end());
        self.extent_blocks += extent.charged_blocks();
        self.covered.extent(extent.file_block..extent.end());
        let run = extent.run();
        if !shared.geometry.contains(run) {
            let text =
                format!("the extent at file block {} has {} blocks there", extent.file_block, run.blocks);
            return report.add(FindingKind::ExtentOutside, Some(self.number), Some(run.start), text);
        }
        if extent.file_block == 0 && self.inode.as_ref().is_some_and(|inode| inode.inline_bytes.is_some()) {
            let text = "block 0 of the file is both in the inode item and in an extent";
            report.object(FindingKind::InodeContradiction, self.number, text);
        }
        if extent.shared {
            shared.references.extent(run);
        } else if !shared.reachable.add(run) {
            let text = format!(
                "an extent of {} blocks, at file block {}, overlaps blocks that something else uses",
                run.blocks, extent.file_block
            );
            report.add(FindingKind::BlockUsedTwice, Some(self.number), Some(run.start), text);
        }
        shared.data.push(self.number, extent, report).await;
    }

    pub(crate) fn xattr(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        self.xattrs.item(key, value, shared);
    }

    pub(crate) fn chunk(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        // Removal of an inode without names deletes xattrs first; a crash may have interrupted it
        // there.
        if self.inode.as_ref().is_some_and(|inode| inode.nlink == 0) {
            return;
        }
        self.xattrs.chunk(key, value, shared.report);
    }

    /// A parent pointer with an item of its own.
    pub(crate) fn parent(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        self.parent_items = self.parent_items.saturating_add(1);
        // Left over from the removal of an inode without names, which a crash interrupted.
        if self.inode.as_ref().is_some_and(|inode| inode.nlink == 0) {
            return;
        }
        let pointer = match Parent::decode(value) {
            Ok(pointer) => pointer,
            Err(error) => {
                let text = format!("parent pointer at offset {}: {error}", key.offset);
                return shared.report.object(FindingKind::ItemMalformed, self.number, text);
            }
        };
        let (first, last) = hash_offsets(shared.hash(value));
        if !(first..=last).contains(&key.offset) {
            let shown = printable(pointer.name);
            let text = format!(
                "the parent pointer {shown:?} lies at offset {}, not in {first}..={last}",
                key.offset
            );
            shared.report.object(FindingKind::NameHash, self.number, text);
        }
        self.point(&pointer, shared);
    }

    /// A preallocation.
    pub(crate) fn preallocation(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        let item = match Preallocation::decode(key.offset, value) {
            Ok(item) if item.blocks > shared.geometry.total_blocks => {
                let text = format!("{} preallocated blocks, more than the image has", item.blocks);
                return shared.report.object(FindingKind::ItemMalformed, self.number, text);
            }
            Ok(item) if self.inode.as_ref().is_none_or(|inode| inode.file_type == REGULAR) => item,
            Ok(_) => {
                let text = "preallocated blocks of an inode that is no regular file";
                return shared.report.object(FindingKind::ItemMalformed, self.number, text);
            }
            Err(error) => {
                let text = format!("preallocation at file block {}: {error}", key.offset);
                return shared.report.object(FindingKind::ItemMalformed, self.number, text);
            }
        };
        if !self.covered.preallocation(item) {
            let text = format!("file blocks {}..{} have something else, too", item.file_block, item.end());
            shared.report.object(FindingKind::PreallocationOverlap, self.number, text);
        }
    }

    /// One piece of a block's data in the log.
    pub(crate) fn unplaced(&mut self, key: Key, value: &Bytes, shared: &mut Shared<'_>) {
        let Some(inode) = self.inode.as_ref().filter(|inode| inode.nlink > 0) else {
            // Left over from the removal of an inode without names, which a crash interrupted.
            return;
        };
        let owner = Owner { file_type: inode.file_type, size: inode.size, marked: inode.unplaced };
        let at = format!("logged contents of file block {}", key.offset / PIECES);
        let (kind, text) = match self.unplaced.item(owner, key.offset, value) {
            Ok(()) => return,
            Err(Wrong::Malformed(error)) => (FindingKind::ItemMalformed, format!("{at}: {error}")),
            Err(Wrong::Stray(why)) => (FindingKind::UnplacedStray, format!("{at} {why}")),
        };
        shared.report.object(kind, self.number, text);
    }

    /// Remembers a parent pointer for the comparison with directory entries.
    fn point(&self, pointer: &Parent<'_>, shared: &mut Shared<'_>) {
        // Without an inode item there is nothing to compare with.
        if self.inode.is_some() {
            let hash = shared.name_hash(pointer.name);
            shared.facts.pointers.push(NameFacts { inode: self.number, directory: pointer.parent, hash });
        }
    }

    /// Completes the checks once all items of the object were read.
    pub(crate) fn end(mut self, shared: &mut Shared<'_>) {
        let report = &mut *shared.report;
        for offset in self.unplaced.lone() {
            let text = format!("half of the logged contents of file block {} is missing", offset / PIECES);
            report.object(FindingKind::DataDamaged, self.number, text);
        }
        let Some(inode) = self.inode else {
            if !self.inode_malformed {
                report.object(FindingKind::ItemWithoutInode, self.number, "there are items, but no inode");
            }
            // Keeps its names from being reported as dangling as well.
            shared.facts.unknown(self.number);
            return;
        };
        let (said, found) = (shared.sums.take(self.number), self.covered.blocks);
        shared.preallocated = shared.preallocated.saturating_add(found);
        // The counterpart may be among the items that could not be read.
        if said != found && !report.incomplete {
            let text = format!("{said} preallocated blocks, there are {found}");
            report.object(FindingKind::PreallocationSum, self.number, text);
        }
        report.inodes += 1;
        report.directories += u64::from(inode.file_type == DIRECTORY);
        // Removal of an inode without names proceeds in steps, and a crash may have interrupted it.
        // It looks for parent items only if the inode item counts some.
        let (said, found) = (inode.parent_items, self.parent_items);
        if said != found && (inode.nlink > 0 || found > said) {
            let text = format!("{said} parent pointers with items of their own, {found} were found");
            report.object(FindingKind::ParentCount, self.number, text);
        }
        if inode.nlink > 0 {
            if inode.file_type == DIRECTORY && inode.size != self.entries.count {
                let text = format!("its size says {} entries, there are {}", inode.size, self.entries.count);
                report.object(FindingKind::DirectorySize, self.number, text);
            }
            let inline_units = inode.inline_bytes.map_or(0, |bytes| bytes.div_ceil(UNIT_BYTES));
            let blocks = self.extent_blocks.saturating_add(self.covered.blocks);
            let attributes = self.xattrs.units();
            if inode.xattr_units != attributes {
                let text = format!(
                    "extended attributes of {} units of 512 bytes, there are {attributes}",
                    inode.xattr_units
                );
                report.object(FindingKind::XattrCount, self.number, text);
            }
            let data = blocks.saturating_mul(UNITS_PER_BLOCK).saturating_add(inline_units);
            let units = data.saturating_add(attributes.into());
            if (inode.file_type == REGULAR || shared.counts_xattrs) && inode.blocks != units {
                let text = format!("it says {} units of 512 bytes, there are {units}", inode.blocks);
                report.object(FindingKind::BlockCount, self.number, text);
            }
            self.xattrs.end(self.number, inode.xattr_items, inode.xattr_list_bytes, report);
        }
        shared.facts.inode(InodeFacts {
            number: self.number,
            parent: inode.parent,
            named_by: 0,
            nlink: inode.nlink,
            subdirectories: self.entries.subdirectories,
            file_type: inode.file_type,
        });
    }
}

/// A name as text for a message.
pub(crate) fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
