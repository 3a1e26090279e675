//! Findings: their kinds, with stable identifiers, and the report.

use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::collections::BTreeMap;
use syncline_device::DeviceError;
use syncline_format::BlockAddr;

/// Findings that a report keeps; further ones are only counted, so that a hostile image can't fill
/// the memory.
pub const FINDINGS_MAX: usize = 10_000;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $variant:ident = $number:literal $name:literal,)*) => {
        /// A class of damage. Numbers and names are stable: scripts may rely on them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum FindingKind {
            $($(#[doc = $doc])* $variant,)*
        }

        impl FindingKind {
            /// Every kind, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The identifier, such as `SL0007`.
            pub fn id(self) -> &'static str {
                match self { $(Self::$variant => concat!("SL", $number),)* }
            }

            /// The name, such as `link-count`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The meaning of the kind, in words.
            pub fn explanation(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)*),)* }
            }
        }
    };
}

kinds! {
    /// A copy of a superblock is damaged or can't be read.
    SuperblockDamaged = "0001" "superblock-damaged",
    /// A counter of the superblock differs from the count.
    SuperblockCounter = "0002" "superblock-counter",
    /// The log ends before a batch that was durable.
    LogDamaged = "0003" "log-damaged",
    /// A tree node is damaged or can't be read; the items below it are lost.
    NodeDamaged = "0004" "node-damaged",
    /// The space map is damaged or can't be read.
    SpaceMapDamaged = "0005" "space-map-damaged",
    /// An item can't be decoded, or lies where no such item belongs.
    ItemMalformed = "0006" "item-malformed",
    /// An inode's link count is not the number of its names.
    LinkCount = "0007" "link-count",
    /// A directory entry names an inode that does not exist.
    DanglingEntry = "0008" "dangling-entry",
    /// A directory entry's file type is not that of the inode.
    EntryType = "0009" "entry-type",
    /// An inode has no name and is not waiting for removal.
    UnnamedInode = "0010" "unnamed-inode",
    /// A directory's parent is not the directory that names it.
    DirectoryParent = "0011" "directory-parent",
    /// A directory has more than one name.
    DirectoryNames = "0012" "directory-names",
    /// A directory can't be reached from the root.
    Unreachable = "0013" "unreachable",
    /// A directory's size is not the number of its entries.
    DirectorySize = "0014" "directory-size",
    /// A name lies where a search would not find it.
    NameHash = "0015" "name-hash",
    /// A directory or an inode has the same name twice.
    DuplicateName = "0016" "duplicate-name",
    /// There is no root directory.
    RootMissing = "0017" "root-missing",
    /// An orphan mark contradicts its inode.
    OrphanMark = "0018" "orphan-mark",
    /// Items of an object that has no inode.
    ItemWithoutInode = "0019" "item-without-inode",
    /// Two extents of a file cover the same block of it.
    ExtentOverlap = "0020" "extent-overlap",
    /// An extent lies outside the image.
    ExtentOutside = "0021" "extent-outside",
    /// An inode's block count is not the sum of its extents.
    BlockCount = "0022" "block-count",
    /// A block of file data does not match its checksum.
    DataDamaged = "0023" "data-damaged",
    /// A block of file data can't be read.
    DataUnreadable = "0024" "data-unreadable",
    /// A block is used by two structures.
    BlockUsedTwice = "0025" "block-used-twice",
    /// The space map calls a block used that nothing uses.
    BlockLeaked = "0026" "block-leaked",
    /// The space map calls a block free that is in use.
    BlockUnnamed = "0027" "block-unnamed",
    /// An inode's count or length of extended attributes is wrong.
    XattrCount = "0028" "xattr-count",
    /// A part of a long value is missing or has the wrong length.
    ChunkMissing = "0029" "chunk-missing",
    /// A part of a long value that nothing refers to.
    ChunkUnowned = "0030" "chunk-unowned",
    /// The number of objects differs from the counter.
    ObjectCount = "0031" "object-count",
    /// An object's number has not been handed out yet.
    ObjectNumber = "0032" "object-number",
    /// An inode contradicts itself.
    InodeContradiction = "0033" "inode-contradiction",
    /// A block in use lies in the log.
    LogOverlap = "0034" "log-overlap",
    /// A block's reference count is not the number of extents on it.
    ReferenceCount = "0035" "reference-count",
    /// A directory entry has no parent pointer in the inode that it names.
    ParentMissing = "0036" "parent-missing",
    /// A parent pointer of an inode has no directory entry.
    ParentDangling = "0037" "parent-dangling",
    /// An inode's count of parent pointers with items of their own is wrong.
    ParentCount = "0038" "parent-count",
    /// A preallocated block has an extent, or is preallocated twice.
    PreallocationOverlap = "0039" "preallocation-overlap",
    /// An inode's sum of preallocated blocks differs from its items.
    PreallocationSum = "0040" "preallocation-sum",
    /// The table of snapshots is damaged or can't be read.
    SnapshotTable = "0041" "snapshot-table",
    /// Something in a snapshot is damaged; what is lost goes with the snapshot.
    SnapshotDamaged = "0042" "snapshot-damaged",
    /// A quota's usage is not the sum over the inodes of its tree.
    QuotaUsage = "0043" "quota-usage",
    /// A quota's directory does not exist, or does not count in it.
    QuotaRoot = "0044" "quota-root",
    /// Logged contents of a file block where there can be none, or half of them.
    UnplacedStray = "0045" "unplaced-stray",
    /// A log batch that leads to the next segment is damaged, and its copy is not.
    LogLead = "0046" "log-lead",
    /// One of the two copies of the record that names the base of a fork is damaged.
    ForkRecord = "0047" "fork-record",
    /// One of the two copies of a tree node, of a page of a space map or of the table of snapshots is
    /// damaged; the other one is sound.
    CopyDamaged = "0048" "copy-damaged",
}

impl Serialize for FindingKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its class.
    pub kind: FindingKind,
    /// The object (inode number) concerned, if any.
    pub object: Option<u64>,
    /// The block concerned, if any.
    pub block: Option<u64>,
    /// The details, in words.
    pub text: String,
}

impl FindingKind {
    /// Damage to file data and to snapshots, which a repair leaves alone.
    pub fn is_left_alone(self) -> bool {
        matches!(self, Self::DataDamaged | Self::DataUnreadable | Self::SnapshotDamaged)
    }

    /// Damage to data that follows from the rest: copies, counters, indexes, and names of inodes that
    /// have lost theirs. Mending it removes nothing that anybody put into the filesystem.
    pub fn follows_from_the_rest(self) -> bool {
        matches!(
            self,
            Self::SuperblockDamaged
                | Self::SuperblockCounter
                | Self::SpaceMapDamaged
                | Self::LinkCount
                | Self::EntryType
                | Self::UnnamedInode
                | Self::DirectoryParent
                | Self::Unreachable
                | Self::DirectorySize
                | Self::NameHash
                | Self::BlockCount
                | Self::BlockLeaked
                | Self::BlockUnnamed
                | Self::XattrCount
                | Self::ObjectCount
                | Self::ObjectNumber
                | Self::ReferenceCount
                | Self::ParentMissing
                | Self::ParentDangling
                | Self::ParentCount
                | Self::PreallocationSum
                | Self::QuotaUsage
                | Self::LogLead
                | Self::ForkRecord
                | Self::CopyDamaged
        )
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.id(), self.kind.name())?;
        if let Some(object) = self.object {
            write!(f, ", inode {object}")?;
        }
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        write!(f, ": {}", self.text)
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Finding", 5)?;
        fields.serialize_field("id", self.kind.id())?;
        fields.serialize_field("name", self.kind.name())?;
        fields.serialize_field("object", &self.object)?;
        fields.serialize_field("block", &self.block)?;
        fields.serialize_field("text", &self.text)?;
        fields.end()
    }
}

/// The findings of a check, and how much it looked at.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Report {
    /// At most [`FINDINGS_MAX`] findings.
    pub findings: Vec<Finding>,
    /// Findings dropped because the list was full.
    pub findings_dropped: u64,
    /// Dropped findings that a repair would act on.
    #[serde(skip)]
    pub(crate) to_mend_dropped: u64,
    /// Something could not be read, so comparisons that need the whole image were left out.
    pub incomplete: bool,
    /// The image had been unmounted cleanly.
    pub clean_unmount: bool,
    /// Log batches replayed in memory.
    pub batches_replayed: u64,
    /// Log batches that were never acknowledged and do not count.
    pub batches_discarded: u64,
    /// Tree nodes read.
    pub nodes: u64,
    /// Items decoded.
    pub items: u64,
    /// Inodes.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Inodes without names that wait for removal.
    pub orphans: u64,
    /// Names.
    pub names: u64,
    /// Blocks of file data compared with their checksums.
    pub data_blocks: u64,
    /// Blocks of the image.
    pub blocks: u64,
    /// Blocks that something uses.
    pub blocks_used: u64,
}

impl Report {
    /// True when nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Findings of one kind.
    pub fn of(&self, kind: FindingKind) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.kind == kind)
    }

    pub(crate) fn add(
        &mut self,
        kind: FindingKind,
        object: Option<u64>,
        block: Option<u64>,
        text: impl Into<String>,
    ) {
        self.push(Finding { kind, object, block, text: text.into() });
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.findings_dropped += 1;
            self.to_mend_dropped += u64::from(!finding.kind.is_left_alone());
        }
    }

    /// True if the image has damage that a repair mends.
    pub(crate) fn needs_mending(&self) -> bool {
        let found = self.findings.iter().any(|finding| !finding.kind.is_left_alone());
        self.incomplete || self.to_mend_dropped > 0 || found
    }

    /// Adds why these damaged copies could not be written again.
    pub(crate) fn copies_stay(&mut self, failed: &BTreeMap<BlockAddr, DeviceError>) {
        for finding in self.findings.iter_mut().filter(|finding| finding.kind == FindingKind::CopyDamaged) {
            if let Some(error) = finding.block.and_then(|block| failed.get(&block)) {
                finding.text +=
                    &format!("; the other copy is sound, but this one can't be written again: {error}");
            }
        }
    }

    /// Takes over the findings of a snapshot's check.
    pub(crate) fn adopt(&mut self, snapshot: &str, found: Report) {
        self.findings_dropped += found.findings_dropped;
        self.nodes += found.nodes;
        self.items += found.items;
        self.data_blocks += found.data_blocks;
        for finding in found.findings {
            // A copy can be mended; the rest of a snapshot stays as it is.
            if finding.kind == FindingKind::CopyDamaged {
                // The snapshot may share the node.
                if self.of(finding.kind).all(|known| known.block != finding.block) {
                    self.add(finding.kind, None, finding.block, finding.text);
                }
                continue;
            }
            let text = format!("snapshot {snapshot:?}: {finding}");
            self.add(FindingKind::SnapshotDamaged, finding.object, finding.block, text);
        }
    }

    /// A finding about an object.
    pub(crate) fn object(&mut self, kind: FindingKind, object: u64, text: impl Into<String>) {
        self.add(kind, Some(object), None, text);
    }

    /// A finding about a block.
    pub(crate) fn block(&mut self, kind: FindingKind, block: u64, text: impl Into<String>) {
        self.add(kind, None, Some(block), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_numbered_without_gaps_and_names_are_distinct() {
        let mut names = std::collections::BTreeSet::new();
        for (index, kind) in FindingKind::ALL.iter().enumerate() {
            assert_eq!(kind.id(), format!("SL{:04}", index + 1));
            assert!(names.insert(kind.name()));
            assert!(!kind.explanation().is_empty());
        }
        assert_eq!(FindingKind::LinkCount.id(), "SL0007");
    }

    #[test]
    fn the_manual_lists_every_kind() {
        let manual = include_str!("../../../docs/man/syncline.1").replace("\\-", "-");
        for kind in FindingKind::ALL {
            let entry = format!("\n.B {} {}\n{}\n", kind.id(), kind.name(), kind.explanation().trim());
            assert!(manual.contains(&entry), "{entry}");
        }
    }

    #[test]
    fn a_report_is_bounded_and_counts_the_rest() {
        let mut report = Report::default();
        for block in 0..FINDINGS_MAX as u64 + 5 {
            report.block(FindingKind::BlockLeaked, block, "test");
        }
        assert_eq!((report.findings.len(), report.findings_dropped), (FINDINGS_MAX, 5));
        assert_eq!(report.findings[1].to_string(), "SL0026 block-leaked, block 1: test");
    }
}
