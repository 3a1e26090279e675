//! Mends one object: its inode item, and its other items in the light of that.

mod lost;

use crate::finding::FindingKind;
use crate::object::{CAPABILITY, DIRECTORY, REGULAR, UNIT_BYTES, UNITS_PER_BLOCK, printable};
use crate::preallocation::Covered;
use crate::repair::flaw::Flaw;
use crate::repair::parents::Pointers;
use crate::repair::planner::{Entry, InodeFacts, Planner};
use crate::repair::xattrs::Xattrs;
use crate::unplaced::{Owner, Pieces, Wrong};
use bytes::Bytes;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::Extent;
use syncline_format::items::hash_offsets;
use syncline_format::items::inode::{
    FLAG_CAPABILITY, FLAG_UNPLACED, InodeItem, Target, sound_flags, xattr_bytes_max, xattr_section_bytes,
};
use syncline_format::items::preallocation::{Preallocation, encode_sum};
use syncline_format::items::unplaced::PIECES;
use syncline_format::items::xattr::{Xattr, XattrValue};
use syncline_format::{BLOCK_BYTES, Key, Kind, OBJECTS_END};

const ROOT: u64 = 1;

/// How much of an object is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nature {
    /// It has an inode item.
    Whole,
    /// Its inode item is lost; its other items tell the file type.
    MadeUp(u8),
    /// The remains are of no use.
    Remains,
    /// No such object can exist.
    Impossible,
}

/// An object whose items are being read.
pub(crate) struct Object {
    pub(crate) number: u64,
    nature: Nature,
    /// The inode item, mended as far as possible before the other items are known.
    inode: Option<Bytes>,
    /// The inode item was changed.
    changed: bool,
    facts: InodeFacts,
    /// The hash of the last entry, and all names with that hash.
    names: (u64, Vec<(Vec<u8>, u64)>),
    /// First file block after the last extent.
    extent_end: u64,
    extent_blocks: u64,
    covered: Covered,
    unplaced: Pieces,
    /// The file may have data in the log.
    has_unplaced: bool,
    inline_bytes: Option<u64>,
    xattrs: Xattrs,
    parents: Pointers,
}

impl Object {
    /// Starts with the first item of an object.
    pub(crate) async fn begin(planner: &mut Planner, key: Key, value: &Bytes) -> Self {
        let number = key.object;
        let mut object = Self {
            number,
            nature: Nature::Impossible,
            inode: None,
            changed: false,
            facts: InodeFacts {
                number,
                file_type: 0,
                made_up: false,
                nlink: 0,
                size: 0,
                parent: 0,
                names: 0,
                named_by: 0,
            },
            names: (0, Vec::new()),
            extent_end: 0,
            extent_blocks: 0,
            covered: Covered::default(),
            unplaced: Pieces::default(),
            has_unplaced: false,
            inline_bytes: None,
            xattrs: Xattrs::default(),
            parents: Pointers::default(),
        };
        if number >= OBJECTS_END {
            planner.object(FindingKind::ObjectNumber, number, "no object can have this number → removed");
            return object;
        }
        let inode = Key::new(number, Kind::Inode, 0);
        let is_inode = key == inode;
        // Items of other kinds may come before the inode item, where they don't belong.
        let own = match is_inode {
            true => Some(value.clone()),
            false if planner.flaw == Some(Flaw::FirstItemOnly) => None,
            false => planner.view.get(inode).await,
        };
        let item = own.as_ref().and_then(|own| InodeItem::decode(own).ok());
        object.nature = match &item {
            Some(item) if number != ROOT || (item.mode >> 12) as u8 == DIRECTORY => Nature::Whole,
            _ if number == ROOT => Nature::MadeUp(DIRECTORY),
            _ if planner.view.has_any(number, Kind::Extent).await => Nature::MadeUp(REGULAR),
            _ if planner.view.has_any(number, Kind::Dirent).await => Nature::MadeUp(DIRECTORY),
            _ => Nature::Remains,
        };
        let never_handed_out = number >= planner.handed_out;
        if never_handed_out {
            let fate = if object.nature == Nature::Remains { "removed" } else { "counts as handed out" };
            let text = format!("numbers from {} on had not been handed out → {fate}", planner.handed_out);
            planner.object(FindingKind::ObjectNumber, number, text);
        }
        match (object.nature, item) {
            (Nature::Whole, Some(item)) => object.take_inode(planner, item).await,
            (Nature::MadeUp(file_type), _) => {
                object.facts.file_type = file_type;
                object.facts.made_up = true;
                object.facts.nlink = 1;
            }
            (Nature::Remains, _) if own.is_none() && !never_handed_out => {
                let text = "its inode item is lost, so the rest is useless → removed";
                planner.object(FindingKind::ItemWithoutInode, number, text);
            }
            _ => {}
        }
        object
    }

    /// Takes the inode item and mends its own contradictions.
    async fn take_inode(&mut self, planner: &mut Planner, mut item: InodeItem<'_>) {
        let before = item.clone();
        self.facts.file_type = (item.mode >> 12) as u8;
        self.small_xattrs(planner, &mut item).await;
        let capability = item.xattrs.iter().any(|(name, _)| *name == CAPABILITY);
        let flags = sound_flags(item.flags) | if capability { FLAG_CAPABILITY } else { 0 };
        if flags != item.flags {
            let text = format!("flags {:#x} → {flags:#x}", item.flags);
            planner.object(FindingKind::InodeContradiction, self.number, text);
            item.flags = flags;
        }
        let target_bytes = match item.target {
            Some(Target::Here(target)) => Some(target.len() as u64),
            Some(Target::Chunks(chunks)) => {
                self.xattrs.target(chunks);
                Some(u64::from(chunks.len_bytes))
            }
            None => None,
        };
        self.xattrs.target_lost = target_bytes == Some(0);
        if let Some(bytes) = target_bytes.filter(|&bytes| bytes > 0 && bytes != item.size) {
            let text = format!("the size of the symbolic link {} → {bytes}", item.size);
            planner.object(FindingKind::InodeContradiction, self.number, text);
            item.size = bytes;
        }
        self.inline_bytes = item.data.map(|data| data.len() as u64);
        self.parents.small(planner, self.number, &item);
        self.has_unplaced = item.flags & FLAG_UNPLACED != 0;
        self.facts.nlink = item.nlink;
        self.facts.size = item.size;
        self.facts.parent = item.parent;
        self.changed = item != before;
        self.inode = Some(item.encode().into());
    }

    /// Xattrs in the inode item: drops repeated names, and those that exceed the limits.
    async fn small_xattrs(&mut self, planner: &mut Planner, item: &mut InodeItem<'_>) {
        let number = self.number;
        item.xattrs.retain(|(name, _)| {
            let fresh = self.xattrs.name(name);
            if !fresh {
                let text =
                    format!("the second extended attribute {:?} of this name → removed", printable(name));
                planner.object(FindingKind::DuplicateName, number, text);
            }
            fresh
        });
        let most = xattr_bytes_max(planner.geometry.node_bytes);
        while item.xattrs.iter().map(|(name, value)| xattr_section_bytes(name, value)).sum::<usize>() > most {
            let Some((name, value)) = item.xattrs.pop() else { return };
            let taken = planner.view.named(number, Kind::Xattr, name).await;
            let Some(key) = planner.view.place(number, Kind::Xattr, name, &taken) else { continue };
            let xattr = Xattr { name, value: XattrValue::Here(value) };
            planner.view.put(key, xattr.encode());
            self.xattrs.add(planner, &xattr);
            let text = format!("the extended attribute {:?} → moved to an item of its own", printable(name));
            planner.object(FindingKind::InodeContradiction, number, text);
        }
    }

    /// Takes an item of this object.
    pub(crate) async fn item(&mut self, planner: &mut Planner, key: Key, value: &Bytes) {
        if let Nature::Remains | Nature::Impossible = self.nature {
            planner.view.delete(key);
            planner.leaks |= key.kind == Kind::Extent as u8;
            if key.kind == Kind::Inode as u8 && self.nature == Nature::Remains {
                let why = "the inode item makes no sense, and there are no contents";
                planner.remove(FindingKind::ItemMalformed, key, why);
            }
            return;
        }
        match Kind::from_u8(key.kind) {
            Some(Kind::Inode) if key.offset == 0 && self.nature == Nature::Whole => {}
            Some(Kind::Inode) => {
                let what = format!("the inode item at offset {}", key.offset);
                planner.remove(FindingKind::ItemMalformed, key, what);
            }
            Some(Kind::Dirent) => self.entry(planner, key, value).await,
            Some(Kind::Extent) => self.extent(planner, key, value),
            Some(Kind::Xattr) => self.xattrs.item(planner, key, value).await,
            Some(Kind::Chunk) if !self.is_being_removed() => self.xattrs.chunk(planner, key, value),
            Some(Kind::Chunk) => {}
            Some(Kind::Parent) => {
                let being_removed = self.is_being_removed();
                self.parents.item(planner, key, value, being_removed);
            }
            Some(Kind::Preallocation) => self.preallocation(planner, key, value),
            Some(Kind::Unplaced) => self.unplaced(planner, key, value),
            Some(Kind::Orphan | Kind::Shared | Kind::Quota) | None => {
                let what = format!("an item of kind {} at offset {}", key.kind, key.offset);
                planner.remove(FindingKind::ItemMalformed, key, what);
            }
        }
    }

    /// Removal of an inode without names proceeds in steps, and a crash may have interrupted it.
    fn is_being_removed(&self) -> bool {
        self.facts.nlink == 0
    }

    async fn entry(&mut self, planner: &mut Planner, key: Key, value: &Bytes) {
        let entry = match Dirent::decode(value) {
            Ok(entry) => entry,
            Err(error) => {
                let why = format!("entry at offset {}: {error}", key.offset);
                return planner.remove(FindingKind::ItemMalformed, key, why);
            }
        };
        let shown = printable(entry.name);
        if !self.facts.is_directory() {
            let why = format!("the entry {shown:?} in an inode that is no directory");
            return planner.remove(FindingKind::ItemMalformed, key, why);
        }
        let hash = planner.view.hash(entry.name);
        let (first, last) = hash_offsets(hash);
        let in_place = (first..=last).contains(&key.offset);
        if in_place && self.names.0 != hash {
            self.names = (hash, Vec::new());
        }
        let known = &self.names.1;
        let twin = match in_place {
            true => known.iter().find(|(name, _)| name == entry.name).map(|(_, inode)| *inode),
            false => find_name(planner, self.number, entry.name).await,
        };
        if twin == Some(entry.ino) {
            let why = format!("the entry {shown:?} is there twice");
            return planner.remove(FindingKind::DuplicateName, key, why);
        }
        if in_place && twin.is_none() {
            self.names.1.push((entry.name.to_vec(), entry.ino));
            planner.entries.push(Entry {
                inode: entry.ino,
                directory: self.number,
                offset: key.offset,
                file_type: entry.file_type,
                name_hash: planner.view.name_hash(entry.name),
                gone: false,
            });
            return;
        }
        planner.view.delete(key);
        let hash = planner.view.name_hash(entry.name);
        planner.moved.insert((self.number, hash, entry.ino));
        let placed = planner.add_entry(self.number, entry.name, entry.ino, entry.file_type).await;
        let new_name = placed.map_or_else(|| "removed".into(), |name| format!("{:?}", printable(&name)));
        let (kind, text) = match in_place {
            true => (FindingKind::DuplicateName, format!("the second {shown:?} → {new_name}")),
            false => (FindingKind::NameHash, format!("{shown:?}, out of place → {new_name} in its place")),
        };
        planner.object(kind, self.number, text);
    }

    fn extent(&mut self, planner: &mut Planner, key: Key, value: &Bytes) {
        let extent = match Extent::decode(key.offset, value) {
            Ok(extent) => extent,
            Err(error) => {
                let why = format!("extent at file block {}: {error}", key.offset);
                return planner.remove(FindingKind::ItemMalformed, key, why);
            }
        };
        let at = format!("the extent of {} blocks at file block {}", extent.blocks(), extent.file_block);
        if self.facts.file_type != REGULAR {
            planner.leaks = true;
            return planner.remove(
                FindingKind::ItemMalformed,
                key,
                format!("{at} in an inode that is no file"),
            );
        }
        let run = extent.run();
        if !planner.geometry.contains(run) {
            let why = format!("{at} lies outside the image; they read as zeros");
            return planner.remove(FindingKind::ExtentOutside, key, why);
        }
        planner.seen.add(run);
        let (mut first, mut why) = (self.extent_end, FindingKind::ExtentOverlap);
        if extent.file_block == 0 && first == 0 && self.inline_bytes.is_some() {
            (first, why) = (1, FindingKind::InodeContradiction);
        }
        let Some(extent) = self.trim(planner, key, extent, first, why) else { return };
        self.extent_end = extent.end();
        self.extent_blocks += extent.charged_blocks();
        self.covered.extent(extent.file_block..extent.end());
        if extent.shared {
            // Which of the sharing extents can stay is known once all unshared extents are known.
            planner.sharing.push((self.number, extent));
        } else if !planner.keep(extent.run()) {
            planner.copy(self.number, extent);
        }
    }

    /// A preallocation; it is dropped if anything contradicts it.
    fn preallocation(&mut self, planner: &mut Planner, key: Key, value: &Bytes) {
        let at = format!("the preallocation at file block {}", key.offset);
        match Preallocation::decode(key.offset, value) {
            Ok(_) if self.facts.file_type != REGULAR => {
                planner.remove(FindingKind::ItemMalformed, key, format!("{at} in an inode that is no file"));
            }
            Ok(item) if item.blocks > planner.geometry.total_blocks => {
                let why = format!("{at}, of {} blocks, more than the image has", item.blocks);
                planner.remove(FindingKind::ItemMalformed, key, why);
            }
            Ok(item) if self.covered.preallocation(item) => {}
            Ok(_) => {
                let why = format!("{at}, where something else is");
                planner.remove(FindingKind::PreallocationOverlap, key, why);
            }
            Err(error) => planner.remove(FindingKind::ItemMalformed, key, format!("{at}: {error}")),
        }
    }

    /// A piece of data in the log; it is dropped if it can't belong to the file.
    fn unplaced(&mut self, planner: &mut Planner, key: Key, value: &Bytes) {
        if self.is_being_removed() {
            return;
        }
        let facts = &self.facts;
        let owner = Owner { file_type: facts.file_type, size: facts.size, marked: self.has_unplaced };
        let at = format!("the logged contents of file block {}", key.offset / PIECES);
        match self.unplaced.item(owner, key.offset, value) {
            Ok(()) => {}
            Err(Wrong::Malformed(error)) => {
                planner.remove(FindingKind::ItemMalformed, key, format!("{at}: {error}"));
            }
            Err(Wrong::Stray(why)) => planner.remove(FindingKind::UnplacedStray, key, format!("{at}, {why}")),
        }
    }

    /// Leaves lone halves of logged blocks: the block can't be read before or after, like any
    /// damaged data.
    fn halves(&mut self, planner: &mut Planner) {
        if planner.flaw != Some(Flaw::HalvesGoAway) {
            return;
        }
        for offset in self.unplaced.lone() {
            let key = Key::new(self.number, Kind::Unplaced, offset);
            let why = format!("half of the logged contents of file block {}", offset / PIECES);
            planner.remove(FindingKind::UnplacedStray, key, why);
        }
    }

    /// Corrects the sum of preallocated blocks.
    fn sum(&self, planner: &mut Planner) {
        let (said, found) = (planner.sums.take(self.number), self.covered.blocks);
        if found > 0 {
            planner.rooms.insert(self.number, found);
        }
        if said == found {
            return;
        }
        let key = Key::new(0, Kind::Preallocation, self.number);
        match found {
            0 => planner.view.delete(key),
            _ => planner.view.put(key, encode_sum(found)),
        }
        let text = format!("{said} preallocated blocks → {found}");
        planner.object(FindingKind::PreallocationSum, self.number, text);
    }

    /// Removes the part of an extent before file block `first`.
    fn trim(
        &self,
        planner: &mut Planner,
        key: Key,
        extent: Extent,
        first: u64,
        why: FindingKind,
    ) -> Option<Extent> {
        if extent.file_block >= first {
            return Some(extent);
        }
        planner.view.delete(key);
        let rest = extent.slice(first, extent.end());
        let cut = extent.slice(extent.file_block, first).expect("the extent begins before that");
        if let Some(rest) = &rest {
            planner.view.put(Key::new(self.number, Kind::Extent, rest.file_block), rest.encode());
        }
        let text =
            format!("file blocks {}..{} are there twice → the second copy goes", cut.file_block, cut.end());
        planner.object(why, self.number, text);
        rest
    }

    /// Completes the object once all its items were read.
    pub(crate) async fn end(mut self, planner: &mut Planner) {
        if let Nature::Remains | Nature::Impossible = self.nature {
            return;
        }
        if !self.is_being_removed() {
            self.xattrs.end(planner, self.number).await;
        }
        if self.xattrs.target_lost {
            return self.remove_all(planner).await;
        }
        self.sum(planner);
        self.halves(planner);
        self.lost(planner).await;
        planner.next_object = planner.next_object.max(self.number + 1);
        let key = Key::new(self.number, Kind::Inode, 0);
        match (self.nature, self.inode.take()) {
            (Nature::MadeUp(file_type), _) => {
                let value = self.make_up(planner, file_type);
                self.parents.end(planner, self.number, 0, false);
                planner.view.put(key, value);
            }
            (_, Some(value)) => {
                let mut item = InodeItem::decode(&value).expect("it was encoded here");
                self.counts(planner, &mut item);
                if self.changed {
                    planner.view.put(key, item.encode());
                }
            }
            _ => return,
        }
        planner.inodes.push(self.facts);
    }

    /// Units of 512 bytes in the items that were read.
    fn units(&self) -> u64 {
        let inline_units = self.inline_bytes.map_or(0, |bytes| bytes.div_ceil(UNIT_BYTES));
        let blocks = self.extent_blocks.saturating_add(self.covered.blocks);
        let data = blocks.saturating_mul(UNITS_PER_BLOCK).saturating_add(inline_units);
        data.saturating_add(self.xattrs.units.into())
    }

    /// Corrects the counts in the inode item.
    fn counts(&mut self, planner: &mut Planner, item: &mut InodeItem<'_>) {
        let before = item.clone();
        if self.xattrs.next_chunk > item.next_chunk {
            item.next_chunk = self.xattrs.next_chunk;
            let text = format!("next long value {} → {}", before.next_chunk, item.next_chunk);
            planner.object(FindingKind::InodeContradiction, self.number, text);
        }
        self.parents.end(planner, self.number, item.parent_items, self.is_being_removed());
        if !self.is_being_removed() {
            let units = self.units();
            if (self.facts.file_type == REGULAR || planner.counts_xattrs) && item.blocks != units {
                item.blocks = units;
                let text = format!("{} units of 512 bytes → {units}", before.blocks);
                planner.object(FindingKind::BlockCount, self.number, text);
            }
            if item.xattr_units != self.xattrs.units {
                item.xattr_units = self.xattrs.units;
                let text = format!(
                    "extended attributes of {} units of 512 bytes → {}",
                    before.xattr_units, item.xattr_units
                );
                planner.object(FindingKind::XattrCount, self.number, text);
            }
            let list_bytes = u32::try_from(self.xattrs.list_bytes).unwrap_or(u32::MAX);
            if (item.xattr_items, item.xattr_list_bytes) != (self.xattrs.items, list_bytes) {
                (item.xattr_items, item.xattr_list_bytes) = (self.xattrs.items, list_bytes);
                let text = format!(
                    "{} extended attributes with items of their own, a listing of {} bytes → {}, {list_bytes}",
                    before.xattr_items, before.xattr_list_bytes, self.xattrs.items
                );
                planner.object(FindingKind::XattrCount, self.number, text);
            }
        }
        self.changed |= *item != before;
    }

    /// An inode item to replace a lost one.
    fn make_up(&mut self, planner: &mut Planner, file_type: u8) -> Vec<u8> {
        let directory = file_type == DIRECTORY;
        let size = if directory { 0 } else { self.extent_end * BLOCK_BYTES as u64 };
        let permissions = match (directory, self.number) {
            (true, ROOT) => 0o755,
            (true, _) => 0o700,
            (false, _) => 0o600,
        };
        let now = planner.now;
        let data = self.extent_blocks.saturating_add(self.covered.blocks).saturating_mul(UNITS_PER_BLOCK);
        let item = InodeItem {
            mode: (u16::from(file_type) << 12) | permissions,
            nlink: 1,
            size: size.min(syncline_format::items::inode::SIZE_MAX),
            blocks: data.saturating_add(self.xattrs.units.into()),
            xattr_units: self.xattrs.units,
            parent: if directory { ROOT } else { 0 },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            next_chunk: self.xattrs.next_chunk,
            xattr_items: self.xattrs.items,
            xattr_list_bytes: u32::try_from(self.xattrs.list_bytes).unwrap_or(u32::MAX),
            ..InodeItem::default()
        };
        self.facts.size = item.size;
        self.facts.parent = item.parent;
        let (kind, what) = match (directory, self.number) {
            (true, ROOT) => (FindingKind::RootMissing, "the root directory is made again".to_owned()),
            (true, _) => (FindingKind::ItemWithoutInode, "a directory of root's, mode 0700".to_owned()),
            (false, _) => (
                FindingKind::ItemWithoutInode,
                format!("a file of root's, mode 0600, with the {size} bytes that were found"),
            ),
        };
        planner.object(kind, self.number, format!("its inode item is lost → {what}"));
        item.encode()
    }

    /// Removes a symlink without its target, which is useless.
    async fn remove_all(&self, planner: &mut Planner) {
        let from = Key { object: self.number, kind: 0, offset: 0 };
        let to = Key { object: self.number, kind: u8::MAX, offset: u64::MAX };
        let items = planner.view.range(from, to).await;
        items.into_keys().for_each(|key| planner.view.delete(key));
        planner.lose_by(
            FindingKind::ChunkMissing,
            self.number,
            "the target of the symbolic link is lost → removed".to_owned(),
        );
    }
}

/// The inode that the directory's entry with this name leads to.
async fn find_name(planner: &mut Planner, directory: u64, name: &[u8]) -> Option<u64> {
    let entries = planner.view.named(directory, Kind::Dirent, name).await;
    let mut decoded = entries.values().filter_map(|value| Dirent::decode(value).ok());
    decoded.find(|entry| entry.name == name).map(|entry| entry.ino)
}
