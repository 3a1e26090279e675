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

/// A READ.
struct Read {
    input: ReadIn,
    range: Range<u64>,
}

impl Read {
    fn parse(session: &Session, request: &Request) -> Result<Self, Refusal> {
        let input: ReadIn = request.arguments().take()?;
        // The kernel reads whole pages, and the last possible page reaches beyond the largest offset.
        let left =
            (i64::MAX as u64).checked_sub(input.offset).filter(|left| *left > 0).ok_or(Refusal::Malformed)?;
        if input.size > session.negotiated().transfer_bytes_max {
            return Err(Refusal::Malformed);
        }
        Ok(Self { input, range: input.offset..input.offset + left.min(input.size.into()) })
    }

    /// True unless it bypasses the page cache.
    fn is_cached(&self) -> bool {
        self.input.read_flags & read_flags::LOCK_OWNER == 0
    }
}

pub(super) async fn read(session: &Session, request: &Request) -> Answer {
    let read = Read::parse(session, request)?;
    let (ino, offset, len) = (request.ino(), read.range.start, (read.range.end - read.range.start) as usize);
    let pages = session.pages(ino, request.pid());
    let reading = read.is_cached().then(|| pages.before_read(read.range.clone(), read.input.flags));
    let found = session.fs().read_into(ino, offset, len, request.take_room()).await?;
    let read_bytes: usize = found.pieces.iter().map(|piece| piece.len()).sum();
    debug_assert!(read_bytes <= len);
    let stale = reading.is_some_and(|reading| reading.carried_out(read_bytes as u64, found.holes));
    Ok(Reply::data(found.pieces).with_stale_attributes(ino, stale))
}

/// A WRITE.
struct Write {
    input: WriteIn,
    data: Bytes,
}

impl Write {
    /// Refuses ranges that end beyond the largest signed 64-bit offset.
    fn parse(request: &Request) -> Result<Self, Refusal> {
        let (input, data): (WriteIn, _) = (request.arguments().take()?, request.payload());
        let end = input.offset.checked_add(input.size.into()).filter(|end| *end <= i64::MAX as u64);
        if end.is_none() || data.len() != input.size as usize {
            return Err(Refusal::Malformed);
        }
        Ok(Self { input, data })
    }

    fn has(&self, flag: u32) -> bool {
        self.input.write_flags & flag != 0
    }

    fn change(&self) -> Change<'static> {
        let range = self.input.offset..self.input.offset + u64::from(self.input.size);
        // It bypasses the page cache only if the kernel tells who may hold locks. The descriptor's flags
        // don't say so. They are those of the moment at which the request is made, and who writes through
        // the cache, and holds a page until he has his answer, may have switched O_DIRECT on meanwhile.
        Change::Write { range, flags: self.input.flags, is_past: self.has(write_flags::LOCK_OWNER) }
    }
}

pub(super) async fn write(session: &Session, request: &Request) -> Answer {
    let write = Write::parse(request)?;
    if write.has(write_flags::CACHE) {
        return write_back(session, request, write).await;
    }
    let (ino, goes) = (request.ino(), write.has(write_flags::KILL_SUIDGID));
    let policy = Policy::before(session, request, ino, goes, write.change()).await?;
    let written = session.fs().write_what_fits(ino, write.input.offset, write.data, goes).await?;
    policy.carried_out().await?;
    policy.answer(Reply::fixed(&WriteOut { size: written as u32, padding: 0 }))
}

/// Serves a WRITE of pages that a program has stored into through a mapping.
async fn write_back(session: &Session, request: &Request, write: Write) -> Answer {
    let Write { input: WriteIn { offset, size, .. }, mut data } = write;
    let ino = request.ino();
    let change = Change::WriteBack { offset, data: &mut data };
    let pages = session.pages(ino, request.pid()).before_change(change).await?;
    if let Err(error) = session.fs().write_mapped(ino, offset, data).await {
        pages.failed();
        return Err(error.into());
    }
    Ok(Reply::fixed(&WriteOut { size, padding: 0 }))
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
