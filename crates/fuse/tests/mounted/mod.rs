//! The whole path of a request: program, kernel, daemon, filesystem and back, on a real mount.

mod asynchronous;
mod attributes;
mod clones;
mod durable;
mod files;
mod handles;
mod holes;
mod life;
mod listings;
mod mapped;
mod names;
mod pages;
mod processes;
mod switches;
mod wakes;

/// A mount whose requests come over /dev/fuse.
type TestMount = crate::support::TestMount<false>;
