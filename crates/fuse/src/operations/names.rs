//! Requests that change or follow names: LOOKUP to RENAME2, and FORGET, which drops references to
//! inodes that names led to.

use super::attributes::{entry_out, no_entry};
use super::{Answer, Refusal};
use crate::abi::{BatchForgetIn, ForgetIn, ForgetOne, LinkIn, MkDirIn, MkNodIn, Rename2In, RenameIn};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::FsError;
use syncline_fs::types::{Caller, FileType, Ino, NewMode, RenameFlags};

pub(super) async fn lookup(session: &Session, request: &Request) -> Answer {
    // A caller that has only an inode's number (open_by_handle_at, NFS) looks up "." or "..", which
    // are no ordinary names.
    let special = request.arguments().string().is_ok_and(|name| name == b"." || name == b"..");
    let mut arguments = request.arguments();
    let name = if special { arguments.string()? } else { arguments.name()? };
    match session.fs().lookup(request.ino(), name).await {
        Ok(attributes) => Ok(Reply::fixed(&entry_out(session, &attributes))),
        Err(FsError::NotFound) => Ok(Reply::fixed(&no_entry(session))),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn forget(session: &Session, request: &Request) -> Answer {
    let input: ForgetIn = request.arguments().take()?;
    forget_one(session, request.ino(), input.lookups);
    Ok(Reply::none())
}

pub(super) fn batch_forget(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: BatchForgetIn = arguments.take()?;
    for _ in 0..input.count {
        // If the count promises more entries than there are, this fails.
        let one: ForgetOne = arguments.take()?;
        forget_one(session, one.node, one.lookups);
    }
    Ok(Reply::none())
}

pub(super) fn forget_one(session: &Session, ino: Ino, lookups: u64) {
    session.fs().forget(ino, lookups);
    if !session.fs().is_referred_to(ino) {
        session.pages(ino, 0).forgotten();
    }
}

/// The file type in a mode. Directories and symbolic links have requests of their own.
fn made_by_mknod(mode: u32) -> Result<FileType, Refusal> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(FileType::Regular),
        libc::S_IFIFO => Ok(FileType::Fifo),
        libc::S_IFSOCK => Ok(FileType::Socket),
        libc::S_IFCHR => Ok(FileType::CharDevice),
        libc::S_IFBLK => Ok(FileType::BlockDevice),
        _ => Err(Refusal::Malformed),
    }
}

/// The permissions of a file to be created, and the umask that may apply to them.
pub(super) fn new_mode(mode: u32, umask: u32) -> NewMode {
    NewMode { permissions: (mode & 0o7777) as u16, umask: (umask & 0o777) as u16 }
}

pub(super) async fn mknod(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: MkNodIn = arguments.take()?;
    let name = arguments.name()?;
    let file_type = made_by_mknod(input.mode)?;
    let permissions = new_mode(input.mode, input.umask);
    let rdev = if matches!(file_type, FileType::CharDevice | FileType::BlockDevice) { input.rdev } else { 0 };
    let made =
        session.fs().mknod(request.caller(), request.ino(), name, file_type, permissions, rdev).await?;
    Ok(Reply::fixed(&entry_out(session, &made)))
}

pub(super) async fn mkdir(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: MkDirIn = arguments.take()?;
    let name = arguments.name()?;
    let permissions = new_mode(input.mode, input.umask);
    let made = session.fs().mkdir(request.caller(), request.ino(), name, permissions).await?;
    Ok(Reply::fixed(&entry_out(session, &made)))
}

pub(super) async fn symlink(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let (name, target) = (arguments.name()?, arguments.string()?);
    let made = session.fs().symlink(request.caller(), request.ino(), name, target).await?;
    Ok(Reply::fixed(&entry_out(session, &made)))
}

pub(super) async fn readlink(session: &Session, request: &Request) -> Answer {
    let target = session.fs().readlink(request.ino()).await?;
    Ok(Reply::data(vec![target]))
}

pub(super) async fn link(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: LinkIn = arguments.take()?;
    let linked = session.fs().link(input.old_node, request.ino(), arguments.name()?).await?;
    Ok(Reply::fixed(&entry_out(session, &linked)))
}

pub(super) async fn unlink(session: &Session, request: &Request) -> Answer {
    session.fs().unlink(request.ino(), request.arguments().name()?).await?;
    Ok(Reply::empty())
}

pub(super) async fn rmdir(session: &Session, request: &Request) -> Answer {
    session.fs().rmdir(request.ino(), request.arguments().name()?).await?;
    Ok(Reply::empty())
}

pub(super) async fn rename(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: RenameIn = arguments.take()?;
    let (old, new) = (arguments.name()?, arguments.name()?);
    session.fs().rename(request.ino(), old, input.new_dir, new, RenameFlags::default()).await?;
    Ok(Reply::empty())
}

/// The flags of renameat2(2). Unknown flags are refused, not ignored, and so is an exchange
/// combined with any other flag.
fn rename_flags(flags: u32, caller: Caller) -> Result<RenameFlags, Refusal> {
    const KNOWN: u32 = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    let has = |flag: u32| flags & flag != 0;
    let exchange = has(libc::RENAME_EXCHANGE);
    if flags & !KNOWN != 0 || (exchange && flags != libc::RENAME_EXCHANGE) {
        return Err(Refusal::Malformed);
    }
    let whiteout = has(libc::RENAME_WHITEOUT).then_some(caller);
    Ok(RenameFlags { no_replace: has(libc::RENAME_NOREPLACE), exchange, whiteout })
}

pub(super) async fn rename2(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: Rename2In = arguments.take()?;
    let (old, new) = (arguments.name()?, arguments.name()?);
    let flags = rename_flags(input.flags, request.caller())?;
    session.fs().rename(request.ino(), old, input.new_dir, new, flags).await?;
    Ok(Reply::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_goes_with_no_other_flag() {
        let caller = Caller { uid: 5, gid: 6 };
        let flags = |flags| rename_flags(flags, caller);
        assert_eq!(flags(0).unwrap(), RenameFlags::default());
        assert!(flags(libc::RENAME_EXCHANGE).unwrap().exchange);
        let both = flags(libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT).unwrap();
        assert_eq!(both, RenameFlags { no_replace: true, exchange: false, whiteout: Some(caller) });
        for other in [libc::RENAME_NOREPLACE, libc::RENAME_WHITEOUT, 8] {
            assert!(flags(libc::RENAME_EXCHANGE | other).is_err());
        }
        assert!(flags(8).is_err());
    }

    #[test]
    fn mknod_makes_no_directories() {
        assert!(made_by_mknod(libc::S_IFDIR | 0o755).is_err());
        assert!(made_by_mknod(libc::S_IFLNK).is_err());
        assert_eq!(made_by_mknod(0o644).unwrap(), FileType::Regular);
    }
}
