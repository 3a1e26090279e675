//! The contents of files: READ, WRITE, LSEEK.

use super::policy::Policy;
use super::{Answer, Refusal};
use crate::abi::flags::{read as read_flags, write as write_flags};
use crate::abi::{LSeekIn, LSeekOut, ReadIn, WriteIn, WriteOut};
use crate::page_cache::Change;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use bytes::Bytes;
use std::ops::Range;

/// The range of a READ.
fn range_of(session: &Session, input: &ReadIn) -> Result<Range<u64>, Refusal> {
    // The kernel reads whole pages, and the last possible page reaches beyond the largest offset.
    let left =
        (i64::MAX as u64).checked_sub(input.offset).filter(|left| *left > 0).ok_or(Refusal::Malformed)?;
    if input.size > session.negotiated().transfer_bytes_max {
        return Err(Refusal::Malformed);
    }
    Ok(input.offset..input.offset + left.min(input.size.into()))
}

pub(super) async fn read(session: &Session, request: &Request) -> Answer {
    let input: ReadIn = request.arguments().take()?;
    let range = range_of(session, &input)?;
    let (ino, len) = (request.ino(), (range.end - range.start) as usize);
    let is_cached = input.read_flags & read_flags::LOCK_OWNER == 0;
    let pages = session.pages(ino, request.pid());
    let reading = is_cached.then(|| pages.before_read(range, input.flags));
    let found = session.fs().read_into(ino, input.offset, len, request.take_room()).await?;
    let read_bytes: usize = found.pieces.iter().map(|piece| piece.len()).sum();
    debug_assert!(read_bytes <= len);
    let stale = reading.is_some_and(|reading| reading.carried_out(read_bytes as u64, found.holes));
    Ok(Reply::data(found.pieces).with_stale_attributes(ino, stale))
}

/// A WRITE and its data. Refuses ranges that end beyond the largest signed 64-bit offset.
fn parse_write(request: &Request) -> Result<(WriteIn, Bytes), Refusal> {
    let (input, data): (WriteIn, _) = (request.arguments().take()?, request.payload());
    let end = input.offset.checked_add(input.size.into()).filter(|end| *end <= i64::MAX as u64);
    if end.is_none() || data.len() != input.size as usize {
        return Err(Refusal::Malformed);
    }
    Ok((input, data))
}

/// The change by a WRITE that comes from write(2).
fn change(input: &WriteIn) -> Change<'static> {
    let range = input.offset..input.offset + u64::from(input.size);
    // It bypasses the page cache only if the kernel tells who may hold locks. The descriptor's flags
    // don't say so. They are those of the moment at which the request is made, and who writes through
    // the cache, and holds a page until he has his answer, may have switched O_DIRECT on meanwhile.
    let is_past = input.write_flags & write_flags::LOCK_OWNER != 0;
    Change::Write { range, flags: input.flags, is_past }
}

pub(super) async fn write(session: &Session, request: &Request) -> Answer {
    let (input, data) = parse_write(request)?;
    if input.write_flags & write_flags::CACHE != 0 {
        return write_back(session, request, &input, data).await;
    }
    let (ino, goes) = (request.ino(), input.write_flags & write_flags::KILL_SUIDGID != 0);
    let policy = Policy::before(session, request, ino, goes, change(&input)).await?;
    let written = session.fs().write_what_fits(ino, input.offset, data, goes).await?;
    policy.carried_out().await?;
    policy.answer(Reply::fixed(&WriteOut { size: written as u32, padding: 0 }))
}

/// Serves a WRITE of pages that a program has stored into through a mapping.
async fn write_back(session: &Session, request: &Request, input: &WriteIn, mut data: Bytes) -> Answer {
    let (ino, offset) = (request.ino(), input.offset);
    let change = Change::WriteBack { offset, data: &mut data };
    let pages = session.pages(ino, request.pid()).before_change(change).await?;
    if let Err(error) = session.fs().write_mapped(ino, offset, data).await {
        pages.failed();
        return Err(error.into());
    }
    Ok(Reply::fixed(&WriteOut { size: input.size, padding: 0 }))
}

pub(super) async fn lseek(session: &Session, request: &Request) -> Answer {
    let input: LSeekIn = request.arguments().take()?;
    let look = session.pages(request.ino(), request.pid()).look().await;
    let offset = match input.whence as i32 {
        libc::SEEK_DATA => look.seek_data(input.offset).await?,
        libc::SEEK_HOLE => look.seek_hole(input.offset).await?,
        // The kernel handles the other kinds itself.
        _ => return Err(Refusal::Malformed),
    };
    Ok(Reply::fixed(&LSeekOut { offset }))
}
