//! A quota: limits of a directory tree and its usage, `Key(0, Quota, number of the quota)`.

use super::Cursor;
use crate::{FormatError, ObjectId};

const STRUCTURE: &str = "quota";

/// Flag: not everything in the tree carries the quota's number yet, and the limits do not apply.
pub const QUOTA_BEING_SET: u32 = 1;
/// All defined flags.
pub const QUOTA_FLAGS: u32 = QUOTA_BEING_SET;

/// Limits of a directory tree, and the usage of the inodes that carry the quota's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// The directory at the top of the tree.
    pub root: ObjectId,
    /// `QUOTA_*`.
    pub flags: u32,
    /// Maximum number of bytes allocated in the tree; 0 means no limit.
    pub limit_bytes: u64,
    /// Maximum number of inodes in the tree; 0 means no limit.
    pub limit_inodes: u64,
    /// 512-byte units used by all its inodes.
    pub used_units: u64,
    /// Number of its inodes, including the root.
    pub used_inodes: u64,
}

impl Quota {
    /// The item's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(48);
        value.extend_from_slice(&self.root.to_le_bytes());
        value.extend_from_slice(&self.flags.to_le_bytes());
        value.extend_from_slice(&[0; 4]);
        for field in [self.limit_bytes, self.limit_inodes, self.used_units, self.used_inodes] {
            value.extend_from_slice(&field.to_le_bytes());
        }
        value
    }

    /// Reads an item's value.
    pub fn decode(value: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(value, STRUCTURE);
        let (root, flags, padding) = (cursor.u64()?, cursor.u32()?, cursor.u32()?);
        let quota = Self {
            root,
            flags,
            limit_bytes: cursor.u64()?,
            limit_inodes: cursor.u64()?,
            used_units: cursor.u64()?,
            used_inodes: cursor.u64()?,
        };
        if root == 0 || root > u64::MAX / 2 {
            return Err(cursor.field("root"));
        }
        if padding != 0 || flags & !QUOTA_FLAGS != 0 {
            return Err(cursor.field("flags"));
        }
        if !cursor.is_empty() {
            return Err(cursor.field("value length"));
        }
        Ok(quota)
    }

    /// True while not everything in the tree is counted yet.
    pub fn is_being_set(&self) -> bool {
        self.flags & QUOTA_BEING_SET != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_what_the_document_says() {
        let quota = Quota {
            root: 0x0102,
            flags: QUOTA_BEING_SET,
            limit_bytes: 3,
            limit_inodes: 4,
            used_units: 5,
            used_inodes: 6,
        };
        let mut expected = vec![2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        for field in [3u8, 4, 5, 6] {
            expected.extend([field, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(quota.encode(), expected);
        assert_eq!(Quota::decode(&expected).unwrap(), quota);
    }

    #[test]
    fn impossible_values_are_refused() {
        let right = Quota { root: 1, ..Quota::default() }.encode();
        assert!(Quota::decode(&right).is_ok());
        let with = |at: usize, byte: u8| {
            let mut value = right.clone();
            value[at] = byte;
            value
        };
        for value in [with(0, 0), with(7, 0x80), with(8, 2), with(12, 1), [&right[..], &[0]].concat()] {
            assert!(Quota::decode(&value).is_err(), "{value:?}");
        }
        assert!(Quota::decode(&right[..47]).is_err());
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_reverses_encoding(value in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(quota) = Quota::decode(&value) {
                prop_assert_eq!(quota.encode(), value);
            }
        }
    }
}
