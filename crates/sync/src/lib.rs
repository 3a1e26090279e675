//! What the engine's threads meet at: locks, atomics, events, and cells that are set once.
//!
//! Ordinarily these are the types of `parking_lot`, `std`, `event-listener` and `async-lock`, and one lock around the latter's. With
//! the feature `shuttle`, which only the workspace in `schedules/` turns on, each operation on one of them is a moment at which a
//! scheduler may let another thread go on, and what a thread waits for is known to that scheduler: one seed is one order of all.
//!
//! Counters that nobody decides by are not worth such a moment; they are those of `std` everywhere.

#[cfg(not(feature = "shuttle"))]
mod plain;
mod rwlock;
#[cfg(feature = "shuttle")]
mod scheduled;

#[cfg(not(feature = "shuttle"))]
pub use plain::{
    Event, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, asynchronous, atomic,
    block_on, thread_number, yield_point,
};
#[cfg(feature = "shuttle")]
pub use scheduled::{
    Event, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, asynchronous, atomic,
    block_on, thread_number, yield_point,
};

pub use event_listener::EventListener;
