//! The tests of `mounted` once more, with requests over io_uring, and tests of errors that only
//! this transport can have.

#[path = "../mounted/asynchronous.rs"]
mod asynchronous;
#[path = "../mounted/attributes.rs"]
mod attributes;
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
#[path = "../support/shell.rs"]
mod shell;
#[path = "../support/mod.rs"]
mod support;
#[path = "../mounted/switches.rs"]
mod switches;

use shell::{as_ordinary_user, pattern};
use syncline_fuse::Transport;

/// The transport that these tests use.
const TRANSPORT: Transport = Transport::Uring;

#[test]
#[ignore = "run as a process of its own by the other tests"]
fn daemon_process() {
    support::run_daemon();
}
