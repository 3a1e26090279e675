//! Waiting for room, which dirty data and unlinked files will give back. The kernel sends FORGET some
//! time after the last unlink; only then does the inode give back its blocks and its share of a
//! quota. An operation that finds no room therefore tries again a few times.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use std::time::Duration;
use syncline_store::{Admission, Admitted, ChangeSize, StoreError};

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

impl Filesystem {
    /// Waits for admission of a change that adds to the filesystem. Before it reports that there is
    /// no room, it writes back what is dirty, which has more room reserved than it takes, and waits
    /// for unlinked inodes that are about to give their blocks back.
    pub(crate) async fn admit_growth(&self) -> Result<Admitted, FsError> {
        self.admit_growth_of(ChangeSize::ORDINARY).await
    }

    /// Like `admit_growth`, for a change of at most this size.
    pub(crate) async fn admit_growth_of(&self, size: ChangeSize) -> Result<Admitted, FsError> {
        let mut patience = Patience::default();
        let mut synced = false;
        let mut admitted = self.store.admit_change(Admission::Grow, size).await;
        while matches!(admitted, Err(StoreError::NoSpace)) {
            if !synced && self.give_back_by_sync().await {
                synced = true;
            } else if !patience.wait(self, |_| true).await {
                break;
            }
            admitted = self.store.admit_growth_now(size).await;
        }
        Ok(admitted?)
    }

    /// Writes back everything that is dirty, which frees reserved blocks: a file that will go into
    /// its inode item holds a reserved block until then, and every dirty file holds room for the
    /// tree nodes that will name its blocks. A caller that was refused during a standstill waits for its
    /// checkpoint instead. Returns false if nothing is dirty and there is no standstill. The caller holds
    /// no lease.
    pub(crate) async fn give_back_by_sync(&self) -> bool {
        let still = self.store.is_standing_still();
        self.store.pass_gate().await;
        let dirty = self.data.queue.dirty_bytes() > 0;
        if dirty {
            // Errors are reported to those who own the data.
            self.syncfs().await.ok();
        }
        dirty || still
    }
}
