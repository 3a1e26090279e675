//! The part of an open atomic write that has left memory: it lies on the device, a flush covers it,
//! and nothing names it. Its blocks are allocated in memory only, so a crash frees them.

use super::{BLOCK, atomic::Atomic};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Packed, piece_start};
use syncline_format::{BlockRun, Crc};
use syncline_store::{ChangeSize, DataWrite, Reservation, Store};

/// Memory that a piece and a write take, beside four bytes for the checksum of each block.
const PIECE_BYTES: u64 = 64;
const WRITE_BYTES: u64 = 512;
/// So many extents that are only replaced take as much of a commit as one that is named.
const REPLACED_EACH: u64 = 4;

/// Blocks that an atomic write has on the device. When dropped, it frees them.
pub(in crate::data) struct Spilled {
    store: Arc<Store>,
    /// By first file block, disjoint.
    pieces: BTreeMap<u64, Piece>,
    /// The writes that pieces lie in, by their numbers.
    writes: BTreeMap<u32, Written>,
    /// Number of the next write.
    next: u32,
    /// Extents that the pieces will be.
    extents: u64,
    /// Extents of the file that the pieces replace, at most.
    replaced: u64,
    /// Blocks that the pieces would take more if none were compressed.
    saved: u64,
    /// Memory for the writes.
    writes_bytes: u64,
    /// Room for the nodes in which a commit names the extents.
    pub(in crate::data) room: Reservation,
    /// The size of the change that the room is for.
    pub(in crate::data) room_for: ChangeSize,
    /// Ranges that the atomic write has, at most, in memory and here.
    pub(in crate::data) runs: u64,
}

struct Written {
    write: DataWrite,
    /// How many of its blocks pieces lie on.
    left: u64,
}

/// Consecutive file blocks that lie together in a write.
#[derive(Clone, Copy)]
struct Piece {
    first: u64,
    blocks: u32,
    /// Blocks of the write before them.
    at: u32,
    write: u32,
    /// Extents of the file that it replaces, at most.
    replaced: u32,
    /// Algorithm and length in bytes of a compressed unit. A compressed piece is never divided.
    packed: Option<(Algorithm, u32)>,
}

/// File blocks to be added, which lie together in a write.
pub(in crate::data) struct Landed {
    pub numbers: Range<u64>,
    /// Blocks of the write before them.
    pub at: u64,
    /// Algorithm and length in bytes of a compressed unit.
    pub packed: Option<(Algorithm, u32)>,
    /// Extents of the file that they replace; of one that is shared, each block counts.
    pub replaced: u64,
}

/// Where some file blocks lie.
pub(in crate::data) struct Stored {
    pub numbers: Range<u64>,
    pub run: BlockRun,
    pub checksums: Vec<Crc>,
    pub packed: Option<Packed>,
}

impl Piece {
    fn numbers(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.blocks)
    }

    /// Number of blocks that it takes on the device.
    fn stored_blocks(&self) -> u64 {
        self.packed.map_or(self.blocks.into(), |(_, bytes)| u64::from(bytes).div_ceil(BLOCK))
    }

    fn extents(&self) -> u64 {
        if self.packed.is_some() { 1 } else { extents_of(&self.numbers()) }
    }

    /// Blocks that it would take more if it were not compressed.
    fn saved(&self) -> u64 {
        u64::from(self.blocks) - self.stored_blocks()
    }

    /// The part of an uncompressed piece from `from` up to `until`.
    fn part(&self, from: u64, until: u64) -> Self {
        let (skipped, blocks) = ((from - self.first) as u32, (until - from) as u32);
        // The extents that it replaces are not known, but they are no more than its blocks.
        let replaced = self.replaced.min(blocks);
        Self { first: from, blocks, at: self.at + skipped, replaced, ..*self }
    }

    fn run_in(&self, write: &DataWrite) -> BlockRun {
        BlockRun::new(write.run().start + u64::from(self.at), self.stored_blocks())
    }

    fn stored_in(&self, write: &DataWrite) -> Stored {
        let (numbers, run) = (self.numbers(), self.run_in(write));
        let unit_blocks = u64::from(self.blocks);
        let packed = self.packed.map(|(algorithm, bytes)| Packed {
            algorithm,
            bytes,
            unit_blocks,
            skip: 0,
            blocks: unit_blocks,
        });
        Stored { numbers, run, checksums: write.checksums_of(run).to_vec(), packed }
    }
}

/// The number of extents that these uncompressed blocks will be if they lie together.
pub(in crate::data) fn extents_of(blocks: &Range<u64>) -> u64 {
    if blocks.is_empty() {
        0
    } else {
        (blocks.end - 1) / EXTENT_BLOCKS_MAX - blocks.start / EXTENT_BLOCKS_MAX + 1
    }
}

/// The room for naming `extents` that replace others, counted in extents. Each may replace one or divide
/// it; more than that counts besides.
pub(in crate::data) fn weight(extents: u64, replaced: u64) -> u64 {
    extents + replaced.saturating_sub(extents).div_ceil(REPLACED_EACH)
}

/// The parts of `range` outside of `holes`, which are in order and disjoint.
pub(super) fn outside(range: &Range<u64>, holes: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut parts, mut at) = (Vec::new(), range.start);
    for hole in holes.iter().filter(|hole| hole.start < range.end && range.start < hole.end) {
        if at < hole.start {
            parts.push(at..hole.start);
        }
        at = at.max(hole.end);
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

impl Spilled {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            pieces: BTreeMap::new(),
            writes: BTreeMap::new(),
            next: 0,
            extents: 0,
            replaced: 0,
            saved: 0,
            writes_bytes: 0,
            room: Reservation::default(),
            room_for: ChangeSize::default(),
            runs: 0,
        }
    }

    pub(in crate::data) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Number of file blocks.
    #[cfg(test)]
    pub(in crate::data) fn blocks(&self) -> u64 {
        self.pieces.values().map(|piece| u64::from(piece.blocks)).sum()
    }

    /// Number of extents that a commit names.
    pub(in crate::data) fn extents(&self) -> u64 {
        self.extents
    }

    /// Number of extents that a commit replaces, at most.
    pub(in crate::data) fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Blocks that all of it would take more if nothing were compressed.
    pub(in crate::data) fn saved(&self) -> u64 {
        self.saved
    }

    /// Blocks of memory that the description takes.
    pub(super) fn memory_blocks(&self) -> u32 {
        (self.pieces.len() as u64 * PIECE_BYTES + self.writes_bytes).div_ceil(BLOCK) as u32
    }

    fn at(&self, block: u64) -> Option<&Piece> {
        let (_, piece) = self.pieces.range(..=block).next_back()?;
        piece.numbers().contains(&block).then_some(piece)
    }

    pub(in crate::data) fn contains(&self, block: u64) -> bool {
        self.at(block).is_some()
    }

    /// The first block at or after `block` that is here.
    pub(in crate::data) fn next(&self, block: u64) -> Option<u64> {
        if self.contains(block) {
            return Some(block);
        }
        self.pieces.range(block..).next().map(|(&first, _)| first)
    }

    /// The pieces that have blocks of a range.
    fn across(&self, blocks: &Range<u64>) -> impl Iterator<Item = &Piece> {
        let first = self.at(blocks.start).map_or(blocks.start, |piece| piece.first);
        self.pieces.range(first..blocks.end.max(first)).map(|(_, piece)| piece)
    }

    /// The parts of a range that are here.
    pub(in crate::data) fn within(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let part = |piece: &Piece| {
            let Range { start, end } = piece.numbers();
            start.max(blocks.start)..end.min(blocks.end)
        };
        self.across(blocks).map(part).collect()
    }

    /// The file blocks that are here, as ranges that do not overlap.
    pub(in crate::data) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.pieces.values().map(Piece::numbers)
    }

    /// Where the blocks from `block` on lie, as far as they lie together and before `end`. A
    /// compressed unit is returned whole.
    pub(in crate::data) fn stored(&self, block: u64, end: u64) -> Option<Stored> {
        let piece = self.at(block)?;
        let write = &self.writes.get(&piece.write)?.write;
        Some(match piece.packed {
            Some(_) => piece.stored_in(write),
            None => piece.part(block, piece.numbers().end.min(end)).stored_in(write),
        })
    }

    /// The compressed units that have blocks of a range.
    pub(in crate::data) fn units(&self, blocks: &Range<u64>) -> Vec<Stored> {
        let packed = self.across(blocks).filter(|piece| piece.packed.is_some());
        packed.filter_map(|piece| Some(piece.stored_in(&self.writes.get(&piece.write)?.write))).collect()
    }

    /// Everything here in the order of the file, with the writes that it lies in.
    pub(in crate::data) fn all(&self) -> impl Iterator<Item = (&DataWrite, Stored)> {
        self.pieces.values().filter_map(|piece| {
            let write = &self.writes.get(&piece.write)?.write;
            Some((write, piece.stored_in(write)))
        })
    }

    /// Adds blocks that were written in a write which a flush covers. None of them is here.
    pub(in crate::data) fn add(&mut self, write: DataWrite, landed: impl Iterator<Item = Landed>) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        for Landed { numbers, at, packed, replaced } in landed {
            debug_assert!(self.across(&numbers).next().is_none(), "the blocks are in memory");
            let blocks = (numbers.end - numbers.start) as u32;
            let replaced = (replaced as u32).min(blocks);
            self.put(Piece { first: numbers.start, blocks, at: at as u32, write: number, replaced, packed });
        }
        let run = write.run();
        self.writes_bytes += write_bytes(&write);
        self.writes.insert(number, Written { write, left: run.blocks });
    }

    /// Counts that blocks of the file below these are shared from now on: each may have a count of its
    /// own, which the commit changes too. False, with nothing changed, if that is more than `max`.
    pub(in crate::data) fn share(&mut self, blocks: &Range<u64>, max: u64) -> bool {
        let mut shared: Vec<Piece> = self.across(blocks).copied().collect();
        for piece in &mut shared {
            let Range { start, end } = piece.numbers();
            let common = end.min(blocks.end) - start.max(blocks.start);
            piece.replaced = piece.replaced.saturating_add(common as u32).min(piece.blocks);
        }
        let more = shared.iter().map(|piece| u64::from(piece.replaced - self.pieces[&piece.first].replaced));
        if weight(self.extents, self.replaced + more.sum::<u64>()) > max {
            return false;
        }
        for piece in shared {
            self.take(&self.pieces[&piece.first].clone());
            self.put(piece);
        }
        true
    }

    fn put(&mut self, piece: Piece) {
        self.extents += piece.extents();
        self.replaced += u64::from(piece.replaced);
        self.saved += piece.saved();
        self.pieces.insert(piece.first, piece);
    }

    fn take(&mut self, piece: &Piece) {
        self.extents -= piece.extents();
        self.replaced -= u64::from(piece.replaced);
        self.saved -= piece.saved();
        self.pieces.remove(&piece.first);
    }

    /// Takes blocks out, which have newer contents in memory. A compressed unit goes as a whole.
    /// Returns the blocks of the device that are to be given back.
    pub(in crate::data) fn remove(&mut self, blocks: &Range<u64>) -> Vec<(DataWrite, BlockRun)> {
        let mut gone = Vec::new();
        let touched: Vec<Piece> = self.across(blocks).copied().collect();
        for piece in touched {
            self.take(&piece);
            let Range { start, end } = piece.numbers();
            let (from, until) = match piece.packed {
                Some(_) => (start, end),
                None => (start.max(blocks.start), end.min(blocks.end)),
            };
            if start < from {
                self.put(piece.part(start, from));
            }
            if until < end {
                self.put(piece.part(until, end));
            }
            let taken = if piece.packed.is_some() { piece } else { piece.part(from, until) };
            gone.extend(self.leave(&taken));
        }
        gone
    }

    /// Counts a piece that has left its write.
    fn leave(&mut self, piece: &Piece) -> Option<(DataWrite, BlockRun)> {
        let written = self.writes.get_mut(&piece.write)?;
        let (write, run) = (written.write.clone(), piece.run_in(&written.write));
        written.left -= run.blocks;
        if written.left == 0 {
            self.writes.remove(&piece.write);
            self.writes_bytes -= write_bytes(&write);
        }
        Some((write, run))
    }

    /// Forgets everything: a transaction has named it.
    pub(in crate::data) fn named(&mut self) {
        self.pieces.clear();
        self.writes.clear();
        (self.extents, self.replaced, self.saved, self.writes_bytes) = (0, 0, 0, 0);
        (self.room, self.room_for, self.runs) = (Reservation::default(), ChangeSize::default(), 0);
    }

    /// Frees everything, and reserves `blocks` of the freed blocks, or all if there are fewer.
    pub(in crate::data) fn give_back(&mut self, blocks: u64) -> Reservation {
        let mut reserved = Reservation::default();
        for (write, run) in self.take_runs() {
            if reserved.blocks() < blocks {
                reserved.merge(self.store.abandon_for(&write, run));
            } else {
                self.store.abandon(&write, run);
            }
        }
        let excess = reserved.blocks().saturating_sub(blocks);
        drop(reserved.split(excess));
        reserved
    }

    /// Takes everything out, as the runs that lie together.
    fn take_runs(&mut self) -> Vec<(DataWrite, BlockRun)> {
        let mut runs: Vec<(u32, BlockRun)> = Vec::new();
        for piece in std::mem::take(&mut self.pieces).values() {
            let Some(written) = self.writes.get(&piece.write) else { continue };
            let run = piece.run_in(&written.write);
            match runs.last_mut() {
                Some((write, last)) if *write == piece.write && last.end() == run.start => {
                    last.blocks += run.blocks;
                }
                _ => runs.push((piece.write, run)),
            }
        }
        let writes = std::mem::take(&mut self.writes);
        let found = |(number, run): (u32, BlockRun)| Some((writes.get(&number)?.write.clone(), run));
        let runs = runs.into_iter().filter_map(found).collect();
        self.named();
        runs
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.give_back(0);
    }
}

/// Memory that a write takes.
fn write_bytes(write: &DataWrite) -> u64 {
    WRITE_BYTES + write.run().blocks * size_of::<Crc>() as u64
}

impl Atomic {
    /// The parts of `blocks` that it does not have yet, neither in memory nor on the device.
    pub(in crate::data) fn missing(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let absent = self.absent(blocks);
        if self.spilled.is_empty() {
            return absent;
        }
        let spilled = self.spilled.within(blocks);
        absent.iter().flat_map(|range| outside(range, &spilled)).collect()
    }

    /// Number of ranges of the file that it has, in memory and on the device, of which none begins where
    /// another ends.
    pub(in crate::data) fn runs(&self) -> u64 {
        let (mut runs, mut end) = (0, u64::MAX);
        let mut add = |range: Range<u64>| {
            runs += u64::from(range.start != end);
            end = range.end;
        };
        let mut memory = self.blocks.numbers(..).peekable();
        for range in self.spilled.ranges() {
            while let Some(block) = memory.next_if(|block| *block < range.start) {
                add(block..block + 1);
            }
            add(range);
        }
        memory.for_each(|block| add(block..block + 1));
        runs
    }

    /// Blocks that are reserved beyond one for each in memory, and one for a file that outgrows its
    /// inode item.
    pub(in crate::data) fn spare(&self, outgrows: bool) -> u64 {
        self.reservation.blocks().saturating_sub(self.blocks.dirty() + u64::from(outgrows))
    }

    /// Blocks that have to be reserved beyond that, when the device has `returning` fewer of those that
    /// compression has saved. Preallocated blocks need all of their room again after an abort.
    pub(in crate::data) fn owed(&self, returning: u64) -> u64 {
        self.spilled.saved().saturating_sub(returning).min(self.taken.blocks())
    }

    /// Blocks of memory to put onto the device next: about `want` of them, none of `except`, in
    /// order. Whole extents go first, and neighbours together. The blocks that have stayed longest are next:
    /// the choice goes round the file. Block 0 stays, which may lie in the inode item.
    pub(in crate::data) fn choose(&mut self, want: u64, except: &Range<u64>) -> Vec<u64> {
        let (want, from) = (want as usize, self.spill_from.max(1));
        let around = self.blocks.numbers(from..).chain(self.blocks.numbers(1..from));
        let mut around: Vec<u64> = around.filter(|number| !except.contains(number)).collect();
        let (mut whole, mut piece) = (Vec::new(), Vec::new());
        for &number in &around {
            if whole.len() >= want {
                break;
            }
            if number == piece_start(number) || piece.last().is_none_or(|last| last + 1 != number) {
                piece.clear();
            }
            if piece.is_empty() && number != piece_start(number) {
                continue;
            }
            piece.push(number);
            if piece.len() as u64 == EXTENT_BLOCKS_MAX {
                whole.append(&mut piece);
            }
        }
        // A flush for a few of them would cost more than the extents that they save.
        let mut chosen = if whole.len() >= want.div_ceil(4) {
            whole
        } else {
            around.drain(..want.min(around.len())).collect()
        };
        self.spill_from = chosen.last().map_or(0, |last| last + 1);
        chosen.sort_unstable();
        chosen
    }
}
