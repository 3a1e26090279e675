//! Inodes without names. They are removed in the background once nobody has them open or refers to
//! them; after a crash they are found by their orphan items.

use crate::FsError;
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::quotas::Delta;
use crate::inode::{Inode, InodeState};
use crate::types::{FileType, Ino, ROOT};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_format::{Key, Kind};
use syncline_store::{Admission, StoreError, Transaction};
use syncline_sync::asynchronous::RwLockWriteGuard;
use syncline_sync::{Event, Mutex};

/// Items deleted in one transaction.
const ITEMS_EACH: usize = 128;
/// Orphans read at a time at mount.
const ORPHANS_EACH: usize = 1024;

/// Key of the item that marks an inode for removal.
pub(crate) fn key(ino: Ino) -> Key {
    Key::new(0, Kind::Orphan, ino)
}

/// Orphans to be removed, and the single task that removes them.
#[derive(Default)]
pub(crate) struct OrphanQueue {
    waiting: Mutex<Waiting>,
    /// Notified when the task has ended or waits for a lease.
    ended: Event,
}

#[derive(Default)]
struct Waiting {
    inos: VecDeque<Ino>,
    /// Orphans whose removal found no room.
    refused: Vec<Ino>,
    /// Orphans whose removal met a device error.
    failed: Vec<Ino>,
    /// A task is running, or about to run.
    running: bool,
    /// The task waits for a lease that another task holds.
    blocked: bool,
    /// The filesystem is being closed: handles and references no longer count.
    closing: bool,
}

impl OrphanQueue {
    /// The number of orphans that wait for the removing task.
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().inos.len()
    }
}

impl Filesystem {
    /// Takes back `count` kernel references.
    pub fn forget(self: &Arc<Self>, ino: Ino, count: u64) {
        if self.references.forget(ino, count)
            && let Some(inode) = self.inodes.peek(ino)
        {
            self.remove_if_unused(&inode);
        }
    }

    /// True while the kernel refers to the inode.
    pub fn is_referred_to(&self, ino: Ino) -> bool {
        self.references.any(ino)
    }

    /// Counts an open handle, which keeps the inode alive without a name.
    pub async fn open_file(&self, ino: Ino) -> Result<(), FsError> {
        let inode = self.inode(ino).await?;
        let mut state = inode.state.lock();
        if state.removing {
            return Err(FsError::Stale);
        }
        state.opens += 1;
        Ok(())
    }

    /// Takes back an open handle.
    pub fn release_file(self: &Arc<Self>, ino: Ino) {
        // An open inode is always in memory.
        if let Some(inode) = self.inodes.peek(ino) {
            self.release_inode(&inode);
        }
    }

    pub(crate) fn release_inode(&self, inode: &Arc<Inode>) {
        {
            let mut state = inode.state.lock();
            state.opens = state.opens.saturating_sub(1);
        }
        self.remove_if_unused(inode);
    }

    /// Queues an inode without names for removal if it has neither handles nor references. Call
    /// this after taking either away, so that at least the last caller sees that none are left.
    pub(crate) fn remove_if_unused(&self, inode: &Arc<Inode>) {
        self.store.give_way();
        let unused = {
            let state = inode.state.lock();
            state.attr.nlink == 0 && state.opens == 0 && !state.removing
        };
        if unused && !self.references.any(inode.ino) {
            self.enqueue_orphans([inode.ino]);
        }
    }

    /// Queues inodes for the removing task, and starts the task if it is not running.
    pub(crate) fn enqueue_orphans(&self, inos: impl IntoIterator<Item = Ino>) {
        let mut waiting = self.orphans.waiting.lock();
        waiting.inos.extend(inos);
        if !waiting.running && !waiting.inos.is_empty() {
            waiting.running = true;
            drop(waiting);
            let running = Running { fs: self.arc(), ended: false };
            self.spawn.spawn(Box::pin(async move {
                // Moves `running` as a whole: the closure would otherwise capture its fields one by
                // one.
                let mut running = running;
                running.fs.remove_orphans().await;
                running.ended = true;
            }));
        }
    }

    /// Tries again to remove the orphans whose removal found no room or met a device error.
    pub(crate) fn retry_orphans(&self) {
        let refused = std::mem::take(&mut self.orphans.waiting.lock().refused);
        self.enqueue_orphans(refused);
        self.retry_failed_orphans();
    }

    /// Tries again to remove only the orphans whose removal met a device error, so that nobody
    /// waits for room because of the others.
    pub(crate) fn retry_failed_orphans(&self) {
        let failed = std::mem::take(&mut self.orphans.waiting.lock().failed);
        self.enqueue_orphans(failed);
    }

    async fn remove_orphans(&self) {
        loop {
            let (ino, closing) = {
                let mut waiting = self.orphans.waiting.lock();
                let Some(ino) = waiting.inos.pop_front() else {
                    // Cleared under the lock, so that the next enqueue starts another task.
                    waiting.running = false;
                    return;
                };
                (ino, waiting.closing)
            };
            match self.remove_orphan(ino, closing).await {
                Ok(()) => {}
                // The orphan item stays: the next mount tries again.
                Err(FsError::Store(StoreError::ReadOnly { .. })) => {
                    tracing::debug!(ino, "read-only: an inode without names stays");
                }
                // A snapshot keeps its blocks, so the removal itself takes room.
                Err(FsError::Store(StoreError::NoSpace)) => self.orphans.waiting.lock().refused.push(ino),
                // The device may recover: a call that asks for room, or for its amount, has the
                // removal tried again.
                Err(FsError::Store(StoreError::Device(error))) => {
                    tracing::warn!(ino, %error, "an inode without names could not be removed yet");
                    self.orphans.waiting.lock().failed.push(ino);
                }
                Err(error) => tracing::warn!(ino, %error, "an inode without names could not be removed"),
            }
        }
    }

    async fn remove_orphan(&self, ino: Ino, closing: bool) -> Result<(), FsError> {
        let inode = match self.inode(ino).await {
            Ok(inode) => inode,
            Err(FsError::Stale) => {
                // The inode was removed before; at most its orphan item is left.
                let mut transaction = Transaction::new();
                transaction.delete(key(ino));
                self.store.commit(transaction)?;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // A link count of 0 alone may be damage while the file still has a name. Only with the
        // orphan item is it certain that the inode is unwanted.
        if ino == ROOT || self.store.get(key(ino)).await?.is_none() {
            return Err(FsError::corrupt(ino, "inode", "link count"));
        }
        {
            let mut state = inode.state.lock();
            if state.attr.nlink > 0 {
                return Err(FsError::corrupt(ino, "orphan", "link count"));
            }
            let used = state.opens > 0 || self.references.any(ino);
            if state.removing || (used && !closing) {
                return Ok(());
            }
            state.removing = true;
        }
        self.store.give_way();
        let removed = self.remove_inode(&inode).await;
        if removed.is_err() {
            let mut state = inode.state.lock();
            state.removing = false;
            if state.data.has_dirty() {
                self.data.queue.note_dirty(self, &inode, &mut state.data);
            }
        }
        removed
    }

    /// Removes everything an inode has, then the inode.
    async fn remove_inode(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let ino = inode.ino;
        if inode.file_type == FileType::Regular {
            data::remove_all(self, inode).await?;
        }
        let (unplaced, xattrs, chunks, parents) = {
            let InodeState { meta, data, .. } = &*inode.state.lock();
            (
                data.logged.unplaced().is_marked(),
                meta.xattr_items > 0,
                meta.next_chunk > 0,
                meta.parents.items > 0,
            )
        };
        if unplaced {
            self.remove_items(ino, Kind::Unplaced).await?;
        }
        if xattrs {
            self.remove_items(ino, Kind::Xattr).await?;
        }
        if chunks {
            self.remove_items(ino, Kind::Chunk).await?;
        }
        if parents {
            self.remove_items(ino, Kind::Parent).await?;
        }
        let _room = self.store.admit(Admission::Remove).await?;
        let _lease = self.lease_of_orphan(inode).await;
        let mut transaction = Transaction::new();
        transaction.delete(Inode::key(ino));
        transaction.delete(key(ino));
        transaction.count_objects(-1);
        let counted = {
            let state = inode.state.lock();
            let units = -(state.logged_units() as i64);
            Delta { number: state.meta.quota, units, inodes: -1, gone: ino, ..Delta::default() }
        };
        self.quotas.commit(&self.store, transaction, &[counted])?;
        self.store.give_way();
        self.inodes.remove(ino);
        self.data.queue.note_removed(inode);
        self.counters.orphans_removed.add(1);
        Ok(())
    }

    /// Removes all items of a kind, in bounded transactions.
    async fn remove_items(&self, ino: Ino, kind: Kind) -> Result<(), FsError> {
        let (mut from, to) = (Key::new(ino, kind, 0), Key::new(ino, kind, u64::MAX));
        loop {
            let _room = self.store.admit(Admission::Remove).await?;
            let chunk = self.store.scan(from, to, ITEMS_EACH).await?;
            let mut transaction = Transaction::new();
            chunk.items.iter().for_each(|(key, _)| transaction.delete(*key));
            if !transaction.is_empty() {
                self.store.commit(transaction)?;
            }
            match chunk.items.last().and_then(|(key, _)| key.next()) {
                Some(next) if !chunk.complete && next <= to => from = next,
                _ => return Ok(()),
            }
        }
    }

    /// All orphans that a crash or an unmount left, for the removing task. Called by `load`, before
    /// anything can make a new one.
    pub(crate) async fn find_orphans(&self) -> Result<Vec<Ino>, FsError> {
        if self.store.read_only_reason().is_some() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let each = |key: Key, _: &Bytes| {
            found.push(key.offset);
            Ok(())
        };
        self.each_item(key(0), key(u64::MAX), ORPHANS_EACH, each).await?;
        Ok(found)
    }

    /// The lease of an inode that is being removed. A late write or write-back may still hold it.
    pub(crate) async fn lease_of_orphan<'a>(&self, inode: &'a Inode) -> RwLockWriteGuard<'a, ()> {
        if let Some(lease) = inode.lease.try_write() {
            return lease;
        }
        let _blocked = Blocked::new(&self.orphans);
        inode.lease.write().await
    }

    /// Waits until the removing task, if it is running, ends or needs a lease: the caller holds
    /// leases, and one of them may be the one it needs.
    pub(crate) async fn wait_for_orphans_leased(&self) {
        loop {
            let ended = self.orphans.ended.listen();
            {
                let waiting = self.orphans.waiting.lock();
                if !waiting.running || waiting.blocked {
                    return;
                }
            }
            ended.await;
        }
    }

    /// Waits for the removing task to end, if it is running. The caller holds no leases.
    pub(crate) async fn wait_for_orphans(&self) {
        loop {
            let ended = self.orphans.ended.listen();
            if !self.orphans.waiting.lock().running {
                return;
            }
            ended.await;
        }
    }

    /// Removes all inodes without names, even open ones, and waits for the removing task to end.
    pub(crate) async fn close_orphans(&self) {
        self.orphans.waiting.lock().closing = true;
        let left = self.inodes.matching(|inode| inode.state.lock().attr.nlink == 0);
        self.enqueue_orphans(left.iter().map(|inode| inode.ino));
        drop(left);
        self.wait_for_orphans().await;
    }
}

/// Marks the removing task as waiting for a lease, for as long as this lives.
struct Blocked<'a>(&'a OrphanQueue);

impl<'a> Blocked<'a> {
    fn new(queue: &'a OrphanQueue) -> Self {
        queue.waiting.lock().blocked = true;
        queue.ended.notify(usize::MAX);
        Self(queue)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().blocked = false;
    }
}

/// The removing task's hold on its filesystem: however the task ends, waiters are notified.
struct Running {
    fs: Arc<Filesystem>,
    /// The task ended by itself and cleared `running` already; by now that may belong to a later
    /// task.
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.fs.orphans.waiting.lock().running = false;
        }
        self.fs.orphans.ended.notify(usize::MAX);
    }
}

#[cfg(test)]
impl Filesystem {
    /// True if the removing task is not running.
    pub(crate) fn orphans_settled(&self) -> bool {
        !self.orphans.waiting.lock().running
    }
}
