//! Placing dirty blocks on the device: allocation, and the start of their writes.

use crate::FsError;
use crate::data::memory::BLOCK;
use crate::data::memory::block::{Block, gather};
use crate::data::memory::ranges::number_ranges;
use crate::filesystem::Filesystem;
use crate::receipt::Submitted;
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Extent, Packed};
use syncline_format::{BLOCK_BYTES, BlockRun, Crc};
use syncline_store::{DataWrite, Reservation};

/// Most blocks of one data write.
const WRITE_BLOCKS_MAX: usize = 256;

/// Blocks of a file on their way to new addresses.
pub(crate) struct Placement {
    pub write: DataWrite,
    /// The file blocks in this write, one piece after the other.
    pieces: Vec<Piece>,
}

/// Consecutive file blocks that are stored together in a placement.
struct Piece {
    first: u64,
    blocks: u64,
    /// Algorithm and length in bytes, if the piece is compressed.
    packed: Option<(Algorithm, u32)>,
}

impl Piece {
    fn numbers(&self) -> Range<u64> {
        self.first..self.first + self.blocks
    }

    /// Number of blocks that it takes on the device.
    fn stored_blocks(&self) -> usize {
        self.packed.map_or(self.blocks, |(_, bytes)| u64::from(bytes).div_ceil(BLOCK)) as usize
    }
}

/// Frozen blocks to place together.
pub(crate) struct Cargo<'a> {
    /// In order.
    pub blocks: &'a [(u64, Block)],
    /// If compressed: the blocks are consecutive, and these bytes (whole blocks of the device) are
    /// written for them.
    pub packed: Option<PackedUnit>,
}

/// A compressed unit.
pub(crate) struct PackedUnit {
    pub algorithm: Algorithm,
    /// Length without the padding.
    pub bytes: u32,
    pub contents: Bytes,
}

impl Cargo<'_> {
    fn stored_blocks(&self) -> usize {
        self.packed.as_ref().map_or(self.blocks.len(), |packed| packed.contents.len() / BLOCK_BYTES)
    }
}

/// Runs of blocks, one in nearly all cases.
type Runs = SmallVec<[BlockRun; 1]>;

/// The extents of placed blocks, and the device blocks that they name.
#[derive(Default)]
pub(crate) struct Naming {
    pub extents: Vec<Extent>,
    pub named: Vec<(DataWrite, BlockRun)>,
}

/// Allocates room for frozen blocks (in order) and starts writing them. A file's dirty blocks are
/// placed together, in the order of the file, whatever is between them in the file. On an error
/// nothing stays allocated.
pub(crate) fn place(
    fs: &Filesystem,
    reservation: &mut Reservation,
    blocks: &[(u64, Block)],
    near: Option<u64>,
) -> Result<Vec<Placement>, FsError> {
    place_all(fs, reservation, vec![Cargo { blocks, packed: None }], near)
}

/// Allocates room for several lots, some of them compressed, and starts writing them. The
/// reservation has one block for each file block: a compressed unit that finds no room in one piece
/// is placed uncompressed.
pub(crate) fn place_all(
    fs: &Filesystem,
    reservation: &mut Reservation,
    cargo: Vec<Cargo<'_>>,
    mut near: Option<u64>,
) -> Result<Vec<Placement>, FsError> {
    let mut placements = Vec::new();
    let mut rest: VecDeque<Cargo<'_>> = cargo.into();
    rest.retain(|lot| !lot.blocks.is_empty());
    while !rest.is_empty() {
        let want = wanted(&rest);
        let run = match fs.store.allocate(reservation, want as u64, near) {
            Ok(run) => run,
            Err(error) => {
                abandon(fs, &placements);
                return Err(error.into());
            }
        };
        let (pieces, bufs) = load(&mut rest, (run.blocks as usize).min(want));
        placements.push(Placement { write: fs.store.write_data(run, bufs), pieces });
        near = Some(run.end());
    }
    Ok(placements)
}

/// The number of blocks for the next write, such that no compressed unit is cut.
fn wanted(rest: &VecDeque<Cargo<'_>>) -> usize {
    let mut want = 0;
    for lot in rest {
        let blocks = lot.stored_blocks();
        if want + blocks > WRITE_BLOCKS_MAX {
            return if lot.packed.is_some() && want > 0 { want } else { WRITE_BLOCKS_MAX };
        }
        want += blocks;
    }
    want
}

/// Takes lots from the front until `room` blocks are full. A compressed unit that does not fit goes
/// uncompressed.
fn load(rest: &mut VecDeque<Cargo<'_>>, mut room: usize) -> (Vec<Piece>, Vec<Bytes>) {
    let (mut pieces, mut bufs) = (Vec::new(), Vec::new());
    while room > 0
        && let Some(lot) = rest.front_mut()
    {
        if lot.stored_blocks() > room {
            lot.packed = None;
        }
        if let Some(packed) = lot.packed.take() {
            room -= packed.contents.len() / BLOCK_BYTES;
            let (first, blocks) = (lot.blocks[0].0, lot.blocks.len() as u64);
            pieces.push(Piece { first, blocks, packed: Some((packed.algorithm, packed.bytes)) });
            bufs.push(packed.contents);
            rest.pop_front();
            continue;
        }
        let (now, later) = lot.blocks.split_at(room.min(lot.blocks.len()));
        room -= now.len();
        pieces.extend(number_ranges(now.iter().map(|(number, _)| *number)).into_iter().map(|range| Piece {
            first: range.start,
            blocks: range.end - range.start,
            packed: None,
        }));
        bufs.extend(gather(now));
        lot.blocks = later;
        if later.is_empty() {
            rest.pop_front();
        }
    }
    (pieces, bufs)
}

/// Adds written placements to the counts of a submission.
pub(crate) fn note(placements: &[Placement], note: &mut Submitted) {
    note.device_writes += placements.len() as u64;
    note.blocks += placements.iter().map(|placement| placement.write.run().blocks).sum::<u64>();
}

/// Gives back placements that will never be named.
pub(crate) fn abandon(fs: &Filesystem, placements: &[Placement]) {
    for placement in placements {
        fs.store.abandon(&placement.write, placement.write.run());
    }
}

impl Placement {
    /// A placement of uncompressed blocks with these numbers, in sequence.
    pub(crate) fn plain(write: DataWrite, numbers: impl Iterator<Item = u64>) -> Self {
        let mut pieces: Vec<Piece> = Vec::new();
        for number in numbers {
            match pieces.last_mut() {
                Some(piece) if piece.numbers().end == number => piece.blocks += 1,
                _ => pieces.push(Piece { first: number, blocks: 1, packed: None }),
            }
        }
        Self { write, pieces }
    }

    /// The file blocks, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.iter().flat_map(Piece::numbers)
    }

    /// Adds to `naming` the extents of those blocks that are `valid`, and returns the device runs
    /// of the others.
    pub(crate) fn name(&self, naming: &mut Naming, valid: impl Fn(u64) -> bool) -> Runs {
        let (mut stale, mut named) = (Runs::new(), Runs::new());
        let (mut addr, mut checksums) = (self.write.run().start, self.write.checksums());
        for piece in &self.pieces {
            let (own, rest) = checksums.split_at(piece.stored_blocks());
            let run = BlockRun::new(addr, own.len() as u64);
            (addr, checksums) = (run.end(), rest);
            let Some((algorithm, bytes)) = piece.packed else {
                for ((number, addr), &checksum) in piece.numbers().zip(run.start..).zip(own) {
                    if valid(number) {
                        extend_run(&mut named, BlockRun::new(addr, 1));
                        name_block(&mut naming.extents, number, addr, checksum, piece.numbers().end);
                    } else {
                        extend_run(&mut stale, BlockRun::new(addr, 1));
                    }
                }
                continue;
            };
            // Only truncations take blocks away meanwhile, so the valid blocks are the beginning of
            // the unit.
            let blocks = piece.numbers().take_while(|&number| valid(number)).count() as u64;
            if blocks == 0 {
                extend_run(&mut stale, run);
                continue;
            }
            extend_run(&mut named, run);
            let packed = Packed { algorithm, bytes, unit_blocks: piece.blocks, skip: 0, blocks };
            let extent = Extent::plain(piece.first, run.start, own.to_vec());
            naming.extents.push(Extent { packed: Some(packed), ..extent });
        }
        naming.named.extend(named.into_iter().map(|run| (self.write.clone(), run)));
        stale
    }
}

/// Adds a block to the last extent if it continues that; otherwise begins another, with room for
/// the blocks up to file block `end`.
fn name_block(extents: &mut Vec<Extent>, number: u64, addr: u64, checksum: Crc, end: u64) {
    match extents.last_mut() {
        Some(last)
            if last.packed.is_none()
                && last.end() == number
                && last.run().end() == addr
                && !number.is_multiple_of(EXTENT_BLOCKS_MAX) =>
        {
            last.checksums.push(checksum);
        }
        _ => {
            let room = (end - number).min(EXTENT_BLOCKS_MAX - number % EXTENT_BLOCKS_MAX);
            let mut checksums = Vec::with_capacity(room as usize);
            checksums.push(checksum);
            extents.push(Extent::plain(number, addr, checksums));
        }
    }
}

fn extend_run(runs: &mut Runs, run: BlockRun) {
    match runs.last_mut() {
        Some(last) if last.end() == run.start => last.blocks += run.blocks,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::AlignedBuf;

    fn blocks(numbers: Range<u64>) -> Vec<(u64, Block)> {
        numbers.map(|number| (number, Block::whole(AlignedBuf::zeroed(BLOCK_BYTES)).freeze())).collect()
    }

    fn unit(stored: usize) -> Option<PackedUnit> {
        let contents = AlignedBuf::zeroed(stored * BLOCK_BYTES).into_bytes();
        Some(PackedUnit { algorithm: Algorithm::Lz4, bytes: contents.len() as u32 - 5, contents })
    }

    fn shape(pieces: &[Piece]) -> Vec<(u64, u64, bool)> {
        pieces.iter().map(|piece| (piece.first, piece.blocks, piece.packed.is_some())).collect()
    }

    #[test]
    fn a_compressed_unit_is_never_cut() {
        let (one, two, three) = (blocks(0..10), blocks(32..64), blocks(64..96));
        let lots = || -> VecDeque<Cargo<'_>> {
            let (one, two) = (Cargo { blocks: &one, packed: None }, Cargo { blocks: &two, packed: unit(7) });
            [one, two, Cargo { blocks: &three, packed: unit(20) }].into()
        };
        let mut rest = lots();
        assert_eq!(wanted(&rest), 37);
        let (pieces, bufs) = load(&mut rest, 37);
        assert_eq!(shape(&pieces), [(0, 10, false), (32, 32, true), (64, 32, true)]);
        assert_eq!(bufs.iter().map(|buf| buf.len() / BLOCK_BYTES).sum::<usize>(), 37);
        // In a shorter run, a unit that does not fit whole goes uncompressed, in as many runs as it
        // takes.
        let mut rest = lots();
        assert_eq!(shape(&load(&mut rest, 20).0), [(0, 10, false), (32, 32, true), (64, 3, false)]);
        assert_eq!(wanted(&rest), 29);
        assert_eq!(shape(&load(&mut rest, 29).0), [(67, 29, false)]);
        assert!(rest.is_empty());
        let mut rest = lots();
        assert_eq!(shape(&load(&mut rest, 4).0), [(0, 4, false)]);
        assert_eq!(shape(&load(&mut rest, 7).0), [(4, 6, false), (32, 1, false)]);
    }

    #[test]
    fn a_write_ends_before_the_unit_that_would_make_it_too_long() {
        let (one, two) = (blocks(0..250), blocks(256..288));
        let lots = |packed| -> VecDeque<Cargo<'_>> {
            [Cargo { blocks: &one, packed: None }, Cargo { blocks: &two, packed }].into()
        };
        assert_eq!(wanted(&lots(unit(7))), 250);
        assert_eq!(wanted(&lots(None)), WRITE_BLOCKS_MAX);
    }
}
