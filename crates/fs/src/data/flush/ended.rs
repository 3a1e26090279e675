//! The check at the end of each successful submission of a file's data.
//!
//! By then, everything that was dirty when the submission began is named or logged, so the logged
//! size reaches as far as the file did, or as far as truncations have left it since. If a
//! submission ended short of that, the fsync behind it would still be answered, and after a crash,
//! or only when the inode has left the cache, the file would be shorter than promised. This
//! happened once: a truncation took back what a submission had to log. So a submission that ends
//! short looks again. Should that fail, this check tells so at the place where it happens and not
//! after the crash: it is counted and reported, and tests and laboratories fail.

use crate::filesystem::Filesystem;
use crate::inode::Inode;
use syncline_store::Canary;

/// True when a submission that has just ended well has done all that it had to, which is checked
/// then. Otherwise it has to look again. The inode's `writeback` is held.
pub(super) fn has_ended(fs: &Filesystem, inode: &Inode) -> bool {
    let missed = inode.state.lock().has_missed(may_be_short(fs));
    if !missed {
        require_size(fs, inode);
    }
    !missed
}

/// Checks an inode whose submission has just ended well. Its `writeback` is held.
pub(in crate::data) fn require_size(fs: &Filesystem, inode: &Inode) {
    let state = inode.state.lock();
    let (logged, promised, size) =
        (state.data.logged.size(), state.data.progress.promised(), state.attr.size);
    // The removal of an inode takes its data away.
    if state.removing || !state.data.is_short(size) {
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

/// True when a submission may end short, because that rule is broken on purpose.
fn may_be_short(fs: &Filesystem) -> bool {
    fs.store.breaks(Canary::SizeBehind)
}
