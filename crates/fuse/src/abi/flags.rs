//! Bits of the protocol.

/// Features that the two sides agree on at INIT. Bits from 32 on travel in `flags2`.
pub mod init {
    /// Requests that create something carry the caller's umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// The kernel may send several reads of one file at once.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// OPEN carries O_TRUNC and the daemon truncates.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP of "." and ".." finds an inode by its number alone: file handles outlive the kernel's
    /// memory.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// READDIRPLUS exists.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS by the way in which the program uses the
    /// entries.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Direct reads and writes of one file at once.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The kernel keeps writes in its page cache, and size and times with them, until it writes
    /// back.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// An ENOSYS answer to OPEN means "files need not be opened".
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// The kernel decides by access control lists, which the daemon keeps.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// Lookups and readdirs in one directory at once.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The answer's `max_pages` is valid.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links stay in the page cache.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Cached data is dropped only when the daemon says so.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The daemon clears setuid, setgid and file capabilities when a flag of the request tells it
    /// to.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR says whether to clear setgid.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` is valid.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Files opened for direct I/O can still be mapped shared.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come through io_uring, once the daemon has registered entries for every CPU's
    /// queue.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags in answers to OPEN, CREATE and OPENDIR.
pub mod open {
    /// Reads and writes through this open file bypass the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Cached data stays valid across this open.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// No FLUSH at close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to one file may run at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Flags in OPEN and CREATE requests.
pub mod open_request {
    /// The truncation that is part of this open clears setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// The fields of SETATTR that are valid.
pub mod setattr {
    /// Permission bits.
    pub const MODE: u32 = 1 << 0;
    /// Owner.
    pub const UID: u32 = 1 << 1;
    /// Group.
    pub const GID: u32 = 1 << 2;
    /// Size.
    pub const SIZE: u32 = 1 << 3;
    /// Access time.
    pub const ATIME: u32 = 1 << 4;
    /// Modification time.
    pub const MTIME: u32 = 1 << 5;
    /// Set the access time to now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// Set the modification time to now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Clear setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags in WRITE requests.
pub mod write {
    /// The write comes from the page cache, on behalf of no particular program.
    pub const CACHE: u32 = 1 << 0;
    /// The lock owner is valid; only a write that bypasses the page cache has one.
    pub const LOCK_OWNER: u32 = 1 << 1;
    /// Clear setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Flags in READ requests.
pub mod read {
    /// The lock owner is valid; only a read that bypasses the page cache has one.
    pub const LOCK_OWNER: u32 = 1 << 1;
}

/// Flags in FSYNC and FSYNCDIR requests.
pub mod fsync {
    /// Sync only the data, and the metadata needed to find it.
    pub const DATA_ONLY: u32 = 1 << 0;
}

/// Flags in SETXATTR requests.
pub mod setxattr {
    /// The caller setting this access control list is not in the file's group: clear setgid.
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}
