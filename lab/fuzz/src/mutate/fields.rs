//! Positions of the fields of each structure, from docs/FORMAT.md.

use super::Number;
use crate::image::Image;
use syncline_format::Kind;

/// Offset and length in bytes of a little-endian field.
pub type Field = (usize, usize);

/// Fields of a superblock, without its checksum.
pub const SUPERBLOCK: [Field; 31] = [
    (0, 8),
    (12, 4),
    (16, 8),
    (32, 8),
    (96, 8),
    (104, 4),
    (108, 4),
    (112, 8),
    (120, 8),
    (128, 8),
    (136, 8),
    (144, 4),
    (148, 4),
    (152, 8),
    (160, 4),
    (164, 4),
    (168, 8),
    (176, 8),
    (184, 8),
    (192, 8),
    (200, 4),
    (204, 4),
    (208, 8),
    (216, 8),
    (224, 8),
    (232, 8),
    (240, 8),
    (248, 8),
    (256, 8),
    (264, 8),
    (272, 8),
];

/// Fields of an entry in the table of snapshots, but for the name.
pub const SNAPSHOT: [Field; 14] = [
    (0, 8),
    (8, 8),
    (16, 8),
    (24, 8),
    (32, 4),
    (36, 4),
    (40, 8),
    (48, 4),
    (52, 4),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 1),
    (81, 8),
];

/// Fields of a tree node's header.
pub const NODE: [Field; 7] = [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 1), (33, 7)];

/// Fields of a space page's header, and the first field after it.
pub const PAGE: [Field; 8] = [(0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4)];

/// Fields of a batch's header, without its own checksum.
pub const BATCH: [Field; 18] = [
    (0, 8),
    (12, 4),
    (16, 8),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 8),
    (88, 8),
    (96, 8),
    (104, 8),
    (112, 4),
    (116, 4),
    (120, 8),
    (128, 8),
];

const INODE: [Field; 26] = [
    (0, 2),
    (2, 2),
    (4, 4),
    (8, 4),
    (12, 4),
    (16, 4),
    (20, 4),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 8),
    (88, 4),
    (92, 4),
    (96, 4),
    (100, 4),
    (104, 8),
    (112, 4),
    (116, 4),
    (120, 1),
    (121, 1),
    (122, 2),
    (124, 8),
];
const DIRENT: [Field; 3] = [(0, 8), (8, 1), (9, 1)];
const EXTENT: [Field; 6] = [(0, 8), (8, 2), (10, 2), (12, 4), (16, 1), (17, 1)];
const SHARED: [Field; 2] = [(0, 4), (4, 4)];
const XATTR: [Field; 4] = [(0, 1), (1, 1), (2, 1), (10, 8)];
const PARENT: [Field; 2] = [(0, 8), (8, 1)];
const QUOTA: [Field; 6] = [(0, 8), (8, 4), (16, 8), (24, 8), (32, 8), (40, 8)];
const OTHER: [Field; 1] = [(0, 8)];

/// The fields of an item's value.
pub fn of_item(kind: u8) -> &'static [Field] {
    match Kind::from_u8(kind) {
        Some(Kind::Inode) => &INODE,
        Some(Kind::Dirent) => &DIRENT,
        Some(Kind::Extent) => &EXTENT,
        Some(Kind::Xattr) => &XATTR,
        Some(Kind::Shared) => &SHARED,
        Some(Kind::Parent) => &PARENT,
        Some(Kind::Quota) => &QUOTA,
        Some(Kind::Chunk | Kind::Orphan | Kind::Preallocation | Kind::Unplaced) | None => &OTHER,
    }
}

/// Changes one of `fields`; a field not entirely inside `bytes` is left alone.
pub fn change(bytes: &mut [u8], fields: &[Field], field: u8, number: Number, image: &Image) {
    let (at, len) = fields[usize::from(field) % fields.len()];
    let Some(place) = bytes.get_mut(at..at + len) else { return };
    let mut old = [0; 8];
    old[..len].copy_from_slice(place);
    let new = number.resolve(u64::from_le_bytes(old), image).to_le_bytes();
    place.copy_from_slice(&new[..len]);
}

/// Changes a byte, if there is one.
pub fn change_byte(bytes: &mut [u8], at: u16, value: u8) {
    let len = bytes.len();
    if let Some(byte) = bytes.get_mut(usize::from(at) % len.max(1)) {
        *byte = value;
    }
}
