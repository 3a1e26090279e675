//! The effects of idle hours, slow flushes and failing writes on a store.

mod bad_sector;
mod closing;
mod given_up;
mod idle;
mod kept;
mod late;
mod late_retry;
mod leaving_log;
mod left_meanwhile;
mod marker;
mod memory;
mod room;
mod slow_flush;
mod superblock;
mod support;
mod turns;
mod unreadable_log;
