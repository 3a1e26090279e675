//! The record of a fork: which image holds the blocks that the fork has not written itself.
//!
//! A fork has the tree and the space map of a snapshot of another image, its base, and that snapshot
//! in its own table. The blocks that the snapshot's space map names lie in the base, all others in the
//! fork. The record has two copies, written one after the other, so that a crash leaves the old or the new one,
//! and a block that rots leaves the other copy.

use crate::superblock::{Pointer, SpaceRoot, TreeRoot};
use crate::{BLOCK_BYTES, BlockAddr, FormatError, crc};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Blocks of the record's copies.
pub const RECORD_AT: [BlockAddr; 2] = [49, 50];
/// Magic number at the start of a record.
pub const MAGIC: [u8; 8] = *b"SYNCFORK";
/// The longest path of a base.
pub const PATH_BYTES_MAX: usize = BLOCK_BYTES - PATH;

const CHECKSUM: usize = 8;
const PATH_LENGTH: usize = 12;
const SEQUENCE: usize = 16;
const FORK_ID: usize = 24;
const HOLD: usize = 40;
const TREE: usize = 48;
const SPACE: usize = 64;
/// The addresses of the second copies of both roots; 0 if there are none.
const COPIES: usize = 80;
const PATH: usize = 96;

const STRUCTURE: &str = "record of a fork";

/// Where the base of a fork is, and how it is recognized.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForkRecord {
    /// Counts the writes; the copy with the greater number counts.
    pub sequence: u64,
    /// The random number that the fork shares with the hold in the base's table of snapshots; 0 for a
    /// temporary fork, which has no hold.
    pub fork_id: u128,
    /// Id of the hold in that table; of a temporary fork, of the snapshot.
    pub hold: u64,
    /// Tree of the snapshot.
    pub tree: TreeRoot,
    /// Space map of the snapshot.
    pub space: SpaceRoot,
    /// Path or location of the base.
    pub base: PathBuf,
}

impl ForkRecord {
    /// The bytes of the record's block; `None` if the path is too long.
    pub fn encode(&self) -> Option<[u8; BLOCK_BYTES]> {
        let path = self.base.as_os_str().as_bytes();
        let mut block = [0; BLOCK_BYTES];
        block[..CHECKSUM].copy_from_slice(&MAGIC);
        block[PATH_LENGTH..SEQUENCE].copy_from_slice(&(path.len() as u32).to_le_bytes());
        block[SEQUENCE..FORK_ID].copy_from_slice(&self.sequence.to_le_bytes());
        block[FORK_ID..HOLD].copy_from_slice(&self.fork_id.to_le_bytes());
        block[HOLD..TREE].copy_from_slice(&self.hold.to_le_bytes());
        put_root(&mut block, TREE, self.tree.node, self.tree.level);
        put_root(&mut block, SPACE, self.space.page, self.space.level);
        block[COPIES..COPIES + 8].copy_from_slice(&self.tree.node.copy.to_le_bytes());
        block[COPIES + 8..PATH].copy_from_slice(&self.space.page.copy.to_le_bytes());
        block.get_mut(PATH..PATH + path.len())?.copy_from_slice(path);
        let checksum = crc(&block[PATH_LENGTH..]);
        block[CHECKSUM..PATH_LENGTH].copy_from_slice(&checksum.to_le_bytes());
        Some(block)
    }

    /// Reads a record from untrusted bytes.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: STRUCTURE, field };
        let block: &[u8; BLOCK_BYTES] =
            block.try_into().map_err(|_| FormatError::Truncated { structure: STRUCTURE })?;
        if block[..CHECKSUM] != MAGIC {
            return Err(FormatError::Magic { structure: STRUCTURE });
        }
        if crc(&block[PATH_LENGTH..]) != u32_at(block, CHECKSUM) {
            return Err(FormatError::Checksum { structure: STRUCTURE });
        }
        let end = PATH.saturating_add(u32_at(block, PATH_LENGTH) as usize);
        let path = block.get(PATH..end).filter(|path| !path.is_empty() && !path.contains(&0));
        let path = path.ok_or(field("path"))?;
        if block[end..].iter().any(|&byte| byte != 0) {
            return Err(field("bytes that must be zero"));
        }
        let (mut node, tree_level) = root_at(block, TREE).ok_or(field("tree root"))?;
        let (mut page, space_level) = root_at(block, SPACE).ok_or(field("space root"))?;
        (node.copy, page.copy) = (u64_at(block, COPIES), u64_at(block, COPIES + 8));
        Ok(Self {
            sequence: u64_at(block, SEQUENCE),
            fork_id: u128::from_le_bytes(block[FORK_ID..HOLD].try_into().expect("sixteen bytes")),
            hold: u64_at(block, HOLD),
            tree: TreeRoot { node, level: tree_level },
            space: SpaceRoot { page, level: space_level },
            base: PathBuf::from(OsStr::from_bytes(path)),
        })
    }

    /// The copy that counts, of the two that were read.
    pub fn newest(copies: [&[u8]; 2]) -> Result<Self, FormatError> {
        let [first, second] = copies.map(Self::decode);
        match (first, second) {
            (Ok(first), Ok(second)) if second.sequence > first.sequence => Ok(second),
            (Ok(first), _) => Ok(first),
            (Err(_), Ok(second)) => Ok(second),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// The block where a record of this sequence number is written.
    pub fn place(&self) -> BlockAddr {
        RECORD_AT[(self.sequence % 2) as usize]
    }
}

fn put_root(block: &mut [u8; BLOCK_BYTES], at: usize, pointer: Pointer, level: u8) {
    block[at..at + 8].copy_from_slice(&pointer.addr.to_le_bytes());
    block[at + 8..at + 12].copy_from_slice(&pointer.checksum.to_le_bytes());
    block[at + 12..at + 16].copy_from_slice(&u32::from(level).to_le_bytes());
}

fn root_at(block: &[u8], at: usize) -> Option<(Pointer, u8)> {
    let level = u8::try_from(u32_at(block, at + 12)).ok()?;
    Some((Pointer::single(u64_at(block, at), u32_at(block, at + 8)), level))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sequence: u64) -> ForkRecord {
        ForkRecord {
            sequence,
            fork_id: 1 << 100,
            hold: 7,
            tree: TreeRoot { node: Pointer { addr: 100, copy: 200, checksum: 5 }, level: 2 },
            space: SpaceRoot { page: Pointer::single(90, 6), level: 1 },
            base: "/images/base.img".into(),
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        let record = sample(1);
        assert_eq!(ForkRecord::decode(&record.encode().unwrap()), Ok(record));
        let longest = ForkRecord { base: "p".repeat(PATH_BYTES_MAX).into(), ..sample(1) };
        assert_eq!(ForkRecord::decode(&longest.encode().unwrap()), Ok(longest));
        let too_long = ForkRecord { base: "p".repeat(PATH_BYTES_MAX + 1).into(), ..sample(1) };
        assert_eq!(too_long.encode(), None);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let mut block = sample(1).encode().unwrap();
        for bit in (0..BLOCK_BYTES * 8).step_by(61) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(ForkRecord::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_newer_copy_counts_and_a_torn_one_does_not() {
        let (old, new) = (sample(2), ForkRecord { base: "/elsewhere".into(), ..sample(3) });
        assert_ne!(old.place(), new.place());
        let (first, second) = (old.encode().unwrap(), new.encode().unwrap());
        assert_eq!(ForkRecord::newest([&first, &second]), Ok(new.clone()));
        let mut torn = second;
        torn[200..].fill(9);
        assert_eq!(ForkRecord::newest([&first, &torn]), Ok(old));
        assert_eq!(ForkRecord::newest([&torn, &second]), Ok(new));
        assert!(ForkRecord::newest([&torn, &torn]).is_err());
    }
}
