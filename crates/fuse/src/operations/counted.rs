//! What an answer counts: a reference to an inode for each that it shows to the kernel, and an open
//! file. The kernel gives them back with FORGET and RELEASE, but only if it gets the answer.

use super::{files, names};
use crate::abi::{CreateOut, EntryOut, InHeader, Opcode, OpenOut, ReleaseIn};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::types::Ino;
use zerocopy::{FromBytes, IntoBytes};

/// What a successful answer has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    pub(super) ino: Ino,
    /// The kernel has been shown the inode.
    shown: bool,
    /// The handle of the file that was opened.
    handle: Option<u64>,
}

/// What the successful answer to a request that changes something has counted.
pub(super) fn by(opcode: Opcode, request: &Request, reply: &Reply) -> Option<Counted> {
    use Opcode::*;
    let body = reply.fixed_part();
    match opcode {
        MkNod | MkDir | Symlink | Link => {
            let (entry, _) = EntryOut::read_from_prefix(body).ok()?;
            Some(Counted { ino: entry.node, shown: true, handle: None })
        }
        Create | TmpFile => {
            let (made, _) = CreateOut::read_from_prefix(body).ok()?;
            Some(Counted { ino: made.entry.node, shown: true, handle: Some(made.open.handle) })
        }
        Open => {
            let (open, _) = OpenOut::read_from_prefix(body).ok()?;
            Some(Counted { ino: request.ino(), shown: false, handle: Some(open.handle) })
        }
        _ => None,
    }
}

/// Takes back what an answer has counted that gives way to a refusal.
pub(super) async fn take_back(session: &Session, request: &Request, opcode: Opcode, reply: &Reply) {
    let Some(Counted { ino, shown, handle }) = by(opcode, request, reply) else { return };
    if let Some(handle) = handle {
        let release = ReleaseIn { handle, ..ReleaseIn::default() };
        let header = InHeader { node: ino, ..InHeader::default() };
        // As the kernel would: nobody waits for its answer either.
        Box::pin(files::release(session, &Request::new(header, release.as_bytes()))).await.ok();
    }
    if shown {
        names::forget_one(session, ino, 1);
    }
}
