//! The one table of operations: a request is decoded, the filesystem is called, the answer is
//! encoded. Nothing here knows how requests arrive and answers leave.

mod allocate;
mod attributes;
mod clones;
mod counted;
mod descriptors;
mod directories;
mod durability;
mod files;
mod flags;
#[cfg(test)]
mod fuzz;
mod ioctl;
mod label;
mod names;
mod opening;
mod policy;
mod privileges;
mod quotas;
mod reflink;
mod resize;
mod shutdown;
mod synchronous;
mod syncs;
#[cfg(test)]
mod tests;
mod trim;
mod xattrs;

use crate::abi::Opcode;
use crate::reply::Reply;
use crate::request::{Malformed, Request};
use crate::session::Session;
use syncline_fs::FsError;

/// Why a request is refused.
#[derive(Debug)]
enum Refusal {
    /// The request is invalid.
    Malformed,
    /// The filesystem refused it.
    Filesystem(FsError),
    /// This layer refused it.
    Errno(i32),
}

impl Refusal {
    fn errno(&self) -> i32 {
        match self {
            Self::Malformed => libc::EINVAL,
            Self::Filesystem(error) => error.errno(),
            Self::Errno(errno) => *errno,
        }
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Self {
        Self::Filesystem(error)
    }
}

type Answer = Result<Reply, Refusal>;

/// Carries out `request` and returns its answer. Once begun it should be polled to its end, so that
/// the request is not left half done.
pub async fn serve(session: &Session, request: &Request) -> Reply {
    session.counters().count(request.opcode_number());
    let Some(opcode) = request.opcode() else {
        return Reply::error(libc::ENOSYS);
    };
    if session.is_shut_down() && !shutdown::is_answered_after(opcode) {
        return Reply::error(libc::EIO);
    }
    let answer = match dispatch(session, request, opcode).await {
        Ok(reply) => match synchronous::settle(session, request, opcode, &reply).await {
            Ok(()) => Ok(reply),
            Err(refusal) => {
                counted::take_back(session, request, opcode, &reply);
                Err(refusal)
            }
        },
        refused => refused,
    };
    match answer {
        Ok(reply) => reply.ready(),
        // The kernel waits for no answer to these, not even an error.
        Err(_) if matches!(opcode, Opcode::Forget | Opcode::BatchForget) => Reply::none(),
        Err(refusal) => {
            tracing::trace!(?opcode, ino = request.ino(), ?refusal, "refused");
            match refusal.errno() {
                // Begun before the shutdown, and refused since.
                libc::EROFS if session.is_shut_down() => Reply::error(libc::EIO),
                errno => Reply::error(errno),
            }
        }
    }
}

async fn dispatch(session: &Session, request: &Request, opcode: Opcode) -> Answer {
    match opcode {
        Opcode::Lookup => names::lookup(session, request).await,
        Opcode::Forget => names::forget(session, request),
        Opcode::BatchForget => names::batch_forget(session, request),
        Opcode::MkNod => names::mknod(session, request).await,
        Opcode::MkDir => names::mkdir(session, request).await,
        Opcode::Symlink => names::symlink(session, request).await,
        Opcode::ReadLink => names::readlink(session, request).await,
        Opcode::Link => names::link(session, request).await,
        Opcode::Unlink => names::unlink(session, request).await,
        Opcode::RmDir => names::rmdir(session, request).await,
        Opcode::Rename => names::rename(session, request).await,
        Opcode::Rename2 => names::rename2(session, request).await,
        Opcode::GetAttr => attributes::getattr(session, request).await,
        Opcode::StatX => attributes::statx(session, request).await,
        Opcode::SetAttr => attributes::setattr(session, request).await,
        Opcode::StatFs => attributes::statfs(session, request).await,
        Opcode::Open => opening::open(session, request).await,
        Opcode::Create => opening::create(session, request).await,
        Opcode::TmpFile => opening::tmpfile(session, request).await,
        Opcode::Release => opening::release(session, request),
        Opcode::Read => files::read(session, request).await,
        Opcode::Write => files::write(session, request).await,
        Opcode::FAllocate => allocate::allocate(session, request).await,
        Opcode::LSeek => files::lseek(session, request).await,
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => reflink::copy(session, request, opcode).await,
        Opcode::FSync | Opcode::FSyncDir => syncs::fsync(session, request).await,
        Opcode::SyncFs => syncs::syncfs(session).await,
        Opcode::OpenDir => directories::open(),
        Opcode::ReleaseDir => directories::release(),
        Opcode::ReadDir => directories::readdir(session, request).await,
        Opcode::ReadDirPlus => directories::readdirplus(session, request).await,
        Opcode::GetXattr => xattrs::get(session, request).await,
        Opcode::ListXattr => xattrs::list(session, request).await,
        Opcode::SetXattr => xattrs::set(session, request).await,
        Opcode::RemoveXattr => xattrs::remove(session, request).await,
        Opcode::Ioctl => ioctl::ioctl(session, request).await,
        Opcode::Destroy => {
            session.carry_out_last().await;
            Ok(Reply::empty())
        }
        other => Err(Refusal::Errno(unsupported(other))),
    }
}

/// The errno that tells the kernel that a request is not supported, chosen so that the kernel then
/// does the right thing without us.
///
/// ENOSYS makes it stop asking: INTERRUPT is not sent again. FSYNC, FSYNCDIR and GETXATTR must never
/// get ENOSYS: the kernel would report success, or no attributes, from then on. Nor must OPENDIR: it
/// would cache listings (see [`directories::open`]).
///
/// INTERRUPT is refused because nothing here should be cut short: to a database, an fsync that a
/// signal ended with EINTR would look like a failed one. (The operation continues in any case, and
/// only the device can keep a killed caller waiting.)
fn unsupported(opcode: Opcode) -> i32 {
    match opcode {
        // A second INIT, or an answer to a question that we never asked.
        Opcode::Init | Opcode::NotifyReply => libc::EINVAL,
        // Among them locks: not negotiated, the kernel keeps them itself.
        _ => libc::ENOSYS,
    }
}
