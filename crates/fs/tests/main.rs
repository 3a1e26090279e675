//! What operations cost: memory, allocations, the log.

#[path = "../../../tests/support/alone.rs"]
mod alone;
mod amplify;
mod costs;
