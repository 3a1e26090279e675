//! Waiting for unlinked files. The kernel sends FORGET some time after the last unlink; only then
//! does the inode give back its blocks and its share of a quota. An operation that finds no room
//! therefore tries again a few times.

use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use std::time::Duration;

/// Number of retries while an inode is still being removed, and the time between them.
const WAITS: u32 = 20;
const WAIT: Duration = Duration::from_millis(5);

/// How long an operation has waited.
#[derive(Default)]
pub(crate) struct Patience {
    waits: u32,
}

impl Patience {
    /// Waits for removals that would help; false if another try is pointless. The caller may hold
    /// leases.
    pub(crate) async fn wait(&mut self, fs: &Filesystem, helps: impl Fn(&InodeState) -> bool) -> bool {
        if self.waits > 0 {
            let to_go = |inode: &Inode| {
                let state = inode.state.lock();
                state.attr.nlink == 0 && state.opens == 0 && helps(&state)
            };
            if self.waits > WAITS || fs.inodes.matching(to_go).is_empty() {
                return false;
            }
            fs.spawn.sleep(WAIT).await;
        }
        self.waits += 1;
        fs.retry_orphans();
        fs.wait_for_orphans_leased().await;
        true
    }
}
