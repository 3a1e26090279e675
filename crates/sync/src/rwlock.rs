//! A lock for many readers or one writer.
//!
//! This is the lock of `async-lock`, except for how readers wait. There, a reader that is woken
//! while another writer holds the lock wakes the next reader before it waits again. Two such
//! readers wake each other without a pause for as long as the writer holds the lock, and a flush
//! may take a minute. Here, readers that have to wait queue with the writers.

use crate::yield_point;
use async_lock::{RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T>(async_lock::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(async_lock::RwLock::new(value))
    }

    /// Waits to read. A waiting writer goes first.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        yield_point();
        match self.0.try_read() {
            Some(guard) => guard,
            // An upgradable reader queues with the writers. Its downgrade to an ordinary reader
            // lets the next one in.
            None => RwLockUpgradableReadGuard::downgrade(self.0.upgradable_read().await),
        }
    }

    /// Locks for reading if no writer has the lock or waits for it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        yield_point();
        self.0.try_read()
    }

    /// Waits to write.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        yield_point();
        match self.0.try_write() {
            Some(guard) => guard,
            // `write` of `async-lock` creates a listener, which costs memory and a lock, before it
            // checks for readers.
            None => self.0.write().await,
        }
    }

    /// Locks for writing if there are no readers and no writer.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        yield_point();
        self.0.try_write()
    }
}
