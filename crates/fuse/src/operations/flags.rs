//! The flags of chattr(1) and lsattr(1): the ioctls that set and get them, and how statx reports
//! them. The kernel has already checked that the caller may change them.

use super::{Answer, Refusal};
use crate::abi::{FsXattr, IoctlIn, IoctlOut};
use crate::page_cache::Change;
use crate::reply::Reply;
use crate::request::{Arguments, Request};
use crate::session::Session;
use syncline_fs::types::{Algorithm, FileFlags};
use zerocopy::IntoBytes;

/// `FS_IOC_GETFLAGS` and its kin, as built by `_IOR` and `_IOW`.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;
/// `FS_IOC_GETVERSION`, for 64-bit and 32-bit programs. Both get 32 bits.
const GET_VERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];

/// One flag in the three numberings: that of `FS_IOC_GETFLAGS`, of `FS_IOC_FSGETXATTR`, and of
/// statx (0: not reported there).
struct Numbers {
    flag: u32,
    xflag: u32,
    statx: u64,
}

const IMMUTABLE: Numbers = Numbers { flag: 0x10, xflag: 0x08, statx: 0x10 };
const APPEND_ONLY: Numbers = Numbers { flag: 0x20, xflag: 0x10, statx: 0x20 };
const NO_DUMP: Numbers = Numbers { flag: 0x40, xflag: 0x80, statx: 0x40 };
const NO_ACCESS_TIME: Numbers = Numbers { flag: 0x80, xflag: 0x40, statx: 0 };
/// Class `strict`.
const SYNCHRONOUS: Numbers = Numbers { flag: 0x08, xflag: 0x20, statx: 0 };
/// There is no xflag for this.
const COMPRESSED: Numbers = Numbers { flag: 0x04, xflag: 0, statx: 0x04 };
/// The algorithm that the flag alone selects.
const DEFAULT_ALGORITHM: Algorithm = Algorithm::Zstd;

/// All attributes that statx reports here.
pub(super) const STATX_ATTRIBUTES: u64 =
    IMMUTABLE.statx | APPEND_ONLY.statx | NO_DUMP.statx | COMPRESSED.statx;

/// The flags in one of the numberings.
fn numbered(flags: FileFlags, number: impl Fn(&Numbers) -> u64) -> u64 {
    let each = [
        (flags.immutable, IMMUTABLE),
        (flags.append_only, APPEND_ONLY),
        (flags.no_dump, NO_DUMP),
        (flags.no_access_time, NO_ACCESS_TIME),
        (flags.compression.is_some(), COMPRESSED),
        (flags.synchronous, SYNCHRONOUS),
    ];
    each.iter().filter(|(set, _)| *set).fold(0, |all, (_, numbers)| all | number(numbers))
}

/// The inverse of `numbered`; a flag that can't be stored is refused rather than dropped.
fn flags_of(bits: u32, number: impl Fn(&Numbers) -> u32) -> Result<FileFlags, Refusal> {
    let known = [IMMUTABLE, APPEND_ONLY, NO_DUMP, NO_ACCESS_TIME, COMPRESSED, SYNCHRONOUS];
    let known = known.iter().fold(0, |all, one| all | number(one));
    if bits & !known != 0 {
        return Err(Refusal::Errno(libc::EOPNOTSUPP));
    }
    let has = |numbers: Numbers| bits & number(&numbers) != 0;
    Ok(FileFlags {
        immutable: has(IMMUTABLE),
        append_only: has(APPEND_ONLY),
        no_dump: has(NO_DUMP),
        no_access_time: has(NO_ACCESS_TIME),
        compression: has(COMPRESSED).then_some(DEFAULT_ALGORITHM),
        synchronous: has(SYNCHRONOUS),
    })
}

/// The flags as statx reports them.
pub(super) fn statx_attributes(flags: FileFlags) -> u64 {
    numbered(flags, |numbers| numbers.statx)
}

/// True for a command that only reads flags.
pub(super) fn only_asks(command: u32) -> bool {
    matches!(command, GET_FLAGS | GET_XFLAGS)
}

/// Serves the ioctls about flags; `None` for any other.
pub(super) async fn ioctl(
    session: &Session,
    request: &Request,
    input: &IoctlIn,
    arguments: &mut Arguments<'_>,
) -> Option<Answer> {
    match input.command {
        GET_FLAGS | GET_XFLAGS => Some(get(session, request, input).await),
        SET_FLAGS | SET_XFLAGS => Some(set(session, request, input, arguments).await),
        command if GET_VERSION.contains(&command) => Some(version(session, request).await),
        _ => None,
    }
}

async fn get(session: &Session, request: &Request, input: &IoctlIn) -> Answer {
    let flags = session.fs().file_flags(request.ino()).await?;
    let bytes = if input.command == GET_FLAGS {
        (numbered(flags, |numbers| numbers.flag.into()) as u32).as_bytes().to_vec()
    } else {
        let xflags = numbered(flags, |numbers| numbers.xflag.into()) as u32;
        FsXattr { xflags, ..FsXattr::default() }.as_bytes().to_vec()
    };
    if input.out_size as usize != bytes.len() {
        return Err(Refusal::Malformed);
    }
    Ok(Reply::fixed(&IoctlOut::default()).with_data(bytes))
}

/// The generation that tells an inode from earlier ones of its number. Numbers are never reused, so
/// the number itself serves.
async fn version(session: &Session, request: &Request) -> Answer {
    session.fs().getattr(request.ino()).await?;
    Ok(Reply::fixed(&IoctlOut::default()).with_data((request.ino() as u32).to_ne_bytes().to_vec()))
}

async fn set(session: &Session, request: &Request, input: &IoctlIn, arguments: &mut Arguments<'_>) -> Answer {
    let before = session.fs().file_flags(request.ino()).await?;
    let mut flags = if input.command == SET_FLAGS {
        flags_of(arguments.take::<u32>()?, |numbers| numbers.flag)?
    } else {
        let asked: FsXattr = arguments.take()?;
        if (asked.extent_size, asked.project, asked.cow_extent_size) != (0, 0, 0) {
            return Err(Refusal::Errno(libc::EOPNOTSUPP));
        }
        flags_of(asked.xflags, |numbers| numbers.xflag)?
    };
    // A program that sets one flag sends all flags it was told. So a file keeps its algorithm if it
    // has one, and xflags do not affect compression.
    if flags.compression.is_some() || input.command == SET_XFLAGS {
        flags.compression = before.compression.or(flags.compression);
    }
    if (flags.immutable && !before.immutable) || (flags.append_only && !before.append_only) {
        drop(session.pages(request.ino(), request.pid()).before_change(Change::Protect).await?);
    }
    session.fs().set_file_flags(request.ino(), flags).await?;
    // The change time moved, which the kernel does not expect from an ioctl.
    Ok(Reply::fixed(&IoctlOut::default()).with_stale_attributes(request.ino(), true))
}
