//! A lock that many read or one writes.
//!
//! That of `async-lock`, but for how readers wait. There, a reader that was woken while another writer is at work wakes the next reader
//! before it waits again; two of them wake each other without a pause for as long as the writer takes, and a flush may take a minute.
//! Here readers that have to wait queue with the writers.

use crate::yield_point;
use async_lock::{RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};

/// Many who read, or one who writes.
#[derive(Debug, Default)]
pub struct RwLock<T>(async_lock::RwLock<T>);

impl<T> RwLock<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Self {
        Self(async_lock::RwLock::new(value))
    }

    /// Waits to read. A writer that waits goes first.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        yield_point();
        match self.0.try_read() {
            Some(guard) => guard,
            // One that may become a writer has its turn among these, and lets the next one in when it becomes an ordinary reader.
            None => RwLockUpgradableReadGuard::downgrade(self.0.upgradable_read().await),
        }
    }

    /// Waits to write.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        yield_point();
        match self.0.try_write() {
            Some(guard) => guard,
            // That of `async-lock` listens, which takes memory and a lock, before it looks whether anybody reads.
            None => self.0.write().await,
        }
    }

    /// Writes if nobody reads or writes.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        yield_point();
        self.0.try_write()
    }
}
