//! Files that ftruncate(2) made longer, from an end within a page.
//!
//! The kernel learns the new size from the answer, then writes the last page back, whole, if it is
//! dirty, and drops it, all before ftruncate returns. (It can't be asked to do so earlier: during
//! the truncation it blocks write-back.) The part of that page behind the old end was stored there
//! while it was not part of the file. A later store there must first bring the page back by a read
//! or a write, which we see.

use super::PAGE_BYTES;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_device::AlignedBuf;
use syncline_fs::types::Ino;

/// The most files that are remembered: each matters for the length of one system call.
const REMEMBERED_MAX: usize = 256;

/// For each file, a range of bytes that stay zeros whatever a written-back page contains.
#[derive(Default)]
pub struct Grown {
    remembered: Mutex<VecDeque<(Ino, Range<u64>)>>,
    /// The number of entries, readable without the lock.
    len: AtomicUsize,
}

impl Grown {
    /// Records that a file is about to grow, or drops its entry if nothing remains to zero. Called
    /// before the kernel can know the new size.
    pub fn note(&self, ino: Ino, old_size: u64, size: u64) {
        let zeros = old_size..old_size.next_multiple_of(PAGE_BYTES).min(size);
        self.change(|remembered| {
            remembered.retain(|(known, _)| *known != ino);
            if !zeros.is_empty() {
                remembered.push_back((ino, zeros));
            }
            if remembered.len() > REMEMBERED_MAX {
                remembered.pop_front();
            }
        });
    }

    /// Called for a request, other than a write-back, that reads or writes this range: the kernel
    /// has no older page of it.
    pub fn touch(&self, ino: Ino, range: Range<u64>) {
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let page = |zeros: &Range<u64>| zeros.start - zeros.start % PAGE_BYTES..zeros.end;
        self.change(|remembered| {
            remembered.retain(|(known, zeros)| {
                let page = page(zeros);
                *known != ino || page.end <= range.start || range.end <= page.start
            });
        });
    }

    /// The data to write for a page that the kernel writes back.
    pub fn without_rest(&self, ino: Ino, offset: u64, data: Bytes) -> Bytes {
        if self.len.load(Ordering::Acquire) == 0 {
            return data;
        }
        let zeros =
            self.remembered.lock().iter().find(|(known, _)| *known == ino).map(|(_, zeros)| zeros.clone());
        let Some(zeros) = zeros else { return data };
        let end = offset + data.len() as u64;
        let within = zeros.start.max(offset)..zeros.end.min(end);
        if within.is_empty() {
            return data;
        }
        let mut changed = AlignedBuf::copy_from(&data);
        changed[(within.start - offset) as usize..(within.end - offset) as usize].fill(0);
        changed.into_bytes().slice(..data.len())
    }

    fn change(&self, change: impl FnOnce(&mut VecDeque<(Ino, Range<u64>)>)) {
        let mut remembered = self.remembered.lock();
        change(&mut remembered);
        self.len.store(remembered.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Bytes {
        Bytes::from(vec![byte; PAGE_BYTES as usize])
    }

    #[test]
    fn only_the_rest_of_the_last_page_is_zeros() {
        let grown = Grown::default();
        grown.note(7, 5000, 100_000);
        let written = grown.without_rest(7, 4096, page(1));
        assert!(written[..904].iter().all(|&byte| byte == 1) && written[904..].iter().all(|&byte| byte == 0));
        assert_eq!(grown.without_rest(7, 0, page(1)), page(1));
        assert_eq!(grown.without_rest(8, 4096, page(1)), page(1));
        // Only up to the new size, which may be in the same page.
        grown.note(7, 100, 200);
        let written = grown.without_rest(7, 0, page(1));
        assert_eq!(written.iter().filter(|&&byte| byte == 0).count(), 100);
    }

    #[test]
    fn it_is_over_when_the_page_was_read_or_written_again() {
        let grown = Grown::default();
        grown.note(7, 5000, 100_000);
        for elsewhere in [0..4096, 8192..9000] {
            grown.touch(7, elsewhere);
        }
        grown.touch(8, 4096..8192);
        assert_ne!(grown.without_rest(7, 4096, page(1)), page(1));
        grown.touch(7, 4096..4097);
        assert_eq!(grown.without_rest(7, 4096, page(1)), page(1));
        // A file that ends at a page boundary leaves nothing to zero, and nor does one that
        // shrinks.
        grown.note(7, 5000, 100_000);
        grown.note(7, 100_000, 10);
        grown.note(9, 8192, 100_000);
        assert_eq!(grown.len.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let grown = Grown::default();
        (0..10_000).for_each(|ino| grown.note(ino, 1, 2));
        assert_eq!(grown.remembered.lock().len(), REMEMBERED_MAX);
    }
}
