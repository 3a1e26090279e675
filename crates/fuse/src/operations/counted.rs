//! What an answer counts: a reference to an inode for each that it shows to the kernel, and an open
//! file. The kernel gives them back with FORGET and RELEASE, but only if it gets the answer.

use super::{names, opening};
use crate::abi::{CreateOut, EntryOut, Opcode, OpenOut};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::types::Ino;
use zerocopy::FromBytes;

/// The reference that a successful answer has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    pub(super) ino: Ino,
    /// The kernel has been shown the inode.
    shown: bool,
    /// The file was opened.
    opened: bool,
}

/// The reference that the successful answer to a changing request has counted.
pub(super) fn by(opcode: Opcode, request: &Request, reply: &Reply) -> Option<Counted> {
    use Opcode::*;
    let body = reply.fixed_part();
    match opcode {
        MkNod | MkDir | Symlink | Link => {
            let (entry, _) = EntryOut::read_from_prefix(body).ok()?;
            Some(Counted { ino: entry.node, shown: true, opened: false })
        }
        Create | TmpFile => {
            let (made, _) = CreateOut::read_from_prefix(body).ok()?;
            Some(Counted { ino: made.entry.node, shown: true, opened: true })
        }
        Open => {
            OpenOut::read_from_prefix(body).ok()?;
            Some(Counted { ino: request.ino(), shown: false, opened: true })
        }
        _ => None,
    }
}

/// Takes back what an answer has counted that gives way to a refusal.
pub(super) fn take_back(session: &Session, request: &Request, opcode: Opcode, reply: &Reply) {
    let Some(Counted { ino, shown, opened }) = by(opcode, request, reply) else { return };
    if opened {
        opening::closed(session, ino);
    }
    if shown {
        names::forget_one(session, ino, 1);
    }
}
