//! Keys of the one ordered map that holds the whole filesystem.

/// Identifies a file, directory or other object for ever; never reused.
pub type ObjectId = u64;

/// End of the object numbers: the counter of numbers handed out stops here.
pub const OBJECTS_END: ObjectId = u64::MAX / 2;

/// Encoded length of a key in bytes: object id, kind, offset, each big-endian so that byte order is
/// key order.
pub const KEY_BYTES: usize = 17;

/// The kind of an item; the numbers are on-disk and final.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Attributes, shortform extras and inline data of an object; offset 0.
    Inode = 1,
    /// Directory entry; offset is the name's hash and slot.
    Dirent = 2,
    /// Extent of a file; offset is the file block it starts at.
    Extent = 3,
    /// Extended attribute that does not fit the inode item; offset is the name's hash and slot.
    Xattr = 4,
    /// Piece of a value too large for one item (long xattr values, long symlink targets).
    Chunk = 5,
    /// Object without a name that must be removed; object id 0, offset is the object id.
    Orphan = 6,
    /// Name of an inode that does not fit the inode item; offset is the hash of parent and name,
    /// and a slot.
    Parent = 7,
    /// Reference count of blocks that several extents lie on; object id 0, offset is the first
    /// block.
    Shared = 8,
    /// Room reserved for a file's blocks; offset is the first file block. With object 0, the total
    /// for the object whose id is the offset.
    Preallocation = 9,
    /// Limits and usage of a directory tree; object id 0, offset is the quota's number.
    Quota = 10,
    /// A part of a file block's contents that has no place yet; offset is the number of the part,
    /// two to a block.
    Unplaced = 11,
}

impl Kind {
    /// The kind with this on-disk number.
    pub fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Inode,
            2 => Self::Dirent,
            3 => Self::Extent,
            4 => Self::Xattr,
            5 => Self::Chunk,
            6 => Self::Orphan,
            7 => Self::Parent,
            8 => Self::Shared,
            9 => Self::Preallocation,
            10 => Self::Quota,
            11 => Self::Unplaced,
            _ => return None,
        })
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inode => "inode",
            Self::Dirent => "dirent",
            Self::Extent => "extent",
            Self::Xattr => "xattr",
            Self::Chunk => "chunk",
            Self::Orphan => "orphan",
            Self::Parent => "parent",
            Self::Shared => "shared",
            Self::Preallocation => "preallocation",
            Self::Quota => "quota",
            Self::Unplaced => "unplaced",
        }
    }
}

/// Key of an item: ordered by object, then kind, then offset.
///
/// The kind is a plain number here, so that range bounds and unknown kinds can be expressed; `Kind`
/// has the known ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The object the item belongs to.
    pub object: ObjectId,
    /// On-disk number of the item's [`Kind`].
    pub kind: u8,
    /// Meaning depends on the kind.
    pub offset: u64,
}

impl Key {
    /// The least key.
    pub const MIN: Key = Key { object: 0, kind: 0, offset: 0 };
    /// The greatest key.
    pub const MAX: Key = Key { object: u64::MAX, kind: u8::MAX, offset: u64::MAX };

    /// A key of a known kind.
    pub fn new(object: ObjectId, kind: Kind, offset: u64) -> Self {
        Self { object, kind: kind as u8, offset }
    }

    /// The key right after this one, or `None` after the greatest.
    pub fn next(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(kind) = self.kind.checked_add(1) {
            return Some(Self { object: self.object, kind, offset: 0 });
        }
        Some(Self { object: self.object.checked_add(1)?, kind: 0, offset: 0 })
    }

    /// Big-endian bytes, so that comparing bytes compares keys.
    pub fn to_bytes(self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        bytes[..8].copy_from_slice(&self.object.to_be_bytes());
        bytes[8] = self.kind;
        bytes[9..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// The inverse of [`Key::to_bytes`].
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Self {
        let [o0, o1, o2, o3, o4, o5, o6, o7, kind, f0, f1, f2, f3, f4, f5, f6, f7] = *bytes;
        Self {
            object: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            kind,
            offset: u64::from_be_bytes([f0, f1, f2, f3, f4, f5, f6, f7]),
        }
    }
}
