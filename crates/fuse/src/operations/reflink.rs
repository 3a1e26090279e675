//! COPY_FILE_RANGE, and the ioctls about a file's blocks.

use super::policy::Policy;
use super::{Answer, Refusal, privileges};
use crate::abi::{CopyFileRangeIn, CopyFileRangeOut, Opcode, WriteOut};
use crate::control::blocks::{
    BlocksCommand, COMPRESS_REWRITE, COMPRESS_SET, COMPRESS_TELL, CompressMessage, DefragmentMessage,
    Fragments, Usage, algorithm_number, algorithm_of,
};
use crate::page_cache::Change;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_device::BLOCK_BYTES;
use syncline_fs::types::Ino;
use zerocopy::{FromBytes, IntoBytes};

pub(super) async fn copy(session: &Session, request: &Request, opcode: Opcode) -> Answer {
    let input: CopyFileRangeIn = request.arguments().take()?;
    if input.flags != 0 {
        return Err(Refusal::Errno(libc::EINVAL));
    }
    let kill_privileges = privileges::goes_by(request);
    let (from, to) = ((request.ino(), input.offset), (input.to_node, input.to_offset));
    let range = input.to_offset..input.to_offset.saturating_add(input.len);
    let change = Change::Grow { range, gap_end: input.to_offset };
    let policy = Policy::before(session, request, input.to_node, kill_privileges, change).await?;
    let copied = session.fs().copy_range(from, to, input.len, kill_privileges).await?;
    let reply = if opcode == Opcode::CopyFileRange64 {
        Reply::fixed(&CopyFileRangeOut { copied })
    } else {
        let size = u32::try_from(copied).expect("a call copies a gigabyte at most");
        Reply::fixed(&WriteOut { size, padding: 0 })
    };
    policy.answer(reply)
}

/// Answers with as many bytes as the kernel was told to expect.
pub(super) async fn ioctl(
    session: &Session,
    request: &Request,
    command: BlocksCommand,
    argument: &[u8],
    out_bytes: usize,
) -> Result<Vec<u8>, Refusal> {
    if argument.len() != command.bytes() || out_bytes != command.bytes() {
        return Err(Refusal::Malformed);
    }
    let ino = request.ino();
    match command {
        BlocksCommand::Usage => {
            let usage = session.fs().usage(ino).await?;
            let usage = Usage { total_bytes: usage.total_bytes, shared_bytes: usage.shared_bytes };
            Ok(usage.as_bytes().to_vec())
        }
        BlocksCommand::Compress => {
            let message = CompressMessage::read_from_bytes(argument).map_err(|_| Refusal::Malformed)?;
            Ok(compress(session, request, message).await?.as_bytes().to_vec())
        }
        BlocksCommand::Fragments => {
            let found = session.fs().fragments(ino).await?;
            let bytes = found.blocks * BLOCK_BYTES as u64;
            Ok(Fragments { fragments: found.fragments, bytes }.as_bytes().to_vec())
        }
        BlocksCommand::Defragment => {
            let mut message = DefragmentMessage::read_from_bytes(argument).map_err(|_| Refusal::Malformed)?;
            // The contents stay the same, but it costs real work, and unsharing takes space.
            require_owner(session, request, ino).await?;
            let done = session.fs().defragment(ino, message.first, message.unshare != 0).await?;
            message.next = done.next.unwrap_or(0);
            (message.moved_bytes, message.overtaken_bytes) = (done.moved_bytes, done.overtaken_bytes);
            Ok(message.as_bytes().to_vec())
        }
    }
}

async fn compress(
    session: &Session,
    request: &Request,
    mut message: CompressMessage,
) -> Result<CompressMessage, Refusal> {
    let (fs, ino) = (session.fs(), request.ino());
    if message.action != COMPRESS_TELL {
        require_owner(session, request, ino).await?;
    }
    match message.action {
        COMPRESS_TELL => {}
        COMPRESS_SET => {
            let algorithm = algorithm_of(message.algorithm).ok_or(Refusal::Errno(libc::EINVAL))?;
            fs.set_compression(ino, algorithm).await?;
        }
        COMPRESS_REWRITE => {
            let done = fs.rewrite(ino, message.offset).await?;
            message.bytes = done.bytes;
            message.offset = done.next.unwrap_or(u64::MAX);
        }
        _ => return Err(Refusal::Errno(libc::EINVAL)),
    }
    message.algorithm = algorithm_number(fs.file_flags(ino).await?.compression);
    Ok(message)
}

/// Refuses all but the file's owner and root. Inode numbers can be made up, so having a file open
/// proves nothing.
pub(super) async fn require_owner(session: &Session, request: &Request, ino: Ino) -> Result<(), Refusal> {
    let uid = request.caller().uid;
    if uid == 0 || session.fs().getattr(ino).await?.uid == uid {
        return Ok(());
    }
    Err(Refusal::Errno(libc::EPERM))
}
