//! Changes of a file, and the pages that the kernel holds meanwhile.

use super::growing::{Growth, Unanswered};
use super::{PAGE_BYTES, PageCache, Pages};
use crate::done::over;
use bytes::Bytes;
use futures_lite::future::or;
use std::iter;
use std::ops::Range;
use std::time::Duration;
use syncline_fs::FsError;
use syncline_fs::types::{FileType, Ino};

/// How long a write through the cache waits for the last page of its file. The kernel may hold that
/// page until the write is answered, if it has dropped the page and made a new one since it was read.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a request is about to do to a file.
pub enum Change<'a> {
    /// A WRITE of this range that comes from write(2), through a descriptor with these flags of open(2):
    /// past the cache, or through it.
    Write { range: Range<u64>, flags: u32, is_past: bool },
    /// A WRITE of pages that a program has stored into through a mapping. Takes out of the data what was
    /// stored behind the end of the file.
    WriteBack { offset: u64, data: &'a mut Bytes },
    /// FALLOCATE or COPY_FILE_RANGE gives the file this range. Between the end of the file and `gap_end`
    /// it leaves a gap.
    Grow { range: Range<u64>, gap_end: u64 },
    /// FALLOCATE changes nothing but pages that the kernel has dropped itself.
    Inside,
    /// SETATTR gives the file this size.
    Resize(u64),
    /// SETATTR changes anything else. The write-back of a store from before would change the times again.
    Attributes,
    /// The file becomes immutable or append-only: after that, write-back of pages that a mapping has
    /// dirtied is refused.
    Protect,
    /// FSYNC makes earlier changes durable.
    Sync,
}

/// A change that may be carried out now.
#[must_use = "while it lives, the size from before is told"]
pub struct Changing<'a> {
    cache: &'a PageCache,
    ino: Ino,
    /// The range of a WRITE past the cache, or of a write-back.
    range: Range<u64>,
    is_past: bool,
    /// The growth of the file, for the answer.
    pub growth: Option<Unanswered>,
}

impl<'a> Pages<'a> {
    /// Called before a change. If the file grows, its size from before is told until the answer leaves.
    ///
    /// A request during which the kernel may hold a page, or blocks write-back, waits for no page: a
    /// write-back, a WRITE through the cache (but see `before_gap`), a SETATTR of a
    /// size. If too many wait for pages already, these are dropped a moment later, perhaps too late; but
    /// no program may rely on the bytes behind the end, or on times without asking for them.
    pub async fn before_change(&self, change: Change<'_>) -> Result<Changing<'a>, FsError> {
        let Self { cache, fs, ino, .. } = *self;
        let mut changing = Changing { cache, ino, range: 0..0, is_past: false, growth: None };
        match change {
            Change::Write { range, flags, is_past } => {
                cache.grown.touch(ino, range.clone());
                let size = fs.getattr(ino).await?.size;
                if !is_past {
                    // The write leaves pages in the cache, and the kernel may hold them until it has its
                    // answer.
                    cache.beside.note(ino, range.clone());
                    cache.stored.written(ino, flags, &range);
                }
                self.before_gap(size, range.start, !is_past).await;
                changing.growth = self.growth(&range, size, !is_past);
                (changing.range, changing.is_past) = (range, is_past);
            }
            Change::WriteBack { offset, data } => {
                changing.range = offset..offset + data.len() as u64;
                cache.stored.note(ino);
                *data = cache.grown.without_rest(ino, offset, std::mem::take(data));
            }
            Change::Grow { range, gap_end } => {
                let size = fs.getattr(ino).await?.size;
                self.before_gap(size, gap_end, false).await;
                changing.growth = self.growth(&range, size, true);
            }
            Change::Resize(size) => {
                let before = fs.getattr(ino).await?;
                if before.file_type == FileType::Regular {
                    cache.grown.note(ino, before.size, size);
                    changing.growth = self.growth(&(before.size..size), before.size, true);
                }
            }
            Change::Attributes => cache.take_over(fs, ino).await,
            Change::Protect => {
                // Also stores that we do not know of: they would be lost.
                cache.stored.note(ino);
                cache.take_over(fs, ino).await;
            }
            Change::Sync => cache.growing.syncs(self.thread),
            Change::Inside => {}
        }
        Ok(changing)
    }

    /// Has the last page of a file of `size` bytes written back before a change leaves a gap behind its
    /// end, up to `offset`: something may have been stored in the page there, and this discards it.
    /// `is_held`: the kernel may hold the page until the change is answered.
    async fn before_gap(&self, size: u64, offset: u64, is_held: bool) {
        let Self { cache, ino, .. } = *self;
        if offset <= size || !cache.tails.take(ino, size) {
            return;
        }
        let start = size - size % PAGE_BYTES;
        let page = iter::once(start..start + PAGE_BYTES).collect();
        let gone = async {
            if !is_held {
                cache.letting_go.let_go(ino, page).await;
                return;
            }
            // Not with those pages that others wait for: one of them may be this write's.
            let gone = async {
                cache.letting_go_for_writes.let_go(ino, page).await;
            };
            or(gone, over(PATIENCE)).await;
        };
        Box::pin(gone).await;
    }

    /// Has the size of the file told as it is until the answer of a request that makes it larger leaves.
    fn growth(&self, range: &Range<u64>, size: u64, is_cached: bool) -> Option<Unanswered> {
        let growth = || Growth { range: range.clone(), size, thread: self.thread, is_cached };
        (range.end > size).then(|| self.cache.growing.begin(self.ino, growth()))
    }
}

impl Changing<'_> {
    /// Called when the change is carried out, before it is answered: from then on no reader sees what a
    /// write past the cache has replaced.
    pub async fn carried_out(&self) {
        if self.is_past {
            let stale = self.cache.beside.written(self.ino, self.range.clone());
            if !stale.is_empty() {
                self.cache.letting_go.let_go(self.ino, stale).await;
            }
        }
    }

    /// Called when a write-back has failed. The kernel takes its pages for written now. Once they are
    /// dropped, programs read the old contents.
    pub fn failed(self) {
        self.cache.letting_go.let_go_later(self.ino, self.range);
    }
}
