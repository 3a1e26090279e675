//! The table of snapshots: a chain of blocks, each with up to twelve entries (eleven in an image with two
//! copies of its metadata).
//!
//! A snapshot records the state that a superblock once gave: the roots of a tree and of its space
//! map. The blocks that this map names are not handed out while the snapshot exists, so both stay
//! readable as they were.

use crate::superblock::{Pointer, SpaceRoot, Superblock, TreeRoot};
use crate::{BLOCK_BYTES, BlockAddr, Crc, FormatError, Geometry, Metadata, crc};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Magic number at the start of every block of the table.
pub const MAGIC: [u8; 8] = *b"SYNCSNAP";
/// The most entries in one block.
pub fn entries_per_block(metadata: Metadata) -> usize {
    (BLOCK_BYTES - ENTRIES) / entry_bytes(metadata)
}
/// Maximum number of snapshots of one image; it limits the work that a hostile table can cause.
pub const SNAPSHOTS_MAX: usize = 1020;
/// Longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// The name under which a receiver keeps the received part of a stream. No other snapshot has it.
pub const RECEIVING: &str = ".syncline-receiving";

/// Begins the name of a hold. No user's snapshot has a slash in its name.
const HOLD: &str = "fork/";

/// A hold: an entry of the table that has the roots of a snapshot, and keeps its blocks for one fork
/// (`fork.rs`). Its name holds the fields below: `fork/ID/FORK/CRC/PATH`, the first three in hexadecimal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Id of the snapshot.
    pub snapshot: u64,
    /// The random number that is in the fork's record too.
    pub fork_id: u128,
    /// CRC32C of the bytes of the fork's path.
    pub path_crc: Crc,
    /// Where the fork is, for people: only the end of a long path, and `?` for control characters.
    pub path: String,
}

impl Hold {
    /// A hold for a fork at this path.
    pub fn new(snapshot: u64, fork_id: u128, path: &Path) -> Self {
        let text = path.to_string_lossy();
        let mut shown: String = text.chars().map(|char| if char.is_control() { '?' } else { char }).collect();
        let path_crc = crc(path.as_os_str().as_bytes());
        let room = NAME_BYTES_MAX - Self { snapshot, fork_id, path_crc, path: String::new() }.name().len();
        if shown.len() > room {
            const CUT: char = '\u{2026}';
            let from = shown.len() - (room - CUT.len_utf8());
            let from = (from..shown.len()).find(|at| shown.is_char_boundary(*at)).unwrap_or(shown.len());
            shown = format!("{CUT}{}", &shown[from..]);
        }
        Self { snapshot, fork_id, path_crc, path: shown }
    }

    /// The name of the entry.
    pub fn name(&self) -> String {
        let Self { snapshot, fork_id, path_crc, path } = self;
        format!("{HOLD}{snapshot:x}/{fork_id:032x}/{path_crc:08x}/{path}")
    }

    /// True if it was made for a fork at this path.
    pub fn is_at(&self, path: &Path) -> bool {
        *self == Self::new(self.snapshot, self.fork_id, path)
    }

    /// Where the fork was made; `None` if the hold has only the end of that path, or replaced some of its characters.
    pub fn place(&self) -> Option<&Path> {
        let path = Path::new(&self.path);
        self.is_at(path).then_some(path)
    }

    /// The hold of this name, if it is one.
    pub fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(HOLD)?.splitn(4, '/');
        let mut number = || parts.next().and_then(|digits| u128::from_str_radix(digits, 16).ok());
        let (snapshot, fork_id, path_crc) = (number()?, number()?, number()?);
        let hold = Self {
            snapshot: snapshot.try_into().ok()?,
            fork_id,
            path_crc: path_crc.try_into().ok()?,
            path: parts.next()?.to_owned(),
        };
        // There is one way to write it.
        let is_shown = !hold.path.chars().any(char::is_control) && name.len() <= NAME_BYTES_MAX;
        (is_shown && hold.name() == name).then_some(hold)
    }
}

// Field offsets of a block, then of an entry.
const ADDRESS: usize = 8;
const COUNT: usize = 16;
const NEXT: usize = 24;
const NEXT_COPY: usize = 40;
const ENTRIES: usize = 64;
const ENTRY_BYTES: usize = 336;
const NAME_LENGTH: usize = 80;
const NAME: usize = 81;

/// Where an entry has the addresses of the second copies of its roots, if there are any.
const COPIES: usize = ENTRY_BYTES;

const _: () = assert!((BLOCK_BYTES - ENTRIES).is_multiple_of(ENTRY_BYTES), "entries fill their block");
const _: () = assert!(NAME + NAME_BYTES_MAX == ENTRY_BYTES, "the longest name fills its entry");

const STRUCTURE: &str = "table of snapshots";

/// The filesystem as it was when a checkpoint ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Generation of that checkpoint: no two snapshots have the same.
    pub id: u64,
    /// When it was taken, nanoseconds since 1970.
    pub created_ns: u64,
    /// Number of blocks that the filesystem had.
    pub total_blocks: u64,
    /// The item tree.
    pub tree: TreeRoot,
    /// The space map: it names the blocks that must stay as they are.
    pub space: SpaceRoot,
    /// Number of nodes of the tree.
    pub tree_nodes: u64,
    /// Number of blocks that the map names.
    pub used_blocks: u64,
    /// Number of objects that existed.
    pub objects: u64,
    /// The name given by the user; no two snapshots have the same.
    pub name: String,
}

impl Snapshot {
    /// True for valid names of snapshots: 1 to 255 bytes of UTF-8 without slashes and control
    /// characters, and neither "." nor "..".
    pub fn is_name(name: &str) -> bool {
        (1..=NAME_BYTES_MAX).contains(&name.len())
            && !name.chars().any(|char| char == '/' || char.is_control())
            && name != "."
            && name != ".."
    }

    /// True for names that a user may give.
    pub fn is_free_name(name: &str) -> bool {
        Self::is_name(name) && name != RECEIVING
    }

    /// True for the received part of a stream, which is no user's snapshot.
    pub fn is_receiving(&self) -> bool {
        self.name == RECEIVING
    }

    /// The hold that this entry is; `None` for a snapshot.
    pub fn hold(&self) -> Option<Hold> {
        Hold::of_name(&self.name)
    }

    /// True for the snapshots that users made, which they see and name.
    pub fn is_visible(&self) -> bool {
        !self.is_receiving() && Self::is_name(&self.name)
    }

    /// Sizes of the filesystem at the time of the snapshot.
    pub fn geometry(&self, now: Geometry) -> Geometry {
        Geometry { total_blocks: self.total_blocks, ..now }
    }

    /// The superblock that makes this the current filesystem: everything that is not part of the
    /// snapshot is as in `now`.
    pub fn superblock(&self, now: &Superblock) -> Superblock {
        Superblock {
            tree: self.tree,
            space: self.space,
            tree_nodes: self.tree_nodes,
            used_blocks: self.used_blocks,
            objects: self.objects,
            ..now.clone()
        }
    }

    /// `out` has the length of an entry of this image.
    fn encode(&self, out: &mut [u8]) {
        let has_copies = out.len() > COPIES;
        let mut put = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, self.id);
        put(8, self.created_ns);
        put(16, self.total_blocks);
        put(24, self.tree.node.addr);
        put(32, u64::from(self.tree.node.checksum) | u64::from(self.tree.level) << 32);
        put(40, self.space.page.addr);
        put(48, u64::from(self.space.page.checksum) | u64::from(self.space.level) << 32);
        put(56, self.tree_nodes);
        put(64, self.used_blocks);
        put(72, self.objects);
        if has_copies {
            put(COPIES, self.tree.node.copy);
            put(COPIES + 8, self.space.page.copy);
        }
        out[NAME_LENGTH] = self.name.len() as u8;
        out[NAME..NAME + self.name.len()].copy_from_slice(self.name.as_bytes());
    }

    fn decode(entry: &[u8], now: Geometry) -> Result<Self, FormatError> {
        let number = |at: usize| u64_at(entry, at);
        let root = |at: usize| {
            let (checksum, level) = (number(at + 8) as u32, number(at + 8) >> 32);
            u8::try_from(level).map(|level| (Pointer::single(number(at), checksum), level))
        };
        let (mut node, tree_level) = root(24).map_err(|_| field("tree root"))?;
        let (mut page, space_level) = root(40).map_err(|_| field("space root"))?;
        if now.metadata == Metadata::Dup {
            (node.copy, page.copy) = (number(COPIES), number(COPIES + 8));
        }
        let name = &entry[NAME..NAME + usize::from(entry[NAME_LENGTH])];
        let is_name = |name: &&str| Self::is_name(name) || Hold::of_name(name).is_some();
        let name = std::str::from_utf8(name).ok().filter(is_name).ok_or(field("name"))?;
        if entry[NAME + name.len()..COPIES].iter().any(|&byte| byte != 0) {
            return Err(field("bytes after a name"));
        }
        let snapshot = Self {
            id: number(0),
            created_ns: number(8),
            total_blocks: number(16),
            tree: TreeRoot { node, level: tree_level },
            space: SpaceRoot { page, level: space_level },
            tree_nodes: number(56),
            used_blocks: number(64),
            objects: number(72),
            name: name.to_owned(),
        };
        snapshot.check(now)
    }

    /// Refuses values that no superblock may have.
    fn check(self, now: Geometry) -> Result<Self, FormatError> {
        // An image that was shrunk has no snapshots of a larger size.
        if self.total_blocks > now.total_blocks {
            return Err(field("size"));
        }
        let then = self.geometry(now).check()?;
        if self.tree.level > 16 || !then.has(self.tree.node, then.node_blocks()) {
            return Err(field("tree root"));
        }
        if self.space.level > 4 || !then.has(self.space.page, 1) {
            return Err(field("space root"));
        }
        if self.id == 0 || self.id > u64::MAX / 2 {
            return Err(field("id"));
        }
        if self.used_blocks.max(self.tree_nodes) > then.total_blocks {
            return Err(field("counter"));
        }
        Ok(self)
    }
}

/// These entries of a table without the holds of snapshots that are there: they have the same state.
pub fn without_held(entries: Vec<Snapshot>) -> Vec<Snapshot> {
    let state = |entry: &Snapshot| (entry.id, entry.tree, entry.space);
    let snapshots: Vec<_> = entries.iter().filter(|entry| entry.hold().is_none()).map(state).collect();
    let is_there =
        |entry: &Snapshot, hold: &Hold| snapshots.contains(&(hold.snapshot, entry.tree, entry.space));
    let stays = |entry: &Snapshot| !entry.hold().is_some_and(|hold| is_there(entry, &hold));
    entries.into_iter().filter(stays).collect()
}

/// Writes a block of the table that will lie at `addr`, and returns the pointer to it, without a second copy.
///
/// # Panics
/// When `block` is not one block long or there are more than [`entries_per_block`] entries.
pub fn encode_block(
    block: &mut [u8],
    addr: BlockAddr,
    next: Pointer,
    entries: &[Snapshot],
    metadata: Metadata,
) -> Pointer {
    assert!(block.len() == BLOCK_BYTES && entries.len() <= entries_per_block(metadata));
    block.fill(0);
    block[..ADDRESS].copy_from_slice(&MAGIC);
    block[ADDRESS..COUNT].copy_from_slice(&addr.to_le_bytes());
    block[COUNT..COUNT + 4].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    block[NEXT..NEXT + 8].copy_from_slice(&next.addr.to_le_bytes());
    block[NEXT + 8..NEXT + 12].copy_from_slice(&next.checksum.to_le_bytes());
    block[NEXT_COPY..NEXT_COPY + 8].copy_from_slice(&next.copy.to_le_bytes());
    for (out, entry) in block[ENTRIES..].chunks_exact_mut(entry_bytes(metadata)).zip(entries) {
        entry.encode(out);
    }
    Pointer::single(addr, crc(block))
}

fn entry_bytes(metadata: Metadata) -> usize {
    match metadata {
        Metadata::Single => ENTRY_BYTES,
        Metadata::Dup => COPIES + 16,
    }
}

/// Reads a block of the table, to which `pointer` led, from untrusted bytes. Returns its entries
/// and the pointer to the next block, all zero in the last block. `geometry` is that of the present
/// filesystem.
pub fn decode_block(
    block: &[u8],
    geometry: Geometry,
    pointer: Pointer,
) -> Result<(Vec<Snapshot>, Pointer), FormatError> {
    if block.len() != BLOCK_BYTES {
        return Err(FormatError::Truncated { structure: STRUCTURE });
    }
    if crc(block) != pointer.checksum {
        return Err(FormatError::Checksum { structure: STRUCTURE });
    }
    if block[..ADDRESS] != MAGIC {
        return Err(FormatError::Magic { structure: STRUCTURE });
    }
    if u64_at(block, ADDRESS) != pointer.addr {
        return Err(field("own address"));
    }
    let count = u64_at(block, COUNT) as usize;
    let metadata = geometry.metadata;
    if !(1..=entries_per_block(metadata)).contains(&count) {
        return Err(field("count"));
    }
    let (copy, checksum) = (u64_at(block, NEXT_COPY), u64_at(block, NEXT + 8) as u32);
    let next = Pointer { addr: u64_at(block, NEXT), copy, checksum };
    if next != Pointer::default() && !geometry.has(next, 1) {
        return Err(field("address of the next block"));
    }
    let entries = block[ENTRIES..].chunks_exact(entry_bytes(metadata)).take(count);
    let entries = entries.map(|entry| Snapshot::decode(entry, geometry)).collect::<Result<Vec<_>, _>>()?;
    Ok((entries, next))
}

/// Refuses a table whose entries contradict each other, or the `generation` of the superblock that leads
/// to it: ids must ascend up to that generation, and names must differ.
pub fn check_table(entries: &[Snapshot], generation: u64) -> Result<(), FormatError> {
    if entries.len() > SNAPSHOTS_MAX {
        return Err(field("number of entries"));
    }
    if !entries.is_sorted_by(|a, b| a.id < b.id) {
        return Err(field("order of ids"));
    }
    if entries.last().is_some_and(|last| last.id > generation) {
        // The next snapshot would come before it.
        return Err(field("id"));
    }
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(field("name that is there twice"));
    }
    Ok(())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn field(field: &'static str) -> FormatError {
    FormatError::Field { structure: STRUCTURE, field }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::path::PathBuf;

    const NOW: Geometry = Geometry { total_blocks: 8192, node_bytes: 16384, metadata: Metadata::Dup };

    fn sample(id: u64, name: &str) -> Snapshot {
        Snapshot {
            id,
            created_ns: 5,
            total_blocks: 4096,
            tree: TreeRoot { node: Pointer { addr: 100, copy: 3000, checksum: 5 }, level: 2 },
            space: SpaceRoot { page: Pointer { addr: 90, copy: 3090, checksum: 6 }, level: 0 },
            tree_nodes: 7,
            used_blocks: 20,
            objects: 3,
            name: name.to_owned(),
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        let longest = "n".repeat(NAME_BYTES_MAX);
        let entries: Vec<_> =
            ["monday", "Fuß", &longest].iter().zip(7..).map(|(name, id)| sample(id, name)).collect();
        let next = Pointer { addr: 300, copy: 400, checksum: 9 };
        let mut block = vec![1; BLOCK_BYTES];
        let pointer = encode_block(&mut block, 200, next, &entries, Metadata::Dup);
        assert_eq!(decode_block(&block, NOW, pointer), Ok((entries, next)));
    }

    #[test]
    fn a_full_block_decodes_to_itself_with_second_copies_and_without() {
        for metadata in [Metadata::Single, Metadata::Dup] {
            let mut entries: Vec<_> = (1..=entries_per_block(metadata) as u64)
                .map(|id| sample(id, &"n".repeat(NAME_BYTES_MAX)))
                .collect();
            if metadata == Metadata::Single {
                entries.iter_mut().for_each(|entry| (entry.tree.node.copy, entry.space.page.copy) = (0, 0));
            }
            let mut block = vec![1; BLOCK_BYTES];
            let pointer = encode_block(&mut block, 200, Pointer::default(), &entries, metadata);
            let decoded = decode_block(&block, Geometry { metadata, ..NOW }, pointer);
            assert_eq!(decoded, Ok((entries, Pointer::default())));
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed_and_other_places_too() {
        let mut block = vec![0; BLOCK_BYTES];
        let pointer = encode_block(&mut block, 200, Pointer::default(), &[sample(1, "a")], Metadata::Dup);
        for bit in (0..BLOCK_BYTES * 8).step_by(61) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_block(&block, NOW, pointer).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(decode_block(&block, NOW, Pointer { addr: 201, ..pointer }).is_err());
    }

    #[test]
    fn values_that_cannot_be_are_refused_though_the_checksum_holds() {
        let refused = |change: &dyn Fn(&mut Snapshot)| {
            let mut entry = sample(1, "a");
            change(&mut entry);
            let mut block = vec![0; BLOCK_BYTES];
            let pointer = encode_block(&mut block, 200, Pointer::default(), &[entry], Metadata::Dup);
            decode_block(&block, NOW, pointer).is_err()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|entry| entry.id = 0));
        assert!(refused(&|entry| entry.total_blocks = 8193));
        assert!(refused(&|entry| entry.total_blocks = 0));
        assert!(refused(&|entry| entry.tree.node.addr = 4090));
        assert!(refused(&|entry| entry.tree.node.copy = 0));
        assert!(refused(&|entry| entry.tree.node.copy = 103));
        assert!(refused(&|entry| entry.space.page.copy = 3));
        assert!(refused(&|entry| entry.tree.level = 17));
        assert!(refused(&|entry| entry.space.page.addr = 3));
        assert!(refused(&|entry| entry.used_blocks = 5000));
        assert!(refused(&|entry| entry.name = "a/b".into()));
        assert!(refused(&|entry| entry.name = "..".into()));
        assert!(refused(&|entry| entry.name = String::new()));
    }

    #[test]
    fn a_hold_is_its_name() {
        let long = |first: &str| format!("/{first}{}\u{fc}/work.img", "d".repeat(300));
        for path in ["/images/work.img", "", "a\nb", &long("")] {
            let hold = Hold::new(0x1f, 77, Path::new(path));
            let name = hold.name();
            assert!(name.len() <= NAME_BYTES_MAX && !Snapshot::is_name(&name), "{name}");
            assert_eq!(Hold::of_name(&name), Some(hold.clone()));
            assert!(hold.is_at(Path::new(path)));
            let mut block = vec![0; BLOCK_BYTES];
            let entries = [sample(1, &name)];
            let pointer = encode_block(&mut block, 200, Pointer::default(), &entries, Metadata::Dup);
            assert_eq!(decode_block(&block, NOW, pointer).unwrap().0, entries);
        }
        // Paths that look the same are different ones.
        let odd = |byte| PathBuf::from(OsStr::from_bytes(&[b'x', byte]));
        assert!(!Hold::new(1, 2, &odd(0xff)).is_at(&odd(0xfe)));
        assert!(!Hold::new(1, 2, Path::new(&long("a"))).is_at(Path::new(&long("b"))));
        for other in ["fork", "fork/", "fork/1f/77/0", "fork/1F/0000000000000000000000000000004d/00000000/x"]
        {
            assert_eq!(Hold::of_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_table_has_ascending_ids_and_different_names() {
        assert!(check_table(&[sample(1, "a"), sample(2, "b")], 2).is_ok());
        assert!(check_table(&[sample(2, "a"), sample(1, "b")], 2).is_err());
        assert!(check_table(&[sample(1, "a"), sample(2, "a")], 2).is_err());
    }

    #[test]
    fn no_snapshot_is_newer_than_the_superblock_that_leads_to_it() {
        let table = [sample(1, "a"), sample(3, "b")];
        assert!(check_table(&table, 3).is_ok());
        assert_eq!(check_table(&table, 2), Err(field("id")));
    }
}
