//! Extended attributes with an item of their own, `Key(inode, Xattr, hash << 7 | slot)`, and the
//! chunks that hold values too long for one item, `Key(inode, Chunk, id << 16 | piece)`.

use super::Cursor;
use crate::FormatError;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 65536;
/// Maximum number of bytes that all names of an inode take in a listing, each with its NUL.
pub const LIST_BYTES_MAX: u32 = 65536;

/// Bytes of a unit in which attributes are counted.
const UNIT_BYTES: usize = 512;

const STRUCTURE: &str = "extended attribute";

/// A value kept in pieces, each as long as an item's value may be (the last one may be shorter).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkRef {
    /// Number of the value within its inode; never reused.
    pub id: u64,
    /// Length of the whole value in bytes.
    pub len_bytes: u32,
}

/// Bits of a piece's number in the offset of a chunk.
const PIECE_BITS: u32 = 16;
/// Ids stay below this, so that an offset has room for the piece.
pub const CHUNK_ID_MAX: u64 = u64::MAX >> PIECE_BITS;

impl ChunkRef {
    /// Offset of a piece's key.
    pub fn offset(self, piece: u16) -> u64 {
        (self.id << PIECE_BITS) | u64::from(piece)
    }
    /// Reads what [`ChunkRef::encode`] wrote; the length is at most [`VALUE_BYTES_MAX`].
    pub fn decode(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let chunk = Self { id: cursor.u64()?, len_bytes: cursor.u32()? };
        if chunk.id > CHUNK_ID_MAX {
            return Err(cursor.field("chunk id"));
        }
        if chunk.len_bytes as usize > VALUE_BYTES_MAX {
            return Err(cursor.field("chunk length"));
        }
        Ok(chunk)
    }
    /// The 12 bytes that refer to the chunks.
    pub fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes
    }
}

/// Where a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrValue<'a> {
    /// In the item.
    Here(&'a [u8]),
    /// In chunks.
    Chunks(ChunkRef),
}

/// An extended attribute that does not fit the inode item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Xattr<'a> {
    /// Name, with its namespace prefix.
    pub name: &'a [u8],
    /// Value.
    pub value: XattrValue<'a>,
}

impl<'a> Xattr<'a> {
    /// Bytes of the item's value other than name and value.
    pub const OVERHEAD_BYTES: usize = 2;

    /// Units of 512 bytes that name and value fill, which the attribute counts for on images that
    /// count them.
    pub fn units(&self) -> u32 {
        let value_bytes = match self.value {
            XattrValue::Here(bytes) => bytes.len(),
            XattrValue::Chunks(chunks) => chunks.len_bytes as usize,
        };
        (self.name.len() + value_bytes).div_ceil(UNIT_BYTES) as u32
    }

    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        let name_len = u8::try_from(self.name.len()).expect("names are checked before they are stored");
        let mut value = Vec::with_capacity(Self::OVERHEAD_BYTES + self.name.len() + 12);
        value.push(name_len);
        value.push(u8::from(matches!(self.value, XattrValue::Chunks(_))));
        value.extend_from_slice(self.name);
        match self.value {
            XattrValue::Here(bytes) => value.extend_from_slice(bytes),
            XattrValue::Chunks(chunks) => value.extend_from_slice(&chunks.encode()),
        }
        value
    }

    /// Reads an item's value.
    pub fn decode(value: &'a [u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let name_len = usize::from(cursor.u8()?);
        let place = cursor.u8()?;
        let name = cursor.bytes(name_len)?;
        if !is_xattr_name(name) {
            return Err(cursor.field("name"));
        }
        let value = match place {
            0 => XattrValue::Here(cursor.rest()),
            1 => XattrValue::Chunks(ChunkRef::decode(&mut cursor)?),
            _ => return Err(cursor.field("place of the value")),
        };
        if !cursor.is_empty() {
            return Err(cursor.field("length"));
        }
        Ok(Self { name, value })
    }
}

/// True for valid names of extended attributes.
pub fn is_xattr_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(&0)
}
