//! The ordinary types, without a scheduler.

pub use event_listener::Event;
pub use futures_lite::future::block_on;
pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::OnceLock;

/// Atomic numbers.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// Locks whose waiters block no thread, and which may be held across an await.
pub mod asynchronous {
    pub use crate::rwlock::RwLock;
    pub use async_lock::{Mutex, MutexGuard, MutexGuardArc, RwLockReadGuard, RwLockWriteGuard};
}

/// A scheduling point where no operation of this crate is one; does nothing here.
#[inline(always)]
pub fn yield_point() {}

/// A small number that the calling thread keeps, to spread threads over shards.
pub fn thread_number() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
