//! Writing to a file whose atomic write is open: the data is put aside.

use super::{BLOCKS_MAX, Open, bytes_max};
use crate::FsError;
use crate::data::calls::write::{Writer, span};
use crate::data::calls::{overwrite, read, truncate};
use crate::data::extents::quota;
use crate::data::extents::room::reserve;
use crate::data::memory::BLOCK;
use crate::data::memory::atomic::Atomic;
use crate::data::memory::ranges::count;
use crate::filesystem::Filesystem;
use crate::quota::Held;
use bytes::Bytes;
use std::ops::Range;
use syncline_format::BLOCK_BYTES;
use syncline_store::Reservation;

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
    handle: u64,
) -> Result<(), FsError> {
    let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
    let (missing, begins, outgrows, is_small, preallocated) = {
        let state = inode.state.lock();
        let Some(atomic) = &state.data.atomic else { return Err(FsError::AtomicWriteOpen) };
        // The kernel does not tell who stored into a mapping, and the page has the owner's bytes too.
        if atomic.handle != handle && writer != Writer::Mapping {
            return Err(FsError::AtomicWriteOpen);
        }
        let missing = atomic.missing(&blocks);
        let begins = atomic.blocks.is_empty();
        if atomic.blocks.len() + count(&missing) > BLOCKS_MAX {
            return Err(FsError::AtomicWriteTooLarge);
        }
        let is_small = begins && state.attr.size <= fs.limits.inline_bytes as u64;
        // Preallocated blocks have their room already.
        let preallocated: u64 =
            missing.iter().map(|range| count(&state.data.preallocated.untaken(range))).sum();
        (missing, begins, begins && state.data.has_inline(), is_small, preallocated)
    };
    let new = count(&missing);
    if !fs.data.atomic.has_room(new, bytes_max(fs)) {
        return Err(FsError::AtomicWriteTooLarge);
    }
    if bytes.end > inode.state.lock().attr.size {
        truncate::forget_stale_extents(fs, inode).await?;
    }
    let held = hold_units(fs, inode, &missing, is_small).await?;
    let wanted = new - preallocated + u64::from(outgrows);
    let mut reservation = match reserve(fs, wanted).await {
        full if overwrite::is_full(&full) => overwrite::reserve(fs, inode, &missing, wanted).await?,
        reserved => reserved?,
    }
    .unwrap_or_default();
    if begins {
        reservation.merge(Reservation::of_names(&fs.store));
    }
    let bases = read_bases(fs, inode, &bytes).await?;
    if writer != Writer::Mapping {
        fs.drop_privileges(inode, writer == Writer::Ordinary).await?;
    }
    // From here on nothing waits or fails.
    let now = fs.now();
    let mut state = inode.state.lock();
    let taken: Vec<_> = missing.iter().flat_map(|range| state.data.preallocated.untaken(range)).collect();
    taken.iter().for_each(|range| _ = state.data.preallocated.take(range));
    reservation.merge(fs.data.room.take(count(&taken)).unwrap_or_default());
    let charged = state.data.charge.as_ref().map(|charge| charge.number);
    let Some(atomic) = &mut state.data.atomic else { return Err(FsError::AtomicWriteOpen) };
    put(atomic, &bytes, data, &bases);
    taken.into_iter().for_each(|range| atomic.taken.insert(range));
    atomic.reservation.merge(reservation);
    if let (Some(mut held), Some(number)) = (held, charged) {
        atomic.quota = number;
        atomic.units += held.take();
    }
    atomic.size = atomic.size.max(bytes.end);
    (atomic.mtime, atomic.ctime) = (Some(now), Some(now));
    atomic.mapped |= writer == Writer::Mapping;
    fs.data.atomic.account(atomic);
    drop(state);
    fs.counters.written_bytes.add(data.len() as u64);
    Ok(())
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

/// Contents of partly written blocks from before the atomic write.
type Bases = Vec<(u64, Bytes)>;

/// Reads the first and the last block of a write, if it writes only parts of them.
async fn read_bases(fs: &Filesystem, inode: Open<'_>, bytes: &Range<u64>) -> Result<Bases, FsError> {
    let mut bases = Bases::new();
    for block in [bytes.start / BLOCK, (bytes.end - 1) / BLOCK] {
        let known = {
            let state = inode.state.lock();
            let data = &state.data;
            let here = data.atomic.as_ref().is_some_and(|atomic| atomic.blocks.contains(block));
            let whole = span(block, bytes.start, bytes.end).len() == BLOCK_BYTES;
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
