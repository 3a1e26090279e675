//! Mount options.

use crate::mount::KernelOptions;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use syncline_fs::types::Ino;

/// First minor version of the protocol (Linux 6.18) whose kernel drops pages that were read into
/// the cache while a direct write to them was in flight. Earlier kernels could keep the old
/// contents there for ever.
const MINOR_COHERENT: u32 = 45;

/// Which opens bypass the page cache. That lets synced writes of one file run side by side, and
/// leaves reads uncached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectIo {
    /// None (except that files opened with O_DIRECT are always direct). The kernel then opens and
    /// closes files without asking.
    #[default]
    Never,
    /// Opens for writing with O_SYNC, O_DSYNC or O_DIRECT, where the kernel keeps cache and file
    /// coherent. It holds an inode's lock during a cached write and during an FSYNC, so those of
    /// one file could not share a flush.
    Synced,
    /// Opens for writing only.
    WriteOnly,
    /// All opens.
    Always,
}

impl DirectIo {
    /// The part of this choice that works with a kernel of this minor version.
    pub(crate) fn with_kernel(self, minor: u32) -> Self {
        if self == Self::Synced && minor < MINOR_COHERENT { Self::Never } else { self }
    }

    /// True for an open with these flags of open(2).
    pub(crate) fn applies_to(self, flags: u32) -> bool {
        let flags = flags as i32;
        match self {
            Self::Never => false,
            // O_SYNC contains O_DSYNC.
            Self::Synced => {
                flags & libc::O_ACCMODE != libc::O_RDONLY && flags & (libc::O_DSYNC | libc::O_DIRECT) != 0
            }
            Self::WriteOnly => flags & libc::O_ACCMODE == libc::O_WRONLY,
            Self::Always => true,
        }
    }
}

/// Which changes are durable before they are answered, without an fsync.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Synchronous {
    /// None: programs sync what must be durable.
    #[default]
    Never,
    /// Changes of names.
    Directories,
    /// All changes.
    Everything,
}

/// The transport of requests from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Over io_uring if the kernel offers it and this process may use it, otherwise over /dev/fuse.
    #[default]
    Auto,
    /// Over io_uring, or not at all.
    Uring,
    /// Over /dev/fuse.
    Classic,
}

/// A sync that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Synced {
    /// fsync of a file or directory.
    Fsync(Ino),
    /// fdatasync.
    Fdatasync(Ino),
    /// syncfs: the whole filesystem.
    Filesystem,
}

/// A callback that is told of each sync that made its files durable, before its caller is. It runs on
/// a thread that serves requests, and must be quick.
#[derive(Clone)]
pub struct SyncObserver(Arc<dyn Fn(Synced) + Send + Sync>);

impl SyncObserver {
    /// Calls `observe` for each sync.
    pub fn new(observe: impl Fn(Synced) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn tell(&self, synced: Synced) {
        (self.0)(synced);
    }
}

impl fmt::Debug for SyncObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncObserver")
    }
}

/// Mount options; every one but the source has a default.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The options that the kernel is told at mount.
    pub kernel: KernelOptions,
    /// Threads that serve requests. Default 0: one on every CPU this process may use.
    pub workers: usize,
    /// Bind each of these threads to a CPU, which is worth a factor of five in latency. Default:
    /// yes.
    pub pin_workers: bool,
    /// How long the kernel may cache names and attributes without asking. Default: a day. Only this
    /// daemon changes them, and it notifies the kernel of changes that the kernel did not request.
    pub cache_time: Duration,
    /// Which opens bypass the page cache. Default: none, so that opening a file costs no request.
    pub direct_io: DirectIo,
    /// Which changes are durable before they are answered. Default: none.
    pub synchronous: Synchronous,
    /// The transport of requests. Default: over io_uring where that is possible.
    pub transport: Transport,
    /// The callback for syncs. Default: none.
    pub sync_observer: Option<SyncObserver>,
}

impl MountOptions {
    /// The defaults, for an image at the path `source`.
    pub fn new(source: impl Into<OsString>) -> Self {
        Self {
            kernel: KernelOptions::new(source),
            workers: 0,
            pin_workers: true,
            cache_time: Duration::from_secs(24 * 60 * 60),
            direct_io: DirectIo::default(),
            synchronous: Synchronous::default(),
            transport: Transport::default(),
            sync_observer: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_for_synced_writing_are_direct_where_the_kernel_is_coherent() {
        let direct = |minor, flags: i32| DirectIo::Synced.with_kernel(minor).applies_to(flags as u32);
        for flags in
            [libc::O_WRONLY | libc::O_DSYNC, libc::O_RDWR | libc::O_SYNC, libc::O_RDWR | libc::O_DIRECT]
        {
            assert!(direct(MINOR_COHERENT, flags));
            assert!(!direct(MINOR_COHERENT - 1, flags));
        }
        for flags in
            [libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY | libc::O_SYNC, libc::O_RDONLY | libc::O_DIRECT]
        {
            assert!(!direct(MINOR_COHERENT, flags));
        }
        assert!(DirectIo::Always.with_kernel(31).applies_to(0), "who asks for it gets it");
    }
}
