//! Parent pointers: each name of an inode, kept with the inode. They are in sections of the inode
//! item while they fit there, and otherwise in items of their own, `Key(inode, Parent, hash << 7 |
//! slot)`; the bytes are the same in both places.

use super::Cursor;
use super::dirent::is_name;
use super::inode::{FIXED_BYTES, SECTION_BYTES, inline_bytes_max, xattr_bytes_max};
use crate::{FormatError, ObjectId};

/// Bytes of the section that counts the parent pointers with items of their own.
pub const COUNT_SECTION_BYTES: usize = SECTION_BYTES + 4;

const STRUCTURE: &str = "parent pointer";

/// One name of an inode, as the inode knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parent<'a> {
    /// The directory that contains the name.
    pub parent: ObjectId,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Parent<'a> {
    /// The item's value; a section has the same contents.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(8 + self.name.len());
        value.extend_from_slice(&self.parent.to_le_bytes());
        value.extend_from_slice(self.name);
        value
    }

    /// Reads an item's value.
    pub fn decode(value: &'a [u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let parent = cursor.u64()?;
        let name = cursor.rest();
        if parent == 0 || parent > u64::MAX / 2 {
            return Err(cursor.field("parent"));
        }
        if !is_name(name) {
            return Err(cursor.field("name"));
        }
        Ok(Self { parent, name })
    }

    /// Bytes that its section takes in the inode item.
    pub fn section_bytes(&self) -> usize {
        section_bytes(self.name)
    }
}

/// Bytes that the section of a parent pointer with this name takes in the inode item.
pub fn section_bytes(name: &[u8]) -> usize {
    SECTION_BYTES + 8 + name.len()
}

/// Maximum number of bytes that the sections of all parent pointers together may take in an inode
/// item: what the longest item has left when everything else in it is as long as possible.
pub fn parent_bytes_max(node_bytes: u32) -> usize {
    let contents = SECTION_BYTES + inline_bytes_max(node_bytes);
    let others = FIXED_BYTES + contents + xattr_bytes_max(node_bytes) + COUNT_SECTION_BYTES;
    (node_bytes as usize / 4 - 64).saturating_sub(others).min(512)
}
