//! The parts of the kernel's page cache that this daemon must track.
//!
//! A program that stores into a mapped file changes a page in the kernel's cache, and we learn of
//! it only when the kernel writes that page back. For ranges that are already data this makes no
//! difference. It matters in two cases:
//!
//! - A *hole*: SEEK_HOLE reports it as one although a page of it may have been stored to. So we
//!   record which holes were read through the cache, and have these pages written back before such
//!   a question is answered.
//! - The bytes *behind the end* of a file, in its last page: they are not part of the file, and
//!   must be zeros when it grows. Growth by ftruncate(2) is recorded, since the page that the
//!   kernel then writes back contains those bytes.
//!
//! A third case: a write that bypasses the cache leaves there the pages that others read meanwhile;
//! see `beside`.
//!
//! A notification makes the kernel write pages back and drop them. It waits for each page, and so
//! perhaps for requests that have yet to be served. It is therefore sent by a thread that serves
//! none.
//!
//! Operations know nothing of this but [`Pages`], the policy of one inode.

mod beside;
mod changing;
mod growing;
mod grown;
mod holes;
mod letting_go;
mod look;
mod pages;
mod stored;
mod tails;
mod taking_over;

pub use changing::{Change, Changing};
pub use growing::Unanswered;
pub use pages::Pages;

use beside::Beside;
use growing::Growing;
use grown::Grown;
use holes::Holes;
use letting_go::LettingGo;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use stored::Stored;
use tails::Tails;

/// Size of a page, and of a block.
const PAGE_BYTES: u64 = syncline_device::BLOCK_BYTES as u64;

/// The most ranges kept per file; beyond that they are merged into one.
const RANGES_MAX: usize = 64;

/// A session's knowledge of the kernel's page cache.
pub struct PageCache {
    /// Files that are written past the cache.
    beside: Beside,
    /// Files that are growing.
    growing: Arc<Growing>,
    /// Files that grew while their last page may have been dirty.
    grown: Grown,
    /// Holes that were read through the cache.
    holes: Holes,
    /// Tells the kernel to write pages back and drop them.
    letting_go: LettingGo,
    /// The same, for writes through the cache.
    letting_go_for_writes: LettingGo,
    /// Files that may have been stored to through a mapping.
    stored: Stored,
    /// Files whose last page was read.
    tails: Tails,
}

impl PageCache {
    /// For a session whose requests come over io_uring, through queues of so many entries at least, or
    /// over /dev/fuse.
    pub fn new(entries: Option<usize>) -> Self {
        Self {
            beside: Beside::default(),
            growing: Arc::default(),
            grown: Grown::default(),
            holes: Holes::default(),
            letting_go: LettingGo::new(entries),
            letting_go_for_writes: LettingGo::for_cached_writes(),
            stored: Stored::default(),
            tails: Tails::default(),
        }
    }

    /// Starts the threads that drop pages. `connection` makes a descriptor for one.
    pub fn start(&self, connection: impl Fn() -> io::Result<OwnedFd>) -> io::Result<()> {
        self.letting_go.start(connection()?)?;
        self.letting_go_for_writes.start(connection()?)
    }

    /// Ends these threads: the connection has ended.
    pub fn end(&self) {
        self.letting_go.end();
        self.letting_go_for_writes.end();
    }

    /// True if something may be stored in the kernel's pages of a file.
    #[cfg(test)]
    pub fn may_be_stored_to(&self, ino: u64) -> bool {
        self.stored.last(ino).is_some()
    }

    /// True if a thread is told the size that a file has.
    #[cfg(test)]
    pub fn tells_its_size(&self, ino: u64, thread: u32) -> bool {
        self.growing.told(ino, thread) == growing::Told::Its
    }
}

/// Sorts ranges and merges those that touch; merges all of them if there are too many.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    if joined.len() > RANGES_MAX
        && let (Some(first), Some(last)) = (joined.first(), joined.last())
    {
        let all = first.start..last.end;
        joined = vec![all];
    }
    joined
}
