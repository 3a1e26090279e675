//! Atomic writes of a file, by F2FS's interface: START, COMMIT and ABORT, the question whether there
//! are any, and what ends one without being asked: the last close and the death of a process.

use super::files::tell;
use super::page_cache::over;
use super::{Answer, Refusal};
use crate::abi::{FlushIn, IoctlIn, IoctlOut};
use crate::atomic_writers::AtomicWriters;
use crate::options::Synced;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use std::time::Duration;
use syncline_fs::types::Ino;
use syncline_fs::{FsError, Through};

/// `F2FS_IOC_START_ATOMIC_WRITE` and its kin: `_IO(0xf5, 1)`, `_IO(0xf5, 2)`, `_IO(0xf5, 5)`,
/// `_IOR(0xf5, 12, __u32)`.
const START: u32 = 0xf501;
const COMMIT: u32 = 0xf502;
const ABORT: u32 = 0xf505;
const GET_FEATURES: u32 = 0x8004_f50c;

/// How long an atomic write that ends waits for the kernel to drop its pages while it drops those of
/// many others.
const PATIENCE: Duration = Duration::from_secs(3);

/// `F2FS_FEATURE_ATOMIC_WRITE`.
const FEATURE_ATOMIC_WRITE: u32 = 4;

/// True for these commands. None changes anything that a synchronous mount has yet to make durable.
pub(super) fn is_known(command: u32) -> bool {
    matches!(command, START | COMMIT | ABORT | GET_FEATURES)
}

/// Answers these commands; `None` for others, and if the mount does not serve atomic writes.
pub(super) async fn ioctl(session: &Session, request: &Request, input: &IoctlIn) -> Option<Answer> {
    if !is_known(input.command) || !session.atomic_writers().is_on() {
        return None;
    }
    Some(Box::pin(answer(session, request, input)).await)
}

async fn answer(session: &Session, request: &Request, input: &IoctlIn) -> Answer {
    let (ino, handle) = (request.ino(), input.handle);
    let done = Reply::fixed(&IoctlOut::default());
    if input.command == GET_FEATURES {
        if input.out_size as usize != size_of::<u32>() {
            return Err(Refusal::Malformed);
        }
        return Ok(done.with_data(FEATURE_ATOMIC_WRITE.to_ne_bytes().to_vec()));
    }
    if !AtomicWriters::may_begin(handle) {
        // Not open for writing.
        return Err(Refusal::Errno(libc::EBADF));
    }
    match input.command {
        START => {
            let writers = session.atomic_writers();
            if writers.has_lost(ino, handle) {
                // A close may still be about to take it back. What begins now is another one.
                take_back(session, ino, handle).await?;
            }
            writers.keep(handle, session.fs().start_atomic_write(ino, handle).await?);
            writers.forget_loss(ino, handle);
            writers.begun(ino, handle, request.pid());
        }
        COMMIT => {
            let through = through(session, ino, handle)?;
            let committed = session.fs().commit_begun(ino, &through).await;
            // Also when only the flush behind it has failed: a close has nothing to take back.
            note_end(session, ino, handle);
            committed?;
            tell(session, &[ino], Synced::Fdatasync).await?;
        }
        _ => {
            let through = session.fs().through(ino, handle);
            take_back_begun(session, ino, &through, handle).await?;
            session.atomic_writers().abandon(handle, &through);
            session.atomic_writers().forget_loss(ino, handle);
            return Ok(done.with_stale_attributes(ino));
        }
    }
    Ok(done)
}

/// What a write that comes now is written through, before it waits for anything: a close that takes
/// back what it is a part of comes later, or has told of itself already.
pub(super) fn through(session: &Session, ino: Ino, handle: u64) -> Result<Through, Refusal> {
    if !AtomicWriters::may_begin(handle) {
        return Ok(Through::handle_only(handle));
    }
    // What the handle began last: a close may have taken that back already.
    let begun = session.atomic_writers().kept(handle);
    let through = begun.unwrap_or_else(|| session.fs().through(ino, handle));
    require_not_lost(session, ino, handle)?;
    Ok(through)
}

/// Refuses with EIO to go on with an atomic write that a close has taken back, until the program
/// aborts it or begins another: part of it would be missing.
fn require_not_lost(session: &Session, ino: Ino, handle: u64) -> Result<(), Refusal> {
    if session.atomic_writers().has_lost(ino, handle) { Err(Refusal::Errno(libc::EIO)) } else { Ok(()) }
}

/// Takes the handle's atomic write back, if it has one open, and what the kernel's page cache has of
/// it. When this is over, no program sees any of it. False if it has none open.
pub(super) async fn take_back(session: &Session, ino: Ino, handle: u64) -> Result<bool, FsError> {
    take_back_begun(session, ino, &session.fs().through(ino, handle), handle).await
}

/// The same for the atomic write of the handle that `through` is a part of: while this waits, the
/// handle may begin another one.
async fn take_back_begun(
    session: &Session,
    ino: Ino,
    through: &Through,
    handle: u64,
) -> Result<bool, FsError> {
    if !through.is_part() {
        note_end(session, ino, handle);
        return Ok(false);
    }
    // What was stored through a mapping comes back first, while it is still a part of the write.
    drop_pages(session, ino).await;
    let was_open = session.fs().abort_begun(ino, through).await?;
    note_end(session, ino, handle);
    drop_pages(session, ino).await;
    Ok(was_open)
}

/// Notes that the handle has no atomic write open, if that is so.
fn note_end(session: &Session, ino: Ino, handle: u64) {
    if session.fs().atomic_writer(ino) != Some(handle) {
        session.atomic_writers().ended(ino, handle);
    }
}

/// Has the kernel drop all pages of a file. Never called for a request that holds one.
async fn drop_pages(session: &Session, ino: Ino) {
    let all = 0..i64::MAX as u64;
    if !session.page_cache().letting_go.let_go_in_turn(ino, all, over(PATIENCE)).await {
        tracing::warn!(ino, "pages of an atomic write that was taken back may be read for a moment");
    }
}

/// Serves FLUSH, which the kernel sends when a descriptor is closed, and before it gives up the
/// process's locks. Where there are no atomic writes, it need not be sent again.
pub(super) async fn flush(session: &Session, request: &Request) -> Answer {
    let input: FlushIn = request.arguments().take()?;
    let writers = session.atomic_writers();
    if !writers.is_on() {
        return Err(Refusal::Errno(libc::ENOSYS));
    }
    if let Some(handle) = writers.left_by(request.ino(), input.handle, request.pid()) {
        let (ino, through) = (request.ino(), session.fs().through(request.ino(), handle));
        // Told before it is true: from here on, nobody who has a copy of the descriptor may write as
        // if it were still open.
        writers.lose(ino, handle);
        let was_open = Box::pin(take_back_begun(session, ino, &through, handle)).await?;
        if !was_open && !through.was_taken_back() {
            // It was committed meanwhile.
            writers.forget_loss(ino, handle);
        }
    }
    Ok(Reply::empty())
}
