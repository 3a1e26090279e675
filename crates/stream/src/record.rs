//! The records of a stream: each is a step of the receiver.

use crate::StreamError;
use crate::fields::{Fields, put_name};
use bytes::Bytes;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX};
use syncline_fs::RestoredAttributes;
use syncline_fs::types::{Ino, Timestamp};

/// The most bytes of a record's payload.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// The most bytes of file contents in one record, so that the payload stays below its limit.
pub const DATA_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - 4096;

/// A compressed unit, of which a record covers some blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// How it is compressed.
    pub algorithm: Algorithm,
    /// Blocks of the whole unit.
    pub unit_blocks: u8,
    /// Blocks of the unit before the first block of the record.
    pub skip: u8,
    /// Blocks that are meant.
    pub blocks: u8,
    /// The compressed bytes, without the zeros behind them.
    pub bytes: Bytes,
}

/// The attributes of an inode, as they are to be in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Permission bits (07777).
    pub permissions: u16,
    /// Flags of the inode item, without the flags about its contents.
    pub flags: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Access, modification, change, birth.
    pub times: [Timestamp; 4],
}

/// One step of a stream. Inodes are known by their numbers; offsets and lengths are in bytes.
#[allow(missing_docs, reason = "the names of the fields say it")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Make an inode, without a name so far.
    Make { ino: Ino, mode: u16, rdev: u32, target: Bytes },
    /// Set the size of a file.
    Resize { ino: Ino, size: u64 },
    /// Contents, stored as they are.
    Data { ino: Ino, offset: u64, bytes: Bytes },
    /// Contents, stored compressed.
    Packed { ino: Ino, offset: u64, unit: Unit },
    /// Contents that share the blocks of others.
    Clone { ino: Ino, offset: u64, length: u64, from: Ino, from_offset: u64 },
    /// A part without contents.
    Hole { ino: Ino, offset: u64, length: u64 },
    /// A preallocated part, without contents.
    Reserve { ino: Ino, offset: u64, length: u64 },
    /// An extended attribute.
    Xattr { ino: Ino, name: Vec<u8>, value: Bytes },
    /// An extended attribute that is not there any more.
    NoXattr { ino: Ino, name: Vec<u8> },
    /// Take an inode's last old name away, and keep the inode for `Place` or `Drop`.
    Park { ino: Ino, dir: Ino, name: Vec<u8> },
    /// Take a name away.
    Unlink { dir: Ino, name: Vec<u8> },
    /// Give an inode a name.
    Place { ino: Ino, dir: Ino, name: Vec<u8> },
    /// Remove an inode that was parked and gets no name.
    Drop { ino: Ino },
    /// The attributes of an inode.
    Attributes { ino: Ino, restored: Restored },
    /// A limit of the tree below a directory.
    Quota { dir: Ino, bytes: u64, inodes: u64 },
    /// The last record: how many came before it, and the checksum of everything before it.
    End { records: u64, checksum: u32 },
}

impl Record {
    /// The greatest kind of record that is about an inode's contents and extended attributes, not
    /// about names.
    pub(crate) const LAST_OF_CONTENTS: u8 = 9;

    /// The number that stands for the kind of record.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Make { .. } => 1,
            Self::Resize { .. } => 2,
            Self::Data { .. } => 3,
            Self::Packed { .. } => 4,
            Self::Clone { .. } => 5,
            Self::Hole { .. } => 6,
            Self::Reserve { .. } => 7,
            Self::Xattr { .. } => 8,
            Self::NoXattr { .. } => 9,
            Self::Park { .. } => 10,
            Self::Unlink { .. } => 11,
            Self::Place { .. } => 12,
            Self::Drop { .. } => 13,
            Self::Attributes { .. } => 14,
            Self::Quota { .. } => 15,
            Self::End { .. } => 255,
        }
    }

    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut number = |value: u64| out.extend_from_slice(&value.to_le_bytes());
        match self {
            Self::Make { ino, mode, rdev, target } => {
                number(*ino);
                out.extend_from_slice(&mode.to_le_bytes());
                out.extend_from_slice(&rdev.to_le_bytes());
                out.extend_from_slice(target);
            }
            Self::Resize { ino, size } => [*ino, *size].into_iter().for_each(number),
            Self::Data { ino, offset, bytes } => {
                [*ino, *offset].into_iter().for_each(number);
                out.extend_from_slice(bytes);
            }
            Self::Packed { ino, offset, unit } => {
                [*ino, *offset].into_iter().for_each(number);
                let algorithm = match unit.algorithm {
                    Algorithm::Lz4 => 1,
                    Algorithm::Zstd => 2,
                };
                out.extend_from_slice(&[algorithm, unit.unit_blocks, unit.skip, unit.blocks]);
                out.extend_from_slice(&unit.bytes);
            }
            Self::Clone { ino, offset, length, from, from_offset } => {
                [*ino, *offset, *length, *from, *from_offset].into_iter().for_each(number);
            }
            Self::Hole { ino, offset, length } | Self::Reserve { ino, offset, length } => {
                [*ino, *offset, *length].into_iter().for_each(number);
            }
            Self::Xattr { ino, name, value } => {
                number(*ino);
                put_name(&mut out, name);
                out.extend_from_slice(value);
            }
            Self::NoXattr { ino, name } => {
                number(*ino);
                put_name(&mut out, name);
            }
            Self::Park { ino, dir, name } | Self::Place { ino, dir, name } => {
                [*ino, *dir].into_iter().for_each(number);
                put_name(&mut out, name);
            }
            Self::Unlink { dir, name } => {
                number(*dir);
                put_name(&mut out, name);
            }
            Self::Drop { ino } => number(*ino),
            Self::Attributes { ino, restored } => {
                number(*ino);
                restored.encode(&mut out);
            }
            Self::Quota { dir, bytes, inodes } => [*dir, *bytes, *inodes].into_iter().for_each(number),
            Self::End { records, checksum } => {
                number(*records);
                out.extend_from_slice(&checksum.to_le_bytes());
            }
        }
        out
    }

    /// Reads the payload of record number `record`.
    pub fn decode(kind: u8, payload: &Bytes, record: u64) -> Result<Self, StreamError> {
        let mut fields = Fields::new(payload, record);
        // The rest of the payload, without a copy.
        let tail = |fields: &mut Fields<'_>| payload.slice(payload.len() - fields.rest().len()..);
        let decoded = match kind {
            1 => {
                let (ino, mode, rdev) = (fields.u64()?, fields.u16()?, fields.u32()?);
                Self::Make { ino, mode, rdev, target: tail(&mut fields) }
            }
            2 => Self::Resize { ino: fields.u64()?, size: fields.u64()? },
            3 => Self::Data { ino: fields.u64()?, offset: fields.u64()?, bytes: tail(&mut fields) },
            4 => {
                let (ino, offset) = (fields.u64()?, fields.u64()?);
                let algorithm = match fields.u8()? {
                    1 => Algorithm::Lz4,
                    2 => Algorithm::Zstd,
                    _ => {
                        return Err(StreamError::Damaged { record, what: "a compression that there is not" });
                    }
                };
                let [unit_blocks, skip, blocks] = fields.array()?;
                let unit = Unit { algorithm, unit_blocks, skip, blocks, bytes: tail(&mut fields) };
                if !unit.is_possible() {
                    return Err(StreamError::Damaged { record, what: "an impossible compressed unit" });
                }
                Self::Packed { ino, offset, unit }
            }
            5 => {
                let (ino, offset, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Self::Clone { ino, offset, length, from: fields.u64()?, from_offset: fields.u64()? }
            }
            6 => Self::Hole { ino: fields.u64()?, offset: fields.u64()?, length: fields.u64()? },
            7 => Self::Reserve { ino: fields.u64()?, offset: fields.u64()?, length: fields.u64()? },
            8 => Self::Xattr { ino: fields.u64()?, name: fields.name()?, value: tail(&mut fields) },
            9 => Self::NoXattr { ino: fields.u64()?, name: fields.name()? },
            10 => Self::Park { ino: fields.u64()?, dir: fields.u64()?, name: fields.name()? },
            11 => Self::Unlink { dir: fields.u64()?, name: fields.name()? },
            12 => Self::Place { ino: fields.u64()?, dir: fields.u64()?, name: fields.name()? },
            13 => Self::Drop { ino: fields.u64()? },
            14 => Self::Attributes { ino: fields.u64()?, restored: Restored::decode(&mut fields, record)? },
            15 => Self::Quota { dir: fields.u64()?, bytes: fields.u64()?, inodes: fields.u64()? },
            255 => Self::End { records: fields.u64()?, checksum: fields.u32()? },
            _ => return Err(StreamError::Damaged { record, what: "a kind of record that there is not" }),
        };
        fields.end()?;
        Ok(decoded)
    }
}

impl Unit {
    /// True if a unit is possible: the part for the file lies within it, and it takes fewer blocks than
    /// unpacked.
    fn is_possible(&self) -> bool {
        let (unit, skip, blocks) =
            (u64::from(self.unit_blocks), u64::from(self.skip), u64::from(self.blocks));
        let stored = (self.bytes.len() as u64).div_ceil(4096);
        unit <= EXTENT_BLOCKS_MAX && blocks > 0 && skip + blocks <= unit && stored > 0 && stored < unit
    }
}

impl Restored {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.permissions.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        for field in [self.flags, self.uid, self.gid] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for time in self.times {
            out.extend_from_slice(&time.seconds.to_le_bytes());
            out.extend_from_slice(&time.nanoseconds.to_le_bytes());
        }
    }

    pub(crate) fn decode(fields: &mut Fields<'_>, record: u64) -> Result<Self, StreamError> {
        let damaged = |what| StreamError::Damaged { record, what };
        let (permissions, zero) = (fields.u16()?, fields.u16()?);
        if permissions > 0o7777 || zero != 0 {
            return Err(damaged("impossible permissions"));
        }
        let (flags, uid, gid) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let mut times = [Timestamp::default(); 4];
        for time in &mut times {
            *time = Timestamp { seconds: fields.i64()?, nanoseconds: fields.u32()? };
            if time.nanoseconds >= 1_000_000_000 {
                return Err(damaged("an impossible time"));
            }
        }
        Ok(Self { permissions, flags, uid, gid, times })
    }
}

impl From<Restored> for RestoredAttributes {
    fn from(restored: Restored) -> Self {
        let Restored { permissions, flags, uid, gid, times: [atime, mtime, ctime, btime] } = restored;
        Self { permissions, flags, uid, gid, atime, mtime, ctime, btime }
    }
}

impl From<RestoredAttributes> for Restored {
    fn from(attributes: RestoredAttributes) -> Self {
        let RestoredAttributes { permissions, flags, uid, gid, atime, mtime, ctime, btime } = attributes;
        Self { permissions, flags, uid, gid, times: [atime, mtime, ctime, btime] }
    }
}
