//! The ordinary types, without a scheduler.

pub use futures_lite::future::block_on;
pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::OnceLock;

/// An event of `event-listener` that takes no memory before somebody listens. Most syncs notify
/// events that nobody waits for.
#[derive(Debug, Default)]
pub struct Event {
    listened: std::sync::atomic::AtomicBool,
    event: event_listener::Event,
}

impl Event {
    /// Without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens from now on.
    pub fn listen(&self) -> event_listener::EventListener {
        self.listened.store(true, atomic::Ordering::Relaxed);
        let listener = self.event.listen();
        // Orders the store before what the caller looks at next. The one of `event-listener` is a
        // lock, which is no fence on every machine.
        std::sync::atomic::fence(atomic::Ordering::SeqCst);
        listener
    }

    /// Wakes listeners until so many have been.
    pub fn notify(&self, count: usize) -> usize {
        // With the fence in `listen`: either this call sees the listener, or the listener sees the
        // changes made before this call.
        std::sync::atomic::fence(atomic::Ordering::SeqCst);
        if self.listened.load(atomic::Ordering::Relaxed) { self.event.notify(count) } else { 0 }
    }
}

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
