//! The tests of `mounted` again, with requests over io_uring, and tests of errors that only
//! this transport can have.

#[path = "../mounted/asynchronous.rs"]
mod asynchronous;
#[path = "../mounted/attributes.rs"]
mod attributes;
#[path = "../mounted/clones.rs"]
mod clones;
#[path = "../mounted/files.rs"]
mod files;
#[path = "../mounted/holes.rs"]
mod holes;
#[path = "../mounted/life.rs"]
mod life;
#[path = "../mounted/listings.rs"]
mod listings;
#[path = "../mounted/mapped.rs"]
mod mapped;
#[path = "../mounted/names.rs"]
mod names;
#[path = "../mounted/pages.rs"]
mod pages;
#[path = "../mounted/processes.rs"]
mod processes;
mod queues;
#[path = "../mounted/switches.rs"]
mod switches;

/// A mount whose requests come over io_uring.
type TestMount = crate::support::TestMount<true>;
