//! A mounted filesystem: the state that all its threads share, and its life from mount to unmount.

use crate::abi::flags::init;
use crate::control::Control;
use crate::counters::RequestCounters;
use crate::error::MountError;
use crate::last_request::LastRequest;
use crate::mount::{MountPoint, mount};
use crate::negotiate::{Negotiated, Wishes};
use crate::options::{DirectIo, MountOptions, SyncObserver, Synced, Synchronous, Transport};
use crate::page_cache::{PageCache, Pages};
use crate::processes::Processes;
use crate::serve::Serve;
use crate::transport::{ReadyWorkers, Workers, another_end, fewest_entries, handshake};
use crate::uring_switch::why_not_offered;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use syncline_device::block_on;
use syncline_fs::Filesystem;
use syncline_fs::types::Ino;

/// The state shared by the threads that serve one mount.
pub struct Session<F = Filesystem> {
    fs: Arc<F>,
    negotiated: Negotiated,
    control: Arc<Control>,
    counters: Arc<RequestCounters>,
    cache_seconds: u64,
    direct_io: DirectIo,
    synchronous: Synchronous,
    sync_observer: Option<SyncObserver>,
    page_cache: PageCache,
    processes: Processes,
    /// The connection has ended.
    ended: Arc<AtomicBool>,
    /// The inode whose capabilities were last removed, and the thread for which the kernel did
    /// that.
    capability_removed: Mutex<Option<(Ino, u32)>>,
    /// The filesystem was shut down on request; the connection stays.
    shut_down: AtomicBool,
    /// Whether sync(2) comes here.
    sync_reach: SyncReach,
    /// The action that answers the kernel's last request, DESTROY.
    last_request: LastRequest,
}

/// Whether sync(2) and syncfs(2) reach a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SyncReach {
    /// The kernel passes them on.
    Reached,
    /// It does not, since the mount has no block device: not allowed, or for this reason.
    NoDevice(Option<String>),
    /// It does not though the mount has a block device: Linux does since 6.18.
    OldKernel,
}

/// First minor version of the protocol (Linux 6.18) whose kernel passes sync(2) on to mounts with a
/// block device.
const MINOR_SYNCFS: u32 = 45;

impl SyncReach {
    fn of(mount_point: &MountPoint, negotiated: &Negotiated) -> Self {
        match mount_point.has_device() {
            true if negotiated.minor >= MINOR_SYNCFS => Self::Reached,
            true => Self::OldKernel,
            false => Self::NoDevice(mount_point.why_without_device().map(|error| error.to_string())),
        }
    }
}

impl Session {
    /// Has the kernel hand over what programs have stored to mappings of any file until now. Call it on a
    /// thread that serves no requests; they must be served meanwhile.
    pub fn take_over_mapped(&self) {
        block_on(self.page_cache.take_over_everything(&self.fs));
    }

    /// The policy about the kernel's pages of an inode, for a request of a thread.
    pub(crate) fn pages(&self, ino: Ino, thread: u32) -> Pages<'_> {
        Pages { cache: &self.page_cache, fs: &self.fs, processes: &self.processes, ino, thread }
    }
}

impl<F: Serve> Session<F> {
    /// Mounts `fs` at `path` and starts serving it. The caller opens and closes the filesystem.
    pub fn mount(fs: Arc<F>, path: &Path, options: &MountOptions) -> Result<Mounted<F>, MountError> {
        Ok(Self::prepare(fs, path, options)?.serve())
    }

    /// The first part of mounting: mounts, and negotiates everything that the kernel could refuse,
    /// but answers no requests yet. So `fs` need not be ready for changes.
    pub fn prepare(fs: Arc<F>, path: &Path, options: &MountOptions) -> Result<Prepared<F>, MountError> {
        let over_io_uring = options.transport != Transport::Classic;
        let prepared = match Self::prepare_over(over_io_uring, &fs, path, options) {
            // The agreement with the kernel can't be undone; but we can mount again without
            // io_uring.
            Err(MountError::NoUring { reason }) if options.transport == Transport::Auto => {
                tracing::warn!(reason, "io_uring cannot carry this mount's requests");
                Self::prepare_over(false, &fs, path, options)
            }
            prepared => prepared,
        }?;
        tracing::info!(transport = prepared.session.transport(), "mounted");
        Ok(prepared)
    }

    fn prepare_over(
        over_io_uring: bool,
        fs: &Arc<F>,
        path: &Path,
        options: &MountOptions,
    ) -> Result<Prepared<F>, MountError> {
        let (descriptor, mount_point) = mount(path, &options.kernel)?;
        let wishes = Wishes { over_io_uring, direct_io: options.direct_io };
        let negotiated = handshake(&descriptor, wishes)?;
        tracing::debug!(?negotiated, "agreed with the kernel");
        mount_point.read_ahead();
        if options.transport == Transport::Uring && !negotiated.has(init::OVER_IO_URING) {
            return Err(MountError::NoUring { reason: why_not_offered() });
        }
        let fs = fs.clone();
        let session = Self::new(fs, negotiated, options, mount_point.ended());
        let session = Arc::new(Self { sync_reach: SyncReach::of(&mount_point, &negotiated), ..session });
        let notifying = || another_end(&descriptor);
        session.page_cache.start(notifying).map_err(MountError::workers)?;
        session.processes.start().map_err(MountError::workers)?;
        let workers = ReadyWorkers::prepare(descriptor, &session, options)?;
        let path = mount_point.path().to_owned();
        Ok(Prepared { workers, path, mount_point: Arc::new(Mutex::new(mount_point)), session })
    }

    /// A session that is mounted nowhere.
    pub(crate) fn new(
        fs: Arc<F>,
        negotiated: Negotiated,
        options: &MountOptions,
        ended: Arc<AtomicBool>,
    ) -> Self {
        let counters = Arc::<RequestCounters>::default();
        let control = Arc::<Control>::default();
        let counted = counters.clone();
        control.register("requests", move || counted.to_json());
        let cache_seconds = options.cache_time.as_secs();
        let direct_io = options.direct_io.with_kernel(negotiated.minor);
        let (synchronous, sync_observer) = (options.synchronous, options.sync_observer.clone());
        let over_io_uring = negotiated.has(init::OVER_IO_URING);
        let entries = over_io_uring.then(|| fewest_entries(negotiated.transfer_bytes_max));
        let page_cache = PageCache::new(entries);
        Self {
            fs,
            negotiated,
            control,
            counters,
            cache_seconds,
            direct_io,
            synchronous,
            sync_observer,
            page_cache,
            processes: Processes::default(),
            ended,
            capability_removed: Mutex::default(),
            shut_down: AtomicBool::new(false),
            sync_reach: SyncReach::NoDevice(None),
            last_request: LastRequest::default(),
        }
    }

    /// The filesystem that is served.
    pub fn fs(&self) -> &Arc<F> {
        &self.fs
    }

    /// The result of the negotiation with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// The transport of its requests: "uring" or "classic".
    pub fn transport(&self) -> &'static str {
        if self.negotiated.has(init::OVER_IO_URING) { "uring" } else { "classic" }
    }

    /// Whether sync(2) comes here.
    pub fn sync_reach(&self) -> &SyncReach {
        &self.sync_reach
    }

    /// Sets what to do before the end of a mount with a block device: the kernel asks when nobody uses
    /// it any more, and umount(2) waits for the answer. It runs on a thread of its own. (Where the
    /// kernel does not ask, it is dropped.)
    pub fn before_the_end(&self, action: impl FnOnce() + Send + 'static) {
        self.last_request.set(Box::new(action));
    }

    pub(crate) async fn carry_out_last(&self) {
        self.last_request.carry_out().await;
    }

    /// The texts and commands that the daemon offers.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Requests by kind.
    pub fn counters(&self) -> &RequestCounters {
        &self.counters
    }

    /// How long the kernel may cache names and attributes without asking.
    pub fn cache_seconds(&self) -> u64 {
        self.cache_seconds
    }

    /// Called when the kernel has ended the connection.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Records that the kernel had a file's capabilities removed before a change to it.
    pub(crate) fn note_capability_removed(&self, ino: Ino, thread: u32) {
        *self.capability_removed.lock() = Some((ino, thread));
    }

    /// True if this file's capabilities, for this thread, were the last to be removed. Clears the
    /// record.
    pub(crate) fn take_capability_removed(&self, ino: Ino, thread: u32) -> bool {
        self.capability_removed.lock().take_if(|removed| *removed == (ino, thread)).is_some()
    }

    /// Makes later requests that read or change data fail with EIO; the mount stays.
    pub fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// True if somebody is told of syncs.
    pub(crate) fn observes_syncs(&self) -> bool {
        self.sync_observer.is_some()
    }

    /// Called when a sync has succeeded and is about to be answered.
    pub(crate) fn synced(&self, synced: Synced) {
        if let Some(observer) = &self.sync_observer {
            observer.tell(synced);
        }
    }

    pub(crate) fn page_cache(&self) -> &PageCache {
        &self.page_cache
    }

    pub(crate) fn processes(&self) -> &Processes {
        &self.processes
    }

    pub(crate) fn synchronous(&self) -> Synchronous {
        self.synchronous
    }

    pub(crate) fn direct_io(&self) -> DirectIo {
        self.direct_io
    }
}

/// A mount whose requests wait until it is served. Dropping it unmounts.
pub struct Prepared<F = Filesystem> {
    workers: ReadyWorkers,
    path: PathBuf,
    mount_point: Arc<Mutex<MountPoint>>,
    session: Arc<Session<F>>,
}

impl<F: Serve> Prepared<F> {
    /// The state shared by its threads.
    pub fn session(&self) -> &Arc<Session<F>> {
        &self.session
    }

    /// A handle to unmount from another thread, as on a signal.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::downgrade(&self.mount_point))
    }

    /// Starts answering requests.
    pub fn serve(self) -> Mounted<F> {
        let Self { workers, path, mount_point, session } = self;
        mount_point.lock().serve();
        Mounted { path, mount_point, session, workers: workers.go() }
    }
}

/// A running mount. Dropping it detaches the mount; its threads end when nobody uses it any more.
pub struct Mounted<F = Filesystem> {
    path: PathBuf,
    mount_point: Arc<Mutex<MountPoint>>,
    session: Arc<Session<F>>,
    workers: Workers,
}

impl<F: Serve> Mounted<F> {
    /// The mount point, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state shared by its threads.
    pub fn session(&self) -> &Arc<Session<F>> {
        &self.session
    }

    /// A handle to unmount from another thread, as on a signal.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::downgrade(&self.mount_point))
    }

    /// Unmounts; fails with [`MountError::Busy`] while files are open. Wait for the end with
    /// [`Mounted::run_until_unmounted`].
    pub fn unmount(&self) -> Result<(), MountError> {
        self.unmounter().unmount()
    }

    /// Waits until it has been unmounted, by anyone, and every request has been answered.
    pub fn run_until_unmounted(self) -> Result<(), MountError> {
        let Self { mount_point, workers, session, .. } = self;
        let outcome = workers.join();
        session.page_cache.end();
        // Any mount left behind is dead, however the connection ended; the drop removes it.
        drop(mount_point);
        outcome
    }
}

/// Unmounts from another thread. It does not keep the mount alive.
#[derive(Clone)]
pub struct Unmounter(Weak<Mutex<MountPoint>>);

impl Unmounter {
    /// Unmounts; fails with [`MountError::Busy`] while files are open.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.0.upgrade().map_or(Ok(()), |mount_point| mount_point.lock().unmount())
    }

    /// Detaches the mount; it ends when the last open file there is closed.
    pub fn detach(&self) -> Result<(), MountError> {
        self.0.upgrade().map_or(Ok(()), |mount_point| mount_point.lock().detach())
    }
}
