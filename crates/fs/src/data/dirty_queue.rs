//! State that is common to all file data: the list of dirty inodes, and the task that writes them
//! back.

use super::ahead::Ahead;
use super::along::SmallDirty;
use super::cached::CachedFiles;
use super::gauge::Gauge;
use super::preallocated::Room;
use super::submission::Aim;
use super::units::Units;
use super::{DataState, writeback};
use crate::FsError;
use crate::clock::age;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::join::join_all;
use crate::types::{Ino, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_sync::atomic::{AtomicBool, Ordering};
use syncline_sync::{Event, EventListener, Mutex};

/// Inodes written back at the same time.
const INODES_AT_ONCE: usize = 16;
/// How often the background task looks for data that is old enough.
const TICK: Duration = Duration::from_secs(1);
/// Longest time for which a failing device is left alone.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// The queue of dirty inodes, and everything else that file data has in common.
#[derive(Default)]
pub(crate) struct DirtyQueue {
    /// Memory that the dirty data of all inodes takes.
    dirty_bytes: Gauge,
    queue: Mutex<Queue>,
    /// Wakes the background task.
    wake: Event,
    /// Notified when write-back of an inode has ended, dirty bytes went down, or there is another
    /// inode to write back.
    progress: Event,
    stopping: AtomicBool,
    /// Files that cache placed blocks.
    pub(crate) cached: CachedFiles,
    /// Inodes that were removed while their data was in flight; its memory counts until the writes
    /// have ended.
    removed: Mutex<Vec<Weak<Inode>>>,
    /// Dirty inodes whose contents lie in their inode items.
    pub(crate) small: SmallDirty,
    /// Tasks that place the blocks that syncs have logged.
    pub(super) ahead: Ahead,
    /// Room set aside for preallocated blocks.
    pub(crate) room: Room,
    /// Compressed units that were decoded recently.
    pub(crate) units: Units,
    /// Held while reference counts of shared blocks are read and changed.
    pub(crate) shared_counts: syncline_sync::asynchronous::Mutex<()>,
}

#[derive(Default)]
struct Queue {
    /// Dirty inodes, each with the time since when, oldest first. An fsync may have cleaned some of
    /// them meanwhile.
    waiting: VecDeque<(Timestamp, Arc<Inode>)>,
    /// Inodes that are being written back now.
    active: BTreeMap<Ino, Arc<Inode>>,
}

impl DirtyQueue {
    /// Puts an inode with dirty data into the list. The caller holds the lock of its state, hence
    /// `data`.
    pub(crate) fn note_dirty(&self, fs: &Filesystem, inode: &Arc<Inode>, data: &mut DataState) {
        self.account(data);
        self.small.note(inode, data);
        let mut first = false;
        if !data.queued {
            data.queued = true;
            let mut queue = self.queue.lock();
            first = queue.waiting.is_empty();
            queue.waiting.push_back((fs.now(), inode.clone()));
            drop(queue);
            // A writer that waits for room, and had nothing to write back, has something now.
            self.progress.notify(usize::MAX);
        }
        if first || self.dirty_bytes.get() >= fs.options.writeback_start_bytes {
            self.wake.notify(1);
        }
    }

    /// Updates the gauge of dirty bytes for one inode.
    pub(crate) fn account(&self, data: &mut DataState) {
        let blocks = data.memory_blocks();
        let bytes = |blocks: u32| u64::from(blocks) * super::BLOCK;
        if self.dirty_bytes.replace(bytes(data.accounted_blocks), bytes(blocks)) {
            self.progress.notify(usize::MAX);
        }
        data.accounted_blocks = blocks;
    }

    /// Notes an inode that can no longer be found, if its data still takes memory.
    pub(crate) fn note_removed(&self, inode: &Arc<Inode>) {
        if inode.state.lock().data.memory_blocks() > 0 {
            let mut removed = self.removed.lock();
            removed.retain(|inode| inode.strong_count() > 0);
            removed.push(Arc::downgrade(inode));
        }
    }

    /// Removed inodes whose data is still being written.
    pub(crate) fn removed_in_flight(&self) -> Vec<Arc<Inode>> {
        self.removed.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Memory that dirty data takes now.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.get()
    }

    /// A listener for less dirty data, or for another inode to write back.
    pub(crate) fn progress(&self) -> EventListener {
        self.progress.listen()
    }

    /// True once the background tasks are to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Notes that a task that placed logged blocks has ended.
    pub(super) fn end_ahead(&self) {
        self.ahead.end();
        self.progress.notify(usize::MAX);
    }

    /// Wakes the background task.
    pub(crate) fn wake(&self) {
        self.wake.notify(1);
    }

    /// Takes the inode that has been dirty longest. The caller gives it to [`DirtyQueue::finish`]
    /// after its write-back.
    pub(crate) fn take_oldest(&self) -> Option<Arc<Inode>> {
        self.take(|_| true, 1).pop()
    }

    /// Takes at most `max` inodes from the front of the list, up to the first whose time does not
    /// satisfy `wanted`.
    fn take(&self, wanted: impl Fn(Timestamp) -> bool, max: usize) -> Vec<Arc<Inode>> {
        let mut queue = self.queue.lock();
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some((since, _)) = queue.waiting.front()
            && wanted(*since)
            && let Some((_, inode)) = queue.waiting.pop_front()
        {
            queue.active.insert(inode.ino, inode.clone());
            taken.push(inode);
        }
        taken
    }

    /// Notes that write-back of an inode has ended, successfully or not. If something is left to
    /// write, the inode goes back to the list, unless it is being removed: its data goes with it,
    /// and retries would spin, since nothing in them waits for the removal.
    pub(crate) fn finish(&self, fs: &Filesystem, inode: &Arc<Inode>) {
        let mut state = inode.state.lock();
        let mut queue = self.queue.lock();
        queue.active.remove(&inode.ino);
        let mut first = false;
        // A submission that holds `writeback` may have taken blocks out of the dirty map that no
        // transaction names yet; a sync of everything has to find the inode here and wait for that.
        // An inode without dirty blocks whose size or mtime is not logged is written back as well,
        // or the cache would lose that change.
        let settled = state.is_settled(Aim::Place);
        if !settled && !state.removing {
            first = queue.waiting.is_empty();
            queue.waiting.push_back((fs.now(), inode.clone()));
        } else {
            state.data.queued = false;
            state.data.small_noted = false;
        }
        drop(queue);
        drop(state);
        if first {
            // While the list is empty, the background task sets no timer.
            self.wake.notify(1);
        }
        self.progress.notify(usize::MAX);
    }

    /// Every inode that may have dirty data.
    pub(crate) fn all_dirty(&self) -> Vec<Arc<Inode>> {
        let queue = self.queue.lock();
        queue.waiting.iter().map(|(_, inode)| inode).chain(queue.active.values()).cloned().collect()
    }

    /// Takes the inodes that are due for write-back.
    fn due(&self, fs: &Filesystem) -> Vec<Arc<Inode>> {
        let pressed = self.dirty_bytes.get() >= fs.options.writeback_start_bytes;
        let now = fs.now();
        self.take(|since| pressed || age(since, now) >= fs.options.writeback_age, INODES_AT_ONCE)
    }
}

impl Drop for DirtyQueue {
    fn drop(&mut self) {
        // Wakes the background task, which finds the filesystem gone and ends.
        self.wake.notify(usize::MAX);
    }
}

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
            let woken = fs.data.wake.listen();
            if fs.data.stopping.load(Ordering::Relaxed) {
                return;
            }
            let broken = write_back_due(&fs).await.and(fs.log_access_due().await).is_err();
            let idle = fs.data.queue.lock().waiting.is_empty() && fs.accessed.is_empty();
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

/// Time until the next look, after this many failures in a row. Each look writes everything that is
/// due, in vain as long as the device does not recover; a program that cannot wait for it calls
/// fsync.
fn pause(failures: u32) -> Duration {
    TICK.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE_MAX)
}

/// Writes back all that is due, up to the first error.
async fn write_back_due(fs: &Filesystem) -> Result<(), FsError> {
    loop {
        let due = fs.data.due(fs);
        if due.is_empty() {
            return Ok(());
        }
        write_back_all(fs, &due).await?;
    }
}

/// Writes back inodes taken from the list, several at a time. The first error is returned after all
/// were tried.
async fn write_back_all(fs: &Filesystem, inodes: &[Arc<Inode>]) -> Result<(), FsError> {
    let jobs = inodes.iter().map(|inode| finish_after(fs, inode)).collect();
    join_all(jobs, INODES_AT_ONCE).await.into_iter().collect()
}

async fn finish_after(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    let _finish = Finish { fs, inode };
    fs.store.give_way();
    writeback::write_back(fs, inode).await
}

/// Writes back an inode taken from the list with [`DirtyQueue::take_oldest`].
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
        self.fs.data.finish(self.fs, self.inode);
    }
}

/// Writes back everything that is dirty now.
pub(crate) async fn write_back_everything(fs: &Filesystem) -> Result<(), FsError> {
    write_back_all_of(fs, &fs.data.all_dirty()).await
}

/// Writes back these inodes, whether or not they are in the list. The first error is returned after
/// all were tried.
pub(crate) async fn write_back_all_of(fs: &Filesystem, inodes: &[Arc<Inode>]) -> Result<(), FsError> {
    let jobs = inodes.iter().map(|inode| writeback::write_back(fs, inode)).collect();
    join_all(jobs, INODES_AT_ONCE).await.into_iter().collect()
}

/// Writes everything back and ends the background tasks. Called by `Filesystem::close`.
pub(crate) async fn stop(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    fs.data.stopping.store(true, Ordering::Relaxed);
    fs.data.wake.notify(usize::MAX);
    let written = write_back_everything(fs).await;
    loop {
        let progress = fs.data.progress();
        if !fs.data.ahead.any() {
            return written;
        }
        progress.await;
    }
}
