//! Removing a range of blocks from a file, or inserting one: the blocks behind it move, and not a
//! byte of them is copied.
//!
//! Only extent items change, all in one transaction with the size: a crash leaves the file either
//! as it was or completely shifted. This limits the number of extents that can move.

use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::data::calls::truncate;
use crate::data::effects::{FileChange, InlineChange, SizeChange};
use crate::data::extents::lookup;
use crate::data::extents::place::{self, Naming, Placement};
use crate::data::extents::plan::{self, ExtentChanges};
use crate::data::extents::quota;
use crate::data::extents::room::reserve;
use crate::data::extents::shares;
use crate::data::flush::many;
use crate::data::flush::submit;
use crate::data::flush::transact;
use crate::data::memory::block::Block;
use crate::data::memory::ranges::{Ranges, count};
use crate::data::memory::{BLOCK, unplaced};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use smallvec::smallvec;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::AlignedBuf;
use syncline_format::items::extent::FILE_BLOCKS_MAX;
use syncline_format::items::inode::SIZE_MAX;
use syncline_store::Reservation;

/// Most extents that move at once: 2 GiB of a file in one piece, and about two megabytes in the
/// log.
pub(crate) const EXTENTS_MAX: usize = 16_384;

/// The direction in which a file's blocks move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shift {
    /// The blocks of the range are removed, and those behind it take their place.
    Collapse,
    /// The blocks from the beginning of the range on move behind it.
    Insert,
}

/// Shifts the blocks of a file. `bytes` must begin and end between blocks.
pub(super) async fn shift(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    bytes: Range<u64>,
    shift: Shift,
    kill_privileges: bool,
) -> Result<(), FsError> {
    if !bytes.start.is_multiple_of(BLOCK) || !bytes.end.is_multiple_of(BLOCK) {
        return Err(FsError::Invalid("offset and length must be multiples of 4096"));
    }
    unplaced::require_whole(inode)?;
    let _room = fs.admit_growth().await?;
    let _writebacks = submit::hold_writebacks(&[inode]).await;
    // From here on nothing is dirty: every block has its extent, or lies in the inode item.
    let _lease = many::lease_settled(fs, &[inode]).await?;
    fs.require_present(inode)?;
    require_changeable(inode)?;
    let new_size = new_size(inode.state.lock().attr.size, &bytes, shift)?;
    truncate::forget_stale_extents(fs, inode).await?;
    let blocks = bytes.start / BLOCK..bytes.end / BLOCK;
    let (removed, to) = match shift {
        Shift::Collapse => (blocks.clone(), blocks.start),
        Shift::Insert => (blocks.start..blocks.start, blocks.end),
    };
    let found = lookup::some(&fs.store, inode.ino, removed.start, FILE_BLOCKS_MAX, EXTENTS_MAX).await?;
    if !found.complete {
        return Err(FsError::TooManyExtents);
    }
    let first = First::take_out(fs, inode, &removed, to).await?;
    let extents = plan::shift(&found.extents, &removed, to);
    let more = (extents.added_blocks + first.blocks()).saturating_sub(extents.freed_blocks);
    let _held = quota::hold_blocks(fs, inode, more).await?;
    let shares = shares::hold(fs, &found.extents).await?;
    fs.drop_privileges(inode, kill_privileges).await?;
    // Contents that move out of the inode item get a block now, so the room preallocated for that
    // block is not needed any more.
    let extents = with_preallocated(inode, extents, &removed, to, first.moved.is_some());
    first.commit(fs, inode, extents, new_size, shares)
}

/// The size of the file afterwards, or an error if this range can't be removed or inserted.
fn new_size(size: u64, bytes: &Range<u64>, shift: Shift) -> Result<u64, FsError> {
    let len = bytes.end - bytes.start;
    match shift {
        Shift::Collapse if bytes.end >= size => {
            Err(FsError::Invalid("the range reaches the end of the file: truncate it"))
        }
        Shift::Collapse => Ok(size - len),
        Shift::Insert if bytes.start >= size => Err(FsError::Invalid(
            "the range begins at the end of the file or behind it: make the file larger",
        )),
        Shift::Insert => size.checked_add(len).filter(|&size| size <= SIZE_MAX).ok_or(FsError::TooLarge),
    }
}

/// Moves preallocated blocks like others. With `taken`, block `to` has data and is not
/// preallocated.
fn with_preallocated(
    inode: &Inode,
    mut extents: ExtentChanges,
    removed: &Range<u64>,
    to: u64,
    taken: bool,
) -> ExtentChanges {
    let state = inode.state.lock();
    let mut moved = Ranges::default();
    for range in state.data.preallocated.ranges().within(&(removed.end..FILE_BLOCKS_MAX)) {
        // Room that would move past the end of the largest file is given up.
        let end = (range.end - removed.end + to).min(FILE_BLOCKS_MAX);
        moved.insert(range.start - removed.end + to..end);
    }
    if taken {
        moved.remove(&(to..to + 1));
    }
    extents.preallocated = moved.iter().collect();
    extents.cleared.push(removed.start..FILE_BLOCKS_MAX);
    extents
}

/// The change to block 0, if it lies in the inode item and is removed or moves.
struct First {
    inline: InlineChange,
    /// The contents get a block of their own, at this block of the file.
    moved: Option<(u64, Block)>,
    reservation: Reservation,
}

impl First {
    async fn take_out(
        fs: &Filesystem,
        inode: &Inode,
        removed: &Range<u64>,
        to: u64,
    ) -> Result<Self, FsError> {
        let inline = inode.state.lock().data.logged.inline().cloned().filter(|_| removed.start == 0);
        let mut first = Self { inline: InlineChange::Keep, moved: None, reservation: Reservation::default() };
        let Some(contents) = inline else { return Ok(first) };
        first.inline = InlineChange::Set(None);
        if removed.is_empty() {
            first.reservation = reserve(fs, 1).await?.unwrap_or_default();
            first.moved = Some((to, Block::whole(AlignedBuf::copy_from(&contents)).freeze()));
        }
        Ok(first)
    }

    fn blocks(&self) -> u64 {
        u64::from(self.moved.is_some())
    }

    /// Commits all in one transaction. It never waits.
    fn commit(
        mut self,
        fs: &Filesystem,
        inode: &Arc<Inode>,
        mut extents: ExtentChanges,
        size: u64,
        shares: shares::Shares<'_>,
    ) -> Result<(), FsError> {
        let near = inode.state.lock().data.layout.near();
        let moved: Vec<(u64, Block)> = self.moved.take().into_iter().collect();
        let placements = place::place(fs, &mut self.reservation, &moved, near)?;
        let naming = name(&placements, &mut extents);
        let kept_room = count(&extents.preallocated);
        let size = SizeChange::Truncated { size, logged: size, now: fs.now() };
        let (named, inline) = (naming.named, self.inline);
        let change = FileChange { extents, named, inline, size, ..FileChange::nothing(inode) };
        // The room of the preallocated blocks that move is set aside already.
        fs.data.room.put_back(kept_room, None);
        if let Err(error) = transact::commit(fs, smallvec![change], shares) {
            fs.data.room.forget(kept_room);
            place::abandon(fs, &placements);
            return Err(error);
        }
        let mut state = inode.state.lock();
        state.data.blocks.forget_all_placed();
        state.attr.blocks = state.data.visible_units(state.attr.size);
        Ok(())
    }
}

/// Adds the extents of the placements, and returns what they name.
fn name(placements: &[Placement], extents: &mut ExtentChanges) -> Naming {
    let mut naming = Naming::default();
    placements.iter().for_each(|placement| drop(placement.name(&mut naming, |_| true)));
    for extent in std::mem::take(&mut naming.extents) {
        extents.added_blocks += extent.charged_blocks();
        extents.items.insert(extent.file_block, Some(extent));
    }
    naming
}
