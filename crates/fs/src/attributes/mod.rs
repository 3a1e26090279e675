//! Attributes of an inode: those of stat(2), extended attributes and access control lists, flags,
//! durability class and quota.
//!
//! Stands on the inode and its changes (`inode`, `inode_change`).

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod durability;
pub(crate) mod flags;
pub(crate) mod privileges;
pub(crate) mod quota;
pub(crate) mod stat;
pub(crate) mod xattr;
pub(crate) mod xattr_place;
