//! A filesystem in memory, for tests.

use std::sync::Arc;
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fs::types::Timestamp;
use syncline_fs::{Filesystem, Options};
use syncline_store::{FormatOptions, Store, StoreOptions, format};

/// A filesystem over a device in memory, and what keeps it alive.
pub struct TestFilesystem {
    /// The filesystem; its root belongs to whoever runs the test.
    pub fs: Arc<Filesystem>,
}

impl TestFilesystem {
    /// A fresh, empty one.
    pub fn new(size_bytes: u64) -> Self {
        let device: Arc<dyn Device> = MemoryDevice::new(size_bytes);
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
        // SAFETY: both take nothing and cannot fail.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let root = Filesystem::initial_transaction(uid, gid, 0o777, Timestamp { seconds: 1, nanoseconds: 0 });
        block_on(format(device.clone(), FormatOptions::default(), root, spawn.clone())).unwrap();
        let (store, _) = block_on(Store::open(device, StoreOptions::default(), spawn.clone())).unwrap();
        let fs = block_on(Filesystem::open(store, spawn, Options::default())).unwrap();
        Self { fs }
    }

    /// Writes everything back and stops what runs in the background.
    pub fn close(&self) {
        block_on(self.fs.close()).unwrap();
        block_on(self.fs.store().close()).unwrap();
    }
}
