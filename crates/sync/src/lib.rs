//! Synchronization of the engine's threads: locks, atomics, events, and cells that are set once.
//!
//! Normally these are the types of `parking_lot`, `std`, `event-listener` and `async-lock`, and a
//! wrapper around one of the latter's locks. The feature `shuttle`, which only the workspace in
//! `lab/schedules/` turns on, puts them under a scheduler. Then each operation on one of them is a
//! scheduling point, at which the scheduler may run another thread, and the scheduler knows what
//! each thread waits for: one seed determines the order of all operations.
//!
//! Counters on which no decision depends need no scheduling points; they are those of `std`
//! everywhere.

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
