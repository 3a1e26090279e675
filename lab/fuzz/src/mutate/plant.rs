//! Items that are well-formed on their own and lie about everything else.

use super::Number;
use crate::image::{Image, read};
use arbitrary::Arbitrary;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Extent, Packed};
use syncline_format::items::inode::{InodeItem, Target, Time};
use syncline_format::items::parent::Parent;
use syncline_format::items::shared::SharedRun;
use syncline_format::items::xattr::{CHUNK_ID_MAX, ChunkRef, Xattr, XattrValue};
use syncline_format::items::{HASH_MAX, SLOT_BITS};
use syncline_format::{BlockRun, Key, Kind, crc};

/// An item to put into the tree or the log.
#[derive(Arbitrary, Clone, Debug)]
pub enum Plant {
    /// An inode item.
    Inode(PlantInode),
    /// A directory entry, where a lookup finds it.
    Dirent {
        /// The directory.
        directory: Number,
        /// The object it leads to.
        object: Number,
        /// File type bits.
        file_type: u8,
        /// The name.
        name: Name,
        /// Number of the slot among the slots for one hash.
        slot: u8,
    },
    /// Part of a file.
    Extent {
        /// The file.
        object: Number,
        /// First block of the file.
        file_block: Number,
        /// First block of the device.
        addr: Number,
        /// Number of blocks.
        blocks: u8,
        /// Whether it has the correct checksums of the blocks.
        right: bool,
        /// Whether it has the mark of sharing extents.
        shared: bool,
        /// As a compressed unit: Zstandard or LZ4, bytes, blocks decoded, blocks skipped.
        packed: Option<(bool, u16, u8, u8)>,
    },
    /// A reference count.
    Shared {
        /// First block of the device.
        addr: Number,
        /// Number of blocks.
        blocks: u16,
        /// Number of references.
        count: Number,
    },
    /// An xattr, where a lookup finds it.
    Xattr {
        /// The inode.
        object: Number,
        /// Its name.
        name: Name,
        /// Id and length of the value, if it is in chunks.
        chunks: Option<(Number, Number)>,
        /// Length of the value, if it is in the item.
        len: u8,
    },
    /// A piece of a long value.
    Chunk {
        /// The inode.
        object: Number,
        /// The value's number.
        id: Number,
        /// The piece's number.
        piece: u8,
        /// Its length.
        len: u16,
    },
    /// The orphan mark of an inode.
    Orphan(Number),
    /// Arbitrary key and value.
    Raw {
        /// Object id.
        object: Number,
        /// Kind.
        kind: u8,
        /// Offset.
        offset: Number,
        /// Value.
        value: Vec<u8>,
    },
    /// A parent pointer, where a lookup finds it.
    Parent {
        /// The inode.
        object: Number,
        /// The directory in which it claims to have a name.
        directory: Number,
        /// The name.
        name: Name,
        /// Number of the slot among the slots for one hash.
        slot: u8,
    },
}

/// The contents of an inode item.
#[derive(Arbitrary, Clone, Debug)]
pub struct PlantInode {
    object: Number,
    mode: u16,
    nlink: Number,
    size: Number,
    blocks: Number,
    parent: Number,
    next_chunk: Number,
    xattr_items: Number,
    xattr_list_bytes: Number,
    data_bytes: u16,
    target: u8,
    xattrs: u8,
    seconds: Number,
    parents: u8,
    parent_items: u8,
}

/// A name, either from a base image or new.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Name {
    /// `file N`.
    File(u8),
    /// Another name that a base image has.
    Known(u8),
    /// A name of this many equal bytes.
    Long(u8),
}

impl Name {
    /// Its bytes.
    pub fn bytes(self) -> Vec<u8> {
        const KNOWN: [&str; 12] = [
            "directory",
            "below",
            "again",
            "short",
            "long",
            "pipe",
            "large",
            "sparse",
            "new",
            "user.tiny",
            "user.large",
            "security.capability",
        ];
        match self {
            Self::File(number) => format!("file {}", number % 48).into_bytes(),
            Self::Known(number) => KNOWN[usize::from(number) % KNOWN.len()].into(),
            Self::Long(len) => vec![b'n'; usize::from(len)],
        }
    }

    /// Offset of the item with this name.
    fn offset(self, image: &Image, slot: u8) -> u64 {
        offset(&self.bytes(), image, slot)
    }
}

/// Offset of the item for the hash of these bytes.
fn offset(bytes: &[u8], image: &Image, slot: u8) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&image.superblock.hash_seed);
    hasher.write(bytes);
    (hasher.finish() % (HASH_MAX + 1)) << SLOT_BITS | u64::from(slot % 128)
}

impl Plant {
    /// The item.
    pub fn item(&self, image: &Image) -> (Key, Vec<u8>) {
        let number = |number: Number| number.resolve(0, image);
        match self {
            Self::Inode(inode) => inode.item(image),
            Self::Dirent { directory, object, file_type, name, slot } => {
                let bytes = name.bytes();
                let entry = Dirent { ino: number(*object), file_type: file_type & 0o17, name: &bytes };
                (Key::new(number(*directory), Kind::Dirent, name.offset(image, *slot)), entry.encode())
            }
            Self::Extent { object, file_block, addr, blocks, right, shared, packed } => {
                let file_block = number(*file_block);
                let room = EXTENT_BLOCKS_MAX - file_block % EXTENT_BLOCKS_MAX;
                let blocks = u64::from(*blocks) % room + 1;
                let extent = extent(image, file_block, BlockRun::new(number(*addr), blocks), *right);
                let covered = extent.blocks();
                let packed = packed.map(|(zstd, bytes, unit_blocks, skip)| Packed {
                    algorithm: if zstd { Algorithm::Zstd } else { Algorithm::Lz4 },
                    bytes: u32::from(bytes),
                    unit_blocks: u64::from(unit_blocks),
                    skip: u64::from(skip),
                    blocks: covered,
                });
                let extent = Extent { shared: *shared, packed, ..extent };
                (Key::new(number(*object), Kind::Extent, file_block), extent.encode())
            }
            Self::Shared { addr, blocks, count } => {
                let addr = number(*addr);
                let run = BlockRun::new(addr, u64::from(*blocks));
                (Key::new(0, Kind::Shared, addr), SharedRun { run, count: number(*count) as u32 }.encode())
            }
            Self::Xattr { object, name, chunks, len } => {
                let (bytes, value) = (name.bytes(), vec![7; usize::from(*len)]);
                let value = match chunks {
                    Some((id, len)) => XattrValue::Chunks(ChunkRef {
                        id: number(*id) & CHUNK_ID_MAX,
                        len_bytes: number(*len) as u32 & 0x1_ffff,
                    }),
                    None => XattrValue::Here(&value),
                };
                let key = Key::new(number(*object), Kind::Xattr, name.offset(image, 0));
                (key, Xattr { name: &bytes, value }.encode())
            }
            Self::Chunk { object, id, piece, len } => {
                let chunk = ChunkRef { id: number(*id) & CHUNK_ID_MAX, len_bytes: 0 };
                let offset = chunk.offset(u16::from(*piece));
                (Key::new(number(*object), Kind::Chunk, offset), vec![8; usize::from(*len)])
            }
            Self::Parent { object, directory, name, slot } => {
                let bytes = name.bytes();
                let value = Parent { parent: number(*directory), name: &bytes }.encode();
                (Key::new(number(*object), Kind::Parent, offset(&value, image, *slot)), value)
            }
            Self::Orphan(object) => (Key::new(0, Kind::Orphan, number(*object)), Vec::new()),
            Self::Raw { object, kind, offset, value } => {
                (Key { object: number(*object), kind: *kind, offset: number(*offset) }, value.clone())
            }
        }
    }
}

/// An extent with correct checksums, or with zeros instead.
fn extent(image: &Image, file_block: u64, run: BlockRun, right: bool) -> Extent {
    let checksum = |block: u64| match run.start.checked_add(block) {
        Some(addr) if right && addr < image.geometry().total_blocks => {
            crc(&read(&image.device, BlockRun::new(addr, 1)))
        }
        _ => 0,
    };
    Extent::plain(file_block, run.start, (0..run.blocks).map(checksum).collect())
}

impl PlantInode {
    fn item(&self, image: &Image) -> (Key, Vec<u8>) {
        let number = |number: Number| number.resolve(0, image);
        let file_type = self.mode >> 12;
        let zeros = [0; 4096];
        let chunks = ChunkRef { id: u64::from(self.target), len_bytes: 4000 };
        let time = Time { seconds: number(self.seconds) as i64, nanoseconds: 0 };
        let data_bytes = usize::from(self.data_bytes) % zeros.len();
        let item = InodeItem {
            mode: self.mode,
            nlink: number(self.nlink) as u32,
            size: number(self.size),
            blocks: number(self.blocks),
            parent: if file_type == 0o04 { number(self.parent) } else { 0 },
            atime: time,
            mtime: time,
            ctime: time,
            next_chunk: number(self.next_chunk),
            xattr_items: number(self.xattr_items) as u32,
            xattr_list_bytes: number(self.xattr_list_bytes) as u32,
            data: (file_type == 0o10 && data_bytes > 0).then(|| &zeros[..data_bytes]),
            target: (file_type == 0o12).then(|| match self.target {
                len @ 0..200 => Target::Here(&zeros[..usize::from(len)]),
                _ => Target::Chunks(chunks),
            }),
            xattrs: vec![(b"user.tiny", b"value"); usize::from(self.xattrs % 8)]
                .into_iter()
                .map(|(name, value)| (&name[..], &value[..]))
                .collect(),
            parents: vec![
                Parent { parent: number(self.parent), name: b"large" };
                usize::from(self.parents % 4)
            ],
            parent_items: u32::from(self.parent_items % 3),
            xattr_units: u32::from(self.parent_items.saturating_sub(250)),
            ..InodeItem::default()
        };
        (Key::new(number(self.object), Kind::Inode, 0), item.encode())
    }
}

/// The checksums of a run, for a name record.
pub fn checksums(image: &Image, run: BlockRun, right: bool) -> Vec<u32> {
    extent(image, 0, run, right).checksums
}
