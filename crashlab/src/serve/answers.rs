//! What the kernel is told, in its own terms.

use super::KEPT;
use crate::tree::Kind;
use fuser::{Errno, FileAttr, FileType, Generation, ReplyEmpty, ReplyEntry, ReplyXattr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::File(_) => FileType::RegularFile,
        Kind::Directory(_) => FileType::Directory,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Special(kind, _) => match *kind {
            libc::S_IFIFO => FileType::NamedPipe,
            libc::S_IFSOCK => FileType::Socket,
            libc::S_IFCHR => FileType::CharDevice,
            _ => FileType::BlockDevice,
        },
    }
}

pub(super) fn entry(reply: ReplyEntry, outcome: Result<FileAttr, Errno>) {
    match outcome {
        Ok(attributes) => reply.entry(&KEPT, &attributes, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    match size {
        0 => reply.size(value.len() as u32),
        size if value.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

pub(super) fn time(nanoseconds: i128) -> SystemTime {
    let distance = Duration::from_nanos(u64::try_from(nanoseconds.unsigned_abs()).unwrap_or(0));
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

pub(super) fn nanoseconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}
