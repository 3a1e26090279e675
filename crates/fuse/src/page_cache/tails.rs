//! Files whose last page the kernel has read, although it is not full: a program that has mapped it
//! may have stored something behind the end of the file.
//!
//! A page into which nothing but write(2) has come is not here. The kernel can't map such a page
//! before it has read it.

use super::PAGE_BYTES;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_fs::types::Ino;

/// For each file, the number of its last page when that was read.
#[derive(Default)]
pub struct Tails {
    files: Mutex<HashMap<Ino, u64>>,
    /// The number of files, readable without the lock.
    len: AtomicUsize,
}

impl Tails {
    /// Records that a read through the cache found the end of the file. Called before it is answered.
    pub fn read(&self, ino: Ino, end: u64) {
        if !end.is_multiple_of(PAGE_BYTES) {
            self.change(|files| files.insert(ino, end / PAGE_BYTES));
        }
    }

    /// True if something may have been stored behind the end of a file of `size` bytes, in its last
    /// page. A second call answers false, unless the page has been read again in between.
    pub fn take(&self, ino: Ino, size: u64) -> bool {
        self.knows(ino) && self.change(|files| files.remove(&ino)) == Some(size / PAGE_BYTES)
    }

    /// Called when the kernel has forgotten the file.
    pub fn forget(&self, ino: Ino) {
        if self.knows(ino) {
            self.change(|files| files.remove(&ino));
        }
    }

    fn knows(&self, ino: Ino) -> bool {
        self.len.load(Ordering::Acquire) > 0 && self.files.lock().contains_key(&ino)
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<Ino, u64>) -> T) -> T {
        let mut files = self.files.lock();
        let changed = change(&mut files);
        self.len.store(files.len(), Ordering::Release);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_in_which_the_file_ends_counts() {
        let tails = Tails::default();
        tails.read(7, 5000);
        assert!(!tails.take(8, 5000));
        assert!(tails.take(7, 5500), "it has grown within the page");
        assert!(!tails.take(7, 5500), "asked once");
        tails.read(7, 5000);
        assert!(!tails.take(7, 9000), "no program has seen that page");
        tails.read(7, 8192);
        assert!(!tails.take(7, 8192), "it is full");
        tails.read(7, 1);
        tails.forget(7);
        assert!(!tails.take(7, 1));
        assert_eq!(tails.len.load(Ordering::Relaxed), 0);
    }
}
