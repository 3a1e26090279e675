//! Opening and closing files: OPEN, CREATE, TMPFILE, RELEASE.

use super::attributes::entry_out;
use super::names::new_mode;
use super::{Answer, Refusal, privileges};
use crate::abi::flags::{init, open as open_flags, open_request};
use crate::abi::{CreateIn, CreateOut, OpenIn, OpenOut, ReleaseIn};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::FsError;
use syncline_fs::types::{Attributes, FileType, Ino, SetAttributes};

/// The answer to an open of a file with these flags of open(2). Requests need no handle: they name the
/// inode, and say themselves whether they bypass the page cache.
fn opened(session: &Session, flags: u32) -> OpenOut {
    // Cached data stays valid across opens: only the kernel's own requests change the file. A close
    // needs no FLUSH: what was written has come.
    let kept = open_flags::KEEP_CACHE | open_flags::NOFLUSH;
    let direct = open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES;
    let open_flags = if session.direct_io().applies_to(flags) { kept | direct } else { kept };
    OpenOut { handle: 0, open_flags, backing_id: 0 }
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
        let kill_privileges = input.open_flags & open_request::KILL_SUIDGID != 0;
        let truncates = input.flags & libc::O_TRUNC as u32 != 0;
        let stale = truncates && truncate(session, request, ino, kill_privileges).await?;
        Ok::<_, FsError>((opened(session, input.flags), stale))
    };
    match opened_file.await {
        Ok((open, stale)) => Ok(Reply::fixed(&open).with_stale_attributes(ino, stale)),
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
