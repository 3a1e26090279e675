//! The whole path of a request: program, kernel, daemon, filesystem and back, on a real mount.

mod asynchronous;
mod attributes;
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
#[path = "../support/shell.rs"]
mod shell;
#[path = "../support/mod.rs"]
mod support;
mod switches;
mod wakes;

use shell::{as_ordinary_user, pattern};
use syncline_fuse::Transport;

/// The transport that these tests use.
const TRANSPORT: Transport = Transport::Classic;

#[test]
#[ignore = "run as a process of its own by the other tests"]
fn daemon_process() {
    support::run_daemon();
}
