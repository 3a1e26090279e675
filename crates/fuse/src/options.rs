//! Choices at mount.

use crate::mount::KernelOptions;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use syncline_fs::types::Ino;

/// Which openings pass the page cache by. That doubles small synced writes, and leaves reads uncached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectIo {
    /// None (but what a program opens with O_DIRECT is direct in any case).
    #[default]
    Never,
    /// Those for writing only.
    WriteOnly,
    /// All.
    Always,
}

impl DirectIo {
    /// True for an opening with these flags of open(2).
    pub(crate) fn applies_to(self, flags: u32) -> bool {
        match self {
            Self::Never => false,
            Self::WriteOnly => flags as i32 & libc::O_ACCMODE == libc::O_WRONLY,
            Self::Always => true,
        }
    }
}

/// How requests come from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Over io_uring where the kernel offers that and this process may, else over /dev/fuse.
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
    /// Everything.
    Filesystem,
}

/// Somebody who is told of each successful sync before its caller is. It is called on a thread that serves requests, and
/// must be quick.
#[derive(Clone)]
pub struct SyncObserver(Arc<dyn Fn(Synced) + Send + Sync>);

impl SyncObserver {
    /// Calls `observe` each time.
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

/// Choices at mount; every one but the source has a default.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What the kernel is told at mount.
    pub kernel: KernelOptions,
    /// Threads that serve requests. Default 0: one on every CPU this process may use.
    pub workers: usize,
    /// Bind each of these threads to a CPU, which is worth a factor of five in latency. Default: yes.
    pub pin_workers: bool,
    /// How long the kernel may keep names and attributes without asking. Default: a day. Nobody but this daemon
    /// changes them, and what it does not do at the kernel's own request it tells it.
    pub cache_time: Duration,
    /// Which openings pass the page cache by. Default: none.
    pub direct_io: DirectIo,
    /// How requests come. Default: over io_uring where that is possible.
    pub transport: Transport,
    /// Who is told of syncs. Default: nobody.
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
            transport: Transport::default(),
            sync_observer: None,
        }
    }
}
