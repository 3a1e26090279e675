//! Open files: OPEN, CREATE, TMPFILE, RELEASE, READ, WRITE, LSEEK, FSYNC.

use super::attributes::entry_out;
use super::names::new_mode;
use super::{Answer, Refusal, page_cache, privileges};
use crate::abi::flags::{
    fsync as fsync_flags, init, open as open_flags, open_request, read as read_flags, write as write_flags,
};
use crate::abi::{
    CreateIn, CreateOut, FSyncIn, LSeekIn, LSeekOut, OpenIn, OpenOut, ReadIn, ReleaseIn, WriteIn, WriteOut,
};
use crate::options::Synced;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use bytes::Bytes;
use syncline_fs::types::{Attributes, FileType, Ino, SetAttributes};
use syncline_fs::{Durability, FsError};

/// The handle of a file whose reads and writes bypass the page cache; that of any other is 0.
const HANDLE_DIRECT: u64 = 1;

/// The answer to an open of a file with these flags of open(2).
fn opened(session: &Session, flags: u32) -> OpenOut {
    // Cached data stays valid across opens: only the kernel's own requests change the file. A close
    // needs no FLUSH: what was written has come.
    let kept = open_flags::KEEP_CACHE | open_flags::NOFLUSH;
    if session.direct_io().applies_to(flags) {
        let open_flags = kept | open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES;
        return OpenOut { handle: HANDLE_DIRECT, open_flags, backing_id: 0 };
    }
    OpenOut { handle: 0, open_flags: kept, backing_id: 0 }
}

/// Truncates an opened file, as O_TRUNC asks.
async fn truncate(
    session: &Session,
    request: &Request,
    ino: Ino,
    kill_privileges: bool,
) -> Result<bool, FsError> {
    let stale = privileges::prepare(session, request, ino, kill_privileges).await?;
    let changes = SetAttributes { size: Some(0), kill_privileges, ..SetAttributes::default() };
    session.fs().setattr(request.caller(), ino, changes).await?;
    Ok(stale)
}

/// True if the kernel reports every open and close, so that they are counted. Where OPEN and CREATE
/// may be refused for good, we refuse them the first time they come: the kernel then creates files
/// with MKNOD and opens and closes them without asking. It keeps a reference to open files until
/// FORGET.
fn counts_openings(session: &Session) -> bool {
    !session.negotiated().has(init::NO_OPEN_SUPPORT)
}

/// An answer after which the kernel does not ask again.
fn refuse_for_good() -> Answer {
    Err(Refusal::Errno(libc::ENOSYS))
}

/// Refuses opens that the kernel refuses for its own filesystems, whose inode flags it knows: of an
/// immutable file for writing, and of an append-only one for writing without O_APPEND or with
/// O_TRUNC.
async fn require_permitted(session: &Session, ino: Ino, flags: i32) -> Result<(), Refusal> {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let truncates = flags & libc::O_TRUNC != 0;
    if !writes && !truncates {
        return Ok(());
    }
    let file = session.fs().file_flags(ino).await?;
    let elsewhere = truncates || flags & libc::O_APPEND == 0;
    if file.immutable || (file.append_only && elsewhere) {
        return Err(Refusal::Errno(libc::EPERM));
    }
    Ok(())
}

pub(super) async fn open(session: &Session, request: &Request) -> Answer {
    let input: OpenIn = request.arguments().take()?;
    let ino = request.ino();
    if !counts_openings(session) {
        return refuse_for_good();
    }
    require_permitted(session, ino, input.flags as i32).await?;
    session.fs().open_file(ino).await?;
    let opened_file = async {
        let stale = if input.flags & libc::O_TRUNC as u32 != 0 {
            let kill_privileges = input.open_flags & open_request::KILL_SUIDGID != 0;
            truncate(session, request, ino, kill_privileges).await?
        } else {
            false
        };
        Ok::<_, FsError>((opened(session, input.flags), stale))
    };
    match opened_file.await {
        Ok((open, true)) => Ok(Reply::fixed(&open).with_stale_attributes(ino)),
        Ok((open, false)) => Ok(Reply::fixed(&open)),
        Err(error) => {
            session.fs().release_file(ino);
            Err(error.into())
        }
    }
}

/// Creates the file, or finds the one that another open created in between.
async fn make(
    session: &Session,
    request: &Request,
    input: &CreateIn,
    name: &[u8],
) -> Result<Attributes, FsError> {
    let (caller, parent) = (request.caller(), request.ino());
    let permissions = new_mode(input.mode, input.umask);
    loop {
        match session.fs().mknod(caller, parent, name, FileType::Regular, permissions, 0).await {
            Err(FsError::Exists) if input.flags & libc::O_EXCL as u32 == 0 => {}
            made => return made,
        }
        match session.fs().lookup(parent, name).await {
            Err(FsError::NotFound) => {}
            found => return found,
        }
    }
}

pub(super) async fn create(session: &Session, request: &Request) -> Answer {
    if !counts_openings(session) {
        return refuse_for_good();
    }
    let mut arguments = request.arguments();
    let input: CreateIn = arguments.take()?;
    let name = arguments.name()?;
    if !matches!(input.mode & libc::S_IFMT, 0 | libc::S_IFREG) {
        return Err(Refusal::Malformed);
    }
    let made = make(session, request, &input, name).await?;
    open_made(session, request, &input, made).await
}

/// Opens the file of a CREATE. A function of its own, so that CREATE's future stays small.
async fn open_made(session: &Session, request: &Request, input: &CreateIn, attributes: Attributes) -> Answer {
    let ino = attributes.ino;
    let opened_file = async {
        if attributes.file_type != FileType::Regular {
            // The kernel accepts only a regular file in answer to CREATE; on ESTALE it asks again,
            // looking the name up first.
            return Err(Refusal::Errno(libc::ESTALE));
        }
        Ok(session.fs().open_file(ino).await?)
    };
    if let Err(refusal) = opened_file.await {
        session.fs().forget(ino, 1);
        return Err(refusal);
    }
    let found = async {
        let truncates = input.flags & libc::O_TRUNC as u32 != 0;
        let found = if truncates && attributes.size > 0 {
            let kill_privileges = input.open_flags & open_request::KILL_SUIDGID != 0;
            truncate(session, request, ino, kill_privileges).await?;
            session.fs().getattr(ino).await?
        } else {
            attributes
        };
        Ok::<_, FsError>((found, opened(session, input.flags)))
    };
    match found.await {
        Ok((found, open)) => Ok(Reply::fixed(&CreateOut { entry: entry_out(session, &found), open })),
        Err(error) => {
            session.fs().release_file(ino);
            session.fs().forget(ino, 1);
            Err(error.into())
        }
    }
}

/// O_TMPFILE: an open file without a name. (The name that the kernel sends is meaningless.) O_EXCL
/// says that it will never get one, which the kernel enforces too.
pub(super) async fn tmpfile(session: &Session, request: &Request) -> Answer {
    let input: CreateIn = request.arguments().take()?;
    if !matches!(input.mode & libc::S_IFMT, 0 | libc::S_IFREG) {
        return Err(Refusal::Malformed);
    }
    let permissions = new_mode(input.mode, input.umask);
    let linkable = input.flags & libc::O_EXCL as u32 == 0;
    let made = session.fs().tmpfile(request.caller(), request.ino(), permissions, linkable).await?;
    if !counts_openings(session) {
        // The reference that the answer creates keeps the inode, and no RELEASE will come.
        session.fs().release_file(made.ino);
    }
    let open = opened(session, input.flags);
    Ok(Reply::fixed(&CreateOut { entry: entry_out(session, &made), open }))
}

pub(super) fn release(session: &Session, request: &Request) -> Answer {
    request.arguments().take::<ReleaseIn>()?;
    closed(session, request.ino());
    Ok(Reply::empty())
}

/// Gives back what an open has counted.
pub(super) fn closed(session: &Session, ino: Ino) {
    if counts_openings(session) {
        session.fs().release_file(ino);
    }
}

/// Refuses ranges that end beyond the largest signed 64-bit offset.
fn check_range(offset: u64, len: u64) -> Result<(), Refusal> {
    match offset.checked_add(len) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Refusal::Malformed),
    }
}

pub(super) async fn read(session: &Session, request: &Request) -> Answer {
    let input: ReadIn = request.arguments().take()?;
    // The kernel reads whole pages, and the last possible page reaches beyond the largest offset.
    let left =
        (i64::MAX as u64).checked_sub(input.offset).filter(|left| *left > 0).ok_or(Refusal::Malformed)?;
    if input.size > session.negotiated().transfer_bytes_max {
        return Err(Refusal::Malformed);
    }
    let (ino, len) = (request.ino(), left.min(input.size.into()));
    let cached = input.read_flags & read_flags::LOCK_OWNER == 0;
    if cached {
        let range = input.offset..input.offset + len;
        session.page_cache().grown.touch(ino, range.clone());
        session.page_cache().beside.note(ino, range);
        session.page_cache().stored.read(ino, input.flags);
    }
    let found = session.fs().read_into(ino, input.offset, len as usize, request.take_room()).await?;
    let read: usize = found.pieces.iter().map(|piece| piece.len()).sum();
    debug_assert!(read <= input.size as usize);
    if cached && read > 0 && (read as u64) < len {
        session.page_cache().tails.read(ino, input.offset + read as u64);
    }
    let reply = Reply::data(found.pieces);
    // From now on a store into these pages makes them data, and changes the number of blocks.
    let first = cached && session.page_cache().holes.note(ino, found.holes);
    Ok(if first { reply.with_stale_attributes(ino) } else { reply })
}

pub(super) async fn write(session: &Session, request: &Request) -> Answer {
    let input: WriteIn = request.arguments().take()?;
    check_range(input.offset, u64::from(input.size))?;
    let data = request.payload();
    if data.len() != input.size as usize {
        return Err(Refusal::Malformed);
    }
    let ino = request.ino();
    if input.write_flags & write_flags::CACHE != 0 {
        return write_back(session, ino, &input, data).await;
    }
    let kill_privileges = input.write_flags & write_flags::KILL_SUIDGID != 0;
    let stale = privileges::prepare(session, request, ino, kill_privileges).await?;
    let range = input.offset..input.offset + u64::from(input.size);
    let growth = page_cache::before_write(session, request, &input, goes_beside(&input)).await?;
    let written = session.fs().write_what_fits(ino, input.offset, data, kill_privileges).await?;
    if goes_beside(&input) {
        let synced = async {
            if input.flags & libc::O_DSYNC as u32 != 0 {
                // For a write through the page cache, or a direct one whose caller waits, the
                // kernel sends an FSYNC afterwards, which then finds nothing to do. For a write
                // that came through AIO or io_uring, or on a direct handle of ours, it relies on
                // us. The request does not say which it is.
                let data_only = input.flags & libc::O_SYNC as u32 != libc::O_SYNC as u32;
                sync(session, ino, data_only).await?;
            }
            Ok::<_, FsError>(())
        };
        futures_lite::future::try_zip(synced, page_cache::after_write(session, ino, range)).await?;
    }
    let reply = Reply::fixed(&WriteOut { size: written as u32, padding: 0 }).with_growth(growth);
    Ok(if stale { reply.with_stale_attributes(ino) } else { reply })
}

/// Serves a WRITE of pages that a program has stored into through a mapping.
async fn write_back(session: &Session, ino: Ino, input: &WriteIn, data: Bytes) -> Answer {
    let pages = session.page_cache();
    pages.stored.note(ino);
    let data = pages.grown.without_rest(ino, input.offset, data);
    if let Err(error) = session.fs().write_mapped(ino, input.offset, data).await {
        // The kernel takes its pages for written now. Once they are dropped, programs read the old
        // contents.
        pages.letting_go.let_go_later(ino, input.offset..input.offset + u64::from(input.size));
        return Err(error.into());
    }
    Ok(Reply::fixed(&WriteOut { size: input.size, padding: 0 }))
}

/// True for a write that bypasses the page cache: only for those the kernel tells who may hold locks.
/// The descriptor's flags don't say so. They are those of the moment at which the request is made,
/// and who writes through the cache, and holds a page until he has his answer, may have switched
/// O_DIRECT on meanwhile.
fn goes_beside(input: &WriteIn) -> bool {
    input.write_flags & write_flags::LOCK_OWNER != 0
}

pub(super) async fn lseek(session: &Session, request: &Request) -> Answer {
    let input: LSeekIn = request.arguments().take()?;
    let (ino, offset) = (request.ino(), input.offset);
    let maybe_data = page_cache::write_back_holes(session, ino).await;
    let offset = match input.whence as i32 {
        libc::SEEK_DATA => page_cache::seek_data(session, ino, offset, &maybe_data).await?,
        libc::SEEK_HOLE => page_cache::seek_hole(session, ino, offset, &maybe_data).await?,
        // The kernel handles the other kinds itself.
        _ => return Err(Refusal::Malformed),
    };
    Ok(Reply::fixed(&LSeekOut { offset }))
}

/// Serves FSYNC and FSYNCDIR: files and directories alike (promise P1).
pub(super) async fn fsync(session: &Session, request: &Request) -> Answer {
    let input: FSyncIn = request.arguments().take()?;
    let ino = request.ino();
    session.page_cache().growing.goes_on(ino, request.pid());
    sync(session, ino, input.flags & fsync_flags::DATA_ONLY != 0).await?;
    Ok(Reply::empty())
}

pub(super) async fn sync(session: &Session, ino: Ino, data_only: bool) -> Result<(), FsError> {
    session.fs().fsync(ino, data_only).await?;
    tell(session, &[ino], if data_only { Synced::Fdatasync } else { Synced::Fsync }).await
}

/// Tells the observer of a sync of these files, unless all are of class `ordered`: then it has made
/// nothing durable.
pub(super) async fn tell(session: &Session, inos: &[Ino], synced: fn(Ino) -> Synced) -> Result<(), FsError> {
    if !session.observes_syncs() {
        return Ok(());
    }
    for &ino in inos {
        if !matches!(session.fs().durability(ino).await?.1, Durability::Ordered(_)) {
            inos.iter().for_each(|&ino| session.synced(synced(ino)));
            break;
        }
    }
    Ok(())
}

pub(super) async fn syncfs(session: &Session) -> Answer {
    session.fs().syncfs().await?;
    session.synced(Synced::Filesystem);
    Ok(Reply::empty())
}
