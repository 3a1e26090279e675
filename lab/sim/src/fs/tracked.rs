//! Finds out which transactions an operation committed and which counters it changed: renames,
//! bytes reflinked or copied.
//!
//! A simulation runs one task at a time, so everything that the store commits while an operation is
//! polled belongs to that operation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use syncline_fs::Filesystem;

/// An operation that is tracked.
pub(crate) struct Tracked<T> {
    fs: Arc<Filesystem>,
    operation: Pin<Box<dyn Future<Output = T> + Send>>,
    each: Box<dyn FnMut(&Did) + Send>,
    did: Did,
}

/// The effects of an operation.
#[derive(Default)]
pub(crate) struct Did {
    /// The transactions it committed.
    pub(crate) committed: Vec<u64>,
    /// Renames that took place.
    pub(crate) renamed: u64,
    /// Bytes transferred by sharing blocks.
    pub(crate) reflinked: u64,
    /// Bytes transferred through memory.
    pub(crate) copied: u64,
}

/// Tracks an operation; returns its answer with its effects.
pub(crate) fn tracked<T>(
    fs: &Arc<Filesystem>,
    operation: impl Future<Output = T> + Send + 'static,
) -> Tracked<T> {
    tracked_each(fs, operation, |_| {})
}

/// Tracks an operation, and reports the effects of each poll to `each` before any other task runs.
pub(crate) fn tracked_each<T>(
    fs: &Arc<Filesystem>,
    operation: impl Future<Output = T> + Send + 'static,
    each: impl FnMut(&Did) + Send + 'static,
) -> Tracked<T> {
    let (operation, each) = (Box::pin(operation), Box::new(each));
    Tracked { fs: fs.clone(), operation, each, did: Did::default() }
}

impl<T> Future for Tracked<T> {
    type Output = (T, Did);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (before, counted) = (self.fs.store().last_op().0, self.fs.counters());
        let poll = self.operation.as_mut().poll(context);
        let (after, counts) = (self.fs.store().last_op().0, self.fs.counters());
        let now = Did {
            committed: (before + 1..=after).collect(),
            renamed: counts.renamed - counted.renamed,
            reflinked: counts.reflinked_bytes - counted.reflinked_bytes,
            copied: counts.copied_bytes - counted.copied_bytes,
        };
        (self.each)(&now);
        self.did.add(now);
        match poll {
            Poll::Ready(answer) => Poll::Ready((answer, std::mem::take(&mut self.did))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Did {
    fn add(&mut self, more: Self) {
        self.committed.extend(more.committed);
        self.renamed += more.renamed;
        self.reflinked += more.reflinked;
        self.copied += more.copied;
    }
}
