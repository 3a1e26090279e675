//! Access times: reads move them in memory; one transaction logs them later for many reads.
//!
//! A read costs a mark and, the first time, an entry in a list. Inodes in the list are logged when
//! their entries are as old as dirty data may become, before any operation that brings the tree up
//! to date, and at unmount; a single inode also with its fsync. Until then the inode stays in
//! memory, since otherwise its access time would be lost without a crash.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::InodeChanges;
use crate::options::AccessTime;
use crate::types::FileType;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use syncline_format::items::inode::FLAG_NO_ACCESS_TIME;
use syncline_store::{Admission, OpSeq, Transaction};
use syncline_sync::Mutex;
use syncline_sync::atomic::{AtomicUsize, Ordering};

/// Age in seconds at which a relative access time is renewed.
const ACCESS_TIME_AGE_SECONDS: i64 = 24 * 60 * 60;
/// Number of waiting inodes at which the background task is asked to log them, whatever their age.
const WAITING_MANY: usize = 1024;
/// Number of waiting inodes at which a reader logs some first, so that the list stays bounded.
const WAITING_MAX: usize = 4096;

/// Inodes whose access time is not logged, oldest first. Some may have been logged meanwhile with
/// another change.
#[derive(Default)]
pub(crate) struct Accessed {
    waiting: Mutex<VecDeque<(Duration, Arc<Inode>)>>,
    /// Number of waiting inodes, readable without the lock.
    len: AtomicUsize,
}

impl Accessed {
    /// True when nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Adds an inode at the end, and returns the new length.
    fn add(&self, since: Duration, inode: Arc<Inode>) -> usize {
        let mut waiting = self.waiting.lock();
        waiting.push_back((since, inode));
        self.len.store(waiting.len(), Ordering::Relaxed);
        waiting.len()
    }

    /// The inode that has waited longest, if `wanted` accepts the time since which it waits.
    fn take(&self, wanted: impl Fn(Duration) -> bool) -> Option<Arc<Inode>> {
        let mut waiting = self.waiting.lock();
        let (since, _) = waiting.front()?;
        if !wanted(*since) {
            return None;
        }
        let taken = waiting.pop_front().map(|(_, inode)| inode);
        self.len.store(waiting.len(), Ordering::Relaxed);
        taken
    }
}

impl Filesystem {
    /// Moves the access time of an inode that was read, in memory. The caller may hold the lease,
    /// but need not.
    pub(crate) fn touch_access(&self, inode: &Arc<Inode>) {
        let is_directory = inode.file_type == FileType::Directory;
        if self.options.access_time == AccessTime::Never
            || (is_directory && !self.options.directory_access_time)
        {
            return;
        }
        let now = self.now();
        let mut state = inode.state.lock();
        if state.meta.flags & FLAG_NO_ACCESS_TIME != 0 {
            return;
        }
        let attr = &mut state.attr;
        let stale = now.seconds.saturating_sub(attr.atime.seconds) >= ACCESS_TIME_AGE_SECONDS;
        let always = self.options.access_time == AccessTime::Always;
        if !always && !stale && attr.atime > attr.mtime && attr.atime > attr.ctime {
            return;
        }
        attr.atime = now;
        // If nothing can be logged, the time lives in memory only.
        if state.access_unlogged || self.store.writable().is_err() {
            return;
        }
        state.access_unlogged = true;
        drop(state);
        let len = self.accessed.add(self.uptime(), inode.clone());
        if len == 1 || len == WAITING_MANY {
            self.data.queue.wake();
        }
    }

    /// Logs a few access times if reads are so far ahead of the background task that the list is
    /// full. The caller holds no lease. Errors are not returned here; a sync reports what can't be
    /// logged.
    pub(crate) async fn ease_access(&self) {
        if self.options.access_time == AccessTime::Never || self.accessed.len() < WAITING_MAX {
            return;
        }
        // Boxed, because hardly any read comes here.
        Box::pin(async {
            for _ in 0..2 {
                let Some(inode) = self.accessed.take(|_| true) else { return };
                self.log_taken(&inode).await.ok();
            }
            if self.accessed.len() > WAITING_MAX && !self.store.has_room_to_spare() {
                // This access time is kept in memory only from now on.
                let oldest = self.accessed.take(|_| true);
                oldest.iter().for_each(|inode| inode.state.lock().access_unlogged = false);
            }
        })
        .await;
    }

    /// Logs access times that have waited as long as dirty data may, or all of them if there are
    /// many. True if `failures_max` failed in a row, as on a failing device; the rest waits.
    pub(crate) async fn log_access_due(&self, failures_max: usize) -> bool {
        let many = self.accessed.len() >= WAITING_MANY;
        let now = self.uptime();
        let due = |since| many || now.saturating_sub(since) >= self.options.writeback_age;
        let mut failed = 0;
        // Only as many as there are now: what fails waits again.
        for _ in 0..self.accessed.len() {
            if !self.store.has_room_to_spare() {
                break;
            }
            let Some(inode) = self.accessed.take(due) else { break };
            failed = if self.log_taken(&inode).await.is_ok() { 0 } else { failed + 1 };
            if failed == failures_max {
                return true;
            }
        }
        false
    }

    /// Logs every access time that is not logged now. The first error is returned after all were
    /// tried.
    pub(crate) async fn log_access_times(&self) -> Result<(), FsError> {
        if self.store.writable().is_err() {
            return Ok(());
        }
        let mut logged = Ok(());
        // Only as many as there are now: reads may continue meanwhile.
        for _ in 0..self.accessed.len() {
            if !self.store.has_room_to_spare() {
                break;
            }
            let Some(inode) = self.accessed.take(|_| true) else { break };
            logged = logged.and(self.log_taken(&inode).await);
        }
        logged
    }

    /// Logs the access time of an inode taken from the list; if that fails, the inode waits again.
    async fn log_taken(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let result = self.log_access_time(inode).await;
        let waits = {
            let state = inode.state.lock();
            state.access_unlogged && !state.removing && state.attr.nlink > 0
        };
        if waits && self.store.writable().is_ok() {
            self.accessed.add(self.uptime(), inode.clone());
        }
        result.map(drop)
    }

    /// Logs the access time of this inode if it is ahead of the log; returns the operation that
    /// did. The caller holds no lease.
    ///
    /// Nobody asked for this write: on a full filesystem it waits in memory, and takes no room from
    /// operations that free some.
    pub(crate) async fn log_access_time(&self, inode: &Arc<Inode>) -> Result<Option<OpSeq>, FsError> {
        if !inode.state.lock().access_unlogged || !self.store.has_room_to_spare() {
            return Ok(None);
        }
        let _room = self.store.admit(Admission::Finish).await?;
        let _lease = inode.lease.write().await;
        let state = inode.state.lock();
        // An inode without names is about to be removed, and is not visible after a crash.
        if !state.access_unlogged || state.removing || state.attr.nlink == 0 {
            return Ok(None);
        }
        drop(state);
        let mut changes = InodeChanges::new();
        changes.of(inode);
        changes.commit(self, Transaction::new()).map(Some)
    }
}
