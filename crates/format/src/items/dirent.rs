//! Directory entries: `Key(directory, Dirent, hash << 7 | slot)`.

use super::Cursor;
use crate::{FormatError, ObjectId};

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

const STRUCTURE: &str = "directory entry";

/// One name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirent<'a> {
    /// The named inode.
    pub ino: ObjectId,
    /// File type bits of the named inode's mode, shifted down by 12 (as in `d_type`).
    pub file_type: u8,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Dirent<'a> {
    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(9 + self.name.len());
        value.extend_from_slice(&self.ino.to_le_bytes());
        value.push(self.file_type);
        value.extend_from_slice(self.name);
        value
    }

    /// Reads an item's value.
    pub fn decode(value: &'a [u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let ino = cursor.u64()?;
        let file_type = cursor.u8()?;
        let name = cursor.rest();
        if ino == 0 || ino > u64::MAX / 2 {
            return Err(cursor.field("inode number"));
        }
        if !super::inode::is_file_type(file_type) {
            return Err(cursor.field("file type"));
        }
        if !is_name(name) {
            return Err(cursor.field("name"));
        }
        Ok(Self { ino, file_type, name })
    }
}

/// True for valid names of directory entries.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|&byte| byte == 0 || byte == b'/')
}
