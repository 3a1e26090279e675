//! The plan of a repair, and the facts gathered for it.

use crate::blocks::BlockSet;
use crate::finding::{FINDINGS_MAX, Finding, FindingKind};
use crate::object::DIRECTORY;
use crate::parents::NameFacts;
use crate::preallocation::Sums;
use crate::quotas::Quotas;
use crate::references::References;
use crate::repair::compare::Moved;
use crate::repair::flaw::Flaw;
use crate::repair::losses::Loss;
use crate::repair::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::dirent::{Dirent, NAME_BYTES_MAX};
use syncline_format::items::extent::Extent;
use syncline_format::items::inode::{InodeItem, Time};
use syncline_format::items::xattr::Xattr;
use syncline_format::superblock::FEATURE_COUNTED_XATTRS;
use syncline_format::{BlockRun, Geometry, Key, Kind};
use syncline_store::Store;

/// Alternative names tried for an entry whose name is taken.
const NAMES_TRIED: u32 = 1000;

/// Facts kept about an inode that stays.
#[derive(Clone, Debug)]
pub(crate) struct InodeFacts {
    pub(crate) number: u64,
    pub(crate) file_type: u8,
    /// Its item is lost and was replaced by a made-up one.
    pub(crate) made_up: bool,
    /// According to its item.
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) parent: u64,
    /// Remaining entries that name it.
    pub(crate) names: u32,
    /// The directory that names it, if it is a directory. 0: none.
    pub(crate) named_by: u64,
}

impl InodeFacts {
    pub(crate) fn is_directory(&self) -> bool {
        self.file_type == DIRECTORY
    }
}

/// Facts kept about a directory entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) inode: u64,
    pub(crate) directory: u64,
    pub(crate) offset: u64,
    pub(crate) file_type: u8,
    /// Hash of the name.
    pub(crate) name_hash: u64,
    pub(crate) gone: bool,
}

impl Entry {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.directory, Kind::Dirent, self.offset)
    }

    pub(crate) fn name_facts(&self) -> NameFacts {
        NameFacts { inode: self.inode, directory: self.directory, hash: self.name_hash }
    }
}

/// Gathers the changes of a repair.
pub(crate) struct Planner {
    pub(crate) view: View,
    pub(crate) geometry: Geometry,
    /// One line for each change, at most [`FINDINGS_MAX`].
    pub(crate) changes: Vec<Finding>,
    pub(crate) changes_dropped: u64,
    /// Ascending by number.
    pub(crate) inodes: Vec<InodeFacts>,
    pub(crate) entries: Vec<Entry>,
    /// Parent pointers in the items that were read.
    pub(crate) pointers: Vec<NameFacts>,
    /// Inodes whose parent pointers contradict something else, and how.
    pub(crate) parent_trouble: Vec<(u64, FindingKind)>,
    /// The image keeps parent pointers.
    pub(crate) parent_pointers: bool,
    /// Xattrs with items of their own count towards their inode's blocks.
    pub(crate) counts_xattrs: bool,
    /// Inodes with an orphan mark, ascending.
    pub(crate) orphans: Vec<u64>,
    /// Extents whose blocks something else uses as well; they get blocks of their own.
    pub(crate) copies: Vec<(u64, Extent)>,
    /// Extents that may share their blocks, with the objects they belong to.
    pub(crate) sharing: Vec<(u64, Extent)>,
    /// Sharing extents that stay, and the reference counts in the items that were read.
    pub(crate) references: References,
    /// Sums of preallocated blocks that were read.
    pub(crate) sums: Sums,
    /// Quotas that were read.
    pub(crate) quotas: Quotas,
    /// Blocks of all extents that were read.
    pub(crate) seen: BlockSet,
    /// Blocks of the extents that stay where they are.
    pub(crate) kept: BlockSet,
    /// Blocks that no extent may stay on, because their other contents can't be rebuilt elsewhere.
    pub(crate) fixed: BlockSet,
    /// Preallocated blocks by inode.
    pub(crate) rooms: BTreeMap<u64, u64>,
    /// Names that lead elsewhere, or nowhere, after the repair.
    pub(crate) moved: Moved,
    /// File blocks, by inode, that must keep failing to read.
    pub(crate) unreadable: Vec<(u64, Range<u64>)>,
    /// Files that lost something at an unknown place: they must not look whole under their names.
    pub(crate) torn: BTreeSet<u64>,
    /// Losses of inodes through damaged tree nodes.
    pub(crate) losses: Vec<Loss>,
    /// A rule to break, for tests.
    pub(crate) flaw: Option<Flaw>,
    /// Lowest object number never used.
    pub(crate) next_object: u64,
    /// `next_object` of the image.
    pub(crate) handed_out: u64,
    /// Dropped items may leave blocks named in the space map, so the map has to be rebuilt.
    pub(crate) leaks: bool,
    /// Objects that the repair creates.
    pub(crate) created: Vec<u64>,
    /// Inodes of the image that get a name in `lost+found`.
    pub(crate) unnamed: u64,
    /// Timestamp for made-up inodes.
    pub(crate) now: Time,
}

impl Planner {
    pub(crate) fn new(store: Arc<Store>, now: Time) -> Self {
        let geometry = store.geometry();
        Self {
            next_object: store.next_object(),
            handed_out: store.next_object(),
            parent_pointers: store.has_parent_pointers(),
            counts_xattrs: store.has_features(FEATURE_COUNTED_XATTRS),
            pointers: Vec::new(),
            parent_trouble: Vec::new(),
            view: View::new(store),
            geometry,
            changes: Vec::new(),
            changes_dropped: 0,
            inodes: Vec::new(),
            entries: Vec::new(),
            orphans: Vec::new(),
            copies: Vec::new(),
            sharing: Vec::new(),
            references: References::default(),
            sums: Sums::default(),
            quotas: Quotas::default(),
            seen: BlockSet::new(geometry.total_blocks),
            kept: BlockSet::new(geometry.total_blocks),
            fixed: BlockSet::new(geometry.total_blocks),
            rooms: BTreeMap::new(),
            moved: Moved::new(),
            unreadable: Vec::new(),
            torn: BTreeSet::new(),
            losses: Vec::new(),
            flaw: None,
            leaks: false,
            created: Vec::new(),
            unnamed: 0,
            now,
        }
    }

    /// Units that an xattr with an item of its own counts for.
    pub(crate) fn units_of(&self, xattr: &Xattr<'_>) -> u32 {
        if self.counts_xattrs { xattr.units() } else { 0 }
    }

    /// Reports a change.
    pub(crate) fn tell(
        &mut self,
        kind: FindingKind,
        object: Option<u64>,
        block: Option<u64>,
        text: impl Into<String>,
    ) {
        if self.changes.len() < FINDINGS_MAX {
            self.changes.push(Finding { kind, object, block, text: text.into() });
        } else {
            self.changes_dropped += 1;
        }
    }

    /// Lets an unshared extent stay where it is, if it can; returns whether it can.
    pub(crate) fn keep(&mut self, run: BlockRun) -> bool {
        let free = (run.start..run.end()).all(|block| !self.fixed.contains(block));
        free && self.kept.add_all_or_none(run)
    }

    /// Plans to give an extent blocks of its own.
    pub(crate) fn copy(&mut self, object: u64, extent: Extent) {
        let text = format!(
            "the extent of {} blocks at file block {} lies where something else does → gets blocks of its own",
            extent.blocks(),
            extent.file_block
        );
        self.tell(FindingKind::BlockUsedTwice, Some(object), Some(extent.addr), text);
        self.copies.push((object, extent));
    }

    /// Notes a loss of an inode through a damaged tree node.
    pub(crate) fn lose(&mut self, inode: u64, what: String) {
        self.lose_by(FindingKind::NodeDamaged, inode, what);
    }

    /// Notes a loss of an inode through damage of this kind.
    pub(crate) fn lose_by(&mut self, kind: FindingKind, inode: u64, what: String) {
        if self.losses.len() < FINDINGS_MAX {
            self.losses.push(Loss { kind, inode, what });
        } else {
            self.changes_dropped += 1;
        }
    }

    /// Reports a change of an object.
    pub(crate) fn object(&mut self, kind: FindingKind, object: u64, text: impl Into<String>) {
        self.tell(kind, Some(object), None, text);
    }

    /// Removes an item and reports the reason.
    pub(crate) fn remove(&mut self, kind: FindingKind, key: Key, why: impl std::fmt::Display) {
        self.view.delete(key);
        self.object(kind, key.object, format!("{why} → removed"));
    }

    pub(crate) fn find(&self, number: u64) -> Option<usize> {
        self.inodes.binary_search_by_key(&number, |inode| inode.number).ok()
    }

    /// Changes an inode item, if it can be decoded.
    pub(crate) async fn edit_inode(&mut self, number: u64, edit: impl FnOnce(&mut InodeItem<'_>)) {
        let key = Key::new(number, Kind::Inode, 0);
        let Some(value) = self.view.get(key).await else { return };
        if let Ok(mut item) = InodeItem::decode(&value) {
            edit(&mut item);
            let changed = item.encode();
            self.view.put(key, changed);
        }
    }

    /// Adds a directory entry, under another name if its name is taken. Returns the name used.
    pub(crate) async fn add_entry(
        &mut self,
        directory: u64,
        name: &[u8],
        inode: u64,
        file_type: u8,
    ) -> Option<Vec<u8>> {
        for attempt in 0..NAMES_TRIED {
            let candidate = other_name(name, inode, attempt);
            let taken = self.view.named(directory, Kind::Dirent, &candidate).await;
            let same =
                |value: &bytes::Bytes| Dirent::decode(value).is_ok_and(|entry| entry.name == candidate);
            if taken.values().any(same) {
                continue;
            }
            let Some(key) = self.view.place(directory, Kind::Dirent, &candidate, &taken) else { continue };
            self.view.put(key, Dirent { ino: inode, file_type, name: &candidate }.encode());
            let (offset, name_hash) = (key.offset, self.view.name_hash(&candidate));
            self.entries.push(Entry { inode, directory, offset, file_type, name_hash, gone: false });
            return Some(candidate);
        }
        None
    }
}

/// The name itself on the first attempt, then the name with a suffix.
fn other_name(name: &[u8], inode: u64, attempt: u32) -> Vec<u8> {
    let suffix = match attempt {
        0 => return name.to_vec(),
        1 => format!(".{inode}"),
        _ => format!(".{inode}.{attempt}"),
    };
    let mut other = name[..name.len().min(NAME_BYTES_MAX - suffix.len())].to_vec();
    other.extend_from_slice(suffix.as_bytes());
    other
}
