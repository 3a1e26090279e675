//! The whole way of a request: program, kernel, daemon, filesystem and back, on a real mount.

mod attributes;
mod files;
mod life;
mod names;
#[path = "../support/mod.rs"]
mod support;

use std::process::Command;
use support::ORDINARY_USER;

#[test]
#[ignore = "run as a process of its own by the other tests"]
fn daemon_process() {
    support::run_daemon();
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(31).wrapping_add(index >> 9).wrapping_add(seed)) as u8).collect()
}

/// Runs a shell command as an ordinary user.
fn as_ordinary_user(script: &str) -> std::process::Output {
    use std::os::unix::process::CommandExt;
    Command::new("sh").arg("-c").arg(script).uid(ORDINARY_USER).gid(ORDINARY_USER).output().unwrap()
}
