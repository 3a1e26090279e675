//! The way that a submission sends each dirty block: into the batch itself, beside the batch, or
//! before it.
//!
//! A few blocks go into the batch with their contents ([`is_logged`]). Otherwise the last megabyte
//! or so is written in parallel with the batch that names it: the writes are started and the
//! transaction is committed at once. Everything before that ([`before_log_end`]) goes through
//! background write-back, so that a large fsync does not hold up everybody's flush.

use crate::data::memory::submission::Aim;
use crate::data::memory::{DataState, page_start};
use crate::filesystem::Filesystem;
use crate::inode::InodeState;
use syncline_format::items::extent::EXTENT_BLOCKS_MAX;
use syncline_format::items::inode::compression_of;

/// Most blocks of a file that one sync logs, while few syncs are under way and while many are. With
/// more, a separate write costs less than writing them twice. Among many it costs less anyway: it
/// is joined with those of the others.
const LOGGED_MAX_ALONE: u64 = 8;
const LOGGED_MAX_AMONG_MANY: u64 = 4;
/// Most blocks of a file without a place. The sync that would exceed this places them all, in one
/// write: with more than `parallel_blocks` of them it would do so in two steps.
pub(super) const UNPLACED_MAX: u64 = 192;
/// Most syncs under way that are few. Among more, a file's first sync logs nothing: for most
/// files it is the only one, their blocks would be written twice, if they live. With many syncs
/// that saves little: a device write that is joined with the writes of the others, and a wait that
/// these have anyway.
const FEW_SYNCS: u64 = 4;
/// Free blocks that must remain: on a full image the tree has no room for file contents as well.
const ROOM: u64 = 256;

/// True when a submission of so many files should log the dirty blocks of this one rather than
/// place them. The inode's `writeback` and its lease are held.
pub(super) fn is_logged(fs: &Filesystem, state: &InodeState, aim: Aim, files: usize) -> bool {
    let data = &state.data;
    let plain = !data.has_inline() && data.preallocated.blocks() == 0 && data.charge.is_none();
    let large = state.attr.size > fs.limits.inline_bytes as u64;
    if aim != Aim::Log || !fs.logs_data || !plain || !large || data.blocks.in_flight() > 0 {
        return false;
    }
    let syncs = fs.store.syncs_about();
    if !data.progress.has_submitted() && syncs > FEW_SYNCS {
        return false;
    }
    let more = data.blocks.unlogged();
    let many = syncs.max(files as u64) > FEW_SYNCS;
    let max = if many { LOGGED_MAX_AMONG_MANY } else { LOGGED_MAX_ALONE };
    let few = more <= max && data.logged.unplaced().len() + more <= UNPLACED_MAX;
    few && fs.store.is_roomy(ROOM)
}

/// The end of the part of the range that is written before its batch, if there is such a part: all
/// but the last `parallel_blocks` dirty blocks and, if the file is to be compressed, the whole
/// units among those last ones. A smaller sync compresses nothing.
pub(in crate::data) fn before_log_end(
    fs: &Filesystem,
    state: &InodeState,
    first: u64,
    end: u64,
) -> Option<u64> {
    let split = background_end(&state.data, first, end, fs.options.parallel_blocks.max(1));
    if compression_of(state.meta.flags).is_none() {
        return split;
    }
    split.max(whole_units_end(&state.data, split.unwrap_or(first), end))
}

/// The beginning of the page with the first of the last `parallel` dirty blocks of the range, if there
/// are more before that.
fn background_end(data: &DataState, first: u64, end: u64, parallel: u64) -> Option<u64> {
    if first >= end || data.blocks.dirty() <= parallel {
        return None;
    }
    let split = page_start(data.blocks.numbers_backwards(first, end).nth(parallel as usize - 1)?);
    (split > first && data.blocks.numbers(first..split).next().is_some()).then_some(split)
}

/// The end of the last unit in the range whose blocks are all dirty.
fn whole_units_end(data: &DataState, first: u64, end: u64) -> Option<u64> {
    if first >= end {
        return None;
    }
    let mut needed = None;
    for number in data.blocks.numbers_backwards(first, end) {
        if number % EXTENT_BLOCKS_MAX == EXTENT_BLOCKS_MAX - 1 {
            needed = Some(number);
        }
        if needed != Some(number) {
            needed = None;
        } else if number.is_multiple_of(EXTENT_BLOCKS_MAX) {
            return Some(number + EXTENT_BLOCKS_MAX);
        } else {
            needed = Some(number - 1);
        }
    }
    None
}
