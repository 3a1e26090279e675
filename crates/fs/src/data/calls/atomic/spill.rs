//! Putting a part of an open atomic write onto the device, and reading it there.
//!
//! It is placed, compressed and written as write-back does that, and a flush covers it before its
//! memory goes. But no transaction names it before the commit: after a crash its blocks are free.

use super::{Open, bytes_max};
use crate::FsError;
use crate::data::extents::lookup;
use crate::data::extents::pack;
use crate::data::extents::place::{self, Naming, Placement};
use crate::data::extents::room::reserve;
use crate::data::flush::writeback::{self, NAME_BYTES, PLACES_MAX};
use crate::data::memory::atomic::Atomic;
use crate::data::memory::block::Block;
use crate::data::memory::ranges::number_ranges;
use crate::data::memory::spilled::{Landed, Spilled, Stored, extents_of, weight};
use crate::data::memory::{BLOCK, DataState};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use bytes::Bytes;
use std::ops::Range;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Extent};
use syncline_store::{Canary, ChangeSize, DataWrite, Reservation, StoreError};

/// Most blocks that are written, and made durable, at a time: 16 MiB.
const ROUND_BLOCKS: u64 = 4096;
/// Bytes of a node that the item of a single block takes; larger extents take fewer for each block. A
/// quarter of a node is full at least.
const ITEM_BYTES: u64 = 45;

/// True if room has to be made in memory before `new` more blocks come into it.
pub(super) fn is_due(fs: &Filesystem, atomic: &Atomic, new: u64) -> bool {
    excess(fs, atomic, new) > 0 || !fs.data.atomic.has_room(atomic, new, bytes_max(fs))
}

/// The number of blocks that have to leave memory before `new` more come into it.
fn excess(fs: &Filesystem, atomic: &Atomic, new: u64) -> u64 {
    fs.data.atomic.excess(atomic, new, fs.options.atomic_blocks_max, bytes_max(fs))
}

/// Makes room in memory for a write of `blocks`, of which `new` are not there. The caller holds the
/// inode's lease for writing.
pub(super) async fn make_room(
    fs: &Filesystem,
    inode: Open<'_>,
    blocks: &Range<u64>,
    new: u64,
) -> Result<(), FsError> {
    loop {
        let chosen = {
            let mut state = inode.state.lock();
            let Some(atomic) = &mut state.data.atomic else { return Err(FsError::AtomicWriteEnded) };
            let excess = excess(fs, atomic, new);
            let chosen =
                if excess > 0 { atomic.choose(excess.min(ROUND_BLOCKS), blocks) } else { Vec::new() };
            if chosen.is_empty() {
                // What is left belongs to others, or to this write.
                let fits = fs.data.atomic.has_room(atomic, new, bytes_max(fs));
                return if fits { Ok(()) } else { Err(FsError::AtomicWriteTooLarge) };
            }
            chosen
        };
        spill(fs, inode, &chosen).await?;
    }
}

/// Puts blocks onto the device. If it fails, those that have not come there are in memory as before.
///
/// Blocks that the device does not take are written to another place, as in write-back: only those,
/// since of many writes to a device that fails now and then some always fail.
async fn spill(fs: &Filesystem, inode: Open<'_>, numbers: &[u64]) -> Result<(), FsError> {
    let old = Old::find(fs, inode, numbers).await?;
    let mut names = Some(hold_room(fs, inode, numbers, &old).await?);
    for _ in 1..PLACES_MAX {
        match spill_once(fs, inode, numbers, &old, &mut names).await {
            Err(FsError::Store(ref whole @ StoreError::Device(ref error))) if !fs.store.is_end(whole) => {
                tracing::warn!(ino = inode.ino, "{error}; writing this part of an atomic write elsewhere");
            }
            ended => return ended,
        }
    }
    spill_once(fs, inode, numbers, &old, &mut names).await
}

/// The extents of the file that blocks are to replace.
struct Old(Vec<(Range<u64>, bool)>);

impl Old {
    /// Looks up those of these blocks, which are in order. The inode's lease is held.
    async fn find(fs: &Filesystem, inode: Open<'_>, numbers: &[u64]) -> Result<Self, FsError> {
        let end = inode.state.lock().data.layout.extent_end();
        let ranges = number_ranges(numbers.iter().copied().filter(|number| *number < end));
        let found = lookup::overlapping(&fs.store, inode.ino, &ranges).await?;
        Ok(Self(found.iter().map(|extent| (extent.file_block..extent.end(), extent.shared)).collect()))
    }

    /// The number of them that have some of these blocks. Each block of one that is shared may have a
    /// count of its own, which changes too.
    fn count(&self, blocks: &Range<u64>) -> u64 {
        let first = self.0.partition_point(|(old, _)| old.end <= blocks.start);
        let overlapping = self.0[first..].iter().take_while(|(old, _)| old.start < blocks.end);
        let common = |old: &Range<u64>| old.end.min(blocks.end) - old.start.max(blocks.start);
        overlapping.map(|(old, shared)| if *shared { common(old) } else { 1 }).sum()
    }
}

/// Room to name more spilled blocks, and the size of the commit once they are spilled.
pub(super) struct Names {
    room: Reservation,
    size: ChangeSize,
    /// Ranges that the atomic write has then, at most.
    runs: u64,
}

/// Reserves room for the nodes in which the commit names these blocks, beside those for which there is
/// room. Refuses more than one transaction may change.
async fn hold_room(fs: &Filesystem, inode: Open<'_>, numbers: &[u64], old: &Old) -> Result<Names, FsError> {
    let ranges = number_ranges(numbers.iter().copied());
    let (extents, runs) = {
        let state = inode.state.lock();
        let Some(atomic) = &state.data.atomic else { return Err(FsError::AtomicWriteEnded) };
        let spilled = &atomic.spilled;
        let extents = spilled.extents() + ranges.iter().map(extents_of).sum::<u64>();
        let replaced = spilled.replaced() + ranges.iter().map(|range| old.count(range)).sum::<u64>();
        if weight(extents, replaced) > fs.options.atomic_extents_max {
            return Err(FsError::AtomicWriteTooLarge);
        }
        (extents, atomic.runs())
    };
    hold_names(fs, inode, extents, runs).await
}

/// The same for blocks that stay in memory, in so many ranges that the atomic write did not have: the
/// transaction that names what has spilled names them too, perhaps in nodes of their own.
pub(super) async fn hold_room_beside(
    fs: &Filesystem,
    inode: Open<'_>,
    runs: u64,
) -> Result<Option<Names>, FsError> {
    let (extents, runs) = {
        let state = inode.state.lock();
        let Some(atomic) = &state.data.atomic else { return Err(FsError::AtomicWriteEnded) };
        if runs == 0 || atomic.spilled.is_empty() {
            return Ok(None);
        }
        (atomic.spilled.extents(), atomic.spilled.runs + runs)
    };
    hold_names(fs, inode, extents, runs).await.map(Some)
}

async fn hold_names(fs: &Filesystem, inode: Open<'_>, extents: u64, runs: u64) -> Result<Names, FsError> {
    let (size, wanted) = {
        let state = inode.state.lock();
        let nodes = nodes_of(fs, &state.data);
        let Some(atomic) = &state.data.atomic else { return Err(FsError::AtomicWriteEnded) };
        let (size, before) = (names_of(extents, runs.min(nodes)), atomic.spilled.room_for);
        let size = ChangeSize { items: size.items.max(before.items), bytes: size.bytes.max(before.bytes) };
        // What is written again needs no more: the filesystem may be full.
        let wanted = match size == before {
            true => 0,
            false => fs.store.blocks_to_name(size).saturating_sub(atomic.spilled.room.blocks()),
        };
        (size, wanted)
    };
    Ok(Names { room: reserve(fs, wanted).await?.unwrap_or_default(), size, runs })
}

/// The size of a change that names so many extents, some of them in so many nodes of the file: those
/// that are neighbours lie in few, others may be far apart.
fn names_of(extents: u64, nodes: u64) -> ChangeSize {
    let near = writeback::names_of(extents as usize);
    ChangeSize { items: near.items + nodes, ..near }
}

/// The number of nodes that name the file's blocks when its atomic write is committed, at most. Blocks
/// that were dirty before it began are named by then.
pub(super) fn nodes_of(fs: &Filesystem, data: &DataState) -> u64 {
    let node_bytes = u64::from(fs.store.geometry().node_bytes);
    let blocks = data.logged.blocks() + data.blocks.dirty() + data.blocks.in_flight();
    blocks.saturating_mul(4 * ITEM_BYTES) / node_bytes + 1
}

fn keep_room(inode: Open<'_>, names: Names) {
    if let Some(atomic) = &mut inode.state.lock().data.atomic {
        names.keep(&mut atomic.spilled);
    }
}

impl Names {
    /// The blocks are where they are to be named from.
    pub(super) fn keep(self, spilled: &mut Spilled) {
        spilled.room.merge(self.room);
        (spilled.room_for, spilled.runs) = (self.size, self.runs);
    }
}

/// Puts those of these blocks onto the device that are in memory, as far as it takes them. The first
/// that come there take the room for all `names` along.
async fn spill_once(
    fs: &Filesystem,
    inode: Open<'_>,
    numbers: &[u64],
    old: &Old,
    names: &mut Option<Names>,
) -> Result<(), FsError> {
    let mut flight = Flight::take(fs, inode, numbers);
    flight.place(pack::algorithm(inode)).await?;
    let written = match fs.store.breaks(Canary::SpillUncovered) {
        true => Ok(()),
        false => flight.wait().await,
    };
    if flight.placements.is_empty() {
        return written;
    }
    let writes: Vec<DataWrite> = flight.placements.iter().map(|placement| placement.write.clone()).collect();
    let covered = fs.store.cover_unnamed(&writes).await?;
    flight.land(covered, old);
    if let Some(names) = names.take() {
        keep_room(inode, names);
    }
    written
}

/// Blocks on their way to the device. When dropped, it puts those back into memory that have not come
/// there.
struct Flight<'a> {
    fs: &'a Filesystem,
    inode: Open<'a>,
    blocks: Vec<(u64, Block)>,
    reservation: Reservation,
    placements: Vec<Placement>,
}

impl<'a> Flight<'a> {
    fn take(fs: &'a Filesystem, inode: Open<'a>, numbers: &[u64]) -> Self {
        let (mut blocks, mut reservation) = (Vec::new(), Reservation::default());
        if let Some(atomic) = &mut inode.state.lock().data.atomic {
            blocks = atomic.blocks.take_each(numbers.iter().copied());
            reservation = atomic.reservation.split(blocks.len() as u64);
        }
        Self { fs, inode, blocks, reservation, placements: Vec::new() }
    }

    /// Compresses the blocks, if the file asks for that, and starts writing them.
    async fn place(&mut self, algorithm: Option<Algorithm>) -> Result<(), FsError> {
        let (fs, inode) = (self.fs, self.inode);
        let near = || inode.state.lock().data.layout.near();
        let placed = match algorithm {
            None => place::place(fs, &mut self.reservation, &self.blocks, near()),
            // Whole units, as in a sync: what is written once more soon is mostly less.
            Some(algorithm) => {
                let cargo = pack::pack(fs, inode, algorithm, true, &self.blocks).await;
                place::place_all(fs, &mut self.reservation, cargo, near())
            }
        };
        self.placements = placed?;
        if let Some(last) = self.placements.last() {
            inode.state.lock().data.layout.set_near(last.write.run().end());
        }
        Ok(())
    }

    /// Waits for all writes. Gives up the failed ones, and returns the first failure.
    async fn wait(&mut self) -> Result<(), FsError> {
        let (mut result, mut failed) = (Ok(()), Vec::new());
        for index in 0..self.placements.len() {
            // By index: if this wait is given up, `drop` must find the placements in their list.
            if let Err(error) = self.placements[index].write.wait().await {
                failed.push(index);
                result = result.and(Err(error.into()));
            }
        }
        for index in failed.into_iter().rev() {
            let write = self.placements.remove(index).write;
            self.reservation.merge(self.fs.store.abandon_for(&write, write.run()));
        }
        result
    }

    /// The spilled blocks are on the device and a flush covers them: `covered` stands for their writes.
    fn land(&mut self, covered: Vec<DataWrite>, old: &Old) {
        let mut state = self.inode.state.lock();
        let outgrows = state.data.has_inline();
        let Some(atomic) = &mut state.data.atomic else { return };
        let placements = std::mem::take(&mut self.placements);
        for (placement, write) in placements.iter().zip(covered) {
            self.fs.counters.atomic_spilled_bytes.add(write.run().len_bytes());
            let landed = placement.pieces().map(|(numbers, at, packed)| {
                let replaced = old.count(&numbers);
                Landed { numbers, at, packed, replaced }
            });
            atomic.spilled.add(write, landed);
        }
        // Both are in the order of the file.
        let mut landed = placements.iter().flat_map(Placement::numbers).peekable();
        self.blocks.retain(|(number, _)| landed.next_if_eq(number).is_none());
        let kept = atomic.owed(0).saturating_sub(atomic.spare(outgrows));
        atomic.reservation.merge(self.reservation.split(kept));
        self.fs.data.atomic.account(atomic);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        for placement in &self.placements {
            let run = placement.write.run();
            self.reservation.merge(self.fs.store.abandon_for(&placement.write, run));
        }
        // Where only a part found a place, that has been given back already.
        let lost = (self.blocks.len() as u64).saturating_sub(self.reservation.blocks());
        self.reservation.merge(self.fs.store.reserve_again(lost));
        let mut state = self.inode.state.lock();
        let Some(atomic) = &mut state.data.atomic else { return };
        let blocks = std::mem::take(&mut self.blocks);
        atomic.reservation.merge(self.reservation.split(blocks.len() as u64));
        atomic.blocks.restore(blocks);
        self.fs.data.atomic.account(atomic);
    }
}

/// The size of the change that names what an atomic write has in memory and on the device, when so many
/// `nodes` name the file's blocks.
pub(super) fn size_of_names(atomic: &Atomic, nodes: u64) -> ChangeSize {
    let in_memory = atomic.blocks.dirty().div_ceil(EXTENT_BLOCKS_MAX);
    let spilled = &atomic.spilled;
    let on_device = match spilled.is_empty() {
        true => ChangeSize::default(),
        false => names_of(spilled.extents(), atomic.runs().min(nodes)),
    };
    ChangeSize { items: 2 + on_device.items, bytes: NAME_BYTES * (2 + in_memory) + on_device.bytes }
}

/// The extents of everything that is on the device.
pub(super) fn name(spilled: &Spilled) -> Naming {
    let mut naming = Naming::default();
    for (write, stored) in spilled.all() {
        match naming.named.last_mut() {
            Some((last, run)) if last.is_same(write) && run.end() == stored.run.start => {
                run.blocks += stored.run.blocks;
            }
            _ => naming.named.push((write.clone(), stored.run)),
        }
        add_extents(&stored, &mut naming.extents);
    }
    naming
}

fn add_extents(stored: &Stored, extents: &mut Vec<Extent>) {
    let (numbers, addr) = (&stored.numbers, stored.run.start);
    if stored.packed.is_some() {
        let extent = Extent::plain(numbers.start, addr, stored.checksums.clone());
        extents.push(Extent { packed: stored.packed, ..extent });
        return;
    }
    let whole = Extent::plain(numbers.start, addr, stored.checksums.clone());
    let mut at = numbers.start;
    while at < numbers.end {
        let end = numbers.end.min((at / EXTENT_BLOCKS_MAX + 1) * EXTENT_BLOCKS_MAX);
        extents.extend(whole.slice(at, end));
        at = end;
    }
}

/// Reads blocks that are on the device, and checks them. The inode's lease is held, so nobody frees
/// them meanwhile.
pub(super) async fn read(fs: &Filesystem, inode: &Inode, stored: &Stored) -> Result<Bytes, FsError> {
    let bytes = fs.store.read_data(inode.ino, stored.run, &stored.checksums).await?;
    let Some(packed) = &stored.packed else { return Ok(bytes) };
    // Not one of the decoded units that stay: before the commit, an address may come to hold another
    // unit of this file without any operation in between.
    let block = stored.numbers.start;
    let unit = syncline_codec::unpack(packed, &bytes).map_err(|detail| {
        tracing::error!(ino = inode.ino, block, %detail, "a compressed unit of an atomic write is damaged");
        FsError::Undecodable { ino: inode.ino, block, detail }
    })?;
    fs.counters.units_unpacked.add(1);
    Ok(unit.into())
}

/// The bytes of `block` among the contents of blocks from `first` on.
pub(super) fn block_of(contents: &Bytes, first: u64, block: u64) -> Bytes {
    let from = ((block - first) * BLOCK) as usize;
    contents.slice(from..from + BLOCK as usize)
}
