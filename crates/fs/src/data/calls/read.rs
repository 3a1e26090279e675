//! Reading: memory first, then extents; holes are zeros.

use crate::FsError;
use crate::data::extents::{lookup, units};
use crate::data::memory::{BLOCK, DataState, MemoryBlock, unplaced};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::join::join_all;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::Room;
use syncline_format::items::extent::{Extent, Packed};
use syncline_format::{BlockRun, Crc};

/// Most blocks of one device read.
const READ_BLOCKS_MAX: u64 = 256;
/// Device reads in flight for one request.
const READS_IN_FLIGHT: usize = 16;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The result of a read.
#[derive(Default, Debug)]
pub struct Contents {
    /// The bytes, in pieces.
    pub pieces: Vec<Bytes>,
    /// The holes among them, in order: the file blocks that have no data, wherever their zeros lie
    /// in memory. In bytes of the file; the last one may reach past the end.
    pub holes: Vec<Range<u64>>,
}

/// A part of a request.
enum Segment {
    /// Bytes that are in memory.
    Memory(Bytes),
    /// So many bytes of a block that lies behind the last extent.
    Hole(usize),
    /// Bytes `skip..skip + len` of the blocks `first..end`, on the device or in a hole.
    Disk { first: u64, end: u64, skip: usize, len: usize },
}

/// Reads bytes `offset..offset + len` of a regular file, up to its end. Takes the lease, so that a
/// read never mixes contents from before and after a truncation.
pub(crate) async fn read(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    len: usize,
) -> Result<Vec<Bytes>, FsError> {
    Ok(contents(fs, inode, offset, len, None).await?.pieces)
}

/// Reads as `read` does, into `room` where that is possible, and tells the holes.
pub(crate) async fn contents(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    len: usize,
    room: Option<Room>,
) -> Result<Contents, FsError> {
    let _lease = inode.lease.read().await;
    read_leased(fs, inode, offset, len, room).await
}

/// Reads as `contents` does. The caller holds the lease.
pub(super) async fn read_leased(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    len: usize,
    mut room: Option<Room>,
) -> Result<Contents, FsError> {
    // Pinned before the addresses are looked up, so that none of them is reused before it is read
    // (rule R2).
    let _pin = fs.store.pin();
    let segments = {
        let state = inode.state.lock();
        let end = offset.saturating_add(len as u64).min(state.attr.size);
        if offset >= end {
            return Ok(Contents::default());
        }
        let mut broken = state.data.logged.unplaced().broken(offset / BLOCK..end.div_ceil(BLOCK));
        if broken.any(|block| state.data.block_in_memory(block).is_none()) {
            return Err(unplaced::broken_error(inode.ino));
        }
        segments(&state.data, offset, end)
    };
    fs.store.give_way();
    let mut found = Contents { pieces: Vec::with_capacity(segments.len()), holes: Vec::new() };
    // Only if everything comes from the device: bytes from memory would have to be copied into the
    // room.
    if !matches!(segments[..], [Segment::Disk { skip: 0, .. }]) {
        room = None;
    }
    let mut at = offset;
    for segment in segments {
        at += match segment {
            Segment::Memory(bytes) => {
                let len = bytes.len();
                found.pieces.push(bytes);
                len
            }
            Segment::Hole(len) => {
                add_hole(&mut found.holes, at / BLOCK..at / BLOCK + 1);
                found.pieces.push(Bytes::from_static(&ZEROS[..len]));
                len
            }
            Segment::Disk { first, end, skip, len } => {
                let blocks = read_blocks(fs, inode, first..end, room.take(), &mut found.holes).await?;
                cut(blocks, skip, len, &mut found.pieces);
                len
            }
        } as u64;
    }
    fs.counters.read_bytes.add(at - offset);
    Ok(found)
}

/// Reads one whole block from the device; `None` for a hole. The caller holds the lease.
pub(crate) async fn read_block(fs: &Filesystem, inode: &Inode, block: u64) -> Result<Option<Bytes>, FsError> {
    if inode.state.lock().data.logged.unplaced().broken(block..block + 1).next().is_some() {
        return Err(unplaced::broken_error(inode.ino));
    }
    let _pin = fs.store.pin();
    let found = lookup::all(&fs.store, inode.ino, block, block + 1).await?;
    let Some(extent) = found.first().and_then(|extent| extent.slice(block, block + 1)) else {
        return Ok(None);
    };
    let bytes = match &extent.packed {
        None => fs.store.read_data(inode.ino, extent.run(), &extent.checksums).await?,
        Some(packed) => units::read(fs, inode, &extent, packed).await?,
    };
    Ok(Some(bytes))
}

/// Reads the block of a file in which byte `at` lies, if it is on the device, to find out whether
/// that is possible.
pub(crate) async fn probe(fs: &Filesystem, inode: &Inode, at: u64) -> Result<(), FsError> {
    let _lease = inode.lease.read().await;
    let block = at / BLOCK;
    let known = {
        let state = inode.state.lock();
        block * BLOCK >= state.attr.size || state.data.block_in_memory(block).is_some()
    };
    if known { Ok(()) } else { read_block(fs, inode, block).await.map(drop) }
}

/// True if the file's last block has only zeros past the file's end, wherever the block lies.
pub(crate) async fn ends_in_zeros(fs: &Filesystem, inode: &Inode) -> Result<bool, FsError> {
    let _lease = inode.lease.read().await;
    let (block, at, in_memory) = {
        let state = inode.state.lock();
        let (block, at) = (state.attr.size / BLOCK, (state.attr.size % BLOCK) as usize);
        let in_memory = state.data.block_in_memory(block).map(|known| known.to_bytes());
        (block, at, in_memory)
    };
    // The file ends between two blocks, so none of its blocks reaches past the end.
    if at == 0 {
        return Ok(true);
    }
    let on_disk = read_block(fs, inode, block).await?;
    let mut behind = [in_memory, on_disk].into_iter().flatten().flat_map(|bytes| bytes.into_iter().skip(at));
    Ok(behind.all(|byte| byte == 0))
}

/// Splits a request into parts that are in memory and parts that are not.
fn segments(data: &DataState, offset: u64, end: u64) -> Vec<Segment> {
    let mut segments = Vec::new();
    for block in offset / BLOCK..end.div_ceil(BLOCK) {
        let from = offset.max(block * BLOCK);
        let until = end.min((block + 1) * BLOCK);
        let within = (from % BLOCK) as usize..(from % BLOCK) as usize + (until - from) as usize;
        let known = match data.block_in_memory(block) {
            Some(MemoryBlock::Whole(contents)) => Some(contents.to_bytes().slice(within.clone())),
            Some(MemoryBlock::Beginning(bytes)) => {
                // Zeros follow the known bytes.
                let bytes_end = within.end.min(bytes.len());
                if within.start < bytes_end {
                    segments.push(Segment::Memory(bytes.slice(within.start..bytes_end)));
                }
                let zeros = within.end - bytes_end.max(within.start);
                Some(Bytes::from_static(&ZEROS[..zeros])).filter(|zeros| !zeros.is_empty())
            }
            None if data.layout.is_past(block) => {
                segments.push(Segment::Hole(within.len()));
                None
            }
            None => {
                extend_disk(&mut segments, block, within);
                None
            }
        };
        segments.extend(known.map(Segment::Memory));
    }
    segments
}

/// Adds a block to the last segment if that ends right before it; otherwise starts another segment.
fn extend_disk(segments: &mut Vec<Segment>, block: u64, within: Range<usize>) {
    if let Some(Segment::Disk { end, len, .. }) = segments.last_mut()
        && *end == block
    {
        *end += 1;
        *len += within.len();
        return;
    }
    segments.push(Segment::Disk { first: block, end: block + 1, skip: within.start, len: within.len() });
}

/// A hole, a run to read, or a part of a compressed unit.
enum Part {
    Hole { blocks: u64 },
    Run { run: BlockRun, checksums: Vec<Crc> },
    Packed { extent: Extent, packed: Packed },
}

impl Part {
    /// Number of file blocks.
    fn blocks(&self) -> u64 {
        match self {
            Part::Hole { blocks } => *blocks,
            Part::Run { run, .. } => run.blocks,
            Part::Packed { extent, .. } => extent.blocks(),
        }
    }

    /// Its contents, which lie in `room` if there is one; without one, those of a hole are empty.
    async fn read(&self, fs: &Filesystem, inode: &Inode, room: Option<Room>) -> Result<Bytes, FsError> {
        let contents = match self {
            Part::Hole { .. } => Bytes::new(),
            Part::Run { run, checksums } => {
                return Ok(fs.store.read_data_into(inode.ino, *run, checksums, room).await?);
            }
            Part::Packed { extent, packed } => units::read(fs, inode, extent, packed).await?,
        };
        let Some(room) = room else { return Ok(contents) };
        let mut buf = room.into_buf();
        let (front, zeros) = buf.split_at_mut(contents.len());
        front.copy_from_slice(&contents);
        zeros.fill(0);
        Ok(buf.into_bytes())
    }
}

/// Reads these whole blocks of the file from the device, in pieces, and adds their holes. They lie
/// in `room`, one behind the other, but for blocks that are still in memory on their way to the
/// device.
async fn read_blocks(
    fs: &Filesystem,
    inode: &Inode,
    Range { start: first, end }: Range<u64>,
    mut room: Option<Room>,
    holes: &mut Vec<Range<u64>>,
) -> Result<Vec<Bytes>, FsError> {
    let mut next = |blocks: u64| room.as_mut().and_then(|room| room.take((blocks * BLOCK) as usize));
    let extents = lookup::all(&fs.store, inode.ino, first, end).await?;
    if let [extent] = &extents[..]
        && let Some((run, checksums)) = extent.whole(first, end)
    {
        return Ok(vec![fs.store.read_data_into(inode.ino, run, checksums, next(run.blocks)).await?]);
    }
    let parts = parts(&extents, first, end);
    if let [part @ (Part::Run { .. } | Part::Packed { .. })] = &parts[..] {
        return Ok(vec![part.read(fs, inode, next(part.blocks())).await?]);
    }
    let reads: Vec<_> = parts.iter().map(|part| part.read(fs, inode, next(part.blocks()))).collect();
    let read = join_all(reads, READS_IN_FLIGHT).await;
    let (mut pieces, mut block) = (Vec::with_capacity(parts.len()), first);
    for (part, contents) in parts.iter().zip(read) {
        let contents = contents?;
        let past = block + part.blocks();
        if matches!(part, Part::Hole { .. }) {
            add_hole(holes, block..past);
        }
        // Only a hole that was not read into the room.
        match contents.is_empty() {
            true => push_zeros(&mut pieces, part.blocks() * BLOCK),
            false => pieces.push(contents),
        }
        block = past;
    }
    Ok(pieces)
}

/// Adds blocks to the holes found so far, which end at or before them.
fn add_hole(holes: &mut Vec<Range<u64>>, blocks: Range<u64>) {
    let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
    match holes.last_mut() {
        Some(last) if last.end == bytes.start => last.end = bytes.end,
        _ => holes.push(bytes),
    }
}

/// Holes and device reads that make up `first..end`; runs that are neighbours on the device are
/// read together.
fn parts(extents: &[Extent], first: u64, end: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = first;
    for extent in extents {
        let Some(extent) = extent.slice(at, end) else { continue };
        if extent.file_block > at {
            parts.push(Part::Hole { blocks: extent.file_block - at });
        }
        at = extent.end();
        if let Some(packed) = extent.packed {
            parts.push(Part::Packed { extent, packed });
            continue;
        }
        match parts.last_mut() {
            Some(Part::Run { run, checksums })
                if run.end() == extent.addr && run.blocks + extent.blocks() <= READ_BLOCKS_MAX =>
            {
                run.blocks += extent.blocks();
                checksums.extend_from_slice(&extent.checksums);
            }
            _ => parts.push(Part::Run { run: extent.run(), checksums: extent.checksums }),
        }
    }
    if at < end {
        parts.push(Part::Hole { blocks: end - at });
    }
    parts
}

/// Appends zeros.
pub(super) fn push_zeros(pieces: &mut Vec<Bytes>, mut len: u64) {
    while len > 0 {
        let piece = len.min(ZEROS.len() as u64);
        pieces.push(Bytes::from_static(&ZEROS[..piece as usize]));
        len -= piece;
    }
}

/// Appends the bytes `skip..skip + len` of `blocks` to `pieces`.
fn cut(blocks: Vec<Bytes>, mut skip: usize, mut len: usize, pieces: &mut Vec<Bytes>) {
    for block in blocks {
        let from = skip.min(block.len());
        let until = (from + len).min(block.len());
        skip -= from;
        len -= until - from;
        if from < until {
            pieces.push(block.slice(from..until));
        }
    }
}

/// The bytes of `pieces` in one buffer.
#[cfg(test)]
pub(crate) fn concat(pieces: &[Bytes]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_on_the_device_are_read_together_up_to_a_megabyte() {
        let extents: Vec<Extent> =
            (0..20).map(|piece| Extent::plain(piece * 32, 1000 + piece * 32, vec![0; 32])).collect();
        let parts = parts(&extents, 5, 640);
        let runs: Vec<u64> = parts
            .iter()
            .map(|part| match part {
                Part::Run { run, checksums } => {
                    assert_eq!(run.blocks as usize, checksums.len());
                    run.blocks
                }
                _ => panic!("there is no hole"),
            })
            .collect();
        assert_eq!(runs, [251, 256, 128]);
    }

    #[test]
    fn holes_lie_before_between_and_after_extents() {
        let extents = [Extent::plain(2, 100, vec![1, 2]), Extent::plain(6, 102, vec![3])];
        let shape: Vec<(bool, u64)> = parts(&extents, 1, 9)
            .iter()
            .map(|part| match part {
                Part::Hole { blocks } => (false, *blocks),
                Part::Run { run, .. } => (true, run.blocks),
                Part::Packed { .. } => panic!("nothing is compressed"),
            })
            .collect();
        assert_eq!(shape, [(false, 1), (true, 2), (false, 2), (true, 1), (false, 2)]);
    }

    #[test]
    fn cutting_drops_what_is_before_and_after() {
        let blocks =
            vec![Bytes::from_static(b"abcd"), Bytes::from_static(b"efgh"), Bytes::from_static(b"ijkl")];
        let mut pieces = Vec::new();
        cut(blocks, 5, 4, &mut pieces);
        assert_eq!(concat(&pieces), b"fghi");
        assert_eq!(pieces.len(), 2);
    }

    const _: () = assert!(BLOCK <= ZEROS.len() as u64);
}
