//! Files that are read through the page cache and written past it.
//!
//! The kernel drops the pages of a direct write before it sends it, and again afterwards if its
//! caller waits. After a write submitted through AIO or io_uring it does not: a page read meanwhile
//! would show the old contents for ever. So for files that have been written past the cache, we
//! record what is read or written through it, and answer such a write only after those pages are
//! gone.

use super::{PAGE_BYTES, joined};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_fs::types::Ino;

/// The whole file.
const EVERYTHING: Range<u64> = 0..u64::MAX;

/// The files that have been written past the cache, and the ranges that the kernel may have cached.
#[derive(Default)]
pub struct Beside {
    files: Mutex<HashMap<Ino, Vec<Range<u64>>>>,
    /// The number of files, readable without the lock.
    len: AtomicUsize,
}

impl Beside {
    /// Records that a request fills pages of the cache. Called before it is carried out.
    pub fn note(&self, ino: Ino, range: Range<u64>) {
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(ranges) = self.files.lock().get_mut(&ino) {
            ranges.push(pages(range));
            *ranges = joined(std::mem::take(ranges));
        }
    }

    /// Records that a write past the cache was carried out; returns the ranges to drop from the
    /// cache before it is answered.
    pub fn written(&self, ino: Ino, range: Range<u64>) -> Vec<Range<u64>> {
        let mut files = self.files.lock();
        let Some(ranges) = files.get_mut(&ino) else {
            // Nothing was recorded for this file so far.
            files.insert(ino, Vec::new());
            self.len.store(files.len(), Ordering::Release);
            return vec![EVERYTHING];
        };
        let cut = pages(range);
        let mut stale = Vec::new();
        let mut rest = Vec::with_capacity(ranges.len());
        for known in ranges.drain(..) {
            let both = known.start.max(cut.start)..known.end.min(cut.end);
            if both.is_empty() {
                rest.push(known);
                continue;
            }
            rest.extend(
                [known.start..both.start, both.end..known.end].into_iter().filter(|part| !part.is_empty()),
            );
            stale.push(both);
        }
        *ranges = rest;
        stale
    }

    /// Called when the kernel has forgotten the file.
    pub fn forget(&self, ino: Ino) {
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut files = self.files.lock();
        files.remove(&ino);
        self.len.store(files.len(), Ordering::Release);
    }
}

/// The whole pages around a range.
fn pages(range: Range<u64>) -> Range<u64> {
    range.start - range.start % PAGE_BYTES..range.end.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cached_since_is_let_go_of_once() {
        let beside = Beside::default();
        beside.note(7, 0..4096);
        assert_eq!(beside.written(7, 0..4096), [EVERYTHING], "what came before is not known");
        assert!(beside.written(7, 0..4096).is_empty());
        beside.note(7, 100..9000);
        beside.note(8, 0..4096);
        let page = 4096..8192;
        assert_eq!(beside.written(7, 4096..5000), [page]);
        assert!(beside.written(7, 4096..8192).is_empty());
        assert_eq!(beside.written(7, 0..20_000), [0..4096, 8192..12288]);
        beside.forget(7);
        assert_eq!(beside.written(7, 0..1), [EVERYTHING]);
        assert_eq!(beside.len.load(Ordering::Relaxed), 1);
    }
}
