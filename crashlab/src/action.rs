//! What a program did to its files, and what it said.

use crate::blocks::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

/// Number of a file, directory or other inode; never used twice in a recording.
pub type Ino = u64;

/// The inode of the working folder.
pub const ROOT: Ino = 1;

/// A name in a directory.
pub type Name = Vec<u8>;

/// The kind of a new inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum What {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this path.
    Symlink(Vec<u8>),
    /// A FIFO, socket or device: the type of its mode, and the device.
    Special(u32, u32),
}

/// The place of written bytes in the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// Offset in the file of the recording.
    pub at: u64,
}

/// One step of a program, or of somebody who watches it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// A new inode and its first name.
    Create { parent: Ino, name: Name, ino: Ino, what: What, mode: u32, uid: u32, gid: u32 },
    /// Another name of a file.
    Link { ino: Ino, parent: Ino, name: Name },
    /// A removed name, of a file or an empty directory.
    Unlink { parent: Ino, name: Name, ino: Ino },
    /// A rename; `replaced` had the new name before. With `exchanged` it has the old name now.
    Rename {
        parent: Ino,
        name: Name,
        to: Ino,
        to_name: Name,
        ino: Ino,
        replaced: Option<Ino>,
        exchanged: bool,
    },
    /// Written bytes; `size` is the file's size before.
    Write {
        /// The file.
        ino: Ino,
        /// Offset in the file.
        offset: u64,
        /// Bytes written.
        len: u32,
        /// Size of the file before.
        size: u64,
        /// The kernel wrote back a page that a program had stored to.
        mapped: bool,
        /// Where the bytes are.
        #[serde(skip)]
        stored: Stored,
    },
    /// A new size.
    Truncate { ino: Ino, from: u64, to: u64 },
    /// Zeroed bytes, which may extend the file to `size`.
    Zero { ino: Ino, offset: u64, len: u64, size: u64 },
    /// Changed attributes: permissions, owner, group, and the time of the last change of data.
    Attributes { ino: Ino, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, mtime_ns: Option<i128> },
    /// An extended attribute, set or removed.
    Xattr { ino: Ino, name: Name, value: Option<Vec<u8>> },
    /// A successful fsync or fdatasync of a file or directory.
    Sync { ino: Ino, data_only: bool },
    /// A successful sync of everything.
    SyncAll,
    /// A line that the program printed.
    Printed(Vec<u8>),
    /// What came before was there before the program began.
    Begin,
    /// The program ended.
    End { code: i32 },
    /// A successful sync_file_range that waited until the range was written.
    SyncRange { ino: Ino, offset: u64, len: u64 },
}

/// An action, its time and its process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The process, or zero where the kernel acts on its own.
    pub pid: u32,
    /// The program that it runs, where that is new.
    pub program: Option<String>,
    /// The stack of the thread that did it, or zero.
    pub stack: u32,
    /// What it did.
    pub action: Action,
}

impl Action {
    /// The inode whose data or attributes it changes or syncs, or whose name it makes, changes or removes.
    pub fn ino(&self) -> Option<Ino> {
        match self {
            Self::Create { ino, .. }
            | Self::Link { ino, .. }
            | Self::Unlink { ino, .. }
            | Self::Rename { ino, .. }
            | Self::Write { ino, .. }
            | Self::Truncate { ino, .. }
            | Self::Zero { ino, .. }
            | Self::Attributes { ino, .. }
            | Self::Xattr { ino, .. }
            | Self::Sync { ino, .. }
            | Self::SyncRange { ino, .. } => Some(*ino),
            Self::SyncAll | Self::Printed(_) | Self::Begin | Self::End { .. } => None,
        }
    }

    /// The inodes whose names it makes, changes or removes, but for one that it replaces.
    pub fn files(&self) -> Vec<Ino> {
        let other = match self {
            Self::Rename { replaced, exchanged: true, .. } => *replaced,
            _ => None,
        };
        self.ino().into_iter().chain(other).collect()
    }

    /// The names that it makes, changes or removes.
    pub fn names(&self) -> Vec<(Ino, &Name)> {
        match self {
            Self::Create { parent, name, .. }
            | Self::Link { parent, name, .. }
            | Self::Unlink { parent, name, .. } => {
                vec![(*parent, name)]
            }
            Self::Rename { parent, name, to, to_name, .. } => vec![(*parent, name), (*to, to_name)],
            _ => Vec::new(),
        }
    }

    /// True if a power cut can take it back.
    pub fn is_change(&self) -> bool {
        self.ino().is_some() && !matches!(self, Self::Sync { .. } | Self::SyncRange { .. })
    }

    /// True for a change of names.
    pub fn is_of_names(&self) -> bool {
        !self.names().is_empty()
    }

    /// True for a truncate, or bytes that are zeroed.
    pub fn changes_size(&self) -> bool {
        matches!(self, Self::Truncate { .. } | Self::Zero { .. })
    }

    /// True for written bytes.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. })
    }

    /// True for a write that extends the file.
    pub fn extends(&self) -> bool {
        matches!(self, Self::Write { offset, len, size, .. } if offset + u64::from(*len) > *size)
    }

    /// True for a rename into another directory, or an exchange with it.
    pub fn is_between_directories(&self) -> bool {
        matches!(self, Self::Rename { parent, to, .. } if parent != to)
    }

    /// True for an exchange of two names.
    pub fn exchanges(&self) -> bool {
        matches!(self, Self::Rename { exchanged: true, .. })
    }

    /// True for a rename over another file.
    pub fn replaces(&self) -> bool {
        matches!(self, Self::Rename { replaced: Some(_), exchanged: false, .. })
    }

    /// True for a write that extends the file beyond its last block.
    pub fn needs_blocks(&self) -> bool {
        matches!(self, Self::Write { size, .. } if self.blocks().end > size.div_ceil(BLOCK_BYTES))
    }

    /// True for a rename of this inode.
    pub fn moves(&self, inode: Ino) -> bool {
        matches!(self, Self::Rename { ino, .. } if *ino == inode)
    }

    /// The size of the file after a change of its contents, if the change says so.
    pub fn size_after(&self) -> Option<u64> {
        match self {
            Self::Write { offset, len, size, .. } => Some((offset + u64::from(*len)).max(*size)),
            Self::Truncate { to, .. } => Some(*to),
            _ => None,
        }
    }

    /// The file that a change makes larger, and its size before.
    pub fn size_before_growth(&self) -> Option<(Ino, u64)> {
        match self {
            Self::Write { ino, size, .. } if self.extends() => Some((*ino, *size)),
            Self::Truncate { ino, from, to } if to > from => Some((*ino, *from)),
            _ => None,
        }
    }

    /// The blocks that a write touches.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        match self {
            Self::Write { offset, len, .. } => {
                offset / BLOCK_BYTES..(offset + u64::from(*len)).div_ceil(BLOCK_BYTES)
            }
            _ => 0..0,
        }
    }
}
