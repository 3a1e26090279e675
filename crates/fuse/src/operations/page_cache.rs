//! What requests have to do about pages that the kernel may have (see [`crate::page_cache`]).

use crate::page_cache::next_maybe_data;
use crate::session::Session;
use std::ops::Range;
use syncline_device::BLOCK_BYTES;
use syncline_fs::FsError;
use syncline_fs::types::{FileType, Ino};

const PAGE: u64 = BLOCK_BYTES as u64;

/// Before a write that is not a write-back of pages.
pub(super) async fn before_write(
    session: &Session,
    ino: Ino,
    range: &Range<u64>,
    beside: bool,
) -> Result<(), FsError> {
    let pages = session.page_cache();
    pages.grown.touch(ino, range.clone());
    if !beside {
        // It leaves pages there, and holds them until it has its answer.
        pages.beside.note(ino, range.clone());
    }
    // One that begins in another page than the file ends in leaves a gap. (Within a page there is no telling.)
    if range.start >= PAGE { before_growth(session, ino, range.start).await } else { Ok(()) }
}

/// Before a file may come to have bytes at or behind `offset` and none between its end and there: its last page is written back as
/// far as the file reached, so that what was stored behind it is lost. Not for SETATTR, during which nothing is written back.
pub(super) async fn before_growth(session: &Session, ino: Ino, offset: u64) -> Result<(), FsError> {
    let size = session.fs().getattr(ino).await?.size;
    let page = size - size % PAGE;
    if !size.is_multiple_of(PAGE) && offset >= page + PAGE {
        let range = page..page + PAGE;
        // Where too many wait it is done a moment later, perhaps too late for what nobody may rely on.
        session.page_cache().letting_go.let_go(ino, vec![range]).await;
    }
    Ok(())
}

/// Before ftruncate changes a file's size.
pub(super) async fn before_truncation(session: &Session, ino: Ino, size: u64) -> Result<(), FsError> {
    let attributes = session.fs().getattr(ino).await?;
    if attributes.file_type == FileType::Regular {
        session.page_cache().grown.note(ino, attributes.size, size);
    }
    Ok(())
}

/// After a write beside the cache: nobody reads there any more what was before.
pub(super) async fn after_write(session: &Session, ino: Ino, range: Range<u64>) -> Result<(), FsError> {
    let stale = session.page_cache().beside.written(ino, range);
    if !stale.is_empty() {
        session.page_cache().letting_go.let_go(ino, stale).await;
    }
    Ok(())
}

/// Has the kernel write back what may be data by now of holes that it knows. Gives those of which that is still unknown.
pub(super) async fn write_back_holes(session: &Session, ino: Ino) -> Vec<Range<u64>> {
    let pages = session.page_cache();
    let holes = pages.holes.take(ino);
    if holes.is_empty() || pages.letting_go.let_go(ino, holes.clone()).await {
        return Vec::new();
    }
    pages.holes.put_back(ino, holes.clone());
    holes
}

/// The next data; what may be data counts.
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

/// The next hole; what may be data does not count.
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
