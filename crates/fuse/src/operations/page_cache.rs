//! Work that requests must do about pages in the kernel's cache (see [`crate::page_cache`]).

use crate::abi::WriteIn;
use crate::done::over;
use crate::page_cache::{Growth, Told, Unanswered, next_maybe_data};
use crate::request::Request;
use crate::session::Session;
use futures_lite::future::or;
use std::ops::Range;
use std::time::Duration;
use syncline_device::BLOCK_BYTES;
use syncline_fs::FsError;
use syncline_fs::types::{Attributes, FileType, Ino};

const PAGE: u64 = BLOCK_BYTES as u64;

/// How long a write through the cache waits for the last page of its file. The kernel may hold that
/// page until the write is answered, if it has dropped the page and made a new one since it was read.
const PATIENCE: Duration = Duration::from_millis(100);

/// Called before a write that is not a write-back of pages. The file grows until the answer leaves.
pub(super) async fn before_write(
    session: &Session,
    request: &Request,
    input: &WriteIn,
    beside: bool,
) -> Result<Option<Unanswered>, FsError> {
    let (ino, range) = (request.ino(), input.offset..input.offset + u64::from(input.size));
    let pages = session.page_cache();
    pages.grown.touch(ino, range.clone());
    let size = session.fs().getattr(ino).await?.size;
    if !beside {
        // The write leaves pages in the cache, and the kernel may hold them until it has its answer.
        pages.beside.note(ino, range.clone());
        pages.stored.written(ino, input.flags, &range);
    }
    if let Some(page) = page_behind_end(session, ino, size, range.start) {
        Box::pin(before_gap(session, ino, page, beside)).await;
    }
    Ok(growing(session, request, ino, range, size, !beside))
}

/// Has the last page of a file written back before a write leaves a gap behind its end.
async fn before_gap(session: &Session, ino: Ino, page: Range<u64>, beside: bool) {
    let pages = session.page_cache();
    if beside {
        pages.letting_go.let_go(ino, vec![page]).await;
        return;
    }
    // Not with those pages that others wait for: one of them may be this write's.
    let gone = async {
        pages.letting_go_for_writes.let_go(ino, vec![page]).await;
    };
    or(gone, over(PATIENCE)).await;
}

/// Called before a file may grow to the end of `range` by anything but a write or SETATTR. Its last
/// page is written back up to the old end, which discards bytes that were stored behind it. Not for a
/// request during which the kernel may hold a page, or blocks write-back.
pub(super) async fn before_growth(
    session: &Session,
    request: &Request,
    ino: Ino,
    range: Range<u64>,
    offset: u64,
) -> Result<Option<Unanswered>, FsError> {
    let size = session.fs().getattr(ino).await?.size;
    if let Some(page) = page_behind_end(session, ino, size, offset) {
        // If too many requests wait already, this is done a moment later, perhaps too late; but no
        // program may rely on the bytes behind the end.
        session.page_cache().letting_go.let_go(ino, vec![page]).await;
    }
    Ok(growing(session, request, ino, range, size, true))
}

/// The last page of a file of `size` bytes, if something may have been stored there behind the end that
/// a growth which leaves a gap up to `offset` makes a part of the file.
fn page_behind_end(session: &Session, ino: Ino, size: u64, offset: u64) -> Option<Range<u64>> {
    let page = size - size % PAGE;
    (offset > size && session.page_cache().tails.take(ino, size)).then_some(page..page + PAGE)
}

/// Has the size of a file told as it is until the answer of a request that makes it larger leaves.
fn growing(
    session: &Session,
    request: &Request,
    ino: Ino,
    range: Range<u64>,
    size: u64,
    is_cached: bool,
) -> Option<Unanswered> {
    let growth = || Growth { range: range.clone(), size, thread: request.pid(), is_cached };
    (range.end > size).then(|| session.page_cache().growing.begin(ino, growth()))
}

/// The attributes to tell who asks. Not for SETATTR, after which the kernel takes the size that it is
/// told, and during which nobody writes.
pub(super) async fn shown(session: &Session, ino: Ino, thread: u32) -> Result<Attributes, FsError> {
    let (mut looks, mut taken) = (0, None);
    loop {
        let attributes = session.fs().getattr(ino).await?;
        let size = match session.page_cache().growing.told(ino, thread) {
            Told::Later(last) if last.at.is_some() && last.at == taken => attributes.size,
            Told::Later(last) if looks < 2 => {
                Box::pin(last.taken(session.processes(), over)).await;
                (looks, taken) = (looks + 1, last.at);
                continue;
            }
            Told::Its => attributes.size,
            // A write that began after the question.
            Told::Later(last) => last.before.min(attributes.size),
            Told::Before(size) => size.min(attributes.size),
        };
        return Ok(Attributes { size, ..attributes });
    }
}

/// The size to tell with a name. A program that asks for the size gets another answer.
pub(super) fn size_with_name(session: &Session, attributes: &Attributes) -> u64 {
    match session.page_cache().growing.told(attributes.ino, 0) {
        Told::Before(size) => size.min(attributes.size),
        Told::Its | Told::Later(..) => attributes.size,
    }
}

/// Has the kernel hand over what programs have stored into a file through mappings, as far as that is
/// known of (see [`crate::page_cache::Stored`]), and drop its pages: before anything that a late
/// write-back would change or miss. Costs nothing if nothing can have been stored. Not for a request
/// during which the kernel may hold a page, or blocks write-back (SETATTR of a size).
///
/// If too many wait for pages already, it comes later, as it does for a program that has not asked.
pub(super) async fn take_over(session: &Session, ino: Ino) {
    let stored = &session.page_cache().stored;
    let Some(record) = stored.last(ino) else { return };
    let are_gone = Box::pin(async {
        let size = size_of_file(session, ino).await;
        session.page_cache().letting_go.let_go_of_all(ino, size).await
    });
    if are_gone.await {
        stored.left(ino, record);
    }
}

/// The bytes of which the kernel may have pages; as many as there can be if that is not known. (A range
/// without an end is many notifications.)
async fn size_of_file(session: &Session, ino: Ino) -> u64 {
    session.fs().getattr(ino).await.map_or(u64::MAX, |attributes| attributes.size)
}

/// The same also for stores that we do not know of: where a store would be lost.
pub(super) async fn take_over_unknown(session: &Session, ino: Ino) {
    session.page_cache().stored.note(ino);
    take_over(session, ino).await;
}

/// The same for all files of which something is known.
pub(super) async fn take_over_all(session: &Session) {
    for ino in session.page_cache().stored.all() {
        take_over(session, ino).await;
    }
}

/// The same for all files that the kernel knows. Call it on a thread that serves no requests.
pub(crate) async fn take_over_everything(session: &Session) {
    let mut files = Vec::new();
    for ino in session.fs().known_to_kernel() {
        match session.fs().getattr(ino).await {
            Ok(found) if found.file_type != FileType::Regular => {}
            found => files.push((ino, found.map_or(u64::MAX, |found| found.size))),
        }
    }
    session.page_cache().letting_go.let_go_of_files(&files).await;
}

/// Called before ftruncate changes a file's size. The file grows until the answer leaves.
pub(super) async fn before_truncation(
    session: &Session,
    request: &Request,
    size: u64,
) -> Result<Option<Unanswered>, FsError> {
    let (ino, before) = (request.ino(), session.fs().getattr(request.ino()).await?);
    if before.file_type != FileType::Regular {
        return Ok(None);
    }
    session.page_cache().grown.note(ino, before.size, size);
    Ok(growing(session, request, ino, before.size..size, before.size, true))
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
