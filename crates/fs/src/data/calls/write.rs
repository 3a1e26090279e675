//! Writing into memory: a write is applied wholly or not at all.

use super::{overwrite, read, truncate};
use crate::FsError;
use crate::attributes::flags::require_writable;
use crate::data::extents::quota;
use crate::data::extents::quota::Accepted;
use crate::data::extents::room::reserve;
use crate::data::flush::throttle;
use crate::data::memory::BLOCK;
use crate::data::memory::page::is_page;
use crate::data::memory::ranges::count;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::inode::{FLAG_CAPABILITY, SIZE_MAX};
use syncline_store::{Admission, Admitted, Reservation, StoreError};

/// Set-user-id and set-group-id.
const SETID: u16 = 0o6000;

/// The kind of writer. It decides which of the file's privileges a write clears.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A store through a mapping. It clears nothing for any user, as on the kernel's own
    /// filesystems.
    Mapping,
    /// A writer that may keep setuid and setgid. Capabilities are cleared.
    Privileged,
    /// Any other writer: setuid and setgid are cleared as well.
    Ordinary,
}

impl Writer {
    /// The caller of write(2); with `kill_privileges`, one that is not privileged.
    pub(crate) fn calling(kill_privileges: bool) -> Self {
        if kill_privileges { Self::Ordinary } else { Self::Privileged }
    }
}

/// Writes `data` at `offset`.
pub(crate) async fn write(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    data: Bytes,
    writer: Writer,
) -> Result<(), FsError> {
    let (mut restored, mut synced) = (false, false);
    loop {
        let room = prepare(fs, inode, data.len(), writer).await?;
        let written = {
            let _lease = inode.lease.write().await;
            write_leased(fs, inode, offset, &data, writer).await
        };
        let end = offset.saturating_add(data.len() as u64);
        if !overwrite::is_full(&written) {
            return written;
        }
        if !restored && Box::pin(overwrite::restore(fs, inode, offset..end)).await? {
            restored = true;
            continue;
        }
        drop(room);
        if synced || !Box::pin(fs.give_back_by_sync()).await {
            return written;
        }
        synced = true;
    }
}

/// Writes as much of `data` at `offset` as there is room for, and returns how many bytes that is: all of
/// them, unless the filesystem or the quota is full. A page is written wholly or not at all (P9).
pub(crate) async fn write_what_fits(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    data: Bytes,
    writer: Writer,
) -> Result<usize, FsError> {
    let full = match write(fs, inode, offset, data.clone(), writer).await {
        Ok(()) => return Ok(data.len()),
        Err(error) if !is_no_room(&error) || is_page(offset, data.len() as u64) => return Err(error),
        Err(full) => full,
    };
    match Box::pin(write_pieces(fs, inode, offset, &data, writer)).await? {
        0 => Err(full),
        written => Ok(written),
    }
}

/// Writes pieces, which end between blocks and become smaller until one fits. None completes a page that
/// an earlier one has begun (P9), though there may be room by then: behind the first half of a page come
/// only pieces that are smaller than the other half. An error after the first piece ends the write.
async fn write_pieces(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    data: &Bytes,
    writer: Writer,
) -> Result<usize, FsError> {
    let (mut done, mut most) = (0, data.len().checked_ilog2().map_or(0, |log| 1 << log));
    while done < data.len() && most >= BLOCK_BYTES {
        let (at, rest) = (offset + done as u64, data.slice(done..));
        let piece = rest.slice(..rest.len().min(most - (at % most as u64) as usize));
        match write_piece(fs, inode, at, &piece, writer).await {
            Ok(()) => {
                done += piece.len();
                let page = 2 * piece.len();
                if page <= rest.len() && is_page(at, page as u64) {
                    most /= 2;
                }
            }
            Err(error) if is_no_room(&error) => most /= 2,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// A write that takes what room there is now.
async fn write_piece(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    data: &Bytes,
    writer: Writer,
) -> Result<(), FsError> {
    // Otherwise it would wait for room that the whole write has waited for in vain.
    let plan = WritePlan::new(fs, inode, offset, offset.saturating_add(data.len() as u64));
    if plan.blocks() > 0 && fs.store.try_reserve(plan.blocks()).is_none() {
        let _lease = inode.lease.read().await;
        drop(overwrite::reserve(fs, inode, &plan.ranges(), plan.blocks()).await?);
    }
    let _room = prepare(fs, inode, data.len(), writer).await?;
    let _lease = inode.lease.write().await;
    write_leased(fs, inode, offset, data, writer).await
}

fn is_no_room(error: &FsError) -> bool {
    matches!(error, FsError::QuotaExceeded | FsError::Store(StoreError::NoSpace))
}

/// Writes `data` at the end of the file, as it is once the lease is held, and returns the offset.
pub(crate) async fn append(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    data: Bytes,
    writer: Writer,
) -> Result<u64, FsError> {
    let appended = append_now(fs, inode, &data, writer).await;
    if !overwrite::is_full(&appended) || !Box::pin(fs.give_back_by_sync()).await {
        return appended;
    }
    Box::pin(append_now(fs, inode, &data, writer)).await
}

async fn append_now(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    data: &Bytes,
    writer: Writer,
) -> Result<u64, FsError> {
    let _room = prepare(fs, inode, data.len(), writer).await?;
    let _lease = inode.lease.write().await;
    let offset = inode.state.lock().attr.size;
    write_leased(fs, inode, offset, data, writer).await?;
    Ok(offset)
}

/// Writes `data` at `offset` for a transaction, which has found the room before: it waits for none.
pub(crate) async fn write_in_transaction(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    data: &Bytes,
    writer: Writer,
) -> Result<(), FsError> {
    let _lease = inode.lease.write().await;
    write_leased(fs, inode, offset, data, writer).await
}

/// Does the waiting that is not allowed under the lease. A write begins here.
async fn prepare(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    len: usize,
    writer: Writer,
) -> Result<Option<Admitted>, FsError> {
    fs.store.writable()?;
    fs.store.pass_gate().await;
    throttle::wait_for_room(fs, len as u64).await?;
    let (loses_privileges, may_have_stale, is_unwritten) = {
        let state = inode.state.lock();
        let setid = writer == Writer::Ordinary && state.attr.permissions & SETID != 0;
        let capability = writer != Writer::Mapping && state.meta.flags & FLAG_CAPABILITY != 0;
        (setid || capability, !state.data.layout.is_known(), state.data.failures.is_unwritten())
    };
    if is_unwritten {
        throttle::require_unstuck(fs, inode, len as u64).await?;
    }
    if !loses_privileges && !may_have_stale {
        return Ok(None);
    }
    Ok(Some(Box::pin(fs.store.admit(Admission::Shrink)).await?))
}

async fn write_leased(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    data: &Bytes,
    writer: Writer,
) -> Result<(), FsError> {
    if data.is_empty() {
        return Ok(());
    }
    fs.require_present(inode)?;
    require_writable(inode, offset)?;
    let end =
        offset.checked_add(data.len() as u64).filter(|&end| end <= SIZE_MAX).ok_or(FsError::TooLarge)?;
    if end > inode.state.lock().attr.size {
        truncate::forget_stale_extents(fs, inode).await?;
    }
    let plan = WritePlan::new(fs, inode, offset, end);
    let accepted = quota::accept(fs, inode, &plan.ranges(), end).await?;
    let blocks = plan.blocks();
    // Room for names is promised first, so that the check for the blocks counts it too.
    let named = inode.state.lock().data.has_room_for_names();
    let names = (!named).then(|| Reservation::of_names(&fs.store));
    let mut reservation = match reserve(fs, blocks).await {
        full if overwrite::is_full(&full) => {
            Box::pin(overwrite::reserve(fs, inode, &plan.ranges(), blocks)).await?
        }
        reserved => reserved?,
    };
    names.into_iter().for_each(|names| reservation.get_or_insert_default().merge(names));
    let bases = plan.read_bases(fs, inode).await?;
    if writer != Writer::Mapping {
        fs.drop_privileges(inode, writer == Writer::Ordinary).await?;
    }
    fs.store.give_way();
    apply(fs, inode, &plan, data, &bases, reservation, accepted);
    fs.store.give_way();
    fs.counters.written_bytes.add(data.len() as u64);
    Ok(())
}

/// The range and the needs of a write, worked out before it is applied. Valid as long as the lease
/// is held.
struct WritePlan {
    offset: u64,
    end: u64,
    /// Blocks that are not dirty yet.
    new_blocks: u64,
    /// Blocks of the write that have preallocated room.
    preallocated: u64,
    /// Partly written blocks whose other bytes are on the device: at most the first and the last.
    to_read: Vec<u64>,
    /// The file outgrows its inode item: block 0 becomes dirty too.
    spill_inline: bool,
}

/// Contents of the blocks in `to_read`.
type Bases = Vec<(u64, Option<Bytes>)>;

impl WritePlan {
    fn new(fs: &Filesystem, inode: &Inode, offset: u64, end: u64) -> Self {
        let state = inode.state.lock();
        let data = &state.data;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        let outgrown = state.attr.size.max(end) > fs.limits.inline_bytes as u64;
        let in_block_0 = blocks.start == 0 || data.blocks.is_pending(0);
        let spill_inline = data.has_inline() && outgrown && !in_block_0;
        let new_blocks =
            (blocks.end - blocks.start) - data.blocks.count(blocks.clone()) + u64::from(spill_inline);
        let first = if spill_inline { 0..1 } else { 0..0 };
        let preallocated = [&first, &blocks].map(|range| count(&data.preallocated.untaken(range)));
        let mut to_read = Vec::new();
        for block in [blocks.start, blocks.end - 1] {
            let whole = replaces(block, &(offset..end), state.attr.size);
            let past_end = block * BLOCK >= state.attr.size;
            let hole = data.layout.is_past(block);
            let known = whole || past_end || hole || data.block_in_memory(block).is_some();
            if !known && to_read.last() != Some(&block) {
                to_read.push(block);
            }
        }
        let preallocated = preallocated.iter().sum();
        Self { offset, end, new_blocks, preallocated, to_read, spill_inline }
    }

    /// The blocks that need room; preallocated ones have theirs already.
    fn blocks(&self) -> u64 {
        self.new_blocks.saturating_sub(self.preallocated)
    }

    /// The blocks that will be dirty.
    fn ranges(&self) -> [Range<u64>; 2] {
        let first = if self.spill_inline { 0..1 } else { 0..0 };
        [first, self.offset / BLOCK..self.end.div_ceil(BLOCK)]
    }

    async fn read_bases(&self, fs: &Filesystem, inode: &Arc<Inode>) -> Result<Bases, FsError> {
        let mut bases = Vec::with_capacity(self.to_read.len());
        for &block in &self.to_read {
            bases.push((block, Box::pin(read::read_block(fs, inode, block)).await?));
            fs.counters.blocks_read_for_write.add(1);
        }
        Ok(bases)
    }
}

/// The bytes of `block` that lie in the file range `offset..end`.
pub(super) fn span(block: u64, offset: u64, end: u64) -> Range<usize> {
    let from = offset.max(block * BLOCK) - block * BLOCK;
    let until = end.min((block + 1) * BLOCK) - block * BLOCK;
    from as usize..until as usize
}

/// True if a write of these bytes replaces all contents of `block` in a file of `size` bytes: behind its
/// end there are only zeros.
pub(super) fn replaces(block: u64, bytes: &Range<u64>, size: u64) -> bool {
    let part = span(block, bytes.start, bytes.end);
    part.start == 0 && (part.end == BLOCK_BYTES || bytes.end >= size)
}

/// Puts the data into the dirty map and updates size and times. It can neither fail nor wait.
fn apply(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    plan: &WritePlan,
    payload: &Bytes,
    bases: &Bases,
    reservation: Option<Reservation>,
    accepted: Accepted<'_>,
) {
    let now = fs.now();
    let mut state = inode.state.lock();
    let state = &mut *state;
    if plan.spill_inline {
        state.data.patch(0, 0, &[], None);
    }
    let mut at = plan.offset;
    while at < plan.end {
        let block = at / BLOCK;
        let rest = payload.slice((at - plan.offset) as usize..);
        let whole_bytes = rest.len() - rest.len() % BLOCK_BYTES;
        if at.is_multiple_of(BLOCK) && whole_bytes > 0 {
            state.data.blocks.replace(block, &rest.slice(..whole_bytes));
            at += whole_bytes as u64;
        } else {
            let within = span(block, at, plan.end);
            let base =
                bases.iter().find(|(read, _)| *read == block).and_then(|(_, contents)| contents.as_deref());
            state.data.patch(block, within.start, &rest[..within.len()], base);
            at += within.len() as u64;
        }
    }
    let first = if plan.spill_inline { 0..1 } else { 0..0 };
    let blocks = plan.offset / BLOCK..plan.end.div_ceil(BLOCK);
    let preallocated = state.data.preallocated.take(&first) + state.data.preallocated.take(&blocks);
    let mut reservation = reservation.unwrap_or_default();
    reservation.merge(fs.data.room.take(preallocated).unwrap_or_default());
    state.data.add_reservation(Some(reservation));
    state.attr.size = state.attr.size.max(plan.end);
    state.attr.mtime = now;
    state.attr.ctime = now;
    accepted.apply(fs, state);
    state.attr.blocks = state.data.visible_units(state.attr.size);
    fs.data.queue.note_dirty(fs, inode, &mut state.data);
}
