//! Recognises what is on a device already: filesystems, partition tables and containers, by their
//! magic numbers.
//!
//! The table has libblkid's knowledge of the formats in use on Linux, as far as their signatures
//! are in the first 512 KiB.

use syncline_format::BLOCK_BYTES;
use syncline_format::superblock::{MAGIC, Superblock};

/// How much of the start of a device is examined.
pub const LOOK_AT_BYTES: usize = 512 << 10;

/// A format: its name, the offset of its magic number, and the number.
struct Known(&'static str, usize, &'static [u8]);

/// The name of the format of `syncline send`.
pub const STREAM: &str = "a stream of 'syncline send'";
/// The name of a filesystem of our own.
pub const FILESYSTEM: &str = "a Syncline filesystem";

const SUPERBLOCK_AT: usize = 16 * BLOCK_BYTES;
const BCACHE: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
const BCACHEFS: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef];

/// Filesystems first, then containers, then partition tables, whose signature others carry as well.
const TABLE: &[Known] = &[
    Known("an ext2, ext3 or ext4 filesystem", 1080, &[0x53, 0xef]),
    Known("an XFS filesystem", 0, b"XFSB"),
    Known("a btrfs filesystem", 65600, b"_BHRfS_M"),
    Known("a bcachefs filesystem", 4096 + 24, BCACHEFS),
    Known("a bcache device", 4096 + 24, BCACHE),
    Known("an F2FS filesystem", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    Known("an EROFS filesystem", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    Known("a squashfs filesystem", 0, b"hsqs"),
    Known("an ISO 9660 filesystem", 32769, b"CD001"),
    Known("a UDF filesystem", 32769, b"BEA01"),
    Known("an NTFS filesystem", 3, b"NTFS    "),
    Known("an exFAT filesystem", 3, b"EXFAT   "),
    Known("a FAT filesystem", 82, b"FAT32   "),
    Known("a FAT filesystem", 54, b"FAT16   "),
    Known("a FAT filesystem", 54, b"FAT12   "),
    Known("a ReiserFS filesystem", 65588, b"ReIsEr"),
    Known("a JFS filesystem", 32768, b"JFS1"),
    Known("a NILFS2 filesystem", 1030, &[0x34, 0x34]),
    Known("a GFS2 filesystem", 65536, &[0x01, 0x16, 0x19, 0x70]),
    Known("an OCFS2 filesystem", 8192, b"OCFSV2"),
    Known("an HFS+ filesystem", 1024, b"H+"),
    Known("an HFS+ filesystem", 1024, b"HX"),
    Known("an APFS container", 32, b"NXSB"),
    Known("a LUKS container", 0, b"LUKS\xba\xbe"),
    Known("an LVM physical volume", 512 + 24, b"LVM2 001"),
    Known("an LVM physical volume", 24, b"LVM2 001"),
    Known("a Linux RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    Known("a Linux RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    Known("a qcow2 disk image", 0, b"QFI\xfb"),
    Known(STREAM, 0, b"SYNCSEND"),
    Known("swap space", 4086, b"SWAPSPACE2"),
    Known("swap space", 16374, b"SWAPSPACE2"),
    Known("swap space", 65526, b"SWAPSPACE2"),
    Known("a GPT partition table", 512, b"EFI PART"),
    Known("a GPT partition table", 4096, b"EFI PART"),
    Known("a partition table or boot sector", 510, &[0x55, 0xaa]),
];

/// ZFS keeps a ring of uberblocks starting here, any of which may be written first.
const ZFS_RING: std::ops::Range<usize> = 128 << 10..256 << 10;
const ZFS_MAGIC: [u8; 8] = 0x00ba_b10c_u64.to_le_bytes();

/// Names the contents of a device by its first bytes, in words that follow "holds".
pub fn recognize(start: &[u8]) -> Option<String> {
    if let Some(name) = syncline(start) {
        return Some(name);
    }
    if syncline_image::is_encrypted(start) {
        return Some(format!("{FILESYSTEM}, encrypted"));
    }
    let at = |offset: usize, magic: &[u8]| start.get(offset..offset + magic.len()) == Some(magic);
    if let Some(known) = TABLE.iter().find(|Known(_, offset, magic)| at(*offset, magic)) {
        return Some(known.0.to_owned());
    }
    let swapped: Vec<u8> = ZFS_MAGIC.iter().rev().copied().collect();
    let zfs = ZFS_RING.step_by(1024).any(|offset| at(offset, &ZFS_MAGIC) || at(offset, &swapped));
    zfs.then(|| "a ZFS pool member".to_owned())
}

/// A filesystem of our own: either slot may have been written first.
fn syncline(start: &[u8]) -> Option<String> {
    let blocks = [SUPERBLOCK_AT, 2 * SUPERBLOCK_AT].map(|at| start.get(at..at + BLOCK_BYTES));
    let mut found = blocks.into_iter().flatten().filter(|block| block.starts_with(&MAGIC)).peekable();
    found.peek()?;
    let label =
        found.find_map(|block| Superblock::decode(block).ok()).map(|superblock| superblock.label_text());
    Some(match label.filter(|label| !label.is_empty()) {
        Some(label) => format!("{FILESYSTEM} ({label:?})"),
        None => FILESYSTEM.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_of_the_table_is_recognized_by_its_own_magic() {
        for Known(name, offset, magic) in TABLE {
            let mut start = vec![0; LOOK_AT_BYTES];
            start[*offset..*offset + magic.len()].copy_from_slice(magic);
            assert_eq!(recognize(&start).as_deref(), Some(*name));
        }
    }

    #[test]
    fn zfs_is_found_anywhere_in_its_ring() {
        let mut start = vec![0; LOOK_AT_BYTES];
        start[(128 << 10) + 7 * 1024..][..8].copy_from_slice(&0x00ba_b10c_u64.to_be_bytes());
        assert_eq!(recognize(&start).as_deref(), Some("a ZFS pool member"));
    }

    #[test]
    fn our_own_is_recognized_even_when_damaged() {
        let mut start = vec![0; LOOK_AT_BYTES];
        start[2 * SUPERBLOCK_AT..][..8].copy_from_slice(&MAGIC);
        assert_eq!(recognize(&start).as_deref(), Some("a Syncline filesystem"));
    }

    #[test]
    fn zeros_and_short_files_are_nothing() {
        assert_eq!(recognize(&vec![0; LOOK_AT_BYTES]), None);
        assert_eq!(recognize(b""), None);
        assert_eq!(recognize(&[7; 100]), None);
    }
}
