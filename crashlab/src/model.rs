//! What filesystems promise about the order in which changes survive a power cut. MODELS.md gives the
//! source of each rule.

use crate::action::Action;
use crate::blocks::BLOCK_BYTES;

/// What an fsync of a file or directory makes durable, besides the data of that file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Its own attributes; of a directory, its entries.
    Inode,
    /// Every change of names, attributes and sizes up to the last one of this inode.
    Journal,
    /// Its attributes and names, and the directories that lead to it.
    Log,
    /// Every change of names and attributes.
    Names,
    /// Everything up to the last change of this inode.
    Everything,
}

/// What an fdatasync leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skips {
    /// Attributes, and names other than the first.
    Attributes,
    /// Times only.
    Times,
}

/// Which writes wait for earlier changes of names, attributes and sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataOrder {
    /// None.
    Free,
    /// Those that extend a file: its size is in the journal.
    Extending,
    /// All.
    All,
}

/// Which changes of names wait for earlier writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameOrder {
    /// None.
    Free,
    /// A rename over another file waits until its file has its blocks and its size. The data may come later:
    /// blocks without it read as zeros.
    Replacing,
    /// A rename or link waits for the data of its file.
    Naming,
    /// Every change waits for everything before it.
    All,
}

/// How a write that is not yet durable may be torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Between multiples of this offset.
    Bytes(u64),
    /// As with `Bytes(4096)`, but never an aligned power of two up to 64 KiB.
    Pages,
    /// Not at all.
    Whole,
}

/// True if a change of names goes into a log apart from all other changes: see [`Model::logs_names`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Logged {
    /// It waits for all changes before it.
    #[default]
    No,
    /// It may: its directory is in the log, but perhaps not with this name.
    Perhaps,
    /// It does, after those that went there before.
    Yes,
    /// It waits for nothing but its inodes: directories were moved or names exchanged, and an fsync followed.
    Freely,
}

/// The rules of a filesystem.
#[derive(Debug)]
pub struct Model {
    /// Its name, as in `--model`.
    pub name: &'static str,
    /// The filesystem and its settings, in a few words.
    pub about: &'static str,
    /// Changes of names, attributes and sizes survive in order.
    pub names_in_order: bool,
    /// See [`Reach`].
    pub reach: Reach,
    /// See [`Skips`].
    pub fdatasync: Skips,
    /// See [`DataOrder`].
    pub data: DataOrder,
    /// See [`NameOrder`].
    pub names: NameOrder,
    /// How a write within a file may be torn.
    pub overwrite: Unit,
    /// How a write that extends a file may be torn.
    pub append: Unit,
    /// A file may have its new size before its new data: zeros are in between.
    pub zeros: bool,
    /// A file may have its new size before any of its new data.
    pub size_first: bool,
    /// A truncate to the middle of a block zeroes the rest of the block, which is a write of its own and
    /// may be there while the file still has its old size.
    pub truncate_zeroes: bool,
    /// Changes of the names of what was synced before go into a log, which the next sync of anything makes
    /// durable without the other changes before it.
    pub logs_names: bool,
    /// An exchange within a directory changes that directory alone, so an fsync of one of the files leaves it out.
    pub exchange_is_of_directory: bool,
    /// A truncate of a file with unsynced data belongs to that data: other files do not wait for it.
    pub truncates_data: bool,
    /// A sync of any file that commits the journal also makes the ranges durable that sync_file_range wrote
    /// before.
    pub ranges_in_journal: bool,
    /// A sync of everything may leave writes within files in the disk's cache, until the next fsync of anything.
    pub sync_leaves_cached: bool,
}

/// All models, the weakest first.
pub static MODELS: [Model; 7] = [
    Model {
        name: "posix",
        about: "only what an fsync of that file or directory promises",
        names_in_order: false,
        reach: Reach::Inode,
        fdatasync: Skips::Attributes,
        data: DataOrder::Free,
        names: NameOrder::Free,
        overwrite: Unit::Bytes(512),
        append: Unit::Bytes(512),
        zeros: true,
        size_first: true,
        truncate_zeroes: true,
        logs_names: false,
        exchange_is_of_directory: true,
        truncates_data: false,
        ranges_in_journal: false,
        sync_leaves_cached: false,
    },
    Model {
        name: "xfs",
        about: "XFS",
        names_in_order: true,
        reach: Reach::Journal,
        fdatasync: Skips::Times,
        data: DataOrder::Extending,
        names: NameOrder::Free,
        overwrite: Unit::Bytes(512),
        append: Unit::Bytes(4096),
        zeros: true,
        size_first: false,
        truncate_zeroes: true,
        logs_names: false,
        exchange_is_of_directory: true,
        truncates_data: false,
        ranges_in_journal: true,
        sync_leaves_cached: true,
    },
    Model {
        name: "ext4",
        about: "ext4 as mkfs and mount make it (data=ordered)",
        names_in_order: true,
        reach: Reach::Journal,
        fdatasync: Skips::Attributes,
        data: DataOrder::Extending,
        names: NameOrder::Replacing,
        overwrite: Unit::Bytes(512),
        append: Unit::Bytes(4096),
        zeros: true,
        size_first: true,
        truncate_zeroes: true,
        logs_names: false,
        exchange_is_of_directory: false,
        truncates_data: false,
        ranges_in_journal: true,
        sync_leaves_cached: false,
    },
    Model {
        name: "btrfs",
        about: "Btrfs",
        names_in_order: true,
        reach: Reach::Log,
        fdatasync: Skips::Times,
        data: DataOrder::All,
        // It begins to write the file of a rename over another one, and waits for nothing.
        names: NameOrder::Free,
        overwrite: Unit::Bytes(4096),
        append: Unit::Bytes(4096),
        zeros: true,
        size_first: false,
        truncate_zeroes: false,
        logs_names: true,
        exchange_is_of_directory: false,
        truncates_data: false,
        ranges_in_journal: false,
        sync_leaves_cached: false,
    },
    Model {
        name: "zfs",
        about: "ZFS",
        names_in_order: true,
        reach: Reach::Names,
        fdatasync: Skips::Times,
        data: DataOrder::All,
        names: NameOrder::All,
        overwrite: Unit::Bytes(128 << 10),
        append: Unit::Bytes(128 << 10),
        zeros: false,
        size_first: false,
        truncate_zeroes: false,
        logs_names: false,
        exchange_is_of_directory: false,
        truncates_data: false,
        ranges_in_journal: false,
        sync_leaves_cached: false,
    },
    Model {
        name: "ext4-journal",
        about: "ext4 with data=journal",
        names_in_order: true,
        reach: Reach::Everything,
        fdatasync: Skips::Attributes,
        data: DataOrder::All,
        names: NameOrder::All,
        overwrite: Unit::Bytes(4096),
        append: Unit::Bytes(4096),
        zeros: false,
        size_first: false,
        truncate_zeroes: false,
        logs_names: false,
        exchange_is_of_directory: false,
        truncates_data: false,
        ranges_in_journal: false,
        sync_leaves_cached: false,
    },
    Model {
        name: "syncline",
        about: "Syncline",
        names_in_order: true,
        reach: Reach::Names,
        fdatasync: Skips::Attributes,
        data: DataOrder::All,
        names: NameOrder::Naming,
        overwrite: Unit::Pages,
        append: Unit::Pages,
        zeros: false,
        size_first: false,
        truncate_zeroes: false,
        logs_names: false,
        exchange_is_of_directory: false,
        truncates_data: true,
        ranges_in_journal: false,
        sync_leaves_cached: false,
    },
];

/// A part of a change that survives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// Of a write: the bytes before this offset in the file. Of a truncate: the file has lost only the bytes
    /// behind it. Btrfs may have logged the size that a later write gave the file, and not that write.
    Before(u64),
    /// The bytes from this offset in the file on; those before it are zero if they are new.
    From(u64),
    /// The new size, and none of the bytes.
    Size,
    /// Of a truncate: the zeros between two offsets, and the old size. Of a write: the bytes, and the size up
    /// to a third offset; the kernel takes a long write page by page, and the size with it. With a size of
    /// zero the bytes are there as far as the file reaches: the page is in place on the disk, whatever
    /// becomes of the size.
    Slice {
        /// The first byte.
        from: u64,
        /// The end of the bytes.
        before: u64,
        /// The size.
        size: u64,
    },
    /// All but the bytes between two offsets: pages in different places on the disk.
    Without {
        /// The first byte that is missing.
        from: u64,
        /// The end of those.
        before: u64,
        /// The new size, unless it is the end of the write.
        size: Option<u64>,
    },
    /// Of a rename into another directory: the new name, and the old one as well. Btrfs may have logged the
    /// one directory and not the other. Of an exchange, only where the file has kept an older name than the one
    /// that it exchanges: the other file has that one then.
    Linked,
    /// Of a rename over a file that was synced: that file has lost the name, and the other one has not got
    /// it. Btrfs has the one in its log and not the other.
    Unlinked,
    /// Of a rename into a new directory: the file has lost the old name, which another one has got, and has not
    /// got the new one. Btrfs may have logged both files and not that directory.
    Left,
    /// Of a creation: the inode without this name. It had another name when Btrfs logged it.
    Unnamed,
}

impl Model {
    /// The model with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        MODELS.iter().find(|model| model.name == name)
    }

    /// False if a rename does not wait for writes in place: ext4 writes a file out at a rename only if it
    /// still has to find blocks for some of it.
    pub(crate) fn rename_waits_for_all_data(&self) -> bool {
        self.data == DataOrder::All || self.names != NameOrder::Replacing
    }

    /// The parts of a change that may survive alone: a few of them, the most telling ones.
    pub fn parts(&self, action: &Action) -> Vec<Part> {
        if let Some((from, before, size)) = self.zeroed(action) {
            return vec![Part::Slice { from, before, size }];
        }
        match self.allows(action, Part::Linked) {
            true => vec![Part::Linked],
            false => self.parts_of_write(action),
        }
    }

    fn parts_of_write(&self, write: &Action) -> Vec<Part> {
        let Action::Write { offset, len, .. } = write else { return Vec::new() };
        let (begin, end) = (*offset, offset + u64::from(*len));
        let mut parts = Vec::new();
        if self.allows(write, Part::Size) {
            parts.push(Part::Size);
        }
        let next = (begin / BLOCK_BYTES + 1) * BLOCK_BYTES;
        let first_page = Part::Slice { from: begin, before: begin, size: next };
        if write.extends() && next < end && self.allows(write, first_page) {
            parts.push(first_page);
        }
        let Some(unit) = self.unit(write) else { return parts };
        let (first, last) = ((begin / unit + 1) * unit, (end - 1) / unit * unit);
        if first > last {
            return parts;
        }
        let middle = first + (last - first) / 2 / unit * unit;
        let mut cuts = vec![first, middle, last];
        cuts.dedup();
        parts.extend(cuts.iter().map(|cut| Part::Before(*cut)));
        if self.zeros || !write.extends() {
            parts.extend(cuts.iter().map(|cut| Part::From(*cut)));
        }
        parts
    }

    /// True if this part of a change may survive alone.
    pub fn allows(&self, action: &Action, part: Part) -> bool {
        let on_border = |cut: u64| self.unit(action).is_some_and(|unit| cut.is_multiple_of(unit));
        let may_have_zeros = self.zeros || !action.extends();
        match part {
            Part::Before(cut) => match action {
                Action::Truncate { from, to, .. } => self.logs_names && (to + 1..*from).contains(&cut),
                _ => on_border(cut),
            },
            Part::From(cut) => on_border(cut) && may_have_zeros,
            // XFS and Btrfs set the size when the last bytes have been written.
            Part::Size => self.size_first && action.extends(),
            Part::Without { from, before, size } => {
                let is_border = |cut: u64| on_border(cut) || self.in_place(action, cut);
                let is_size = |size: u64| action.extends() && before < size && on_border(size);
                let is_hole = from < before && is_border(from) && is_border(before);
                is_hole && may_have_zeros && size.is_none_or(is_size)
            }
            Part::Linked => self.logs_names && action.is_between_directories(),
            Part::Left => self.logs_names && matches!(action, Action::Rename { exchanged: false, .. }),
            Part::Unlinked => self.logs_names && action.replaces(),
            Part::Unnamed => self.logs_names && matches!(action, Action::Create { .. }),
            Part::Slice { from, before, size } => match self.zeroed(action) {
                Some(zeroed) => self.allows_zeros(zeroed, (from, before, size)),
                None => self.allows_slice(action, from, before, size),
            },
        }
    }

    /// True if a write that extends its file has done so when this part of it survives.
    pub(crate) fn keeps_size(action: &Action, part: Part) -> bool {
        let Action::Write { offset, len, .. } = action else { return false };
        match part {
            Part::Size | Part::From(_) | Part::Without { size: None, .. } => true,
            Part::Slice { size, .. } => size == offset + u64::from(*len),
            Part::Before(_) | Part::Without { .. } => false,
            Part::Linked | Part::Unlinked | Part::Left | Part::Unnamed => false,
        }
    }

    /// True if a truncate that zeroes the one may leave the other.
    fn allows_zeros(&self, zeroed: (u64, u64, u64), (from, before, size): (u64, u64, u64)) -> bool {
        let (first, end, old_size) = zeroed;
        let in_place = |cut: u64| matches!(self.overwrite, Unit::Bytes(unit) if cut.is_multiple_of(unit));
        let is_border = |cut: u64| cut == first || cut == end || in_place(cut);
        let is_within = first <= from && from < before && before <= end;
        is_within && size == old_size && is_border(from) && is_border(before)
    }

    /// The bytes that a truncate zeroes on its own, and the size that the file may keep.
    pub(crate) fn zeroed(&self, action: &Action) -> Option<(u64, u64, u64)> {
        let Action::Truncate { from, to, .. } = action else { return None };
        let before = to.next_multiple_of(BLOCK_BYTES).min(*from);
        (self.truncate_zeroes && *to < before).then_some((*to, before, *from))
    }

    /// True if this part of a change does not wait for the changes before it: a page that is written in
    /// place, or a logged name.
    pub fn is_in_place(&self, action: &Action, part: Part) -> bool {
        if matches!(part, Part::Linked | Part::Unlinked | Part::Left | Part::Unnamed) {
            return self.allows(action, part);
        }
        let is_free = self.zeros && self.data != DataOrder::All;
        let keeps_size = matches!(part, Part::Slice { size: 0, .. }) || self.zeroed(action).is_some();
        is_free && keeps_size && self.allows(action, part)
    }

    fn allows_slice(&self, write: &Action, from: u64, before: u64, new_size: u64) -> bool {
        let Action::Write { offset, len, size, .. } = write else { return false };
        let end = offset + u64::from(*len);
        let keeps_size = new_size == 0;
        // A block that was there before is written in place.
        let old_end = if keeps_size { end } else { size.next_multiple_of(BLOCK_BYTES) };
        let on_border = |cut: u64, in_place: bool| match if in_place { self.overwrite } else { self.append } {
            Unit::Bytes(unit) => cut.is_multiple_of(unit),
            Unit::Pages | Unit::Whole => false,
        };
        let is_border = |cut: u64| on_border(cut, cut < old_end) || cut == *offset || cut == end;
        let is_size = (before..=end).contains(&new_size) && (on_border(new_size, false) || new_size == end);
        let is_allowed = if keeps_size { self.data != DataOrder::All } else { write.extends() && is_size };
        let has_bytes = from < before || keeps_size || self.size_first;
        let is_within = has_bytes && *offset <= from && from <= before && before <= end;
        self.zeros && is_allowed && is_within && is_border(from) && is_border(before)
    }

    /// True for an offset in a block that was there before the write, and where it may be torn.
    fn in_place(&self, write: &Action, cut: u64) -> bool {
        let Action::Write { size, .. } = write else { return false };
        let is_there = cut < size.next_multiple_of(BLOCK_BYTES);
        is_there && matches!(self.overwrite, Unit::Bytes(unit) if cut.is_multiple_of(unit))
    }

    fn unit(&self, write: &Action) -> Option<u64> {
        let Action::Write { offset, len, .. } = write else { return None };
        let (unit, len) = (if write.extends() { self.append } else { self.overwrite }, u64::from(*len));
        match unit {
            Unit::Bytes(unit) => Some(unit),
            Unit::Pages => {
                let is_page = len.is_power_of_two() && len <= 64 << 10 && offset.is_multiple_of(len);
                (!is_page).then_some(4096)
            }
            Unit::Whole => None,
        }
    }
}
