//! The way that a submission sends a file's dirty blocks.

use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::inode::InodeState;

/// Most blocks of a file that one sync logs. With more, a separate write costs less than writing
/// them twice.
const LOGGED_MAX: u64 = 4;
/// Most blocks of a file without a place. The sync that would exceed this places them all, in one
/// write.
const UNPLACED_MAX: u64 = 64;
/// A file's first sync logs its blocks only if at most this many syncs are under way. For most
/// files it is the only sync: their blocks would be written twice, if they live. With many syncs
/// that saves little: a device write that is joined with the writes of the others, and a wait that
/// these have anyway.
const FEW_SYNCS: u64 = 4;
/// Free blocks that must remain: on a full image the tree has no room for file contents as well.
const ROOM: u64 = 256;

/// True when a submission should log the dirty blocks rather than place them. The inode's
/// `writeback` and its lease are held.
pub(in crate::data) fn is_logged(fs: &Filesystem, state: &InodeState, aim: Aim) -> bool {
    let data = &state.data;
    let plain = data.inline.is_none() && data.preallocated.blocks() == 0 && data.charge.is_none();
    let large = state.attr.size > fs.limits.inline_bytes as u64;
    if aim != Aim::Log || !fs.logs_data || !plain || !large || !data.in_flight.is_empty() {
        return false;
    }
    if !data.submitted && fs.store.syncs_about() > FEW_SYNCS {
        return false;
    }
    let more = data.dirty.unlogged();
    let few = more <= LOGGED_MAX && data.unplaced.len() + more <= UNPLACED_MAX;
    few && fs.store.is_roomy(ROOM)
}
