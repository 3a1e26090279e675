//! Changes that are durable before they are answered: on mounts with `-o sync` or `-o dirsync`, of
//! files and directories of class `strict`, and through descriptors with O_SYNC or O_DSYNC where
//! neither the kernel sends an FSYNC nor the request has these flags.
//!
//! The kernel supports such flags only for its own filesystems. Here an fsync of one inode follows
//! the change; by promise P1 it covers every earlier change of names, by any caller.

use super::descriptors::{self, Asked};
use super::{Refusal, counted, ioctl, syncs};
use crate::abi::{CopyFileRangeIn, CreateIn, IoctlIn, LinkIn, Opcode, OpenIn, Rename2In, RenameIn};
use crate::options::Synchronous;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::types::Ino;

/// True for requests that change a directory.
fn changes_names(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, MkNod | MkDir | Symlink | Link | Unlink | RmDir | Rename | Rename2 | Create)
}

/// True for requests that always change a file.
fn changes_a_file(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, Write | SetAttr | SetXattr | RemoveXattr | FAllocate | CopyFileRange | CopyFileRange64)
}

/// True for requests that change a file through a descriptor whose flags they do not tell.
fn says_nothing_of_its_descriptor(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, FAllocate | CopyFileRange | CopyFileRange64)
}

/// True for requests that change a file depending on their arguments.
fn may_change_a_file(request: &Request, opcode: Opcode) -> Result<bool, Refusal> {
    let mut arguments = request.arguments();
    Ok(match opcode {
        Opcode::Open => arguments.take::<OpenIn>()?.flags & libc::O_TRUNC as u32 != 0,
        Opcode::Ioctl => ioctl::changes_a_file(arguments.take::<IoctlIn>()?.command),
        _ => false,
    })
}

/// The inode to sync after a request that has succeeded.
fn changed(request: &Request, opcode: Opcode, synchronous: Synchronous) -> Result<Option<Ino>, Refusal> {
    let wanted = match synchronous {
        Synchronous::Never => false,
        Synchronous::Directories => changes_names(opcode),
        Synchronous::Everything => {
            changes_names(opcode) || changes_a_file(opcode) || may_change_a_file(request, opcode)?
        }
    };
    Ok(match opcode {
        _ if !wanted => None,
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
            Some(request.arguments().take::<CopyFileRangeIn>()?.to_node)
        }
        _ => Some(request.ino()),
    })
}

/// The other inode that a successful request has changed, whose class may be a stronger one.
fn changed_too(request: &Request, opcode: Opcode, reply: &Reply) -> Result<Option<Ino>, Refusal> {
    let mut arguments = request.arguments();
    Ok(match opcode {
        // The file may have been there, and has been truncated.
        Opcode::Create if arguments.take::<CreateIn>()?.flags & libc::O_TRUNC as u32 != 0 => {
            counted::by(opcode, request, reply).map(|counted| counted.ino)
        }
        Opcode::Rename => Some(arguments.take::<RenameIn>()?.new_dir),
        Opcode::Rename2 => Some(arguments.take::<Rename2In>()?.new_dir),
        Opcode::Link => Some(arguments.take::<LinkIn>()?.old_node),
        _ => None,
    })
}

/// Makes the changes of a successful request durable, if the mount is synchronous or their class
/// demands it. The future of a request that needs nothing of this has no room for it.
pub(super) async fn settle(
    session: &Session,
    request: &Request,
    opcode: Opcode,
    reply: &Reply,
) -> Result<(), Refusal> {
    let fs = session.fs();
    if says_nothing_of_its_descriptor(opcode)
        && let Some(ino) = changed(request, opcode, Synchronous::Everything)?
    {
        let data_only = match Box::pin(descriptors::asked(session, request, ino)).await {
            Asked::Everything => Some(false),
            Asked::Data => Some(true),
            Asked::Nothing => None,
        };
        if let Some(data_only) = data_only {
            Box::pin(syncs::sync(session, ino, data_only)).await?;
        }
    }
    if let Some(ino) = changed(request, opcode, session.synchronous())? {
        // The mount's demand holds in trees of class `ordered` too.
        Box::pin(fs.make_durable(ino)).await?;
    } else if fs.may_be_strict()
        && let Some(ino) = changed(request, opcode, Synchronous::Everything)?
    {
        Box::pin(fs.settle(ino)).await?;
        if let Some(ino) = changed_too(request, opcode, reply)? {
            Box::pin(fs.settle(ino)).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::InHeader;
    use zerocopy::IntoBytes;

    #[test]
    fn directories_or_everything() {
        let request =
            |arguments: &[u8]| Request::new(InHeader { node: 7, ..InHeader::default() }, arguments.to_vec());
        let of = |opcode, synchronous| changed(&request(b""), opcode, synchronous).unwrap();
        for opcode in [Opcode::Create, Opcode::Unlink, Opcode::Rename2] {
            assert_eq!(of(opcode, Synchronous::Never), None);
            assert_eq!(of(opcode, Synchronous::Directories), Some(7));
            assert_eq!(of(opcode, Synchronous::Everything), Some(7));
        }
        for opcode in [Opcode::Write, Opcode::SetAttr, Opcode::SetXattr] {
            assert_eq!(of(opcode, Synchronous::Directories), None);
            assert_eq!(of(opcode, Synchronous::Everything), Some(7));
        }
        for opcode in [Opcode::Read, Opcode::GetAttr, Opcode::Lookup, Opcode::FSync] {
            assert_eq!(of(opcode, Synchronous::Everything), None);
        }
        let copy = CopyFileRangeIn { to_node: 9, ..CopyFileRangeIn::default() };
        let copied = changed(&request(copy.as_bytes()), Opcode::CopyFileRange, Synchronous::Everything);
        assert_eq!(copied.unwrap(), Some(9));
    }
}
