//! The task that writes old dirty data back, and write-back of many inodes.

use super::writeback;
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::join::join_all;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Inodes written back at the same time.
pub(super) const INODES_AT_ONCE: usize = 16;
/// How often the background task looks for data that is old enough.
const TICK: Duration = Duration::from_secs(1);
/// Longest time for which a failing device is left alone.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Failures in a row by which a failing device is known. Fewer may be damaged files, which keep nobody
/// waiting.
const FAILURES_MAX: usize = INODES_AT_ONCE;

/// Starts the background task. Called once by `Filesystem::open`.
pub(crate) fn start(fs: &Arc<Filesystem>) {
    fs.spawn.spawn(Box::pin(run(Arc::downgrade(fs))));
}

/// The background task. It looks for work when it is woken, and each second while anything is dirty
/// or an access time waits.
async fn run(fs: Weak<Filesystem>) {
    let mut failures = 0;
    loop {
        let (woken, tick, broken) = {
            let Some(fs) = fs.upgrade() else { return };
            // Listens before looking, so that no wake-up is missed.
            let woken = fs.data.queue.woken();
            if fs.data.queue.is_stopping() {
                return;
            }
            let broken = write_back_due(&fs).await | fs.log_access_due(FAILURES_MAX).await;
            let idle = fs.data.queue.is_empty() && fs.accessed.is_empty();
            failures = if broken { failures + 1 } else { 0 };
            (woken, (!idle || broken).then(|| fs.spawn.sleep(pause(failures))), broken)
        };
        match tick {
            // A failing device is tried again only after the pause, although the data that failed
            // is dirty again and wakes this task.
            Some(tick) if broken => tick.await,
            Some(tick) => futures_lite::future::or(woken, tick).await,
            None => woken.await,
        }
    }
}

/// Time until the next look, after this many in a row that met a failing device. Each look writes some
/// of the due data, in vain until the device recovers; a program that cannot wait for it
/// calls fsync.
fn pause(failures: u32) -> Duration {
    TICK.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE_MAX)
}

/// Writes back all that is due. True if so many failed in a row that the device must be failing; the
/// rest waits.
async fn write_back_due(fs: &Filesystem) -> bool {
    let mut failed = 0;
    while failed < FAILURES_MAX {
        let due = fs.data.queue.due(fs, INODES_AT_ONCE);
        if due.is_empty() {
            return false;
        }
        let jobs = due.iter().map(|inode| finish_after(fs, inode)).collect();
        let written = join_all(jobs, INODES_AT_ONCE).await;
        failed = if written.iter().any(Result::is_ok) { 0 } else { failed + written.len() };
    }
    true
}

async fn finish_after(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    let _finish = Finish { fs, inode };
    fs.store.give_way();
    writeback::write_back(fs, inode).await
}

/// Writes back an inode taken from the list with `DirtyQueue::take_oldest`.
pub(crate) async fn write_back_taken(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    finish_after(fs, inode).await
}

/// Gives an inode back to the list when dropped, even if the wait for its write-back was given up.
struct Finish<'a> {
    fs: &'a Filesystem,
    inode: &'a Arc<Inode>,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.fs.store.give_way();
        self.fs.data.queue.finish(self.fs, self.inode);
    }
}

/// Writes back everything that is dirty now.
pub(crate) async fn write_back_everything(fs: &Filesystem) -> Result<(), FsError> {
    write_back_all_of(fs, &fs.data.queue.all_dirty()).await
}

/// Writes back these inodes, whether or not they are in the list. The first error is returned after
/// all were tried.
pub(crate) async fn write_back_all_of(fs: &Filesystem, inodes: &[Arc<Inode>]) -> Result<(), FsError> {
    let jobs = inodes.iter().map(|inode| writeback::write_back(fs, inode)).collect();
    join_all(jobs, INODES_AT_ONCE).await.into_iter().collect()
}

/// Writes everything back and ends the background tasks. Called by `Filesystem::close`.
pub(crate) async fn stop(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    fs.data.queue.stop();
    let written = write_back_everything(fs).await;
    loop {
        let progress = fs.data.queue.progress();
        if !fs.data.ahead.any() {
            return written;
        }
        progress.await;
    }
}
