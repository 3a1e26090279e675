//! Writing to a file whose atomic write is open: the data is put aside.

use super::{Open, commit, spill};
use crate::FsError;
use crate::data::calls::write::{Writer, replaces, span};
use crate::data::calls::{overwrite, read, truncate};
use crate::data::extents::quota;
use crate::data::extents::room::reserve;
use crate::data::memory::BLOCK;
use crate::data::memory::atomic::Atomic;
use crate::data::memory::block::Block;
use crate::data::memory::ranges::count;
use crate::data::memory::spilled::Stored;
use crate::filesystem::Filesystem;
use crate::inode::quotas::Held;
use bytes::Bytes;
use std::ops::Range;
use syncline_device::AlignedBuf;
use syncline_format::BLOCK_BYTES;
use syncline_store::Reservation;

/// The needs of a write, worked out before it is applied. Valid as long as the lease is held.
struct Plan {
    /// Blocks that the atomic write does not have yet.
    missing: Vec<Range<u64>>,
    /// It is the first write.
    begins: bool,
    /// The file outgrows its inode item, perhaps.
    outgrows: bool,
    is_small: bool,
    /// Missing blocks that have preallocated room.
    preallocated: u64,
    /// Blocks that come into memory.
    new: u64,
    /// Some blocks have to leave memory before.
    spills: bool,
    /// Some of the blocks, or of others in memory, may be on the device as a part of it.
    has_spilled: bool,
}

impl Plan {
    fn new(fs: &Filesystem, inode: Open<'_>, blocks: &Range<u64>) -> Result<Self, FsError> {
        let state = inode.state.lock();
        let Some(atomic) = &state.data.atomic else { return Err(FsError::AtomicWriteEnded) };
        let missing = atomic.missing(blocks);
        let begins = atomic.is_empty();
        let is_small = begins && state.attr.size <= fs.limits.inline_bytes as u64;
        // Preallocated blocks have their room already.
        let preallocated: u64 =
            missing.iter().map(|range| count(&state.data.preallocated.untaken(range))).sum();
        let new = blocks.end - blocks.start - atomic.blocks.count(blocks.clone());
        Ok(Self {
            begins,
            outgrows: begins && state.data.has_inline(),
            is_small,
            preallocated,
            new,
            spills: spill::is_due(fs, atomic, new),
            has_spilled: !atomic.spilled.is_empty(),
            missing,
        })
    }
}

/// Puts the bytes `offset..end` aside. The caller has checked that the file may be written there,
/// and holds its lease for writing.
///
/// Room and quota are reserved now, so that the commit does not fail for want of them.
pub(in crate::data) async fn write_leased(
    fs: &Filesystem,
    inode: Open<'_>,
    bytes: Range<u64>,
    data: &Bytes,
    writer: Writer,
) -> Result<(), FsError> {
    let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
    let plan = Plan::new(fs, inode, &blocks)?;
    if plan.spills {
        Box::pin(spill::make_room(fs, inode, &blocks, plan.new)).await?;
    }
    if bytes.end > inode.state.lock().attr.size {
        truncate::forget_stale_extents(fs, inode).await?;
    }
    let mut spilled = Replaced::default();
    if plan.has_spilled || plan.spills {
        spilled = Box::pin(Replaced::read(fs, inode, &bytes)).await?;
    }
    // Units of one quota are not those of another.
    commit::credit(fs, inode);
    let held = hold_units(fs, inode, &plan.missing, plan.is_small).await?;
    let growth = spilled.growth();
    let wanted = count(&plan.missing) - plan.preallocated + u64::from(plan.outgrows) + growth
        - kept_for(inode, growth);
    let mut reservation = match reserve(fs, wanted).await {
        full if overwrite::is_full(&full) => overwrite::reserve(fs, inode, &plan.missing, wanted).await?,
        reserved => reserved?,
    }
    .unwrap_or_default();
    if plan.begins {
        reservation.merge(Reservation::of_names(&fs.store));
    }
    let mut names = None;
    if plan.has_spilled || plan.spills {
        names = spill::hold_room_beside(fs, inode, plan.missing.len() as u64).await?;
    }
    let mut bases = read_bases(fs, inode, &bytes).await?;
    bases.append(&mut spilled.bases);
    fs.drop_privileges(inode, writer == Writer::Ordinary).await?;
    // From here on nothing waits or fails.
    let now = fs.now();
    let mut state = inode.state.lock();
    let taken: Vec<_> =
        plan.missing.iter().flat_map(|range| state.data.preallocated.untaken(range)).collect();
    taken.iter().for_each(|range| _ = state.data.preallocated.take(range));
    reservation.merge(fs.data.room.take(count(&taken)).unwrap_or_default());
    let charged = state.data.charge.as_ref().map(|charge| charge.number);
    let Some(atomic) = &mut state.data.atomic else { return Err(FsError::AtomicWriteEnded) };
    for (stored, contents) in &spilled.units {
        contents.iter().for_each(|contents| bring_back(atomic, stored, contents));
    }
    put(atomic, &bytes, data, &bases);
    taken.into_iter().for_each(|range| atomic.taken.insert(range));
    for (write, run) in atomic.spilled.remove(&blocks) {
        reservation.merge(fs.store.abandon_for(&write, run));
    }
    atomic.reservation.merge(reservation);
    names.into_iter().for_each(|names| names.keep(&mut atomic.spilled));
    if let (Some(mut held), Some(number)) = (held, charged) {
        atomic.quota = number;
        atomic.units += held.take();
    }
    atomic.size = atomic.size.max(bytes.end);
    (atomic.mtime, atomic.ctime) = (Some(now), Some(now));
    fs.data.atomic.account(atomic);
    drop(state);
    fs.counters.written_bytes.add(data.len() as u64);
    Ok(())
}

/// How many of `growth` blocks are reserved already: preallocated blocks that were compressed keep the
/// rest of their room.
fn kept_for(inode: Open<'_>, growth: u64) -> u64 {
    let state = inode.state.lock();
    let Some(atomic) = &state.data.atomic else { return 0 };
    growth.min(atomic.spare(state.data.has_inline()).saturating_sub(atomic.owed(growth)))
}

/// The spilled extents of the atomic write that a write replaces.
#[derive(Default)]
struct Replaced {
    /// Contents of the first and the last block, if only a part of them is written.
    bases: Bases,
    /// Compressed units, which go as a whole, and their contents, unless all of one is written.
    units: Vec<(Stored, Option<Bytes>)>,
}

impl Replaced {
    async fn read(fs: &Filesystem, inode: Open<'_>, bytes: &Range<u64>) -> Result<Self, FsError> {
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let (parts, units) = {
            let state = inode.state.lock();
            let Some(atomic) = &state.data.atomic else { return Err(FsError::AtomicWriteEnded) };
            let in_part = |block: &u64| !replaces(*block, bytes, atomic.size.max(state.attr.size));
            let ends = [blocks.start, blocks.end - 1].into_iter().filter(in_part);
            let parts = ends.filter_map(|block| atomic.spilled.stored(block, block + 1));
            let parts: Vec<Stored> = parts.filter(|stored| stored.packed.is_none()).collect();
            (parts, atomic.spilled.units(&blocks))
        };
        let mut replaced = Self::default();
        for stored in parts {
            replaced.bases.push((stored.numbers.start, spill::read(fs, inode, &stored).await?));
        }
        let whole = bytes.start.div_ceil(BLOCK)..bytes.end / BLOCK;
        for stored in units {
            let is_written = whole.start <= stored.numbers.start && stored.numbers.end <= whole.end;
            let contents = if is_written { None } else { Some(spill::read(fs, inode, &stored).await?) };
            replaced.units.push((stored, contents));
        }
        Ok(replaced)
    }

    /// The number of blocks that units take more in memory than on the device.
    fn growth(&self) -> u64 {
        let growth = |stored: &Stored| (stored.numbers.end - stored.numbers.start) - stored.run.blocks;
        self.units.iter().map(|(stored, _)| growth(stored)).sum()
    }
}

/// Puts the blocks of a unit into memory again: a part of them is about to be written.
fn bring_back(atomic: &mut Atomic, stored: &Stored, contents: &Bytes) {
    let first = stored.numbers.start;
    for block in stored.numbers.clone() {
        let copy = AlignedBuf::copy_from(&spill::block_of(contents, first, block));
        atomic.blocks.insert(block, Block::whole(copy));
    }
}

/// Reserves in the quota what blocks add that the atomic write did not have. Block 0 of a small file
/// may stay in the inode item or come out of it, so it is reserved with the first write, and whole.
async fn hold_units<'a>(
    fs: &'a Filesystem,
    inode: Open<'_>,
    missing: &[Range<u64>],
    is_small: bool,
) -> Result<Option<Held<'a>>, FsError> {
    let behind = u64::from(inode.state.lock().attr.size <= fs.limits.inline_bytes as u64);
    let missing: Vec<Range<u64>> = missing.iter().map(|range| range.start.max(behind)..range.end).collect();
    quota::hold_ranges(fs, inode, &missing, u64::from(is_small)).await
}

/// Contents of partly written blocks.
type Bases = Vec<(u64, Bytes)>;

/// Reads the first and the last block of a write from before the atomic write, if it writes only
/// parts of them.
async fn read_bases(fs: &Filesystem, inode: Open<'_>, bytes: &Range<u64>) -> Result<Bases, FsError> {
    let mut bases = Bases::new();
    for block in [bytes.start / BLOCK, (bytes.end - 1) / BLOCK] {
        let known = {
            let state = inode.state.lock();
            let data = &state.data;
            let has = |atomic: &Atomic| atomic.blocks.is_dirty(block) || atomic.spilled.contains(block);
            let here = data.atomic.as_deref().is_some_and(has);
            let whole = replaces(block, bytes, state.attr.size);
            let past_end = block * BLOCK >= state.attr.size;
            if here || whole || past_end || bases.iter().any(|(read, _)| *read == block) {
                continue;
            }
            data.block_in_memory(block).map(|known| known.to_bytes())
        };
        let known = match known {
            Some(known) => Some(known),
            None => read::read_block(fs, inode, block).await?,
        };
        bases.extend(known.map(|contents| (block, whole_block(contents))));
    }
    Ok(bases)
}

/// The contents of a block, zeros behind what is known of it.
fn whole_block(known: Bytes) -> Bytes {
    if known.len() >= BLOCK_BYTES {
        return known;
    }
    let mut whole = known.to_vec();
    whole.resize(BLOCK_BYTES, 0);
    whole.into()
}

fn put(atomic: &mut Atomic, bytes: &Range<u64>, data: &Bytes, bases: &Bases) {
    let mut at = bytes.start;
    while at < bytes.end {
        let block = at / BLOCK;
        let rest = data.slice((at - bytes.start) as usize..);
        let whole_bytes = rest.len() - rest.len() % BLOCK_BYTES;
        if at.is_multiple_of(BLOCK) && whole_bytes > 0 {
            atomic.blocks.replace(block, &rest.slice(..whole_bytes));
            at += whole_bytes as u64;
        } else {
            let within = span(block, at, bytes.end);
            let base = bases.iter().find(|(read, _)| *read == block).map(|(_, contents)| &contents[..]);
            atomic.blocks.patch(block, within.start, &rest[..within.len()], base);
            at += within.len() as u64;
        }
    }
}
