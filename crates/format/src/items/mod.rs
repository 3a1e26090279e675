//! Values of items: the contents under each kind of key. `docs/FORMAT.md` has the layouts.
//!
//! Decoders borrow from the bytes they read, check every length before it is used, and never
//! allocate more than a small multiple of their input.

mod cursor;
pub mod dirent;
pub mod durability;
pub mod extent;
pub mod inode;
pub mod parent;
pub mod preallocation;
pub mod quota;
pub mod shared;
pub mod unplaced;
pub mod xattr;

pub use cursor::Cursor;

/// Maximum number of collisions of one name hash in a directory (or among an inode's xattrs).
pub const SLOTS: u64 = 128;
/// Bits of a slot number in the offset of a directory entry or xattr.
pub const SLOT_BITS: u32 = 7;
/// Greatest name hash: 56 bits, and one less so that every cookie made from it stays below 2^63.
pub const HASH_MAX: u64 = (1 << 56) - 2;

/// First and last offset of the entries whose names have this hash.
pub fn hash_offsets(hash: u64) -> (u64, u64) {
    let first = hash.min(HASH_MAX) << SLOT_BITS;
    (first, first | (SLOTS - 1))
}
