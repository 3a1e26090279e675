//! An open image.

use crate::error::{Error, Result, about};
use crate::file::File;
use crate::options::{FormatOptions, ImageOptions, process_owner};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on, drive};
use syncline_fs::types::{Caller, Ino, Statfs, Timestamp};
use syncline_fs::{Clock, FsCounters, FsError, Receipt, SystemClock};
use syncline_image::{How, Image};
use syncline_store::{CountersSnapshot, Metadata, RecoveryReport, Store, StoreError, StoreOptions};

/// An open image and everything in it. A clone is another handle to the same image.
///
/// Paths start at the root of the image, with or without a leading slash; `..` and symbolic links
/// never lead out of it. Permission bits are stored but not enforced: a process that can open the
/// image owns everything in it.
///
/// All calls block. They may come from any thread (but not from a task of the engine), and wait for
/// the same operations as on a mounted filesystem.
#[derive(Clone)]
pub struct Filesystem {
    pub(crate) shared: Arc<Shared>,
}

/// The Linux errno.
const ENOENT: i32 = 2;

/// The state that all handles share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<syncline_fs::Filesystem>,
    pub(crate) caller: Caller,
    recovery: RecoveryReport,
    closed: AtomicBool,
    /// Dropped last: the engine's tasks run here.
    _background: Arc<dyn Spawn>,
}

/// Counters of an open image.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Statistics {
    /// The store's and the device's counters.
    pub store: CountersSnapshot,
    /// The filesystem's counters.
    pub filesystem: FsCounters,
}

/// Makes a filesystem on `device`; its previous contents are lost.
pub fn format_device(device: Arc<dyn Device>, options: &FormatOptions) -> Result<()> {
    let background = background()?;
    let (uid, gid) = options.owner.unwrap_or_else(process_owner);
    let created = options.created.unwrap_or_else(|| SystemClock.now());
    let root = syncline_fs::Filesystem::initial_transaction(uid, gid, options.permissions & 0o7777, created);
    let defaults = syncline_store::FormatOptions::default();
    let options = syncline_store::FormatOptions {
        node_bytes: options.node_bytes,
        metadata: if options.duplicate_metadata { Metadata::Dup } else { Metadata::Single },
        label: options.label.clone(),
        parent_pointers: options.parent_pointers,
        data_in_log: options.data_in_log,
        counted_xattrs: options.counted_xattrs,
        shared: options.shared,
        uuid: options.uuid.unwrap_or(defaults.uuid),
        hash_seed: options.hash_seed.unwrap_or(defaults.hash_seed),
        created_ns: nanoseconds(created),
        ..defaults
    };
    Ok(block_on(syncline_store::format(device, options, root, background))?)
}

fn nanoseconds(time: Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(time.nanoseconds))
}

pub(crate) fn background() -> Result<Arc<dyn Spawn>> {
    let background =
        Background::start(WorkerOptions::default()).map_err(|error| Error::Thread(Arc::new(error)))?;
    Ok(Arc::new(background))
}

impl Filesystem {
    /// Creates an image file of `size_bytes`, allocated and written in full, makes a filesystem on
    /// it and opens it. An existing file at `path` is overwritten only if it is empty.
    pub fn create(path: impl AsRef<Path>, size_bytes: u64, format: &FormatOptions) -> Result<Self> {
        Self::create_with(path, size_bytes, format, ImageOptions::default())
    }

    /// Creates and opens an image like [`create`](Self::create), with options for opening it.
    pub fn create_with(
        path: impl AsRef<Path>,
        size_bytes: u64,
        format: &FormatOptions,
        options: ImageOptions,
    ) -> Result<Self> {
        // Before there is a file.
        syncline_store::require_size(size_bytes)?;
        let how = How::new(options.device());
        let path = path.as_ref();
        let mut image = Image::create(path, Some(size_bytes), false, format.shared, &how, &mut |_| {})?;
        if format.encrypted {
            let created = image.clone();
            image = image.encrypt(path).inspect_err(|_| created.take_away())?;
        }
        format_device(image.device(), &format.clone().shared(image.has_lease()))?;
        Self::open_device(image.device(), options)
    }

    /// Opens an image file, or creates one of `size_bytes` if there is none.
    pub fn open_or_create(
        path: impl AsRef<Path>,
        size_bytes: u64,
        format: &FormatOptions,
        options: ImageOptions,
    ) -> Result<Self> {
        match Self::open(path.as_ref(), options.clone()) {
            Err(error) if error.errno() == ENOENT => Self::create_with(path, size_bytes, format, options),
            opened => opened,
        }
    }

    /// A filesystem in memory, gone with its last handle: for tests, and for data that need not
    /// last.
    ///
    /// ```
    /// let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.write("/note", "gone tomorrow")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn in_memory(size_bytes: u64) -> Result<Self> {
        let device = MemoryDevice::new(size_bytes);
        format_device(device.clone(), &FormatOptions::default())?;
        Self::open_device(device, ImageOptions::default())
    }

    /// Opens an image file or block device. After a crash it is recovered first.
    pub fn open(path: impl AsRef<Path>, options: ImageOptions) -> Result<Self> {
        // Errors of the device already name the path.
        let device = Image::open(&path, &How::new(options.device()))?.device();
        Self::open_device(device, options).map_err(about("open", &path))
    }

    /// Opens the filesystem on a device of any kind.
    pub fn open_device(device: Arc<dyn Device>, options: ImageOptions) -> Result<Self> {
        Self::open_with(options, async |store_options, spawn| Store::open(device, store_options, spawn).await)
    }

    /// Opens a store with `open`, and the filesystem in it.
    pub(crate) fn open_with(
        options: ImageOptions,
        open: impl AsyncFnOnce(
            StoreOptions,
            Arc<dyn Spawn>,
        ) -> std::result::Result<(Arc<Store>, RecoveryReport), StoreError>,
    ) -> Result<Self> {
        let background = background()?;
        let (uid, gid) = options.owner.unwrap_or_else(process_owner);
        let opened = block_on(async {
            let (store, recovery) = open(options.store, background.clone()).await?;
            let engine = syncline_fs::Filesystem::open(store, background.clone(), options.engine).await?;
            Ok::<_, Error>((engine, recovery))
        });
        let (engine, recovery) = opened?;
        let caller = Caller { uid, gid };
        let closed = AtomicBool::new(false);
        let shared = Shared { engine, caller, recovery, closed, _background: background };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Writes everything back and leaves an image that needs no recovery. Through other handles and
    /// open files, reads may still succeed afterwards but changes fail; the image stays locked
    /// until the last of them is dropped. Dropping the last handle without this call does the same,
    /// or as much of it as can be done, but can only log an error.
    pub fn close(self) -> Result<()> {
        self.shared.close()
    }

    /// The report of the recovery at opening.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.shared.recovery
    }

    /// Makes everything durable and brings the tree up to date.
    pub fn sync(&self) -> Result<()> {
        Ok(block_on(self.shared.engine.syncfs())?)
    }

    /// Makes several files durable with one batch and one flush. Changes of these files that were
    /// not logged before come back all or nothing after a crash. EFBIG, before any effect, if they
    /// have more than 64 MiB of unwritten data.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// let (table, index) = (fs.create_file("/table")?, fs.create_file("/index")?);
    /// table.write_all_at(b"row", 0)?;
    /// index.write_all_at(b"where the row is", 0)?;
    /// fs.sync_many(&[&table, &index])?;
    /// assert_eq!(fs.last_receipt().map(|receipt| receipt.cover), Some(syncline::receipt::Cover::Issued));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn sync_many(&self, files: &[&File]) -> Result<()> {
        let inodes = self.inodes(files)?;
        Ok(drive(self.shared.engine.sync_many(&inodes, self.shared.caller.uid))?)
    }

    /// Orders writes without making them durable. If anything that was written, created or changed
    /// after this call returned survives a crash, anywhere in the filesystem, then so does
    /// everything that was written to these files before the call. Waits for no flush.
    pub fn barrier(&self, files: &[&File]) -> Result<()> {
        let inodes = self.inodes(files)?;
        Ok(drive(self.shared.engine.barrier(&inodes))?)
    }

    /// The files' inodes; EXDEV if a file belongs to another filesystem.
    fn inodes(&self, files: &[&File]) -> Result<Vec<Ino>> {
        files.iter().map(|file| file.inode_in(&self.shared)).collect()
    }

    /// Sizes and counts of the whole filesystem.
    pub fn space(&self) -> Statfs {
        self.shared.engine.statfs()
    }

    /// Tells the device which blocks are free, in runs of at least `min_bytes`; returns the number
    /// of bytes. On an image file this fails with EOPNOTSUPP, because the file keeps its allocated
    /// space, unless it was opened with [`ImageOptions::punch_holes`]. Then free blocks become
    /// holes, and the host must provide the space again when they are written.
    pub fn trim(&self, min_bytes: u64) -> Result<u64> {
        Ok(block_on(self.shared.engine.store().trim(0..u64::MAX, min_bytes))?)
    }

    /// Makes the filesystem `size_bytes` large while it is in use, durably. If the image file is
    /// shorter, it is extended first, allocated and filled with zeros. Returns the new size. A
    /// crash leaves the old size or the new one.
    ///
    /// A difference of less than 64 KiB changes nothing; a smaller size is refused.
    pub fn enlarge(&self, size_bytes: u64) -> Result<u64> {
        Ok(block_on(self.shared.engine.enlarge(Some(size_bytes)))?.now_bytes)
    }

    /// The label of the image: a name for humans.
    pub fn label(&self) -> String {
        self.shared.engine.label()
    }

    /// Sets the label, at most 64 bytes without a NUL, durably.
    pub fn set_label(&self, label: &str) -> Result<()> {
        Ok(block_on(self.shared.engine.set_label(label))?)
    }

    /// The UUID of the image: a name for programs.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared.engine.uuid()
    }

    /// Sets the UUID, durably. Existing mounts continue under the new one.
    pub fn set_uuid(&self, uuid: [u8; 16]) -> Result<()> {
        Ok(block_on(self.shared.engine.set_uuid(uuid))?)
    }

    /// Every path of an inode, in the order of their bytes, found through parent pointers without a
    /// search. A path has a slash before each name; the root is "/".
    pub fn paths(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        Ok(self.shared.call(self.shared.engine.paths(ino))?)
    }

    /// Counters since the image was opened.
    pub fn statistics(&self) -> Statistics {
        let engine = &self.shared.engine;
        Statistics { store: engine.store().counters(), filesystem: engine.counters() }
    }

    /// Receipts of the last syncs (4096, unless the engine's options say otherwise), oldest first:
    /// what each had to make durable and why, which flush covered it, and the time in each stage.
    pub fn receipts(&self) -> Vec<Receipt> {
        self.shared.engine.receipts()
    }

    /// The receipt of the last sync that was answered, on any thread.
    pub fn last_receipt(&self) -> Option<Receipt> {
        self.shared.engine.last_receipt()
    }

    /// The engine below, for code that serves it in another way, as a mount does.
    #[doc(hidden)]
    pub fn engine(&self) -> &Arc<syncline_fs::Filesystem> {
        &self.shared.engine
    }
}

impl std::fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filesystem").field("recovery", &self.shared.recovery).finish_non_exhaustive()
    }
}

impl Shared {
    /// True when writes must clear setuid and setgid, as for every user but root.
    pub(crate) fn kill_privileges(&self) -> bool {
        self.caller.uid != 0
    }

    /// Runs a call: it comes wholly before or wholly after each transaction that is committed. One
    /// call makes no other one.
    pub(crate) fn call<T>(&self, work: impl Future<Output = T>) -> T {
        let work = pin!(work);
        drive(async {
            let _beside = self.engine.beside_transactions().await;
            work.await
        })
    }

    fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let closed = block_on(async {
            self.engine.close().await?;
            Ok::<_, FsError>(self.engine.store().close().await?)
        });
        if closed.is_err() {
            // The call may be repeated: nothing is lost while the handle lives.
            self.closed.store(false, Ordering::Release);
        }
        Ok(closed?)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Err(error) = self.close() else { return };
        if self.engine.has_unwritten() {
            // Nobody can try again. The rest is worth a checkpoint.
            block_on(self.engine.store().close_incomplete()).ok();
            tracing::error!("the image was closed without data that could not be written: {error}");
        } else {
            tracing::error!("the image was not closed cleanly, the next opening recovers it: {error}");
        }
    }
}

/// Converts a system time to a time of the filesystem.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            // Seconds are rounded down, and the nanoseconds count upwards from there.
            let before = before.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            Timestamp {
                seconds: -i64::try_from(before.as_secs()).unwrap_or(i64::MAX).saturating_add(borrow),
                nanoseconds: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
            }
        }
    }
}
