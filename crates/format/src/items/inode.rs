//! The inode item, `Key(inode, Inode, 0)`: fixed fields, then tagged sections.

use super::{
    Cursor,
    durability::{self, FLAGS_DURABILITY},
    extent::Algorithm,
    parent::{COUNT_SECTION_BYTES, Parent, parent_bytes_max},
    xattr::{ChunkRef, is_xattr_name},
};
use crate::{FormatError, ObjectId};

/// Bytes of the fixed part.
pub const FIXED_BYTES: usize = 120;
/// Bytes of a section besides its contents: tag, a zero, length.
pub const SECTION_BYTES: usize = 4;
/// Greatest size of a file: the kernel's file offsets are signed.
pub const SIZE_MAX: u64 = i64::MAX as u64;
/// Flag: the inode has a `security.capability` attribute, which a write must remove.
pub const FLAG_CAPABILITY: u32 = 1;
/// Flag: nothing about the inode may change.
pub const FLAG_IMMUTABLE: u32 = 1 << 1;
/// Flag: a file may only get longer, a directory only get more entries.
pub const FLAG_APPEND: u32 = 1 << 2;
/// Flag: reading does not update the access time.
pub const FLAG_NO_ACCESS_TIME: u32 = 1 << 3;
/// Flag: backup programs may leave the file out.
pub const FLAG_NO_DUMP: u32 = 1 << 4;
/// Flag: new data is compressed with LZ4. New files and directories inherit it from their
/// directory.
pub const FLAG_LZ4: u32 = 1 << 5;
/// Flag: new data is compressed with Zstandard; never together with [`FLAG_LZ4`]. New files and
/// directories inherit it from their directory.
pub const FLAG_ZSTD: u32 = 1 << 6;
/// Flag: some of the file's contents may be in items of their own, logged and not placed yet.
pub const FLAG_UNPLACED: u32 = 1 << 7;
/// All defined flags.
pub const FLAGS: u32 = FLAG_CAPABILITY
    | FLAG_IMMUTABLE
    | FLAG_APPEND
    | FLAG_NO_ACCESS_TIME
    | FLAG_NO_DUMP
    | FLAG_LZ4
    | FLAG_ZSTD
    | FLAG_UNPLACED
    | FLAGS_DURABILITY;

/// The flags without invalid ones: unknown flags, one of two compression algorithms, and a
/// durability class that there is not.
pub fn sound_flags(flags: u32) -> u32 {
    let both = flags & (FLAG_LZ4 | FLAG_ZSTD) == FLAG_LZ4 | FLAG_ZSTD;
    durability::sound(flags & FLAGS & if both { !FLAG_LZ4 } else { FLAGS })
}

/// The compression that the flags request for new data.
pub fn compression_of(flags: u32) -> Option<Algorithm> {
    match sound_flags(flags) {
        flags if flags & FLAG_ZSTD != 0 => Some(Algorithm::Zstd),
        flags if flags & FLAG_LZ4 != 0 => Some(Algorithm::Lz4),
        _ => None,
    }
}

/// File type bits of a mode.
pub const MODE_TYPE: u16 = 0o170000;
/// Permission bits of a mode.
pub const MODE_PERMISSIONS: u16 = 0o7777;

const STRUCTURE: &str = "inode";
const TAG_DATA: u8 = 1;
const TAG_TARGET: u8 = 2;
const TAG_TARGET_CHUNKS: u8 = 3;
const TAG_XATTR: u8 = 4;
const TAG_PARENT: u8 = 5;
const TAG_PARENT_ITEMS: u8 = 6;
const TAG_QUOTA: u8 = 7;
const TAG_XATTR_UNITS: u8 = 8;
/// Bytes of the section that names the quota.
const QUOTA_SECTION_BYTES: usize = SECTION_BYTES + 8;
/// Bytes of the section with the units that extended attributes count for.
const XATTR_UNITS_SECTION_BYTES: usize = SECTION_BYTES + 4;

const REGULAR: u8 = 0o10;
const DIRECTORY: u8 = 0o04;
const SYMLINK: u8 = 0o12;

/// True for the seven file types, as `mode >> 12`.
pub fn is_file_type(number: u8) -> bool {
    matches!(number, 0o01 | 0o02 | DIRECTORY | 0o06 | REGULAR | SYMLINK | 0o14)
}

/// A point in time: seconds since 1970 and nanoseconds below 1,000,000,000.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// Target of a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// In the inode item.
    Here(&'a [u8]),
    /// In chunks.
    Chunks(ChunkRef),
}

/// A decoded inode item. Sizes, data and mtime are those of the last logged write, never ahead of
/// the disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InodeItem<'a> {
    /// File type and permissions, as in `st_mode`.
    pub mode: u16,
    /// `FLAG_*`.
    pub flags: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Size in bytes; for a directory, the number of its entries.
    pub size: u64,
    /// 512-byte units allocated, including those of extended attributes.
    pub blocks: u64,
    /// Generation of the inode number, for file handles; 0, since numbers are not reused.
    pub generation: u64,
    /// Parent of a directory; 0 for everything else.
    pub parent: ObjectId,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth.
    pub btime: Time,
    /// Next unused chunk id.
    pub next_chunk: u64,
    /// Extended attributes that have an item of their own.
    pub xattr_items: u32,
    /// Bytes of a listing of all extended attributes.
    pub xattr_list_bytes: u32,
    /// Contents of a small file, at most `size` bytes; the rest up to `size` is zeros.
    pub data: Option<&'a [u8]>,
    /// Target of a symbolic link.
    pub target: Option<Target<'a>>,
    /// Small extended attributes: names and values.
    pub xattrs: Vec<(&'a [u8], &'a [u8])>,
    /// Names of the inode, as far as they fit here.
    pub parents: Vec<Parent<'a>>,
    /// Names of the inode that have an item of their own.
    pub parent_items: u32,
    /// Number of the quota that the inode counts in; 0 for none.
    pub quota: u64,
    /// 512-byte units that extended attributes with an item of their own count for; 0 on images
    /// that do not count them.
    pub xattr_units: u32,
}

impl<'a> InodeItem<'a> {
    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + self.sections_bytes());
        out.extend_from_slice(&self.mode.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        for field in [self.flags, self.nlink, self.uid, self.gid, self.rdev] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for field in [self.size, self.blocks, self.generation, self.parent] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let times = [self.atime, self.mtime, self.ctime, self.btime];
        times.iter().for_each(|time| out.extend_from_slice(&time.seconds.to_le_bytes()));
        times.iter().for_each(|time| out.extend_from_slice(&time.nanoseconds.to_le_bytes()));
        out.extend_from_slice(&self.next_chunk.to_le_bytes());
        out.extend_from_slice(&self.xattr_items.to_le_bytes());
        out.extend_from_slice(&self.xattr_list_bytes.to_le_bytes());
        debug_assert_eq!(out.len(), FIXED_BYTES);
        if let Some(data) = self.data {
            section(&mut out, TAG_DATA, &[data]);
        }
        match self.target {
            Some(Target::Here(target)) => section(&mut out, TAG_TARGET, &[target]),
            Some(Target::Chunks(chunks)) => section(&mut out, TAG_TARGET_CHUNKS, &[&chunks.encode()]),
            None => {}
        }
        for (name, value) in &self.xattrs {
            section(&mut out, TAG_XATTR, &[&[name.len() as u8], name, value]);
        }
        for parent in &self.parents {
            section(&mut out, TAG_PARENT, &[&parent.parent.to_le_bytes(), parent.name]);
        }
        if self.parent_items > 0 {
            section(&mut out, TAG_PARENT_ITEMS, &[&self.parent_items.to_le_bytes()]);
        }
        if self.quota > 0 {
            section(&mut out, TAG_QUOTA, &[&self.quota.to_le_bytes()]);
        }
        if self.xattr_units > 0 {
            section(&mut out, TAG_XATTR_UNITS, &[&self.xattr_units.to_le_bytes()]);
        }
        out
    }

    fn sections_bytes(&self) -> usize {
        let xattrs: usize = self.xattrs.iter().map(|(name, value)| xattr_section_bytes(name, value)).sum();
        let target = match self.target {
            Some(Target::Here(target)) => SECTION_BYTES + target.len(),
            Some(Target::Chunks(_)) => SECTION_BYTES + 12,
            None => 0,
        };
        let parents: usize = self.parents.iter().map(Parent::section_bytes).sum();
        let count = if self.parent_items > 0 { COUNT_SECTION_BYTES } else { 0 };
        let quota = if self.quota > 0 { QUOTA_SECTION_BYTES } else { 0 };
        let units = if self.xattr_units > 0 { XATTR_UNITS_SECTION_BYTES } else { 0 };
        let data = self.data.map_or(0, |data| SECTION_BYTES + data.len());
        xattrs + target + parents + count + quota + units + data
    }

    /// Reads an item's value.
    pub fn decode(value: &'a [u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let mut item = Self::decode_fixed(&mut cursor)?;
        while !cursor.is_empty() {
            item.decode_section(&mut cursor)?;
        }
        item.check(&cursor)?;
        Ok(item)
    }

    fn decode_fixed(cursor: &mut Cursor<'a>) -> Result<Self, FormatError> {
        let mode = cursor.u16()?;
        if cursor.u16()? != 0 {
            return Err(cursor.field("padding"));
        }
        let mut item = Self {
            mode,
            flags: cursor.u32()?,
            nlink: cursor.u32()?,
            uid: cursor.u32()?,
            gid: cursor.u32()?,
            rdev: cursor.u32()?,
            size: cursor.u64()?,
            blocks: cursor.u64()?,
            generation: cursor.u64()?,
            parent: cursor.u64()?,
            ..Self::default()
        };
        let mut times = [Time::default(); 4];
        for time in &mut times {
            time.seconds = i64::from_le_bytes(cursor.array()?);
        }
        for time in &mut times {
            time.nanoseconds = cursor.u32()?;
            if time.nanoseconds >= 1_000_000_000 {
                return Err(cursor.field("time"));
            }
        }
        [item.atime, item.mtime, item.ctime, item.btime] = times;
        item.next_chunk = cursor.u64()?;
        item.xattr_items = cursor.u32()?;
        item.xattr_list_bytes = cursor.u32()?;
        Ok(item)
    }

    fn decode_section(&mut self, cursor: &mut Cursor<'a>) -> Result<(), FormatError> {
        let tag = cursor.u8()?;
        if cursor.u8()? != 0 {
            return Err(cursor.field("padding"));
        }
        let len = usize::from(cursor.u16()?);
        let mut section = Cursor::new(cursor.bytes(len)?, STRUCTURE);
        match tag {
            TAG_DATA if self.data.is_none() => self.data = Some(section.rest()),
            TAG_TARGET if self.target.is_none() => self.target = Some(Target::Here(section.rest())),
            TAG_TARGET_CHUNKS if self.target.is_none() => {
                self.target = Some(Target::Chunks(ChunkRef::decode(&mut section)?));
            }
            TAG_XATTR => {
                let name_len = usize::from(section.u8()?);
                let name = section.bytes(name_len)?;
                if !is_xattr_name(name) {
                    return Err(section.field("extended attribute name"));
                }
                self.xattrs.push((name, section.rest()));
            }
            TAG_PARENT => self.parents.push(Parent::decode(section.rest())?),
            TAG_PARENT_ITEMS if self.parent_items == 0 => {
                self.parent_items = section.u32()?;
                if self.parent_items == 0 {
                    return Err(section.field("count of parent pointers"));
                }
            }
            TAG_QUOTA if self.quota == 0 => {
                self.quota = section.u64()?;
                if self.quota == 0 {
                    return Err(section.field("quota"));
                }
            }
            TAG_XATTR_UNITS if self.xattr_units == 0 => {
                self.xattr_units = section.u32()?;
                if self.xattr_units == 0 {
                    return Err(section.field("units of extended attributes"));
                }
            }
            _ => return Err(cursor.field("section")),
        }
        if section.is_empty() { Ok(()) } else { Err(cursor.field("section length")) }
    }

    /// Refuses fields that contradict each other.
    fn check(&self, cursor: &Cursor<'_>) -> Result<(), FormatError> {
        let file_type = (self.mode >> 12) as u8;
        if !is_file_type(file_type) {
            return Err(cursor.field("file type"));
        }
        if self.size > SIZE_MAX || self.next_chunk > super::xattr::CHUNK_ID_MAX {
            return Err(cursor.field("size"));
        }
        if (self.parent != 0) != (file_type == DIRECTORY) || self.parent > u64::MAX / 2 {
            return Err(cursor.field("parent"));
        }
        if self.target.is_some() != (file_type == SYMLINK) {
            return Err(cursor.field("symlink target"));
        }
        if self.data.is_some_and(|data| file_type != REGULAR || data.len() as u64 > self.size) {
            return Err(cursor.field("inline data"));
        }
        Ok(())
    }
}

/// Bytes that a small extended attribute takes in the inode item.
pub fn xattr_section_bytes(name: &[u8], value: &[u8]) -> usize {
    SECTION_BYTES + 1 + name.len() + value.len()
}

/// True if inode items always have room for the number of a quota: in small nodes, parent pointers
/// may take all the room.
pub fn has_room_for_quota(node_bytes: u32, parent_pointers: bool) -> bool {
    QUOTA_SECTION_BYTES <= room_left(node_bytes, parent_pointers)
}

/// True if inode items always have room for both the number of a quota and the units that extended
/// attributes count for.
pub fn has_room_for_xattr_units(node_bytes: u32, parent_pointers: bool) -> bool {
    QUOTA_SECTION_BYTES + XATTR_UNITS_SECTION_BYTES <= room_left(node_bytes, parent_pointers)
}

/// Bytes that the longest inode item leaves free, without these two sections.
fn room_left(node_bytes: u32, parent_pointers: bool) -> usize {
    let parents = if parent_pointers { COUNT_SECTION_BYTES + parent_bytes_max(node_bytes) } else { 0 };
    let contents = SECTION_BYTES + inline_bytes_max(node_bytes);
    let others = FIXED_BYTES + contents + xattr_bytes_max(node_bytes) + parents;
    (node_bytes as usize / 4 - 64).saturating_sub(others)
}

/// Maximum number of bytes of file data or symlink target in an inode item.
pub fn inline_bytes_max(node_bytes: u32) -> usize {
    (node_bytes as usize / 8).min(2048)
}

/// Maximum number of bytes that all small extended attributes together may take in an inode item.
pub fn xattr_bytes_max(node_bytes: u32) -> usize {
    (node_bytes as usize / 16).min(512)
}

fn section(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let len = u16::try_from(len).expect("contents are limited to a part of a node");
    out.extend_from_slice(&[tag, 0]);
    out.extend_from_slice(&len.to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}
