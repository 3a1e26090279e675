//! Hostile and damaged images.

#[path = "../../../tests/support/alone.rs"]
mod alone;
mod corpus;
mod memory;
mod repairs;
