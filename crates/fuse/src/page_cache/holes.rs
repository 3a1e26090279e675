//! Holes that were read through the page cache: a program that has mapped them can turn them into
//! data without our knowledge.
//!
//! A store into a page needs that page in the cache, and only a READ brings a page of a hole there.
//! So a hole that no READ has been answered with since its pages were last dropped is one. Pages
//! that are being dropped stay recorded until they are gone: a request that asks meanwhile must wait
//! for them, too.

use super::{PAGE_BYTES, joined};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_fs::types::Ino;

/// For each file, the pages of holes that the kernel may have cached.
#[derive(Default)]
pub struct Holes {
    files: Mutex<HashMap<Ino, Pages>>,
    /// The number of files, readable without the lock.
    len: AtomicUsize,
}

/// Pages of one file; there is at least one.
#[derive(Default)]
struct Pages {
    /// Pages that were read since the last request to drop them.
    cached: Vec<Range<u64>>,
    /// Pages that are being dropped.
    leaving: Vec<Range<u64>>,
    /// The requests that wait for that.
    waiting: usize,
}

impl Holes {
    /// Records the holes in an answer to a READ, in whole pages. Called before it is sent. Returns
    /// true if the file had none recorded.
    pub fn note(&self, ino: Ino, holes: Vec<Range<u64>>) -> bool {
        debug_assert!(holes.iter().all(|hole| hole.start % PAGE_BYTES == 0 && hole.end % PAGE_BYTES == 0));
        if holes.is_empty() {
            return false;
        }
        let mut files = self.files.lock();
        let known = files.len();
        let pages = files.entry(ino).or_default();
        pages.cached.extend(holes);
        pages.cached = joined(std::mem::take(&mut pages.cached));
        self.len.store(files.len(), Ordering::Release);
        files.len() > known
    }

    /// True if pages of holes of this file are recorded.
    pub fn are_cached(&self, ino: Ino) -> bool {
        self.len.load(Ordering::Acquire) > 0 && self.files.lock().contains_key(&ino)
    }

    /// The pages recorded for a file, which the caller has the kernel drop. Unless there are none,
    /// the caller says with [`Holes::left`] what came of it. Later reads record again.
    pub fn leave(&self, ino: Ino) -> Vec<Range<u64>> {
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut files = self.files.lock();
        let Some(pages) = files.get_mut(&ino) else { return Vec::new() };
        pages.leaving.append(&mut pages.cached);
        pages.leaving = joined(std::mem::take(&mut pages.leaving));
        pages.waiting += 1;
        pages.leaving.clone()
    }

    /// Called when the pages that `leave` returned are gone, or could not be dropped.
    pub fn left(&self, ino: Ino, are_gone: bool) {
        let mut files = self.files.lock();
        // The kernel may have forgotten the file meanwhile.
        let Some(pages) = files.get_mut(&ino) else { return };
        pages.waiting = pages.waiting.saturating_sub(1);
        if !are_gone {
            pages.cached.extend_from_slice(&pages.leaving);
            pages.cached = joined(std::mem::take(&mut pages.cached));
        } else if pages.waiting == 0 {
            // Whoever asked last had all of them dropped.
            pages.leaving.clear();
        }
        if pages.cached.is_empty() && pages.leaving.is_empty() {
            files.remove(&ino);
        }
        self.len.store(files.len(), Ordering::Release);
    }

    /// Called when the kernel has forgotten the file, or dropped all of its pages.
    pub fn forget(&self, ino: Ino) {
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut files = self.files.lock();
        files.remove(&ino);
        self.len.store(files.len(), Ordering::Release);
    }
}

/// The next offset that may be data: a hole that may be data counts as data.
pub fn next_maybe_data(ranges: &[Range<u64>], offset: u64) -> Option<u64> {
    let next = ranges.iter().find(|range| range.end > offset)?;
    Some(next.start.max(offset))
}

#[cfg(test)]
mod tests {
    use super::super::RANGES_MAX;
    use super::*;

    fn page(number: u64) -> Range<u64> {
        number * PAGE_BYTES..(number + 1) * PAGE_BYTES
    }

    #[test]
    fn ranges_are_joined_and_bounded() {
        let holes = Holes::default();
        assert!(holes.note(7, vec![page(2)]));
        assert!(!holes.note(7, vec![page(0)]));
        assert!(!holes.note(7, vec![page(1), page(5)]));
        assert_eq!(holes.leave(7), [0..3 * PAGE_BYTES, page(5)]);
        holes.left(7, true);
        assert!(holes.leave(7).is_empty());
        assert!((0..1000).all(|index| holes.note(8, vec![page(index * 3)]) == (index == 0)));
        assert!(holes.leave(8).len() <= RANGES_MAX);
        holes.left(8, true);
        assert_eq!(holes.len.load(Ordering::Relaxed), 0);
    }

    /// A second request that came while the first one waited for the pages used to be told that
    /// there are none.
    #[test]
    fn pages_stay_recorded_until_they_are_gone() {
        let holes = Holes::default();
        holes.note(7, vec![page(1)]);
        assert_eq!(holes.leave(7), [page(1)]);
        assert_eq!(holes.leave(7), [page(1)], "they are not gone");
        holes.note(7, vec![page(3)]);
        holes.left(7, true);
        assert!(holes.are_cached(7));
        assert_eq!(holes.leave(7), [page(1), page(3)], "one still waits, and another was read");
        holes.left(7, true);
        holes.left(7, true);
        assert!(!holes.are_cached(7));
    }

    #[test]
    fn pages_that_could_not_be_dropped_stay_recorded() {
        let holes = Holes::default();
        holes.note(7, vec![page(1)]);
        assert_eq!(holes.leave(7), [page(1)]);
        holes.left(7, false);
        assert_eq!(holes.leave(7), [page(1)]);
        holes.forget(7);
        holes.left(7, false);
        assert!(!holes.are_cached(7) && holes.leave(7).is_empty());
    }

    #[test]
    fn data_is_not_recorded() {
        let holes = Holes::default();
        assert!(!holes.note(7, Vec::new()));
        assert!(!holes.are_cached(7));
    }

    #[test]
    fn the_next_offset_in_a_range() {
        let ranges = [100..200, 300..400];
        assert_eq!(next_maybe_data(&ranges, 0), Some(100));
        assert_eq!(next_maybe_data(&ranges, 150), Some(150));
        assert_eq!(next_maybe_data(&ranges, 200), Some(300));
        assert_eq!(next_maybe_data(&ranges, 400), None);
    }
}
