//! Bits of the protocol.

/// What the two sides agree on at INIT. Bits from 32 on travel in `flags2`.
pub mod init {
    /// The umask comes with the request that makes something.
    pub const DONT_MASK: u64 = 1 << 6;
    /// Several reads of one file at once.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// OPEN carries O_TRUNC and the daemon truncates.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP of "." and ".." finds an inode by its number alone: file handles outlive the kernel's memory.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// READDIRPLUS exists.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS by what the program does with the entries.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Direct reads and writes of one file at once.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Refusing OPEN with ENOSYS means "files need not be opened".
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// The kernel decides by access control lists, which the daemon keeps.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// Lookups and readdirs in one directory at once.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// `max_pages` of the answer counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links stay in the page cache.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Refusing OPENDIR with ENOSYS means "directories need not be opened".
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// Cached data is dropped only when the daemon says so.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The daemon drops setuid, setgid and file capabilities when told so by a flag of the request.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR says whether setgid goes.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Files opened for direct I/O can still be mapped shared.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come through io_uring, once the daemon has registered entries for every CPU's queue.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Answers to OPEN and CREATE.
pub mod open {
    /// Reads and writes of this opening pass the page cache by.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Cached data stays valid over this opening.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// No FLUSH at close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to one file may run at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Requests OPEN and CREATE.
pub mod open_request {
    /// The truncation that comes with this opening clears setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// Which fields of SETATTR count.
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
    /// Access time, the present.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// Modification time, the present.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Change time.
    pub const CTIME: u32 = 1 << 10;
    /// Clear setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Requests WRITE.
pub mod write {
    /// Comes from the page cache: nobody in particular writes.
    pub const CACHE: u32 = 1 << 0;
    /// Says whose locks count; only a write past the page cache does.
    pub const LOCK_OWNER: u32 = 1 << 1;
    /// Clear setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Requests READ.
pub mod read {
    /// Says whose locks count; only a read past the page cache does.
    pub const LOCK_OWNER: u32 = 1 << 1;
}

/// Requests FSYNC and FSYNCDIR.
pub mod fsync {
    /// Data, and what is needed to find it.
    pub const DATA_ONLY: u32 = 1 << 0;
}

/// Requests SETXATTR.
pub mod setxattr {
    /// Whoever sets this access control list is not of the group: setgid goes.
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}
