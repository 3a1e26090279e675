//! What idle hours, slow flushes and failing writes do to a store.

mod bad_sector;
mod idle;
mod late_retry;
mod slow_flush;
mod superblock;
mod support;
