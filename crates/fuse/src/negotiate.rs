//! INIT: what the kernel offers and which of it we accept.

use crate::abi::flags::init;
use crate::abi::{InitIn, InitOut, MAJOR, MINOR_MAX, MINOR_MIN};
use crate::error::MountError;
use crate::options::DirectIo;

/// Largest WRITE and READ asked for: 1 MiB, the most the kernel grants unless its limit is raised.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Largest request without MAX_PAGES: 32 pages.
const TRANSFER_BYTES_SMALL: u32 = 128 << 10;

/// The features that we accept.
///
/// Left out on purpose: WRITEBACK_CACHE (the kernel would own sizes and times, and we learn of a write
/// when nobody waits for its error any more), AUTO_INVAL_DATA (only this daemon changes the files, and it does so through the kernel),
/// POSIX_LOCKS and FLOCK_LOCKS (the kernel's own locks serve one host), the SPLICE family (a copy
/// is cheaper at these sizes).
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::EXPORT_SUPPORT
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::DONT_MASK
    | init::POSIX_ACL
    | init::SETXATTR_EXT
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// Requests that the kernel may have in flight in the background: read-ahead, and write-back of
/// mapped pages.
const BACKGROUND_MAX: u16 = 64;

/// The result of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Bits of [`init`] that both sides accept.
    pub flags: u64,
    /// Largest payload of a WRITE, and largest answer to a READ, in bytes.
    pub transfer_bytes_max: u32,
    /// How many background requests (read-ahead, write-back) the kernel may have in flight at once.
    pub background_max: u16,
}

impl Negotiated {
    /// True when `flag` was agreed on.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

/// The answer to an INIT.
#[derive(Debug)]
pub enum InitAnswer {
    /// The kernel speaks a newer major version: send this and wait for another INIT.
    AskAgain(InitOut),
    /// Agreed.
    Agreed(InitOut, Negotiated),
}

/// Choices that depend on the mount's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wishes {
    /// Use FUSE over io_uring if it is offered.
    pub over_io_uring: bool,
    /// Which opens bypass the page cache; if none does, the kernel need not send OPEN at all.
    pub direct_io: DirectIo,
}

/// Answers an INIT.
pub fn negotiate(offer: &InitIn, wishes: Wishes) -> Result<InitAnswer, MountError> {
    if offer.major > MAJOR {
        return Ok(InitAnswer::AskAgain(InitOut { major: MAJOR, minor: MINOR_MAX, ..InitOut::default() }));
    }
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return Err(MountError::KernelTooOld { major: offer.major, minor: offer.minor });
    }
    let mut offered = u64::from(offer.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(offer.flags2) << 32;
    }
    let opens = wishes.direct_io.with_kernel(offer.minor) != DirectIo::Never;
    let wanted = WANTED
        | if wishes.over_io_uring { init::OVER_IO_URING } else { 0 }
        | if opens { init::ATOMIC_O_TRUNC } else { init::NO_OPEN_SUPPORT };
    let flags = offered & wanted;
    let transfer_bytes_max =
        if flags & init::MAX_PAGES != 0 { TRANSFER_BYTES_MAX } else { TRANSFER_BYTES_SMALL };
    let agreed = Negotiated {
        minor: offer.minor.min(MINOR_MAX),
        flags,
        transfer_bytes_max,
        background_max: BACKGROUND_MAX,
    };
    let answer = InitOut {
        major: MAJOR,
        minor: MINOR_MAX,
        max_readahead: offer.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: agreed.background_max,
        congestion_threshold: agreed.background_max / 4 * 3,
        max_write: transfer_bytes_max,
        time_granularity_ns: 1,
        max_pages: (transfer_bytes_max / page_bytes()) as u16,
        ..InitOut::default()
    };
    Ok(InitAnswer::Agreed(answer, agreed))
}

/// The kernel's page size, the unit of `max_pages`.
fn page_bytes() -> u32 {
    // SAFETY: takes no memory.
    u32::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("every system tells its page size")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Wishes = Wishes { over_io_uring: false, direct_io: DirectIo::Synced };

    fn offer(minor: u32, flags: u64) -> InitIn {
        let (low, high) = (flags as u32, (flags >> 32) as u32);
        InitIn { major: 7, minor, max_readahead: 131072, flags: low, flags2: high, unused: [0; 11] }
    }

    #[test]
    fn only_what_is_offered_and_wanted_is_taken() {
        let Ok(InitAnswer::Agreed(answer, agreed)) = negotiate(&offer(45, u64::MAX), PLAIN) else { panic!() };
        assert!(agreed.has(init::HANDLE_KILLPRIV_V2) && agreed.has(init::DIRECT_IO_ALLOW_MMAP));
        assert!(!agreed.has(init::WRITEBACK_CACHE));
        assert_eq!((answer.max_write, answer.max_pages), (1 << 20, 256));
        assert_eq!(u64::from(answer.flags2) << 32 | u64::from(answer.flags), agreed.flags);

        let Ok(InitAnswer::Agreed(answer, agreed)) = negotiate(&offer(31, init::ASYNC_READ), PLAIN) else {
            panic!()
        };
        assert_eq!(agreed.flags, init::ASYNC_READ);
        assert_eq!((agreed.minor, answer.max_write, answer.max_pages), (31, 128 << 10, 32));
    }

    #[test]
    fn the_high_flags_count_only_when_announced() {
        let high = init::DIRECT_IO_ALLOW_MMAP;
        let Ok(InitAnswer::Agreed(_, agreed)) = negotiate(&offer(40, high), PLAIN) else { panic!() };
        assert!(!agreed.has(high));
    }

    #[test]
    fn queues_are_taken_if_offered_and_asked_for() {
        let over_io_uring = |offered: u64, asked: bool| match negotiate(
            &offer(45, offered),
            Wishes { over_io_uring: asked, ..PLAIN },
        ) {
            Ok(InitAnswer::Agreed(answer, agreed)) => {
                assert_eq!(answer.flags2 & 1 << 9 != 0, agreed.has(init::OVER_IO_URING));
                agreed.has(init::OVER_IO_URING)
            }
            _ => panic!(),
        };
        assert!(over_io_uring(u64::MAX, true));
        assert!(!over_io_uring(u64::MAX, false));
        assert!(!over_io_uring(!init::OVER_IO_URING, true));
    }

    /// A kernel that sends no OPEN could not have us truncate there.
    #[test]
    fn files_are_truncated_on_opening_only_where_they_are_opened() {
        let flags = |minor, direct_io| match negotiate(&offer(minor, u64::MAX), Wishes { direct_io, ..PLAIN })
        {
            Ok(InitAnswer::Agreed(_, agreed)) => {
                (agreed.has(init::ATOMIC_O_TRUNC), agreed.has(init::NO_OPEN_SUPPORT))
            }
            _ => panic!(),
        };
        assert_eq!(flags(45, DirectIo::Synced), (true, false));
        assert_eq!(flags(44, DirectIo::Synced), (false, true));
        assert_eq!(flags(45, DirectIo::Never), (false, true));
    }

    #[test]
    fn other_versions_are_asked_again_or_refused() {
        let newer = InitIn { major: 8, ..offer(0, 0) };
        assert!(matches!(negotiate(&newer, PLAIN), Ok(InitAnswer::AskAgain(InitOut { major: 7, .. }))));
        assert!(matches!(negotiate(&offer(30, 0), PLAIN), Err(MountError::KernelTooOld { minor: 30, .. })));
        let older = InitIn { major: 6, ..offer(45, 0) };
        assert!(matches!(negotiate(&older, PLAIN), Err(MountError::KernelTooOld { .. })));
    }
}
