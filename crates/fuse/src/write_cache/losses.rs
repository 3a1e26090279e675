//! What was handed over and could not be taken: it exists nowhere any more.
//!
//! A loss outlives the last close of its file: a program that does not look at what close(2) returns
//! may give half a file the name of a whole one. It also outlives the kernel's inode, which goes when
//! memory is short, as where writes are lost.

use crate::page_cache::joined;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use syncline_fs::types::Ino;

/// Most files that the kernel has forgotten of which is known that something is missing: the last ones.
const FORGOTTEN_MAX: usize = 4096;

/// The files of which something is missing.
#[derive(Default)]
pub struct Losses {
    files: HashMap<Ino, Loss>,
    /// Those that the kernel has forgotten, oldest first, and some that are whole by now.
    forgotten: VecDeque<Ino>,
}

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
    /// The kernel has forgotten the file since.
    is_forgotten: bool,
}

impl Losses {
    /// The number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Records a loss; `is_open` tells whether somebody has the file open for writing. True if nothing
    /// of the file was missing before.
    pub fn add(&mut self, ino: Ino, range: Range<u64>, errno: i32, is_open: bool) -> bool {
        let is_first = !self.files.contains_key(&ino);
        let loss = self.files.entry(ino).or_default();
        loss.missing.push(range);
        loss.missing = joined(std::mem::take(&mut loss.missing));
        (loss.errno, loss.is_untold, loss.is_closed) = (errno, is_open, !is_open);
        loss.is_forgotten = false;
        is_first
    }

    /// Called for a read that fills pages of the cache.
    pub fn read(&mut self, ino: Ino, range: &Range<u64>) {
        let Some(loss) = self.files.get_mut(&ino) else { return };
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
        let Some(loss) = self.files.get_mut(&ino) else { return };
        if std::mem::replace(&mut loss.is_forgotten, true) {
            return;
        }
        self.forgotten.push_back(ino);
        if self.forgotten.len() > FORGOTTEN_MAX
            && let Some(oldest) = self.forgotten.pop_front()
            && self.files.get(&oldest).is_some_and(|loss| loss.is_forgotten)
        {
            self.files.remove(&oldest);
        }
    }

    /// Called when the file has no name left, and nobody uses it.
    pub fn remove(&mut self, ino: Ino) {
        self.files.remove(&ino);
    }

    /// Why something is missing that a program lost which may have the file open still.
    pub fn of_open(&self, ino: Ino) -> Option<i32> {
        self.files.get(&ino).filter(|loss| !loss.is_closed).map(|loss| loss.errno)
    }

    /// Why something is missing of the file.
    pub fn of(&self, ino: Ino) -> Option<i32> {
        self.files.get(&ino).map(|loss| loss.errno)
    }

    /// The same, as long as the kernel knows the file.
    pub fn of_known(&self, ino: Ino) -> Option<i32> {
        self.files.get(&ino).filter(|loss| !loss.is_forgotten).map(|loss| loss.errno)
    }

    /// True if the next write(2) to the file has to fail.
    pub fn is_untold(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|loss| loss.is_untold)
    }

    /// Why the next write(2) to the file has to fail: none has since the loss. Asked for that write.
    pub fn tell(&mut self, ino: Ino) -> Option<i32> {
        let loss = self.files.get_mut(&ino)?;
        std::mem::take(&mut loss.is_untold).then_some(loss.errno)
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Loss)) {
        let Some(loss) = self.files.get_mut(&ino) else { return };
        change(loss);
        if loss.missing.is_empty() && loss.read.is_empty() {
            self.files.remove(&ino);
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
        assert_eq!((losses.of(7), losses.of_known(7)), (Some(libc::EIO), None));
        losses.remove(7);
        assert_eq!((losses.of(7), losses.len()), (None, 0));
    }

    #[test]
    fn the_last_that_were_forgotten_are_kept() {
        let mut losses = Losses::default();
        let lose = |losses: &mut Losses, ino| _ = losses.add(ino, 0..4096, libc::ENOSPC, false);
        for ino in 0..FORGOTTEN_MAX as u64 + 10 {
            lose(&mut losses, ino);
            losses.forget(ino);
            losses.forget(ino);
        }
        assert_eq!((losses.len(), losses.of(9), losses.of(10)), (FORGOTTEN_MAX, None, Some(libc::ENOSPC)));
        // What the kernel knows again stays.
        lose(&mut losses, 10);
        for ino in 1 << 20..(1 << 20) + 2 * FORGOTTEN_MAX as u64 {
            lose(&mut losses, ino);
            losses.forget(ino);
        }
        assert_eq!((losses.len(), losses.of_known(10)), (FORGOTTEN_MAX + 1, Some(libc::ENOSPC)));
        assert_eq!(losses.forgotten.len(), FORGOTTEN_MAX);
    }
}
