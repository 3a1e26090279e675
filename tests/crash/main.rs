//! The daemon ends in the middle of writes; mounted again, nothing acknowledged is lost. And users look at the power
//! cuts of their own programs.

#[path = "../support/mod.rs"]
mod support;

mod crashlab;
mod killed;
mod signals;
mod writers;
