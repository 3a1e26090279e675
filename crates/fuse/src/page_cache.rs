//! The kernel's page cache, as far as this daemon has to know of it.
//!
//! A program that stores into a mapped file changes a page of the kernel's, and nobody is told before the kernel writes that
//! page back. For what is data already that makes no difference. To two things it does:
//!
//! - A *hole*: it is told of as one (SEEK_HOLE) although a page of it may have been stored to. So it is noted which holes were
//!   read through the cache, and these pages are written back before such a question is answered.
//! - The bytes *behind the end* of a file, in its last page: they belong to nobody, and have to be zeros when the file grows.
//!   Its growth by ftruncate(2) is noted, since what the kernel writes back then has them.
//!
//! And what is written past the cache leaves pages there that somebody read meanwhile: see `beside`.
//!
//! Pages are let go of by a notification, which waits for each page, and so perhaps for requests that have yet to be served.
//! It is sent by a thread that serves none.

mod beside;
mod grown;
mod holes;
mod letting_go;

pub use beside::Beside;
pub use grown::Grown;
pub use holes::{Holes, next_maybe_data};
pub use letting_go::LettingGo;

use std::ops::Range;
use syncline_fs::types::Ino;

/// Size of a page, and of a block.
const PAGE_BYTES: u64 = syncline_device::BLOCK_BYTES as u64;

/// Ranges of one file that are kept apart; more become one.
const RANGES_MAX: usize = 64;

/// What a session knows of the kernel's page cache.
#[derive(Default)]
pub struct PageCache {
    /// Files that are written past it.
    pub beside: Beside,
    /// Files that grew while their last page may have been dirty.
    pub grown: Grown,
    /// Holes that were read through the cache.
    pub holes: Holes,
    /// Tells the kernel to write pages back and drop them.
    pub letting_go: LettingGo,
}

impl PageCache {
    /// The kernel has forgotten a file.
    pub fn forget(&self, ino: Ino) {
        self.beside.forget(ino);
        self.holes.forget(ino);
    }
}

/// The same ranges in order, those that touch as one, and all as one if they are too many.
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
