//! GETATTR, STATX, SETATTR, STATFS, and the encoding of attributes in answers.

use super::policy::Policy;
use super::{Answer, Refusal, privileges};
use crate::abi::flags::setattr as valid;
use crate::abi::{
    Attr, AttrOut, EntryOut, GetAttrIn, SetAttrIn, StatFsOut, Statx, StatxIn, StatxOut, StatxTime,
};
use crate::page_cache::Change;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::FsError;
use syncline_fs::types::{Attributes, FileType, SetAttributes, SetTime, Timestamp};

/// Unit of allocation, as shown in `st_blksize` and by statfs.
const BLOCK_BYTES: u32 = 4096;
/// Longest name in a directory.
const NAME_BYTES_MAX: u32 = 255;

/// The mode bits of a file type.
pub(super) fn type_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::Regular => libc::S_IFREG,
        FileType::Directory => libc::S_IFDIR,
        FileType::Symlink => libc::S_IFLNK,
        FileType::Fifo => libc::S_IFIFO,
        FileType::Socket => libc::S_IFSOCK,
        FileType::CharDevice => libc::S_IFCHR,
        FileType::BlockDevice => libc::S_IFBLK,
    }
}

fn attr(attributes: &Attributes) -> Attr {
    Attr {
        ino: attributes.ino,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: attributes.atime.seconds,
        mtime: attributes.mtime.seconds,
        ctime: attributes.ctime.seconds,
        atime_ns: attributes.atime.nanoseconds,
        mtime_ns: attributes.mtime.nanoseconds,
        ctime_ns: attributes.ctime.nanoseconds,
        mode: type_bits(attributes.file_type) | u32::from(attributes.permissions),
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        block_size: BLOCK_BYTES,
        flags: 0,
    }
}

/// Attributes as an answer tells them, and how long the kernel may cache them. Until data waiting for
/// compression is written, its block count is an estimate, so the kernel must ask each time.
fn told(session: &Session, attributes: &Attributes, with_name: bool) -> (Attr, u64) {
    let (size, may_be_cached) = session.pages(attributes.ino, 0).told(attributes, with_name);
    let is_final = may_be_cached && !session.fs().may_shrink(attributes.ino);
    (Attr { size, ..attr(attributes) }, if is_final { session.cache_seconds() } else { 0 })
}

fn attr_out(session: &Session, attributes: &Attributes) -> AttrOut {
    let (attr, valid) = told(session, attributes, false);
    AttrOut { valid, valid_ns: 0, padding: 0, attr }
}

/// The attributes that stat(2) tells.
async fn look(session: &Session, request: &Request) -> Result<Attributes, FsError> {
    session.pages(request.ino(), request.pid()).look().await.attributes().await
}

/// The answer to a lookup that found an inode, as the kernel caches it.
pub(super) fn entry_out(session: &Session, attributes: &Attributes) -> EntryOut {
    let (attr, attr_valid) = told(session, attributes, true);
    EntryOut {
        node: attributes.ino,
        // Inode numbers are never reused, so one generation is enough.
        generation: 0,
        entry_valid: session.cache_seconds(),
        attr_valid,
        entry_valid_ns: 0,
        attr_valid_ns: 0,
        attr,
    }
}

/// "No such name", which may be cached: only this daemon creates names.
pub(super) fn no_entry(session: &Session) -> EntryOut {
    EntryOut { entry_valid: session.cache_seconds(), ..EntryOut::default() }
}

pub(super) async fn getattr(session: &Session, request: &Request) -> Answer {
    request.arguments().take::<GetAttrIn>()?;
    let attributes = look(session, request).await?;
    Ok(Reply::fixed(&attr_out(session, &attributes)))
}

/// Sent when a program wants the birth time. (Linux 6.18 takes no attributes from it.)
pub(super) async fn statx(session: &Session, request: &Request) -> Answer {
    request.arguments().take::<StatxIn>()?;
    let attributes = look(session, request).await?;
    let flags = session.fs().file_flags(request.ino()).await?;
    let time =
        |time: Timestamp| StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 };
    let rdev = attributes.rdev;
    let stat = Statx {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        block_size: BLOCK_BYTES,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: (type_bits(attributes.file_type) | u32::from(attributes.permissions)) as u16,
        ino: attributes.ino,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: time(attributes.atime),
        btime: time(attributes.btime),
        ctime: time(attributes.ctime),
        mtime: time(attributes.mtime),
        // The kernel's 32-bit form: 12 bits of major number between 8 and 12 bits of minor number.
        rdev_major: (rdev >> 8) & 0xfff,
        rdev_minor: (rdev & 0xff) | ((rdev >> 12) & 0xfff00),
        attributes: super::flags::statx_attributes(flags),
        attributes_mask: super::flags::STATX_ATTRIBUTES,
        ..Statx::default()
    };
    let (_, valid) = told(session, &attributes, false);
    Ok(Reply::fixed(&StatxOut { valid, stat, ..StatxOut::default() }))
}

fn time(seconds: i64, nanoseconds: u32) -> Result<Timestamp, Refusal> {
    if nanoseconds >= 1_000_000_000 {
        return Err(Refusal::Malformed);
    }
    Ok(Timestamp { seconds, nanoseconds })
}

/// The changes that a SETATTR asks for.
fn changes(input: &SetAttrIn) -> Result<SetAttributes, Refusal> {
    let has = |flag: u32| input.valid & flag != 0;
    let set_time = |set: u32, now: u32, seconds, nanoseconds| {
        Ok::<_, Refusal>(match (has(set), has(now)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::To(time(seconds, nanoseconds)?)),
            (false, false) => None,
        })
    };
    Ok(SetAttributes {
        permissions: has(valid::MODE).then_some((input.mode & 0o7777) as u16),
        uid: has(valid::UID).then_some(input.uid),
        gid: has(valid::GID).then_some(input.gid),
        size: has(valid::SIZE).then_some(input.size),
        atime: set_time(valid::ATIME, valid::ATIME_NOW, input.atime, input.atime_ns)?,
        mtime: set_time(valid::MTIME, valid::MTIME_NOW, input.mtime, input.mtime_ns)?,
        kill_privileges: has(valid::KILL_SUIDGID),
    })
}

/// True if setuid and setgid must be cleared although nothing else changes. chown(2) clears them
/// even if it changes neither owner nor group: the kernel sends it as a SETATTR without changes. It
/// sends the same before a write that drops capabilities, once it has removed them, as it has before
/// chown(2) too; if root writes, the bits stay.
async fn is_bare_chown(session: &Session, request: &Request, changes: &SetAttributes) -> bool {
    let after_capabilities = session.take_capability_removed(request.ino(), request.pid());
    *changes == SetAttributes::default()
        && (!after_capabilities
            || privileges::goes_by(request)
            || Box::pin(privileges::is_in_chown(session, request)).await)
}

pub(super) async fn setattr(session: &Session, request: &Request) -> Answer {
    let input: SetAttrIn = request.arguments().take()?;
    let mut changes = changes(&input)?;
    changes.kill_privileges |= is_bare_chown(session, request, &changes).await;
    let goes = changes.kill_privileges || changes.uid.is_some() || changes.gid.is_some();
    let goes = goes && changes.permissions.is_none();
    let change = changes.size.map_or(Change::Attributes, Change::Resize);
    let policy = Policy::before(session, request, request.ino(), goes, change).await?;
    let attributes = session.fs().setattr(request.caller(), request.ino(), changes).await?;
    // No attributes are stale: the answer tells all.
    Ok(Reply::fixed(&attr_out(session, &attributes)).with_growth(policy.pages.growth))
}

/// STATFS. Within a tree with a quota it reports the quota's limits and what is left of them, as
/// df(1) shows them.
pub(super) async fn statfs(session: &Session, request: &Request) -> Answer {
    let figures = session.fs().statfs_at(request.ino()).await;
    Ok(Reply::fixed(&StatFsOut {
        blocks: figures.blocks,
        free: figures.free,
        available: figures.available,
        files: figures.objects.saturating_add(figures.objects_free),
        files_free: figures.objects_free,
        block_size: BLOCK_BYTES,
        name_len: NAME_BYTES_MAX,
        fragment_size: BLOCK_BYTES,
        ..StatFsOut::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_marked_valid_is_changed() {
        let input =
            SetAttrIn { mode: 0o107644, uid: 5, gid: 6, size: 7, atime_ns: u32::MAX, ..SetAttrIn::default() };
        assert_eq!(changes(&input).unwrap(), SetAttributes::default());
        let input = SetAttrIn { valid: valid::MODE | valid::SIZE | valid::ATIME_NOW | valid::ATIME, ..input };
        let expected = SetAttributes {
            permissions: Some(0o7644),
            size: Some(7),
            atime: Some(SetTime::Now),
            ..SetAttributes::default()
        };
        assert_eq!(changes(&input).unwrap(), expected);
    }

    #[test]
    fn times_before_1970_and_impossible_ones() {
        let input =
            SetAttrIn { valid: valid::MTIME, mtime: -5, mtime_ns: 999_999_999, ..SetAttrIn::default() };
        let expected = Timestamp { seconds: -5, nanoseconds: 999_999_999 };
        assert_eq!(changes(&input).unwrap().mtime, Some(SetTime::To(expected)));
        assert!(changes(&SetAttrIn { mtime_ns: 1_000_000_000, ..input }).is_err());
    }
}
