//! Taking over blocks of a file into another file, or to another place in the same.

use crate::FsError;
use crate::attributes::flags::require_writable;
use crate::data::calls::truncate;
use crate::data::effects::{FileChange, InlineChange, SizeChange};
use crate::data::extents::quota;
use crate::data::extents::room::reserve;
use crate::data::extents::shares::{Shares, hold};
use crate::data::extents::{lookup, plan};
use crate::data::flush::many;
use crate::data::flush::submit;
use crate::data::flush::transact;
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::Leases;
use crate::inode::quotas::Held;
use smallvec::smallvec;
use std::sync::Arc;
use syncline_format::items::extent::Extent;
use syncline_store::Canary;
use syncline_sync::asynchronous::MutexGuardArc;

/// Most extents taken over in one transaction: some hundred kilobytes of log.
const EXTENTS_MAX: usize = 1024;

/// A range of a file, and its destination.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub from: &'a Arc<Inode>,
    pub from_offset: u64,
    pub to: &'a Arc<Inode>,
    pub to_offset: u64,
    pub len: u64,
}

/// Keeps two files without dirty data while it lives.
pub(super) struct Settled<'a> {
    _writebacks: Vec<MutexGuardArc<()>>,
    _leases: Leases<'a>,
}

/// Blocks that naming these extents once more, with counts and marks, may take in half-filled
/// nodes.
pub(super) fn names_of(extents: &[Extent]) -> u64 {
    const EACH_BYTES: u64 = 1024;
    (extents.len() as u64 * EACH_BYTES).div_ceil(BLOCK)
}

/// Whole blocks that can be taken over in one transaction.
pub(super) struct Blocks {
    pub from: u64,
    pub to: u64,
    pub count: u64,
    /// Bytes of contents in them: fewer than they could hold where the file ends.
    pub bytes: u64,
}

impl<'a> Span<'a> {
    /// The range that remains after `bytes`.
    pub(super) fn after(self, bytes: u64) -> Self {
        Self {
            from_offset: self.from_offset + bytes,
            to_offset: self.to_offset + bytes,
            len: self.len - bytes,
            ..self
        }
    }

    /// Submits dirty data of both files (a reflink logs its source's dirty data first), and keeps
    /// them clean.
    pub(super) async fn settle(self, fs: &Filesystem) -> Result<Settled<'a>, FsError> {
        let mut files = vec![self.from, self.to];
        files.sort_by_key(|inode| inode.ino);
        files.dedup_by_key(|inode| inode.ino);
        // Room for the blocks is reserved later, under the leases, when they are known. While
        // waiting for the leases, nothing may be promised.
        drop(fs.admit_growth().await?);
        let writebacks = submit::hold_writebacks(&files).await;
        let leases = many::lease_settled(fs, &files).await?;
        for inode in &files {
            fs.require_present(inode)?;
        }
        require_writable(self.to, self.to_offset)?;
        Ok(Settled { _writebacks: writebacks, _leases: leases })
    }

    /// The blocks at the beginning of the range that can be taken over, if there are any. Both
    /// files are settled.
    ///
    /// The block in which the source ends is taken over only if the destination ends with it: zeros
    /// follow there.
    pub(super) fn blocks(self) -> Option<Blocks> {
        let (from_size, inline) = {
            let state = self.from.state.lock();
            (state.attr.size, state.data.has_inline())
        };
        let (to_size, to_inline) = {
            let state = self.to.state.lock();
            (state.attr.size, state.data.has_inline())
        };
        let aligned = self.from_offset.is_multiple_of(BLOCK) && self.to_offset.is_multiple_of(BLOCK);
        // Contents in an inode item have no blocks. Inline contents of the
        // destination are removed if the range replaces them.
        if !aligned || inline || (to_inline && self.to_offset > 0) || self.from_offset >= from_size {
            return None;
        }
        let bytes = self.len.min(from_size - self.from_offset);
        let with_tail = self.from_offset + bytes == from_size && self.to_offset + bytes >= to_size;
        let count = if with_tail { bytes.div_ceil(BLOCK) } else { bytes / BLOCK };
        let bytes = bytes.min(count * BLOCK);
        (count > 0).then_some(Blocks {
            from: self.from_offset / BLOCK,
            to: self.to_offset / BLOCK,
            count,
            bytes,
        })
    }

    /// Takes over blocks at the beginning of the range, and returns their bytes: 0 if they must be
    /// copied.
    pub(crate) async fn take_over(self, fs: &Filesystem, kill_privileges: bool) -> Result<u64, FsError> {
        let _settled = self.settle(fs).await?;
        let Some(mut blocks) = self.blocks() else { return Ok(0) };
        if self.to_offset + blocks.bytes > self.to.state.lock().attr.size {
            truncate::forget_stale_extents(fs, self.to).await?;
        }
        let source = self.source(fs, &mut blocks).await?;
        let _names = reserve(fs, names_of(&source)).await?;
        fs.drop_privileges(self.to, kill_privileges).await?;
        let size = SizeChange::Replaced { size: self.to_offset + blocks.bytes, now: fs.now() };
        if !self.commit(fs, &blocks, source, size).await? {
            return Ok(0);
        }
        fs.counters.reflinked_bytes.add(blocks.bytes);
        Ok(blocks.bytes)
    }

    /// Makes the destination's blocks those of the source, whatever the sizes of the files; sizes and
    /// times stay. False if they must be copied: contents of the source are in its inode item, or a
    /// block can't have more references.
    ///
    /// The caller has seen to it that no contents of the source come to lie behind the destination's
    /// end.
    pub(crate) async fn clone_blocks(self, fs: &Filesystem) -> Result<bool, FsError> {
        let _settled = self.settle(fs).await?;
        let inline = |inode: &Inode| inode.state.lock().data.has_inline();
        if inline(self.from) || inline(self.to) {
            return Ok(false);
        }
        let mut rest = self;
        while rest.len > 0 {
            let (from, to) = (rest.from_offset / BLOCK, rest.to_offset / BLOCK);
            let mut blocks = Blocks { from, to, count: rest.len / BLOCK, bytes: rest.len };
            let source = rest.source(fs, &mut blocks).await?;
            let _names = reserve(fs, names_of(&source)).await?;
            if !rest.commit(fs, &blocks, source, SizeChange::Keep).await? {
                return Ok(false);
            }
            rest = rest.after(blocks.count * BLOCK);
        }
        Ok(true)
    }

    /// The extents of the source. If there are very many, `blocks` is shortened.
    pub(super) async fn source(self, fs: &Filesystem, blocks: &mut Blocks) -> Result<Vec<Extent>, FsError> {
        let end = blocks.from + blocks.count;
        let found = lookup::some(&fs.store, self.from.ino, blocks.from, end, EXTENTS_MAX).await?;
        if let Some(last) = found.extents.last().filter(|_| !found.complete) {
            blocks.count = last.end().min(end) - blocks.from;
            blocks.bytes = blocks.bytes.min(blocks.count * BLOCK);
        }
        Ok(found.extents)
    }

    /// Replaces the destination's blocks by those of the source. False, with nothing changed, if a
    /// block can't have more references.
    pub(super) async fn commit(
        self,
        fs: &Filesystem,
        blocks: &Blocks,
        mut source: Vec<Extent>,
        size: SizeChange,
    ) -> Result<bool, FsError> {
        let cleared = blocks.to..blocks.to + blocks.count;
        let mut old = lookup::all(&fs.store, self.to.ino, cleared.start, cleared.end).await?;
        // Before the counts are locked: files that are being removed need them to give their blocks
        // back.
        let _quota = self.hold_quota(fs, blocks, &source, &old).await?;
        let mut shares = hold(fs, source.iter().chain(&old)).await?;
        // Extents without the mark need no lookup, but their counts change now.
        shares.hold_still(fs).await;
        let Some(new) = self.share(&mut source, blocks, &mut shares) else { return Ok(false) };
        if fs.store.breaks(Canary::ShareWithoutCount) {
            shares.uncount();
        }
        if self.from.ino == self.to.ino {
            // The replaced blocks may belong to an extent that has just got the mark.
            let marked = |extent: &Extent| {
                source.iter().any(|other| other.shared && other.file_block == extent.file_block)
            };
            old.iter_mut().for_each(|extent| extent.shared |= marked(extent));
        }
        let extents = plan::replace(&old, std::slice::from_ref(&cleared), new);
        let replaces_inline = blocks.to == 0 && self.to.state.lock().data.has_inline();
        let inline = if replaces_inline { InlineChange::Set(None) } else { InlineChange::Keep };
        let change = FileChange { extents, inline, size, ..FileChange::nothing(self.to) };
        transact::commit(fs, smallvec![change], shares)?;
        Ok(true)
    }

    /// Reserves in the quota what the destination's blocks gain: each file is charged for shared
    /// blocks in full.
    async fn hold_quota<'f>(
        self,
        fs: &'f Filesystem,
        blocks: &Blocks,
        source: &[Extent],
        old: &[Extent],
    ) -> Result<Option<Held<'f>>, FsError> {
        let within = |extents: &[Extent], first: u64| -> u64 {
            let parts = extents.iter().filter_map(|extent| extent.slice(first, first + blocks.count));
            parts.map(|part| part.charged_blocks()).sum()
        };
        let more = within(source, blocks.from).saturating_sub(within(old, blocks.to));
        quota::hold_blocks(fs, self.to, more).await
    }

    /// Adds the references, and returns the destination's new extents.
    pub(super) fn share(
        self,
        source: &mut [Extent],
        blocks: &Blocks,
        shares: &mut Shares<'_>,
    ) -> Option<Vec<Extent>> {
        let mut new = Vec::with_capacity(source.len() + 1);
        for extent in source {
            let Some(part) = extent.slice(blocks.from, blocks.from + blocks.count) else { continue };
            shares.share(self.from.ino, extent, part.run()).ok()?;
            let file_block = part.file_block - blocks.from + blocks.to;
            let pieces = plan::pieces(&Extent { file_block, shared: true, ..part.clone() });
            if part.packed.is_some() {
                // Each piece needs all of the unit.
                (1..pieces.len()).try_for_each(|_| shares.divide(part.run())).ok()?;
            }
            new.extend(pieces);
        }
        Some(new)
    }
}
