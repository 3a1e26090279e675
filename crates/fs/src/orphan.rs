//! Inodes without names: removed once nobody has them open or refers to them, in the background, and found again by
//! their orphan items after a crash.

use crate::FsError;
use crate::data;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeState};
use crate::patience::Patience;
use crate::quota::Delta;
use crate::types::{FileType, Ino, ROOT};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_format::{Key, Kind};
use syncline_store::{Admission, Admitted, ChangeSize, StoreError, Transaction};
use syncline_sync::asynchronous::RwLockWriteGuard;
use syncline_sync::{Event, Mutex};

/// Items deleted in one transaction.
const ITEMS_EACH: usize = 128;
/// Orphans read at a time at mount.
const ORPHANS_EACH: usize = 1024;

/// Key of the item that says that an inode is to be removed.
pub(crate) fn key(ino: Ino) -> Key {
    Key::new(0, Kind::Orphan, ino)
}

/// Orphans to be removed, and the one task that does it.
#[derive(Default)]
pub(crate) struct OrphanQueue {
    waiting: Mutex<Waiting>,
    /// The task has ended, or waits for a lease.
    ended: Event,
}

#[derive(Default)]
struct Waiting {
    inos: VecDeque<Ino>,
    /// Those for whose removal there was no room.
    refused: Vec<Ino>,
    /// Those that the device failed to read or write.
    failed: Vec<Ino>,
    /// A task is at work, or about to be.
    running: bool,
    /// The task waits for a lease that somebody holds.
    blocked: bool,
    /// The filesystem is being closed: handles and references no longer count.
    closing: bool,
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

    /// Counts a handle, which keeps the inode alive without a name.
    pub async fn open_file(&self, ino: Ino) -> Result<(), FsError> {
        let inode = self.inode(ino).await?;
        let mut state = inode.state.lock();
        if state.removing {
            return Err(FsError::Stale);
        }
        state.opens += 1;
        Ok(())
    }

    /// Takes back a handle.
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

    /// Has an inode without names removed if it has neither handles nor references. Whoever takes the last of them away
    /// calls this after doing so, so that one of them at least sees that nothing is left.
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

    /// Hands inodes to the removing task, which starts if it is not at work.
    pub(crate) fn enqueue_orphans(&self, inos: impl IntoIterator<Item = Ino>) {
        let mut waiting = self.orphans.waiting.lock();
        waiting.inos.extend(inos);
        if !waiting.running && !waiting.inos.is_empty() {
            waiting.running = true;
            drop(waiting);
            let running = Running { fs: self.arc(), ended: false };
            self.spawn.spawn(Box::pin(async move {
                // As a whole: a closure would capture the fields it names, one by one.
                let mut running = running;
                running.fs.remove_orphans().await;
                running.ended = true;
            }));
        }
    }

    /// Tries again to remove what could not be removed.
    pub(crate) fn retry_orphans(&self) {
        let refused = std::mem::take(&mut self.orphans.waiting.lock().refused);
        self.enqueue_orphans(refused);
        self.retry_failed_orphans();
    }

    /// The same for those alone that met a device's error, which costs nobody else a wait for room.
    pub(crate) fn retry_failed_orphans(&self) {
        let failed = std::mem::take(&mut self.orphans.waiting.lock().failed);
        self.enqueue_orphans(failed);
    }

    async fn remove_orphans(&self) {
        loop {
            let (ino, closing) = {
                let mut waiting = self.orphans.waiting.lock();
                let Some(ino) = waiting.inos.pop_front() else {
                    // Ended under the lock, so that whoever enqueues next starts another task.
                    waiting.running = false;
                    return;
                };
                (ino, waiting.closing)
            };
            match self.remove_orphan(ino, closing).await {
                Ok(()) => {}
                // Orphan items stay: the next mount tries again.
                Err(FsError::Store(StoreError::ReadOnly { .. })) => {
                    tracing::debug!(ino, "read-only: an inode without names stays");
                }
                // With a snapshot, which keeps what it has, its removal takes room.
                Err(FsError::Store(StoreError::NoSpace)) => self.orphans.waiting.lock().refused.push(ino),
                // A device that fails for a while is no end: who asks for room, or how much there is, has it tried again.
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
                // Removed before; at most its orphan item is left.
                let mut transaction = Transaction::new();
                transaction.delete(key(ino));
                self.store.commit(transaction)?;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // A link count alone may be damage, and its file has a name: only both together say that nobody wants it any more.
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
                self.data.note_dirty(self, &inode, &mut state.data);
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
            (data.unplaced.is_marked(), meta.xattr_items > 0, meta.next_chunk > 0, meta.parents.items > 0)
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
        let _room = self.store.admit(Admission::Shrink).await?;
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
        self.data.note_removed(inode);
        self.counters.orphans_removed.add(1);
        Ok(())
    }

    /// Removes all items of a kind, in bounded transactions.
    async fn remove_items(&self, ino: Ino, kind: Kind) -> Result<(), FsError> {
        let (mut from, to) = (Key::new(ino, kind, 0), Key::new(ino, kind, u64::MAX));
        loop {
            let _room = self.store.admit(Admission::Shrink).await?;
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

    /// All orphans that a crash or an unmount left, for the removing task. Called by `open`, before anything else could make one.
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

    /// Waits for admission of something that adds to the filesystem. Before it says that there is no room it writes back what is dirty,
    /// which has more room than it takes, and waits for what was unlinked and is about to give its blocks back.
    pub(crate) async fn admit_growth(&self) -> Result<Admitted, FsError> {
        self.admit_growth_of(ChangeSize::ORDINARY).await
    }

    /// The same for a change of this size at most.
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

    /// Writes back everything that is dirty: a file that goes into its inode item has a block until then, and every one has room for its
    /// names. False if nothing is. The caller holds no lease.
    pub(crate) async fn give_back_by_sync(&self) -> bool {
        let dirty = self.data.dirty_bytes() > 0;
        if dirty {
            // What fails here has its own callers, who hear of it.
            self.syncfs().await.ok();
        }
        dirty
    }

    /// The lease of an inode that is being removed. A late write or write-back may have it.
    pub(crate) async fn lease_of_orphan<'a>(&self, inode: &'a Inode) -> RwLockWriteGuard<'a, ()> {
        if let Some(lease) = inode.lease.try_write() {
            return lease;
        }
        let _blocked = Blocked::new(&self.orphans);
        inode.lease.write().await
    }

    /// Waits for the removing task, if it is at work, to end or to need a lease: the caller holds leases, and it may be one of
    /// these.
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

    /// Waits for the removing task to end, if it is at work. The caller holds no leases.
    pub(crate) async fn wait_for_orphans(&self) {
        loop {
            let ended = self.orphans.ended.listen();
            if !self.orphans.waiting.lock().running {
                return;
            }
            ended.await;
        }
    }

    /// Removes all inodes without names, whoever had them open, and waits for the removing task to end.
    pub(crate) async fn close_orphans(&self) {
        self.orphans.waiting.lock().closing = true;
        let left = self.inodes.matching(|inode| inode.state.lock().attr.nlink == 0);
        self.enqueue_orphans(left.iter().map(|inode| inode.ino));
        drop(left);
        self.wait_for_orphans().await;
    }
}

/// Tells that the removing task waits for a lease, for as long as it does.
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

/// The removing task's hold on its filesystem: however the task ends, whoever waits for it is told.
struct Running {
    fs: Arc<Filesystem>,
    /// The task ended by itself; what it said of its end may be outdated by a task that came after it.
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
    /// True when no removal is waiting or at work.
    pub(crate) fn orphans_settled(&self) -> bool {
        !self.orphans.waiting.lock().running
    }
}
