//! The daemon ends in the middle of writes; mounted again, nothing acknowledged is lost.

#[path = "../support/mod.rs"]
mod support;

mod killed;
mod signals;
mod writers;
