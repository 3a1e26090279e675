//! The queue of dirty inodes: which of them are due for write-back, and how much memory their data
//! takes.
//!
//! An inode that can't be written back, because its items are damaged or the device fails, rests for a
//! while, longer each time. The others are written back meanwhile.

use super::gauge::Gauge;
use crate::data::memory::submission::Aim;
use crate::data::memory::{BLOCK, DataState};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_sync::atomic::{AtomicBool, Ordering};
use syncline_sync::{Event, EventListener, Mutex};

/// How long an inode rests whose write-back failed for the first time; the longest rest.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(8);

/// The queue of dirty inodes.
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
    /// Inodes that were removed while their data was in flight; its memory counts until the writes
    /// have ended.
    removed: Mutex<Vec<Weak<Inode>>>,
}

#[derive(Default)]
struct Queue {
    /// Dirty inodes, each with the uptime since when, oldest first. An fsync may have cleaned some of
    /// them meanwhile.
    waiting: VecDeque<(Duration, Arc<Inode>)>,
    /// Inodes that are being written back now.
    active: BTreeMap<Ino, Arc<Inode>>,
    /// Inodes whose last write-back failed, each with the uptime at which it is tried again.
    resting: Vec<(Duration, Arc<Inode>)>,
}

impl Queue {
    /// True when no inode is there for the background task, now or later.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.resting.is_empty()
    }

    /// Ends the rest of inodes that have rested long enough: they are due first.
    fn end_rests(&mut self, now: Duration) {
        for (_, inode) in self.resting.extract_if(.., |(until, _)| *until <= now) {
            self.waiting.push_front((Duration::ZERO, inode));
        }
    }
}

/// How long an inode rests whose write-back has failed so many times in a row.
fn rest(failures: u32) -> Duration {
    REST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(REST_MAX)
}

impl DirtyQueue {
    /// Puts an inode with dirty data into the list. The caller holds the lock of its state, hence
    /// `data`.
    pub(crate) fn note_dirty(&self, fs: &Filesystem, inode: &Arc<Inode>, data: &mut DataState) {
        self.account(data);
        fs.data.small.note(inode, data);
        let mut first = false;
        if data.progress.enter_queue() {
            let mut queue = self.queue.lock();
            first = queue.is_empty();
            queue.waiting.push_back((fs.uptime(), inode.clone()));
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
        let bytes = |blocks: u32| u64::from(blocks) * BLOCK;
        let before = data.progress.account(blocks);
        if self.dirty_bytes.replace(bytes(before), bytes(blocks)) {
            self.progress.notify(usize::MAX);
        }
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

    /// A listener for the background task: there is something to do.
    pub(in crate::data) fn woken(&self) -> EventListener {
        self.wake.listen()
    }

    /// True when no inode waits for write-back.
    pub(in crate::data) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Ends the rest of this inode, or of any, before its time. The caller gives it to
    /// [`DirtyQueue::finish`] after its write-back.
    pub(in crate::data) fn take_resting(&self, ino: Option<Ino>) -> Option<Arc<Inode>> {
        let mut queue = self.queue.lock();
        let wanted = |(_, inode): &(Duration, Arc<Inode>)| ino.is_none_or(|ino| inode.ino == ino);
        let place = queue.resting.iter().position(wanted)?;
        let (_, inode) = queue.resting.remove(place);
        queue.active.insert(inode.ino, inode.clone());
        Some(inode)
    }

    /// Memory of inodes whose write-back failed.
    pub(in crate::data) fn stuck_bytes(&self) -> u64 {
        let resting: Vec<_> = self.queue.lock().resting.iter().map(|(_, inode)| inode.clone()).collect();
        resting.iter().map(|inode| u64::from(inode.state.lock().data.memory_blocks()) * BLOCK).sum()
    }

    /// Ends the background tasks.
    pub(in crate::data) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake.notify(usize::MAX);
    }

    /// A listener for less dirty data, or for another inode to write back.
    pub(crate) fn progress(&self) -> EventListener {
        self.progress.listen()
    }

    /// True once the background tasks are to end.
    pub(in crate::data) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Tells those who wait for progress that there is some.
    pub(in crate::data) fn note_progress(&self) {
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
    fn take(&self, wanted: impl Fn(Duration) -> bool, max: usize) -> Vec<Arc<Inode>> {
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
    /// write, the inode goes back to the list, or rests if it failed. An inode that is being removed
    /// does neither: its data goes with it, and retries would spin, since nothing in them waits for
    /// the removal.
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
            first = queue.is_empty();
            match state.data.failures.unwritten() {
                0 => queue.waiting.push_back((fs.uptime(), inode.clone())),
                failures => queue.resting.push((fs.uptime() + rest(failures), inode.clone())),
            }
        } else {
            state.data.progress.leave_lists();
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
        let listed = queue.waiting.iter().chain(&queue.resting).map(|(_, inode)| inode);
        listed.chain(queue.active.values()).cloned().collect()
    }

    /// Takes at most `max` inodes that are due for write-back.
    pub(in crate::data) fn due(&self, fs: &Filesystem, max: usize) -> Vec<Arc<Inode>> {
        let now = fs.uptime();
        self.queue.lock().end_rests(now);
        let to_write = self.dirty_bytes.get().saturating_sub(self.stuck_bytes());
        let pressed = to_write >= fs.options.writeback_start_bytes;
        self.take(|since| pressed || now.saturating_sub(since) >= fs.options.writeback_age, max)
    }
}

impl Drop for DirtyQueue {
    fn drop(&mut self) {
        // Wakes the background task, which finds the filesystem gone and ends.
        self.wake.notify(usize::MAX);
    }
}
