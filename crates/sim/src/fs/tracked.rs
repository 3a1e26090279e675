//! Finds out which transactions an operation committed, and what else its counters say: renames, bytes taken over.
//!
//! In a simulation one task runs at a time, so what the store commits while an operation is being polled is that
//! operation's.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use syncline_fs::Filesystem;

/// An operation that is being watched.
pub(crate) struct Tracked<T> {
    fs: Arc<Filesystem>,
    operation: Pin<Box<dyn Future<Output = T> + Send>>,
    did: Did,
}

/// What an operation did.
#[derive(Default)]
pub(crate) struct Did {
    /// The transactions it committed.
    pub(crate) committed: Vec<u64>,
    /// Renames that took place.
    pub(crate) renamed: u64,
    /// Bytes that came to another place by sharing their blocks.
    pub(crate) reflinked: u64,
}

/// Watches an operation; its answer comes with what it did.
pub(crate) fn tracked<T>(
    fs: &Arc<Filesystem>,
    operation: impl Future<Output = T> + Send + 'static,
) -> Tracked<T> {
    Tracked { fs: fs.clone(), operation: Box::pin(operation), did: Did::default() }
}

impl<T> Future for Tracked<T> {
    type Output = (T, Did);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (before, counted) = (self.fs.store().last_op().0, self.fs.counters());
        let poll = self.operation.as_mut().poll(context);
        let (after, counts) = (self.fs.store().last_op().0, self.fs.counters());
        self.did.committed.extend(before + 1..=after);
        self.did.renamed += counts.renamed - counted.renamed;
        self.did.reflinked += counts.reflinked_bytes - counted.reflinked_bytes;
        match poll {
            Poll::Ready(answer) => Poll::Ready((answer, std::mem::take(&mut self.did))),
            Poll::Pending => Poll::Pending,
        }
    }
}
