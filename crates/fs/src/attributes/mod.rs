//! Attributes of an inode: those of stat(2), extended attributes and access control lists, flags,
//! durability class, access time, and what an inode may take of its quota.
//!
//! Stands on `inode`, and changes inodes by its `change`.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod durability;
pub(crate) mod flags;
pub(crate) mod privileges;
pub(crate) mod quota;
pub(crate) mod stat;
pub(crate) mod xattr;
pub(crate) mod xattr_place;
