//! Holes that were read through the page cache: whoever has mapped them can make data of them without a word.

use super::{PAGE_BYTES, joined};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_fs::is_hole;
use syncline_fs::types::Ino;

/// For each file the pages of holes that the kernel may have.
#[derive(Default)]
pub struct Holes {
    files: Mutex<HashMap<Ino, Vec<Range<u64>>>>,
    /// How many files there are, for those who only look.
    len: AtomicUsize,
}

impl Holes {
    /// Notes what an answer to a READ has of holes. Called before it is sent.
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
        // What is a hole only in part is told of as data.
        let Some(range) = range else { return };
        let range = range.start.next_multiple_of(PAGE_BYTES)..range.end;
        if !range.is_empty() {
            self.put_back(ino, vec![range]);
        }
    }

    /// Adds to what is known of a file.
    pub fn put_back(&self, ino: Ino, more: Vec<Range<u64>>) {
        self.change(|files| {
            let ranges = files.entry(ino).or_default();
            ranges.extend(more);
            *ranges = joined(std::mem::take(ranges));
        });
    }

    /// What is known of a file; it is known no more. What is read from now on counts anew.
    pub fn take(&self, ino: Ino) -> Vec<Range<u64>> {
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.change(|files| files.remove(&ino)).unwrap_or_default()
    }

    /// The kernel has forgotten the file, or all of its pages.
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

/// Answers to SEEK_DATA and SEEK_HOLE where some ranges that are holes may be data: they count as data.
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
