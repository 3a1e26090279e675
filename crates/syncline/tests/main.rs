//! The library, as a program uses it.

#[path = "../../../tests/support/alone.rs"]
mod alone;
mod api;
mod embedding;
mod examples;
mod forks;
mod std_shape;
mod transactions;
