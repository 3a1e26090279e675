//! What was handed over and could not be taken: it exists nowhere any more.
//!
//! A loss outlives the last close of its file: a program that does not look at what close(2) returns
//! may give half a file the name of a whole one.

use crate::page_cache::joined;
use std::collections::HashMap;
use std::ops::Range;
use syncline_fs::types::Ino;

/// The files of which something is missing.
#[derive(Default)]
pub struct Losses(HashMap<Ino, Loss>);

/// What is missing of a file.
#[derive(Default)]
struct Loss {
    /// Neither written again nor cut off since.
    missing: Vec<Range<u64>>,
    /// The same, and read through the page cache since. Pages that are handed over later may have it
    /// as it was read, around the bytes that a program wrote.
    read: Vec<Range<u64>>,
    /// Why it could not be taken.
    errno: i32,
    /// No write(2) has failed for it yet.
    is_untold: bool,
    /// Everybody who had the file open then has closed it.
    is_closed: bool,
}

impl Losses {
    /// The number of files.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Records a loss; `is_open` tells whether somebody has the file open for writing. True if nothing
    /// of the file was missing before.
    pub fn add(&mut self, ino: Ino, range: Range<u64>, errno: i32, is_open: bool) -> bool {
        let is_first = !self.0.contains_key(&ino);
        let loss = self.0.entry(ino).or_default();
        loss.missing.push(range);
        loss.missing = joined(std::mem::take(&mut loss.missing));
        (loss.errno, loss.is_untold, loss.is_closed) = (errno, is_open, !is_open);
        is_first
    }

    /// Called for a read that fills pages of the cache.
    pub fn read(&mut self, ino: Ino, range: &Range<u64>) {
        let Some(loss) = self.0.get_mut(&ino) else { return };
        let within = |part: &Range<u64>| part.start.max(range.start)..part.end.min(range.end);
        let read: Vec<_> = loss.missing.iter().map(within).filter(|part| !part.is_empty()).collect();
        if !read.is_empty() {
            loss.missing = without(&loss.missing, range);
            loss.read.extend(read);
            loss.read = joined(std::mem::take(&mut loss.read));
        }
    }

    /// Called when whole pages were handed over and taken.
    pub fn pages_came(&mut self, ino: Ino, range: &Range<u64>) {
        self.change(ino, |loss| loss.missing = without(&loss.missing, range));
    }

    /// Called when exactly this range was given other contents, or was cut off.
    pub fn replaced(&mut self, ino: Ino, range: &Range<u64>) {
        self.change(ino, |loss| {
            loss.missing = without(&loss.missing, range);
            loss.read = without(&loss.read, range);
        });
    }

    /// Called when the last program has closed the file: it was told by close(2), or before.
    pub fn closed(&mut self, ino: Ino) {
        self.change(ino, |loss| (loss.is_untold, loss.is_closed) = (false, true));
    }

    /// Called when the kernel has forgotten the file.
    pub fn forget(&mut self, ino: Ino) {
        self.0.remove(&ino);
    }

    /// Why something is missing that a program lost which may have the file open still.
    pub fn of_open(&self, ino: Ino) -> Option<i32> {
        self.0.get(&ino).filter(|loss| !loss.is_closed).map(|loss| loss.errno)
    }

    /// Why something is missing of the file.
    pub fn of(&self, ino: Ino) -> Option<i32> {
        self.0.get(&ino).map(|loss| loss.errno)
    }

    /// True if the next write(2) to the file has to fail.
    pub fn is_untold(&self, ino: Ino) -> bool {
        self.0.get(&ino).is_some_and(|loss| loss.is_untold)
    }

    /// Why the next write(2) to the file has to fail: none has since the loss. Asked for that write.
    pub fn tell(&mut self, ino: Ino) -> Option<i32> {
        let loss = self.0.get_mut(&ino)?;
        std::mem::take(&mut loss.is_untold).then_some(loss.errno)
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Loss)) {
        let Some(loss) = self.0.get_mut(&ino) else { return };
        change(loss);
        if loss.missing.is_empty() && loss.read.is_empty() {
            self.0.remove(&ino);
        }
    }
}

/// The ranges without what lies in `cut`.
fn without(ranges: &[Range<u64>], cut: &Range<u64>) -> Vec<Range<u64>> {
    let rest = |range: &Range<u64>| {
        let before = range.start..range.end.min(cut.start);
        let behind = range.start.max(cut.end)..range.end;
        [before, behind].into_iter().filter(|part| !part.is_empty())
    };
    ranges.iter().flat_map(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_page_that_was_read_since_does_not_bring_the_rest_back() {
        let mut losses = Losses::default();
        losses.add(7, 0..8192, libc::ENOSPC, true);
        losses.read(7, &(0..4096));
        losses.pages_came(7, &(0..8192));
        assert_eq!(losses.of_open(7), Some(libc::ENOSPC), "the first page has what was read");
        losses.replaced(7, &(0..4095));
        assert_eq!(losses.of_open(7), Some(libc::ENOSPC));
        losses.replaced(7, &(4095..4096));
        assert_eq!((losses.of_open(7), losses.len()), (None, 0));
    }

    #[test]
    fn a_closed_file_is_told_of_no_more_and_still_not_whole() {
        let mut losses = Losses::default();
        assert!(losses.add(7, 0..4096, libc::EDQUOT, true) && losses.is_untold(7));
        losses.closed(7);
        assert_eq!((losses.of_open(7), losses.tell(7), losses.of(7)), (None, None, Some(libc::EDQUOT)));
        assert!(!losses.add(7, 4096..8192, libc::EIO, true));
        assert_eq!(
            (losses.of_open(7), losses.tell(7), losses.tell(7)),
            (Some(libc::EIO), Some(libc::EIO), None)
        );
        losses.forget(7);
        assert_eq!(losses.of(7), None);
    }
}
