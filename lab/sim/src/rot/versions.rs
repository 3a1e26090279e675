//! The contents of every block before its last write.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Completion, Device, MemoryDevice};
use syncline_format::BlockAddr;

/// A memory device that keeps the previous contents of each block.
pub struct Versions {
    device: Arc<MemoryDevice>,
    /// Contents of a block before the last write that changed it.
    older: Mutex<HashMap<BlockAddr, Bytes>>,
}

impl Versions {
    /// Keeps previous contents from now on.
    pub fn of(device: Arc<MemoryDevice>) -> Arc<Self> {
        Arc::new(Self { device, older: Mutex::default() })
    }

    /// The current contents of the device below.
    pub fn snapshot(&self) -> Arc<MemoryDevice> {
        self.device.snapshot()
    }

    /// Contents of a block before the last write that changed it, if there was one.
    pub fn before_last_write(&self, addr: BlockAddr) -> Option<Bytes> {
        self.older.lock().get(&addr).cloned()
    }

    /// All blocks that were written, in order.
    pub fn written(&self) -> Vec<BlockAddr> {
        let mut written: Vec<_> = self.older.lock().keys().copied().collect();
        written.sort_unstable();
        written
    }
}

impl Device for Versions {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.device.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let mut older = self.older.lock();
        let blocks = bufs.iter().flat_map(|buf| buf.chunks(BLOCK_BYTES));
        for (addr, block) in (offset / BLOCK_BYTES as u64..).zip(blocks) {
            if (addr + 1) * BLOCK_BYTES as u64 <= self.device.size_bytes() {
                let before = super::block_of(&self.device, addr);
                if before != block {
                    older.insert(addr, before.into());
                }
            }
        }
        drop(older);
        self.device.write(offset, bufs, done);
    }

    fn flush(&self, done: Completion<()>) {
        self.device.flush(done);
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.device.discard(offset, len_bytes, done);
    }
}
