//! Patience with what was removed: a little later than it has a last name removed does the kernel tell that it needs the inode no
//! more, and only then does that give back its blocks and what it takes of a quota. Whoever finds no room tries again a few times.

use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use std::time::Duration;

/// How often, and how long apart, it is tried again while something is still to go.
const WAITS: u32 = 20;
const WAIT: Duration = Duration::from_millis(5);

/// How long somebody has waited.
#[derive(Default)]
pub(crate) struct Patience {
    waits: u32,
}

impl Patience {
    /// Waits for removals of what would help; false when it is no use to try once more. The caller may hold leases.
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
