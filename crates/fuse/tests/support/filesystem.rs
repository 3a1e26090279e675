//! A filesystem in memory or in an image file, for tests.

use std::path::Path;
use std::sync::Arc;
use syncline_device::{
    Background, Device, FileDevice, MemoryDevice, OpenOptions, Spawn, WorkerOptions, block_on,
};
use syncline_fs::types::Timestamp;
use syncline_fs::{Filesystem, Options};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

/// A filesystem and everything that keeps it alive.
pub struct TestFilesystem {
    /// The filesystem; its root belongs to the user who runs the test.
    pub fs: Arc<Filesystem>,
}

#[allow(dead_code, reason = "who includes this needs one or the other")]
impl TestFilesystem {
    /// A fresh, empty filesystem in memory.
    pub fn new(size_bytes: u64) -> Self {
        Self::on(MemoryDevice::new(size_bytes), true)
    }

    /// A fresh, empty filesystem in a new file.
    pub fn create(path: &Path, size_bytes: u64) -> Self {
        let options = OpenOptions::default();
        Self::on(FileDevice::create(path, Some(size_bytes), false, options, &mut |_| {}).unwrap(), true)
    }

    /// The filesystem in a file, in whatever state it was left.
    pub fn open(path: &Path) -> Self {
        Self::on(FileDevice::open(path, OpenOptions::default()).unwrap(), false)
    }

    /// A filesystem on this device, made first if it is to be a fresh one.
    pub fn on(device: Arc<dyn Device>, fresh: bool) -> Self {
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
        // SAFETY: both take nothing and cannot fail.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let root = Filesystem::initial_transaction(uid, gid, 0o777, Timestamp { seconds: 1, nanoseconds: 0 });
        if fresh {
            block_on(format(device.clone(), FormatOptions::default(), root, spawn.clone())).unwrap();
        }
        let (store, _) = block_on(Store::open(device, StoreOptions::default(), spawn.clone())).unwrap();
        let fs = block_on(Filesystem::open(store, spawn, Options::default())).unwrap();
        Self { fs }
    }

    /// Writes everything back and stops the background tasks.
    pub fn close(&self) {
        block_on(self.fs.close()).unwrap();
        block_on(self.fs.store().close()).unwrap();
    }
}
