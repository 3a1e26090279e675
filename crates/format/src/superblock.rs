//! The superblock: the starting point of everything. There are two slots, written in turn, each
//! with two copies far apart.

use crate::batch::first_batch_addr;
use crate::{
    BLOCK_BYTES, BlockAddr, BlockRun, Crc, Epoch, FORMAT_VERSION, FormatError, Geometry, Metadata,
    OBJECTS_END, ObjectId, crc,
};

/// Feature flag: every inode knows its names (parent pointers).
pub const FEATURE_PARENT_POINTERS: u32 = 1;
/// Feature flag: there may be preallocated blocks. Set when the first are made.
pub const FEATURE_PREALLOCATION: u32 = 2;
/// Feature flag: there are snapshots. Set exactly when the superblock points to a table of them.
pub const FEATURE_SNAPSHOTS: u32 = 4;
/// Feature flag: there may be compressed extents, and inodes that ask for compression. Set before
/// the first does.
pub const FEATURE_COMPRESSION: u32 = 8;
/// Feature flag: there may be quotas of directory trees. Set when the first is made.
pub const FEATURE_QUOTAS: u32 = 16;
/// Feature flag: there may be contents of file blocks that are logged but not placed yet.
pub const FEATURE_UNPLACED: u32 = 32;
/// Feature flag: extended attributes with items of their own count in the units of their inodes.
pub const FEATURE_COUNTED_XATTRS: u32 = 64;
/// Feature flag: a writer of the image must hold the device lease (`lease.rs`), by whichever way it
/// reaches the image.
pub const FEATURE_LEASE: u32 = 128;
/// Feature flag: inodes may have a durability class (`items/durability.rs`). Set before the first
/// has one.
pub const FEATURE_DURABILITY: u32 = 256;
/// Feature flag: the image is a fork (`fork.rs`). Set exactly when the superblock names the snapshot
/// that is its base.
pub const FEATURE_FORK: u32 = 512;
/// Feature flag: the table of snapshots may have holds of forks. Set with the first.
pub const FEATURE_HOLDS: u32 = 1024;
/// Feature flag: the image holds its metadata twice (`Metadata::Dup`). Chosen at mkfs.
pub const FEATURE_DUP: u32 = 2048;
/// The feature flags that this program knows. An image with any other is refused.
pub const FEATURES_KNOWN: u32 = FEATURE_PARENT_POINTERS
    | FEATURE_PREALLOCATION
    | FEATURE_SNAPSHOTS
    | FEATURE_COMPRESSION
    | FEATURE_QUOTAS
    | FEATURE_UNPLACED
    | FEATURE_COUNTED_XATTRS
    | FEATURE_LEASE
    | FEATURE_DURABILITY
    | FEATURE_FORK
    | FEATURE_HOLDS
    | FEATURE_DUP;

/// Generations, numbers of batches and of transactions stay below this: a billion of them a second, for
/// thirty years. Greater ones are damage. (Decoders accept them up to 2^63, where a writer could not count on.)
pub const COUNTER_MAX: u64 = 1_000_000_000_000_000_000;

/// Magic number at the start of a superblock.
pub const MAGIC: [u8; 8] = *b"SYNCLINE";

/// Pointer to a tree node, a page of the space map or a block of the table of snapshots: its addresses, and the
/// checksum that its bytes must have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pointer {
    /// Address of the first block. The structure itself has this address in it.
    pub addr: BlockAddr,
    /// Address of the second copy, which has the same bytes; 0 if there is none.
    pub copy: BlockAddr,
    /// CRC32C of the whole structure.
    pub checksum: Crc,
}

impl Pointer {
    /// A pointer to a structure without a second copy.
    pub fn single(addr: BlockAddr, checksum: Crc) -> Self {
        Self { addr, copy: 0, checksum }
    }

    /// The addresses of the copies.
    pub fn places(self) -> impl Iterator<Item = BlockAddr> {
        [self.addr, self.copy].into_iter().take(if self.copy == 0 { 1 } else { 2 })
    }
}

/// Root of the item tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeRoot {
    /// The root node.
    pub node: Pointer,
    /// Height: 0 when the root is a leaf.
    pub level: u8,
}

/// Length of the label field.
pub const LABEL_BYTES: usize = 64;

/// A label as stored in the superblock; `None` if it is too long or contains a NUL.
pub fn encode_label(text: &str) -> Option<[u8; LABEL_BYTES]> {
    let mut label = [0; LABEL_BYTES];
    label.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    (!text.contains('\0')).then_some(label)
}

/// Root of the radix tree of space map pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceRoot {
    /// The root page.
    pub page: Pointer,
    /// Height: 0 when the root is a bitmap page.
    pub level: u8,
}

/// Where the log continues after this superblock's checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogStart {
    /// Address of the next batch.
    pub addr: BlockAddr,
    /// Sequence number of the next batch.
    pub seq: u64,
    /// Header checksum of the batch before it, which the next batch must refer to.
    pub prev: Crc,
    /// The segment that holds `addr`.
    pub segment: BlockRun,
}

impl LogStart {
    /// The start of a log in a segment of its own, behind the block that is kept for the copy of
    /// the segment's lead.
    pub fn first_in(segment: BlockRun, seq: u64, prev: Crc) -> Self {
        Self { addr: first_batch_addr(segment), seq, prev, segment }
    }
}

/// A decoded superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// UUID of the filesystem.
    pub uuid: [u8; 16],
    /// Human-readable name, UTF-8, zero-padded.
    pub label: [u8; LABEL_BYTES],
    /// Sizes of the filesystem.
    pub geometry: Geometry,
    /// Number of the checkpoint this superblock ends; grows by one each time and jumps at recovery.
    pub generation: u64,
    /// Log epoch that batches after this superblock carry (rule R3).
    pub epoch: Epoch,
    /// The item tree.
    pub tree: TreeRoot,
    /// The space map.
    pub space: SpaceRoot,
    /// The position where replay starts.
    pub log: LogStart,
    /// `FEATURE_*`: optional features that the image uses.
    pub features: u32,
    /// The smallest object id that was never handed out.
    pub next_object: ObjectId,
    /// Sequence number of the newest transaction included.
    pub op_seq: u64,
    /// Number of nodes of the item tree.
    pub tree_nodes: u64,
    /// Number of blocks in use according to the space map.
    pub used_blocks: u64,
    /// Number of objects that exist.
    pub objects: u64,
    /// Seed of the directory name hash.
    pub hash_seed: [u8; 16],
    /// Creation time, nanoseconds since 1970.
    pub created_ns: u64,
    /// The first block of the table of snapshots; all zero when there are none.
    pub snapshots: Pointer,
    /// Of a fork, the id of the snapshot that is its base; otherwise 0.
    pub base: u64,
    /// True if this was written by an unmount, when the log was empty and no orphan existed.
    pub clean: bool,
}

// Field offsets; the header checksum covers everything after itself to the end of the block.
const CHECKSUM: usize = 8;
const VERSION: usize = 12;
const FIXED_END: usize = 320;
const _: () =
    assert!(FIXED_END <= 512, "a superblock's meaning lies within one 512-byte sector, so it is never torn");

impl Superblock {
    /// The bytes of the superblock's block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..8].copy_from_slice(&MAGIC);
        let mut out = Writer { block: &mut block, at: VERSION };
        out.u32(FORMAT_VERSION);
        out.bytes(&self.uuid);
        out.bytes(&self.label);
        out.u64(self.geometry.total_blocks);
        out.u32(self.geometry.node_bytes);
        out.u32(u32::from(self.clean));
        out.u64(self.generation);
        out.bytes(&self.epoch);
        out.pointer(self.tree.node, self.tree.level);
        out.pointer(self.space.page, self.space.level);
        out.u64(self.log.addr);
        out.u64(self.log.seq);
        out.u64(self.log.segment.start);
        out.u64(self.log.segment.blocks);
        out.u32(self.log.prev);
        out.u32(self.features);
        out.u64(self.next_object);
        out.u64(self.op_seq);
        out.u64(self.tree_nodes);
        out.u64(self.used_blocks);
        out.u64(self.objects);
        out.bytes(&self.hash_seed);
        out.u64(self.created_ns);
        out.u64(self.snapshots.addr);
        out.u32(self.snapshots.checksum);
        out.u64(self.base);
        out.u32(0);
        for pointer in [self.tree.node, self.space.page, self.snapshots] {
            out.u64(pointer.copy);
        }
        debug_assert!(out.at <= FIXED_END);
        let checksum = crc(&block[VERSION..]);
        block[CHECKSUM..VERSION].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Reads a superblock from untrusted bytes.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        let structure = "superblock";
        let block: &[u8; BLOCK_BYTES] = block.try_into().map_err(|_| FormatError::Truncated { structure })?;
        if block[..8] != MAGIC {
            return Err(FormatError::Magic { structure });
        }
        let mut input = Reader { block, at: CHECKSUM };
        let checksum = input.u32();
        if crc(&block[VERSION..]) != checksum {
            return Err(FormatError::Checksum { structure });
        }
        let version = input.u32();
        if version != FORMAT_VERSION {
            return Err(FormatError::Version { found: version, supported: FORMAT_VERSION });
        }
        let uuid = input.bytes();
        let label = input.bytes();
        let (total_blocks, node_bytes) = (input.u64(), input.u32());
        let clean = input.u32() == 1;
        let generation = input.u64();
        let epoch = input.bytes();
        let (node, level) = input.pointer();
        let tree = TreeRoot { node, level };
        let (page, level) = input.pointer();
        let space = SpaceRoot { page, level };
        let (addr, seq) = (input.u64(), input.u64());
        let segment = BlockRun::new(input.u64(), input.u64());
        let log = LogStart { addr, seq, segment, prev: input.u32() };
        let features = input.u32();
        if features & !FEATURES_KNOWN != 0 {
            return Err(FormatError::Features { unknown: features & !FEATURES_KNOWN });
        }
        let metadata = if features & FEATURE_DUP != 0 { Metadata::Dup } else { Metadata::Single };
        let geometry = Geometry { total_blocks, node_bytes, metadata }.check()?;
        let mut superblock = Self {
            uuid,
            label,
            geometry,
            generation,
            epoch,
            tree,
            space,
            log,
            features,
            next_object: input.u64(),
            op_seq: input.u64(),
            tree_nodes: input.u64(),
            used_blocks: input.u64(),
            objects: input.u64(),
            hash_seed: input.bytes(),
            created_ns: input.u64(),
            snapshots: Pointer::single(input.u64(), input.u32()),
            base: input.u64(),
            clean,
        };
        let zero = input.u32();
        for pointer in [&mut superblock.tree.node, &mut superblock.space.page, &mut superblock.snapshots] {
            pointer.copy = input.u64();
        }
        if zero != 0 {
            return Err(FormatError::Field { structure, field: "zeros" });
        }
        superblock.check()
    }

    /// The label without its padding. It comes from the image, so invalid UTF-8 is replaced.
    pub fn label_text(&self) -> String {
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES);
        String::from_utf8_lossy(&self.label[..end]).into_owned()
    }

    /// True when every inode knows its names.
    pub fn has_parent_pointers(&self) -> bool {
        self.features & FEATURE_PARENT_POINTERS != 0
    }

    /// True when a snapshot of another image holds a part of the blocks.
    pub fn is_fork(&self) -> bool {
        self.features & FEATURE_FORK != 0
    }

    /// This superblock without snapshots. A fork always has one.
    pub fn without_snapshots(self) -> Self {
        let features = self.features & !(FEATURE_SNAPSHOTS | FEATURE_FORK);
        Self { snapshots: Pointer::default(), base: 0, features, ..self }
    }

    /// Refuses values that a valid superblock can't have even if its checksum is right.
    fn check(self) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: "superblock", field };
        let geometry = self.geometry;
        if self.tree.level > 16 || !geometry.has(self.tree.node, geometry.node_blocks()) {
            return Err(field("tree root"));
        }
        if self.space.level > 4 || !geometry.has(self.space.page, 1) {
            return Err(field("space root"));
        }
        let segment = self.log.segment;
        if !geometry.contains(segment) || self.log.addr < segment.start || self.log.addr >= segment.end() {
            return Err(field("log start"));
        }
        if self.generation > u64::MAX / 2 || self.log.seq > u64::MAX / 2 || self.op_seq > u64::MAX / 2 {
            return Err(field("generation"));
        }
        let has_table = self.snapshots != Pointer::default();
        if has_table != (self.features & FEATURE_SNAPSHOTS != 0)
            || has_table && !geometry.has(self.snapshots, 1)
        {
            return Err(field("table of snapshots"));
        }
        if (self.base != 0) != self.is_fork() || self.base != 0 && !has_table {
            return Err(field("base of a fork"));
        }
        // Batches are numbered from 1, since the batch before the next one has a number too.
        if self.log.seq == 0 {
            return Err(field("log sequence"));
        }
        if self.next_object > OBJECTS_END || self.used_blocks.max(self.tree_nodes) > geometry.total_blocks {
            return Err(field("counter"));
        }
        Ok(self)
    }
}

struct Writer<'a> {
    block: &'a mut [u8; BLOCK_BYTES],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
    fn pointer(&mut self, pointer: Pointer, level: u8) {
        self.u64(pointer.addr);
        self.u32(pointer.checksum);
        self.u32(u32::from(level));
    }
}

struct Reader<'a> {
    block: &'a [u8; BLOCK_BYTES],
    at: usize,
}

impl Reader<'_> {
    /// The next `N` bytes; every call's position is a constant below the block size.
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.block[self.at..self.at + N]);
        self.at += N;
        bytes
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
    fn pointer(&mut self) -> (Pointer, u8) {
        let pointer = Pointer::single(self.u64(), self.u32());
        (pointer, self.u32().min(255) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> Superblock {
        Superblock {
            uuid: [7; 16],
            label: [0; 64],
            geometry: Geometry { total_blocks: 4096, node_bytes: 16384, metadata: Metadata::Dup },
            generation: 3,
            epoch: [9; 16],
            tree: TreeRoot { node: Pointer { addr: 100, copy: 3000, checksum: 5 }, level: 1 },
            space: SpaceRoot { page: Pointer { addr: 90, copy: 3090, checksum: 6 }, level: 0 },
            log: LogStart { addr: 205, seq: 12, prev: 77, segment: BlockRun::new(200, 64) },
            features: FEATURE_PARENT_POINTERS | FEATURE_DUP,
            next_object: 1000,
            op_seq: 55,
            tree_nodes: 2,
            used_blocks: 20,
            objects: 3,
            hash_seed: [1; 16],
            created_ns: 1,
            snapshots: Pointer::default(),
            base: 0,
            clean: true,
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        let superblock = sample();
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn labels_fit_or_are_refused() {
        let longest = "x".repeat(LABEL_BYTES);
        for text in ["", "a label", "\u{fc}ber", &longest] {
            let superblock = Superblock { label: encode_label(text).unwrap(), ..sample() };
            assert_eq!(superblock.label_text(), text);
        }
        assert_eq!(encode_label(&(longest + "x")), None);
        assert_eq!(encode_label("a\0b"), None);
        assert_eq!(
            Superblock { label: [0xff; LABEL_BYTES], ..sample() }.label_text().chars().next(),
            Some('\u{fffd}')
        );
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let block = sample().encode();
        for bit in (0..FIXED_END * 8).step_by(7) {
            let mut bad = block;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut block = sample().encode();
        block[VERSION] = 9;
        let checksum = crc(&block[VERSION..]);
        block[CHECKSUM..VERSION].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Superblock::decode(&block), Err(FormatError::Version { found: 9, supported: 1 }));
    }

    #[test]
    fn the_table_of_snapshots_and_its_flag_go_together() {
        let table = Pointer { addr: 300, copy: 3300, checksum: 8 };
        let features = FEATURE_SNAPSHOTS | FEATURE_DUP;
        let both = Superblock { snapshots: table, features, ..sample() };
        assert_eq!(Superblock::decode(&both.encode()), Ok(both));
        let outside = Pointer { addr: 4095, ..table };
        for wrong in [
            Superblock { snapshots: table, ..sample() },
            Superblock { features, ..sample() },
            Superblock { snapshots: outside, features, ..sample() },
            Superblock { snapshots: Pointer { copy: 0, ..table }, features, ..sample() },
        ] {
            assert!(Superblock::decode(&wrong.encode()).is_err());
        }
    }

    #[test]
    fn roots_have_a_second_copy_exactly_if_the_flag_says_so() {
        let single = |superblock: &mut Superblock| {
            superblock.features = FEATURE_PARENT_POINTERS;
            superblock.geometry.metadata = Metadata::Single;
            (superblock.tree.node.copy, superblock.space.page.copy) = (0, 0);
        };
        let refused = |change: &dyn Fn(&mut Superblock)| {
            let mut superblock = sample();
            change(&mut superblock);
            Superblock::decode(&superblock.encode()).map(|decoded| assert_eq!(decoded, superblock)).is_err()
        };
        assert!(!refused(&single));
        assert!(refused(&|superblock| {
            single(superblock);
            superblock.tree.node.copy = 3000;
        }));
        assert!(refused(&|superblock| superblock.tree.node.copy = 0));
        assert!(refused(&|superblock| superblock.tree.node.copy = 103));
        assert!(refused(&|superblock| superblock.space.page.copy = 90));
        assert!(refused(&|superblock| superblock.space.page.copy = 4095));
    }

    #[test]
    fn unknown_features_are_named() {
        let superblock = Superblock { features: FEATURES_KNOWN | 0x8000_0000, ..sample() };
        let refused = Superblock::decode(&superblock.encode());
        assert_eq!(refused, Err(FormatError::Features { unknown: 0x8000_0000 }));
    }

    #[test]
    fn impossible_values_are_refused_even_with_a_right_checksum() {
        let mut superblock = sample();
        superblock.log.addr = 10_000_000;
        assert!(matches!(Superblock::decode(&superblock.encode()), Err(FormatError::Field { .. })));
        let mut superblock = sample();
        superblock.log.seq = 0;
        assert!(matches!(Superblock::decode(&superblock.encode()), Err(FormatError::Field { .. })));
        let mut superblock = sample();
        superblock.tree.node.addr = 4090;
        assert!(matches!(Superblock::decode(&superblock.encode()), Err(FormatError::Field { .. })));
    }
}
