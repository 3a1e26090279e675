//! The policy about the kernel's pages of one inode: everything that an operation asks and tells.
//!
//! | request | before the filesystem is called | after that |
//! |---|---|---|
//! | READ through the cache | [`Pages::before_read`] | [`Reading::carried_out`] |
//! | WRITE | [`Pages::before_change`] | [`Changing::carried_out`] |
//! | a write-back | [`Pages::before_change`] | [`Changing::failed`] after an error |
//! | another change, FSYNC | [`Pages::before_change`] | |
//! | GETATTR, STATX, LSEEK | [`Pages::look`], then a method of [`Look`] | |
//! | any that is answered with attributes | | [`Pages::told`] |
//! | FORGET | | [`Pages::forgotten`] |
//!
//! [`Changing::carried_out`]: super::Changing::carried_out
//! [`Changing::failed`]: super::Changing::failed
//! [`Look`]: super::look::Look

use super::PageCache;
use super::growing::Told;
use crate::processes::Processes;
use std::ops::Range;
use syncline_fs::Filesystem;
use syncline_fs::types::{Attributes, FileType, Ino};

/// The pages of one inode, for a request of one thread.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    pub cache: &'a PageCache,
    pub fs: &'a Filesystem,
    pub processes: &'a Processes,
    pub ino: Ino,
    pub thread: u32,
}

/// A READ through the cache that has begun.
pub struct Reading<'a> {
    cache: &'a PageCache,
    ino: Ino,
    range: Range<u64>,
}

impl<'a> Pages<'a> {
    /// Called before a READ of this range fills pages, through a descriptor with these flags of open(2).
    /// The kernel holds these pages until the answer, so nothing about a READ may wait.
    pub fn before_read(&self, range: Range<u64>, flags: u32) -> Reading<'a> {
        self.cache.grown.touch(self.ino, range.clone());
        self.cache.beside.note(self.ino, range.clone());
        self.cache.stored.read(self.ino, flags);
        Reading { cache: self.cache, ino: self.ino, range }
    }

    /// The size to tell, and whether the kernel may cache the attributes. While holes are in its cache
    /// it must ask each time: stores that we don't know of turn them into data. `with_name`: a program
    /// that asks for the size gets another answer.
    pub fn told(&self, attributes: &Attributes, with_name: bool) -> (u64, bool) {
        let may_be_cached = !self.cache.holes.are_cached(self.ino) && !is_one_hole(attributes);
        if with_name && let Told::Before(size) = self.cache.growing.told(self.ino, 0) {
            return (size.min(attributes.size), may_be_cached);
        }
        (attributes.size, may_be_cached)
    }

    /// Called when the kernel has forgotten the inode.
    pub fn forgotten(&self) {
        self.cache.beside.forget(self.ino);
        self.cache.holes.forget(self.ino);
        self.cache.stored.forget(self.ino);
        self.cache.tails.forget(self.ino);
    }
}

impl Reading<'_> {
    /// Called before the answer, which has so many bytes and these pages of holes, is sent. Returns true
    /// if attributes that the kernel has cached are no longer right.
    pub fn carried_out(self, read_bytes: u64, holes: Vec<Range<u64>>) -> bool {
        let Self { cache, ino, range } = self;
        if read_bytes > 0 && read_bytes < range.end - range.start {
            cache.tails.read(ino, range.start + read_bytes);
        }
        // From now on a store into these pages makes them data, and changes the number of blocks.
        cache.holes.note(ino, holes)
    }
}

/// True for a file without any data. A program that is told of no blocks takes it for empty (GNU tar
/// does not even read it), so no old answer may tell that. The kernel drops cached attributes when
/// holes are first read, but what SETATTR and LINK answer it takes even if it has waited since.
fn is_one_hole(attributes: &Attributes) -> bool {
    attributes.file_type == FileType::Regular && attributes.blocks == 0 && attributes.size > 0
}
