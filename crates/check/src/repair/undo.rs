//! Undo files: the blocks that a repair replaced, so that they can be put back.
//!
//! 1. One block: magic, checksum, version, UUID of the image, its size in blocks, the slot that
//!    counted, number of blocks, checksum of the list.
//! 2. The list, padded to whole blocks. 16 bytes for each block: address, checksum of its contents
//!    before the repair, checksum of the contents that the repair wrote.
//! 3. The contents of each block before the repair.
//!
//! All numbers are little-endian. The file is complete and durable before the image is touched.

use crate::error::CheckError;
use crate::repair::overlay::Overlay;
use crate::repair::switch::superblock_blocks;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockAddr, Crc, Geometry, crc};
use syncline_store::read_superblocks;

const MAGIC: [u8; 8] = *b"SLUNDO\0\0";
const VERSION: u32 = 1;
const BLOCK: u64 = BLOCK_BYTES as u64;
const ENTRY_BYTES: usize = 16;
/// Flag in an address: the block could not be read before the repair. It is not put back, unless
/// the repair's superblock would count otherwise.
const UNREADABLE: u64 = 1 << 63;

/// A block in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    addr: BlockAddr,
    readable: bool,
    before: Crc,
    after: Crc,
}

impl Entry {
    fn encode(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let addr = self.addr | if self.readable { 0 } else { UNREADABLE };
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.before.to_le_bytes());
        bytes[12..].copy_from_slice(&self.after.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let addr = number(bytes, 0);
        let half = |at: usize| number(&[&bytes[at..at + 4], &[0; 4]].concat(), 0) as u32;
        Self { addr: addr & !UNREADABLE, readable: addr & UNREADABLE == 0, before: half(8), after: half(12) }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// The contents of the first block.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Header {
    uuid: [u8; 16],
    total_blocks: u64,
    node_bytes: u64,
    slot: u64,
    count: u64,
    list_checksum: u64,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[12..16].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        let numbers = [self.total_blocks, self.node_bytes, self.slot, self.count, self.list_checksum];
        for (index, number) in numbers.into_iter().enumerate() {
            bytes[32 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let whole = bytes[..8] == MAGIC
            && bytes[8..12] == crc(&bytes[12..]).to_le_bytes()
            && bytes[12..16] == VERSION.to_le_bytes();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let at = |index: usize| number(bytes, 32 + 8 * index);
        whole.then(|| Self {
            uuid,
            total_blocks: at(0),
            node_bytes: at(1),
            slot: at(2),
            count: at(3),
            list_checksum: at(4),
        })
    }

    /// True if the undo file belongs to this image.
    fn is_of(&self, uuid: [u8; 16], geometry: Geometry) -> bool {
        let sizes = (geometry.total_blocks, u64::from(geometry.node_bytes));
        self.uuid == uuid && sizes == (self.total_blocks, self.node_bytes)
    }

    /// Offset of the first block's contents.
    fn contents_at(&self) -> u64 {
        BLOCK + (self.count * ENTRY_BYTES as u64).next_multiple_of(BLOCK)
    }
}

fn failed(path: &Path, error: impl Into<io::Error>) -> CheckError {
    CheckError::Undo { path: path.to_owned(), error: Arc::new(error.into()) }
}

fn refused(path: &Path, why: &'static str) -> CheckError {
    failed(path, io::Error::other(why))
}

/// Saves the blocks that the repair will overwrite. The file must not exist; if it can't be written
/// completely, it is removed.
pub(crate) async fn save(
    path: &Path,
    overlay: &Overlay,
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    slot: usize,
) -> Result<(), CheckError> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = created.map_err(|error| failed(path, error))?;
    let saved = fill(path, &file, overlay, device, superblock, slot).await;
    if saved.is_err() {
        // An incomplete file can't undo anything and would block the next attempt. The first error
        // is the one to report.
        let _ = fs::remove_file(path);
    }
    saved
}

async fn fill(
    path: &Path,
    file: &File,
    overlay: &Overlay,
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    slot: usize,
) -> Result<(), CheckError> {
    // Superblocks are always saved: `take_back` uses them to see whether the image was changed
    // since.
    let mut blocks = overlay.blocks();
    blocks.extend(superblock_blocks(superblock.geometry));
    blocks.sort_unstable();
    blocks.dedup();
    let mut header = Header {
        uuid: superblock.uuid,
        total_blocks: superblock.geometry.total_blocks,
        node_bytes: superblock.geometry.node_bytes.into(),
        slot: slot as u64,
        count: blocks.len() as u64,
        list_checksum: 0,
    };
    let mut list = Vec::with_capacity(blocks.len() * ENTRY_BYTES);
    for (index, &addr) in (0..).zip(&blocks) {
        let written = overlay.written(addr)?;
        let (bytes, readable) = match device.read_at(addr * BLOCK, BLOCK_BYTES).await {
            Ok(bytes) => (bytes, true),
            Err(_) => (AlignedBuf::zeroed(BLOCK_BYTES), false),
        };
        let before = crc(&bytes);
        let after = written.map_or(before, |bytes| crc(&bytes));
        list.extend(Entry { addr, readable, before, after }.encode());
        let written = file.write_all_at(&bytes, header.contents_at() + index * BLOCK);
        written.map_err(|error| failed(path, error))?;
    }
    header.list_checksum = crc(&list).into();
    let written = file
        .write_all_at(&list, BLOCK)
        .and_then(|()| file.write_all_at(&header.encode(), 0))
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_directory(path));
    written.map_err(|error| failed(path, error))
}

/// Makes the name of a new file durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// A complete undo file.
struct Undo<'a> {
    path: &'a Path,
    file: File,
    header: Header,
    entries: Vec<Entry>,
}

impl<'a> Undo<'a> {
    /// Opens an undo file and rejects everything that this image can't have: the file may come from
    /// anywhere.
    fn open(path: &'a Path, uuid: [u8; 16], geometry: Geometry) -> Result<Self, CheckError> {
        let wrong = || refused(path, "this is no undo file of a repair, or not a whole one");
        let file = File::open(path).map_err(|error| failed(path, error))?;
        let len = file.metadata().map_err(|error| failed(path, error))?.len();
        let mut block = vec![0; BLOCK_BYTES];
        file.read_exact_at(&mut block, 0).map_err(|_| wrong())?;
        let header = Header::decode(&block).ok_or_else(wrong)?;
        if !header.is_of(uuid, geometry) {
            return Err(refused(path, "it belongs to another image"));
        }
        let total = geometry.total_blocks;
        if header.count > total || header.contents_at() + header.count * BLOCK != len {
            return Err(wrong());
        }
        let mut list = vec![0; header.count as usize * ENTRY_BYTES];
        file.read_exact_at(&mut list, BLOCK).map_err(|_| wrong())?;
        if u64::from(crc(&list)) != header.list_checksum {
            return Err(wrong());
        }
        let entries: Vec<Entry> = list.chunks_exact(ENTRY_BYTES).map(Entry::decode).collect();
        if entries.iter().any(|entry| entry.addr >= total) {
            return Err(wrong());
        }
        Ok(Self { path, file, header, entries })
    }

    /// The block's contents before the repair.
    fn contents(&self, index: usize) -> Result<AlignedBuf, CheckError> {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        let at = self.header.contents_at() + index as u64 * BLOCK;
        self.file.read_exact_at(&mut block, at).map_err(|error| failed(self.path, error))?;
        if crc(&block) != self.entries[index].before {
            return Err(refused(self.path, "it is damaged"));
        }
        Ok(block)
    }

    /// The entry whose contents go to the place of this one. A superblock copy that could not be
    /// read gets the contents of the other copy of its slot, or else of the superblock that
    /// counted, since the repair's superblock would otherwise still count. Zeros would be taken for
    /// a loss.
    fn source(&self, index: usize, geometry: Geometry) -> usize {
        let entry = self.entries[index];
        let slots = [0, 1].map(|slot| geometry.superblock_copies(slot));
        let Some(copies) = slots.iter().find(|copies| !entry.readable && copies.contains(&entry.addr)) else {
            return index;
        };
        let zeros = crc(&[0; BLOCK_BYTES]);
        let whole = |copies: &[BlockAddr; 2]| {
            let is_one = |it: &Entry| it.readable && it.before != zeros && copies.contains(&it.addr);
            self.entries.iter().position(is_one)
        };
        let counted = &slots[self.header.slot as usize & 1];
        whole(copies).or_else(|| whole(counted)).unwrap_or(index)
    }

    /// Refuses an image that was changed since the repair, as the superblocks tell. If all
    /// superblocks are as they were before the repair, only the repair, or an interrupted
    /// `take_back`, can have written elsewhere.
    async fn require_unchanged(
        &self,
        device: &Arc<dyn Device>,
        geometry: Geometry,
    ) -> Result<(), CheckError> {
        let superblocks = superblock_blocks(geometry);
        let (mut foreign, mut all_old) = (false, true);
        for (index, entry) in self.entries.iter().enumerate() {
            self.contents(index)?;
            let is_superblock = superblocks.contains(&entry.addr);
            let found = device.read_at(entry.addr * BLOCK, BLOCK_BYTES).await.map(|bytes| crc(&bytes));
            let old = self.entries[self.source(index, geometry)].before;
            all_old &= !is_superblock || found.as_ref().is_ok_and(|found| *found == old);
            foreign |= found.is_ok_and(|found| ![entry.before, entry.after, old].contains(&found));
        }
        match foreign && !all_old {
            true => Err(refused(self.path, "the image was changed after the repair that made it")),
            false => Ok(()),
        }
    }

    /// Puts back the blocks that `which` selects and makes them durable.
    async fn put_back(
        &self,
        device: &Arc<dyn Device>,
        geometry: Geometry,
        which: impl Fn(BlockAddr) -> bool,
    ) -> Result<u64, CheckError> {
        let superblocks = superblock_blocks(geometry);
        let mut count = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            if which(entry.addr) && (entry.readable || superblocks.contains(&entry.addr)) {
                let contents = self.contents(self.source(index, geometry))?;
                device.write_at(entry.addr * BLOCK, vec![contents.into_bytes()]).await?;
                count += 1;
            }
        }
        device.flush_all().await?;
        Ok(count)
    }
}

/// Puts back what a repair replaced, from its undo file: the image is then what it was, byte for
/// byte, except for blocks that could not be read. Returns the number of blocks put back.
///
/// An image that was changed since the repair is refused, and nothing is written. Order: first the
/// superblock that counted before the repair, then that of the other slot, so that the image is
/// either the repaired one or the old one; last the blocks that only the repaired image uses.
pub async fn take_back(device: Arc<dyn Device>, path: &Path) -> Result<u64, CheckError> {
    let superblock = read_superblocks(&device).await?.superblock;
    let undo = Undo::open(path, superblock.uuid, superblock.geometry)?;
    let header = &undo.header;
    let geometry: Geometry = superblock.geometry;
    undo.require_unchanged(&device, geometry).await?;
    let mut count = 0;
    for slot in [header.slot, 1 - (header.slot & 1)] {
        let [first, second] = geometry.superblock_copies(slot as usize & 1);
        for copy in [second, first] {
            count += undo.put_back(&device, geometry, |addr| addr == copy).await?;
        }
    }
    let superblocks = superblock_blocks(geometry);
    count += undo.put_back(&device, geometry, |addr| !superblocks.contains(&addr)).await?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        let entry = Entry { addr: 77, readable: false, before: 5, after: 6 };
        assert_eq!(Entry::decode(&entry.encode()), entry);
        let header = Header {
            uuid: [3; 16],
            total_blocks: 9,
            node_bytes: 4096,
            slot: 1,
            count: 300,
            list_checksum: 8,
        };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header.clone()));
        assert_eq!(header.contents_at(), 3 * BLOCK);
        bytes[50] ^= 1;
        assert_eq!(Header::decode(&bytes), None);
    }

    /// Rejects a file with correct checksums, which anybody can make.
    #[test]
    fn what_the_image_can_not_have_is_refused() {
        let (uuid, geometry) = ([3; 16], Geometry { total_blocks: 4096, node_bytes: 16384 });
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("undo");
        let open = |addr: u64, count: u64| {
            let list = Entry { addr, readable: true, before: crc(&[0; BLOCK_BYTES]), after: 0 }.encode();
            let header = Header {
                uuid,
                total_blocks: geometry.total_blocks,
                node_bytes: geometry.node_bytes.into(),
                slot: 0,
                count,
                list_checksum: crc(&list).into(),
            };
            let file = File::create(&path).unwrap();
            file.set_len(header.contents_at() + count * BLOCK).unwrap();
            file.write_all_at(&header.encode(), 0).unwrap();
            file.write_all_at(&list, BLOCK).unwrap();
            Undo::open(&path, uuid, geometry)
                .map(|undo| undo.entries.len())
                .map_err(|error| error.to_string())
        };
        assert_eq!(open(4095, 1), Ok(1));
        for (addr, count) in [(4096, 1), (1 << 52, 1), (0, 1 << 28)] {
            let told = open(addr, count).unwrap_err();
            assert!(told.contains("no undo file"), "{addr}, {count}: {told}");
        }
    }
}
