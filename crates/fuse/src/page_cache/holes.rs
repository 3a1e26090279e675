//! Holes that were read through the page cache: a program that has mapped them can turn them into
//! data without our knowledge.

use super::{PAGE_BYTES, joined};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_fs::is_hole;
use syncline_fs::types::Ino;

/// For each file, the pages of holes that the kernel may have cached.
#[derive(Default)]
pub struct Holes {
    files: Mutex<HashMap<Ino, Vec<Range<u64>>>>,
    /// The number of files, readable without the lock.
    len: AtomicUsize,
}

impl Holes {
    /// Records the holes in an answer to a READ. Called before it is sent.
    pub fn note(&self, ino: Ino, offset: u64, pieces: &[Bytes]) {
        let mut at = offset;
        let mut found: Option<Range<u64>> = None;
        for piece in pieces {
            let end = at + piece.len() as u64;
            if is_hole(piece) {
                match &mut found {
                    Some(range) if range.end == at => range.end = end,
                    _ => {
                        self.add(ino, found.take());
                        found = Some(at..end);
                    }
                }
            }
            at = end;
        }
        self.add(ino, found);
    }

    fn add(&self, ino: Ino, range: Option<Range<u64>>) {
        // A page that is only partly a hole is reported as data.
        let Some(range) = range else { return };
        let range = range.start.next_multiple_of(PAGE_BYTES)..range.end;
        if !range.is_empty() {
            self.put_back(ino, vec![range]);
        }
    }

    /// Adds ranges to those recorded for a file.
    pub fn put_back(&self, ino: Ino, more: Vec<Range<u64>>) {
        self.change(|files| {
            let ranges = files.entry(ino).or_default();
            ranges.extend(more);
            *ranges = joined(std::mem::take(ranges));
        });
    }

    /// Removes and returns the ranges recorded for a file. Later reads record anew.
    pub fn take(&self, ino: Ino) -> Vec<Range<u64>> {
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.change(|files| files.remove(&ino)).unwrap_or_default()
    }

    /// Called when the kernel has forgotten the file, or dropped all of its pages.
    pub fn forget(&self, ino: Ino) {
        self.take(ino);
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<Ino, Vec<Range<u64>>>) -> T) -> T {
        let mut files = self.files.lock();
        let changed = change(&mut files);
        self.len.store(files.len(), Ordering::Release);
        changed
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

    #[test]
    fn ranges_are_joined_and_bounded() {
        let holes = Holes::default();
        let put_back = |ino, range: Range<u64>| holes.put_back(ino, vec![range]);
        put_back(7, 8192..12288);
        put_back(7, 0..4096);
        holes.put_back(7, vec![4096..8192, 20480..24576]);
        assert_eq!(holes.take(7), [0..12288, 20480..24576]);
        assert!(holes.take(7).is_empty());
        (0..1000).for_each(|index| put_back(8, index * 10_000..index * 10_000 + 1));
        assert!(holes.take(8).len() <= RANGES_MAX);
        assert_eq!(holes.len.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_data_is_not_noted() {
        let holes = Holes::default();
        holes.note(7, 0, &[Bytes::from(vec![0; 10_000])]);
        assert!(holes.take(7).is_empty());
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
