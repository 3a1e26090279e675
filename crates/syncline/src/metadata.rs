//! Attributes of a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline_fs::types::{Attributes, FileType, Timestamp};

/// Metadata of a file or directory, as of one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    attributes: Attributes,
}

impl Metadata {
    pub(crate) fn new(attributes: Attributes) -> Self {
        Self { attributes }
    }

    /// All attributes, as the engine has them.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Regular file, directory, symbolic link, and so on.
    pub fn file_type(&self) -> FileType {
        self.attributes.file_type
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type() == FileType::Regular
    }

    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    /// Size in bytes; for a directory, the number of its entries.
    pub fn len(&self) -> u64 {
        self.attributes.size
    }

    /// True when the size is 0.
    pub fn is_empty(&self) -> bool {
        self.attributes.size == 0
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.attributes.ino
    }

    /// Permission bits, with setuid, setgid and sticky.
    pub fn permissions(&self) -> u16 {
        self.attributes.permissions
    }

    /// Type and permission bits, as `st_mode` has them.
    pub fn mode(&self) -> u32 {
        u32::from(self.file_type().number()) << 12 | u32::from(self.permissions())
    }

    /// Number of names.
    pub fn nlink(&self) -> u32 {
        self.attributes.nlink
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.attributes.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.attributes.gid
    }

    /// 512-byte units allocated.
    pub fn blocks(&self) -> u64 {
        self.attributes.blocks
    }

    /// Device number of a device node.
    pub fn rdev(&self) -> u32 {
        self.attributes.rdev
    }

    /// Last change of the contents.
    pub fn modified(&self) -> SystemTime {
        system_time(self.attributes.mtime)
    }

    /// Last access.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.attributes.atime)
    }

    /// Last change of the inode.
    pub fn changed(&self) -> SystemTime {
        system_time(self.attributes.ctime)
    }

    /// Creation.
    pub fn created(&self) -> SystemTime {
        system_time(self.attributes.btime)
    }
}

/// Converts a time of the filesystem. Times that `SystemTime` can't express become 1970.
fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole =
        if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::timestamp;

    #[test]
    fn times_before_and_after_1970_go_both_ways() {
        for nanoseconds in [0u64, 1, 999_999_999, 1_000_000_000, 1_500_000_000] {
            let distance = Duration::from_nanos(nanoseconds);
            for time in [UNIX_EPOCH + distance, UNIX_EPOCH - distance] {
                assert_eq!(system_time(timestamp(time)), time, "{nanoseconds}");
            }
        }
    }

    #[test]
    fn impossible_times_do_no_harm() {
        for seconds in [i64::MIN, i64::MAX] {
            let _ = system_time(Timestamp { seconds, nanoseconds: 999_999_999 });
        }
    }
}
