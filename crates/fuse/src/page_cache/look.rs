//! Questions about a file whose answers depend on pages in the kernel's cache.

use super::Pages;
use super::growing::{TAKING_MAX, Told};
use super::holes::next_maybe_data;
use crate::done::over;
use std::ops::Range;
use syncline_fs::FsError;
use syncline_fs::types::Attributes;

/// Unit of `st_blocks`.
const UNIT_BYTES: u64 = 512;

/// A file that is asked about.
pub struct Look<'a> {
    pages: Pages<'a>,
    /// Holes that may be data by now.
    maybe_data: Vec<Range<u64>>,
}

impl<'a> Pages<'a> {
    /// Has the kernel write back and drop the pages of holes that it read, since they may be data by
    /// now. If that can't be waited for, they count as data.
    pub async fn look(&self) -> Look<'a> {
        let Self { cache, ino, .. } = *self;
        let mut maybe_data = cache.holes.leave(ino);
        if !maybe_data.is_empty() {
            let are_gone = cache.letting_go.let_go(ino, maybe_data.clone()).await;
            cache.holes.left(ino, are_gone);
            if are_gone {
                maybe_data.clear();
            }
        }
        Look { pages: *self, maybe_data }
    }
}

impl Look<'_> {
    /// The attributes that stat(2) tells. Stores into mapped holes count among the blocks, as on other
    /// filesystems.
    pub async fn attributes(&self) -> Result<Attributes, FsError> {
        let mut attributes = self.shown().await?;
        let bytes: u64 = self.maybe_data.iter().map(|range| range.end - range.start).sum();
        attributes.blocks = attributes.blocks.saturating_add(bytes / UNIT_BYTES);
        Ok(attributes)
    }

    /// The attributes, with the size that the thread that asks may know. Not for SETATTR, after which the
    /// kernel takes the size that it is told, and during which nobody writes.
    async fn shown(&self) -> Result<Attributes, FsError> {
        let Pages { cache, fs, processes, ino, thread } = self.pages;
        let (mut looks, mut taken) = (0, None);
        loop {
            let attributes = fs.getattr(ino).await?;
            let size = match cache.growing.told(ino, thread) {
                Told::Later(last) if last.at.is_some() && last.at == taken => attributes.size,
                // This call began after the question, under the inode's lock, so the kernel has taken the
                // answers to all earlier calls.
                Told::Later(last) if taken.is_some() && !last.is_part => last.before.min(attributes.size),
                Told::Later(last) if looks < 2 => {
                    // A later request or fsync of that thread proves that it has taken this answer.
                    let is_open =
                        || matches!(cache.growing.told(ino, thread), Told::Later(now) if now.at == last.at);
                    Box::pin(last.taken(TAKING_MAX, processes, is_open, over)).await;
                    (looks, taken) = (looks + 1, last.at);
                    continue;
                }
                Told::Its => attributes.size,
                // A part of a call that goes on.
                Told::Later(last) => last.before.min(attributes.size),
                Told::Before(size) => size.min(attributes.size),
            };
            return Ok(Attributes { size, ..attributes });
        }
    }

    /// The next data; a range that may be data counts as data.
    pub async fn seek_data(&self, offset: u64) -> Result<u64, FsError> {
        let Pages { fs, ino, .. } = self.pages;
        let found = fs.seek_data(ino, offset).await;
        let Some(maybe) = next_maybe_data(&self.maybe_data, offset) else { return found };
        match found {
            Ok(found) => Ok(found.min(maybe)),
            Err(FsError::NoSuchAddress) if maybe < fs.getattr(ino).await?.size => Ok(maybe),
            refused => refused,
        }
    }

    /// The next hole; a range that may be data does not count as a hole.
    pub async fn seek_hole(&self, offset: u64) -> Result<u64, FsError> {
        let Pages { fs, ino, .. } = self.pages;
        let mut at = offset;
        loop {
            let hole = fs.seek_hole(ino, at).await?;
            let Some(range) = self.maybe_data.iter().find(|range| range.contains(&hole)) else {
                return Ok(hole);
            };
            let size = fs.getattr(ino).await?.size;
            if range.end >= size {
                return Ok(size);
            }
            at = range.end;
        }
    }
}
