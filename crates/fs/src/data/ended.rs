//! What must be true whenever a submission of a file's data has ended well.
//!
//! All that was dirty when it began is named, or logged, by then, so the logged size reaches as far as the file did, or as far as truncations have left it
//! since. A submission that ended otherwise would be taken for done: the fsync behind it would be answered, and after a crash, or only when the inode
//! has left the cache, the file would be shorter than what was promised. It came about once, by a truncation that took back what a submission had to
//! log. So who ends one short looks again; should that fail, this tells at the place where it happens and not after the crash: it is counted and
//! reported, and tests and laboratories fail.

use super::DataState;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use syncline_store::Canary;

/// True when less is logged than a submission that has just ended had to log.
pub(super) fn is_short(data: &DataState, size: u64) -> bool {
    data.disk_size < data.promised.min(size)
}

/// True when it may be, since that rule is to be broken.
pub(super) fn may_be_short(fs: &Filesystem) -> bool {
    [Canary::SizeBehind, Canary::TruncateBehind].into_iter().any(|rule| fs.store.breaks(rule))
}

/// Looks at an inode whose submission has just ended well. Its `writeback` is held.
pub(super) fn require_size(fs: &Filesystem, inode: &Inode) {
    let state = inode.state.lock();
    let (logged, promised, size) = (state.data.disk_size, state.data.promised, state.attr.size);
    // Whoever removes the inode has taken its data away.
    if state.removing || !is_short(&state.data, size) {
        return;
    }
    drop(state);
    fs.counters.submissions_short.add(1);
    tracing::error!(
        ino = inode.ino,
        logged,
        promised,
        size,
        "a submission has ended and the logged size is behind: report this as a bug"
    );
    debug_assert!(may_be_short(fs), "{logged} bytes logged of {promised} of {size}");
}
