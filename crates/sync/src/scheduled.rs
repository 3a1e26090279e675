//! The types under a scheduler.
//!
//! An execution of the scheduler has one thread, on which tasks take turns; they switch only inside
//! the operations here. So the state below (the list of an event's listeners, the state of an
//! asynchronous lock) needs no types of the scheduler: it changes in one step, and waiting uses a
//! waker, which the scheduler knows. Each such change is preceded by a scheduling point.

pub use shuttle::future::block_on;
pub use shuttle_parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Atomic numbers.
pub mod atomic {
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// A scheduling point where no operation of this crate is one.
pub fn yield_point() {
    shuttle::thread::yield_now();
}

/// A small number that the calling thread keeps, to spread threads over shards.
pub fn thread_number() -> usize {
    shuttle::current::get_current_task().map_or(0, usize::from)
}

/// Notifies listeners.
#[derive(Default)]
pub struct Event(event_listener::Event);

impl Event {
    /// An event without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens from now on.
    pub fn listen(&self) -> event_listener::EventListener {
        yield_point();
        self.0.listen()
    }

    /// Wakes listeners until `count` of them have been notified.
    pub fn notify(&self, count: usize) -> usize {
        yield_point();
        self.0.notify(count)
    }
}

/// A cell that is set once.
#[derive(Debug)]
pub struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self(std::sync::OnceLock::new())
    }

    /// The value, if it is set.
    pub fn get(&self) -> Option<&T> {
        yield_point();
        self.0.get()
    }

    /// The value, which this call sets if it was not set before.
    pub fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
        yield_point();
        self.0.get_or_init(value)
    }

    /// Sets the value, or gives it back.
    ///
    /// # Errors
    /// It was set before.
    pub fn set(&self, value: T) -> Result<(), T> {
        yield_point();
        self.0.set(value)
    }
}

/// Locks whose waiters block no thread, and which may be held across an await.
pub mod asynchronous {
    use super::yield_point;
    use std::sync::Arc;

    pub use crate::rwlock::RwLock;
    pub use async_lock::{MutexGuard, MutexGuardArc, RwLockReadGuard, RwLockWriteGuard};

    /// A lock for one holder at a time.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(Arc<async_lock::Mutex<T>>);

    impl<T> Mutex<T> {
        /// An unlocked lock.
        pub fn new(value: T) -> Self {
            Self(Arc::new(async_lock::Mutex::new(value)))
        }

        /// Waits for the lock.
        pub async fn lock(&self) -> MutexGuard<'_, T> {
            yield_point();
            self.0.lock().await
        }

        /// Waits for the lock; the guard keeps the lock alive.
        pub async fn lock_arc(self: &Arc<Self>) -> MutexGuardArc<T> {
            yield_point();
            self.0.lock_arc().await
        }

        /// Takes the lock if it is free; the guard keeps the lock alive.
        pub fn try_lock_arc(self: &Arc<Self>) -> Option<MutexGuardArc<T>> {
            yield_point();
            self.0.try_lock_arc()
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            yield_point();
            self.0.try_lock()
        }
    }
}
