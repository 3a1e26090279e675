//! Work that requests must do about pages in the kernel's cache (see [`crate::page_cache`]).

use crate::page_cache::next_maybe_data;
use crate::session::Session;
use std::ops::Range;
use syncline_device::BLOCK_BYTES;
use syncline_fs::FsError;
use syncline_fs::types::{FileType, Ino};

const PAGE: u64 = BLOCK_BYTES as u64;

/// Called before a write that is not a write-back of pages.
pub(super) async fn before_write(
    session: &Session,
    ino: Ino,
    range: &Range<u64>,
    beside: bool,
) -> Result<(), FsError> {
    let pages = session.page_cache();
    pages.grown.touch(ino, range.clone());
    if !beside {
        // The write leaves pages in the cache, and the kernel holds them until it has its answer.
        pages.beside.note(ino, range.clone());
    }
    // A write that begins beyond the page in which the file ends leaves a gap. (Within one page we
    // can't tell.)
    if range.start >= PAGE { before_growth(session, ino, range.start).await } else { Ok(()) }
}

/// Called before a file may grow to or beyond `offset` without new bytes between its old end and
/// there. Its last page is written back up to the old end, which discards bytes that were stored
/// behind it. Not for SETATTR, during which nothing is written back.
pub(super) async fn before_growth(session: &Session, ino: Ino, offset: u64) -> Result<(), FsError> {
    let size = session.fs().getattr(ino).await?.size;
    let page = size - size % PAGE;
    if !size.is_multiple_of(PAGE) && offset >= page + PAGE {
        let range = page..page + PAGE;
        // If too many requests wait already, this is done a moment later, perhaps too late; but no
        // program may rely on the bytes behind the end.
        session.page_cache().letting_go.let_go(ino, vec![range]).await;
    }
    Ok(())
}

/// Called before ftruncate changes a file's size.
pub(super) async fn before_truncation(session: &Session, ino: Ino, size: u64) -> Result<(), FsError> {
    let attributes = session.fs().getattr(ino).await?;
    if attributes.file_type == FileType::Regular {
        session.page_cache().grown.note(ino, attributes.size, size);
    }
    Ok(())
}

/// Called after a write that bypassed the cache: from now on no reader sees the old contents there.
pub(super) async fn after_write(session: &Session, ino: Ino, range: Range<u64>) -> Result<(), FsError> {
    let stale = session.page_cache().beside.written(ino, range);
    if !stale.is_empty() {
        session.page_cache().letting_go.let_go(ino, stale).await;
    }
    Ok(())
}

/// Has the kernel write back and drop the pages of holes that it read, since they may be data by
/// now. Returns the ranges that are still uncertain.
pub(super) async fn write_back_holes(session: &Session, ino: Ino) -> Vec<Range<u64>> {
    let pages = session.page_cache();
    let leaving = pages.holes.leave(ino);
    if leaving.is_empty() {
        return leaving;
    }
    let are_gone = pages.letting_go.let_go(ino, leaving.clone()).await;
    pages.holes.left(ino, are_gone);
    if are_gone { Vec::new() } else { leaving }
}

/// Finds the next data; a range that may be data counts as data.
pub(super) async fn seek_data(
    session: &Session,
    ino: Ino,
    offset: u64,
    maybe_data: &[Range<u64>],
) -> Result<u64, FsError> {
    let found = session.fs().seek_data(ino, offset).await;
    let Some(maybe) = next_maybe_data(maybe_data, offset) else { return found };
    match found {
        Ok(found) => Ok(found.min(maybe)),
        Err(FsError::NoSuchAddress) if maybe < session.fs().getattr(ino).await?.size => Ok(maybe),
        refused => refused,
    }
}

/// Finds the next hole; a range that may be data does not count as a hole.
pub(super) async fn seek_hole(
    session: &Session,
    ino: Ino,
    offset: u64,
    maybe_data: &[Range<u64>],
) -> Result<u64, FsError> {
    let mut at = offset;
    loop {
        let hole = session.fs().seek_hole(ino, at).await?;
        let Some(range) = maybe_data.iter().find(|range| range.contains(&hole)) else { return Ok(hole) };
        let size = session.fs().getattr(ino).await?.size;
        if range.end >= size {
            return Ok(size);
        }
        at = range.end;
    }
}
