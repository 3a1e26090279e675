//! The flushes that syncs of class `ordered` owe.
//!
//! A sync was answered as soon as its place in the log was fixed, and its file is in the list. At
//! the latest its class's seconds later a task makes everything durable and empties the list. If
//! that fails, the next fsync of each file reports it (P5), and it is tried again. A file in the
//! list stays in memory, for a failure could not be told to one that has left it.
//!
//! There is no clock here: a task that sleeps as long as the shortest promise since the last flush
//! began before the promise, and so ends in time for it.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_store::{Canary, OpSeq};
use syncline_sync::Mutex;

/// How long a flush that failed is not tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Files that are promised something at the same time: with so many a flush begins at once, as they
/// all stay in memory until then.
pub(in crate::data) const FILES_MAX: usize = 8192;

/// Promises that are not kept yet.
#[derive(Default)]
pub(crate) struct Promises(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// The shortest sleep of a task begun since the last flush began.
    shortest: Option<Duration>,
    /// Number of tasks begun, and how many had been when that flush began: these have nothing left
    /// to do.
    begun: u64,
    kept: u64,
    /// The files that have something that is promised, and the newest operation of it.
    files: BTreeMap<Ino, OpSeq>,
}

impl Promises {
    /// Promises that everything up to `target` is durable `within` this time, which the file tells
    /// of if it fails.
    pub(crate) fn add(&self, fs: &Filesystem, inode: &Arc<Inode>, target: OpSeq, within: Duration) {
        let mut open = self.0.lock();
        inode.state.lock().owes_flush = true;
        open.files.insert(inode.ino, target);
        let is_full = open.files.len() >= FILES_MAX;
        self.begin(fs, &mut open, if is_full { Duration::ZERO } else { within });
    }

    /// Begins a task, unless one ends early enough.
    fn begin(&self, fs: &Filesystem, open: &mut Open, within: Duration) {
        if fs.store.breaks(Canary::PromiseForgotten) || open.shortest.is_some_and(|it| it <= within) {
            return;
        }
        open.shortest = Some(within);
        open.begun += 1;
        fs.spawn.spawn(Box::pin(keep(Arc::downgrade(&fs.arc()), fs.spawn.sleep(within), open.begun)));
    }

    /// Takes the files out of the list for a task. `None` if a flush has begun since it was begun.
    /// From here on a sync is a new promise.
    fn take(&self, fs: &Filesystem, task: u64) -> Option<Vec<Promised>> {
        let mut open = self.0.lock();
        if task <= open.kept {
            return None;
        }
        open.kept = open.begun;
        open.shortest = None;
        // The others have been removed.
        let files = std::mem::take(&mut open.files).into_iter();
        let files = files.filter_map(|(ino, target)| Some((fs.inodes.peek(ino)?, target)));
        let promised = |(inode, target): (Arc<Inode>, OpSeq)| {
            let mut state = inode.state.lock();
            state.owes_flush = false;
            let unwritten = state.data.failures.is_unwritten();
            drop(state);
            Promised { inode, target, unwritten }
        };
        Some(files.map(promised).collect())
    }
}

/// A file whose promise is about to be kept.
struct Promised {
    inode: Arc<Inode>,
    target: OpSeq,
    /// Its write-back had failed. The sync has written that data since.
    unwritten: bool,
}

/// The task that keeps all promises once it has slept.
async fn keep(fs: Weak<Filesystem>, sleep: impl Future<Output = ()>, task: u64) {
    sleep.await;
    // A filesystem that was closed has made everything durable.
    let Some(fs) = fs.upgrade() else { return };
    let Some(files) = fs.data.promises.take(&fs, task) else { return };
    fs.store.give_way();
    let result = fs.store.sync(fs.store.last_op()).await.map_err(FsError::from);
    for Promised { inode, target, unwritten } in &files {
        let failures = &mut inode.state.lock().data.failures;
        match &result {
            Ok(()) if *unwritten => failures.end_unwritten(),
            // Syncs of others have kept some promises before.
            Err(error) if !fs.store.is_durable(*target) => failures.add(error.clone()),
            Ok(()) | Err(_) => {}
        }
    }
    if result.is_ok() {
        return;
    }
    fs.counters.promises_failed.add(1);
    if fs.store.writable().is_ok() {
        let mut open = fs.data.promises.0.lock();
        fs.data.promises.begin(&fs, &mut open, RETRY);
    }
}
