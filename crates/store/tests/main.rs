//! The store, on devices of every kind.

#[path = "../../../tests/support/alone.rs"]
mod alone;
mod many_snapshots;
mod refused;
mod rotten_log;
mod slow_discard;
mod store;
mod troubles;
