//! Files into which programs may have stored through a mapping, with the contents still in the kernel's
//! cache.
//!
//! No request tells of a store, of a mapping, or of an open. But a mapping that stores needs a
//! descriptor that is open for reading and writing, and complete pages in the cache. So a file counts
//! from the moment at which such a page came through such a descriptor, by a read or a write, or was
//! written back from a mapping. (Pages that came through other descriptors only, and that a program
//! maps without having to read one, are not known.)

use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use syncline_fs::types::Ino;

use super::PAGE_BYTES;

/// The number of sets that the files are divided among.
const SHARDS: usize = 16;

/// The files that may have been stored to.
#[derive(Default)]
pub struct Stored {
    shards: [Mutex<Files>; SHARDS],
}

/// Files, each with the number of the last record of it.
#[derive(Default)]
struct Files {
    records: u64,
    last: HashMap<Ino, u64>,
}

impl Stored {
    /// Records that pages come into the cache for a read through a descriptor with these flags. Called
    /// before it is answered.
    pub fn read(&self, ino: Ino, flags: u32) {
        if is_for_both(flags) {
            self.note(ino);
        }
    }

    /// The same for a write.
    pub fn written(&self, ino: Ino, flags: u32, range: &Range<u64>) {
        if is_for_both(flags) && range.start.next_multiple_of(PAGE_BYTES) + PAGE_BYTES <= range.end {
            self.note(ino);
        }
    }

    /// Records that a program has stored into the file.
    pub fn note(&self, ino: Ino) {
        let mut files = self.shard(ino).lock();
        files.records += 1;
        let record = files.records;
        files.last.insert(ino, record);
    }

    /// The last record of a file, if something may be stored in the cache.
    pub fn last(&self, ino: Ino) -> Option<u64> {
        self.shard(ino).lock().last.get(&ino).copied()
    }

    /// Called when the kernel has dropped the pages that the file had at this record. Until then the
    /// record stays, so that every other request about the file waits for the pages, too.
    pub fn left(&self, ino: Ino, record: u64) {
        let mut files = self.shard(ino).lock();
        if files.last.get(&ino) == Some(&record) {
            files.last.remove(&ino);
        }
    }

    /// Called when the kernel has forgotten the file.
    pub fn forget(&self, ino: Ino) {
        self.shard(ino).lock().last.remove(&ino);
    }

    /// All such files.
    pub fn all(&self) -> Vec<Ino> {
        self.shards.iter().flat_map(|files| files.lock().last.keys().copied().collect::<Vec<_>>()).collect()
    }

    fn shard(&self, ino: Ino) -> &Mutex<Files> {
        &self.shards[ino as usize % SHARDS]
    }
}

fn is_for_both(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 == libc::O_RDWR as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_descriptors_that_can_be_mapped_count() {
        let stored = Stored::default();
        stored.read(7, libc::O_RDONLY as u32);
        stored.written(7, libc::O_WRONLY as u32, &(0..8192));
        stored.written(7, libc::O_RDWR as u32, &(1..8191));
        assert!(stored.last(7).is_none() && stored.all().is_empty());
        stored.written(7, libc::O_RDWR as u32, &(1..8192));
        assert_eq!(stored.all(), [7]);
        stored.forget(7);
        assert!(stored.last(7).is_none());
        stored.read(23, (libc::O_RDWR | libc::O_APPEND) as u32);
        assert!(stored.last(23).is_some());
    }

    #[test]
    fn a_file_counts_until_its_pages_are_gone() {
        let stored = Stored::default();
        stored.note(7);
        let first = stored.last(7).unwrap();
        assert_eq!(stored.last(7), Some(first), "whoever asks next waits, too");
        stored.note(7);
        stored.left(7, first);
        let second = stored.last(7).expect("a page came meanwhile");
        stored.left(7, second);
        assert!(stored.last(7).is_none());
        stored.note(7);
        stored.left(7, second);
        assert!(stored.last(7).is_some(), "another page came");
    }
}
