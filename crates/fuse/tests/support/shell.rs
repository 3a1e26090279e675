//! Helpers that the tests on mounts share.

use super::ORDINARY_USER;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `len` bytes that vary with position and seed.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(31).wrapping_add(index >> 9).wrapping_add(seed)) as u8).collect()
}

/// Runs a shell command as an ordinary user.
pub fn as_ordinary_user(script: &str) -> std::process::Output {
    Command::new("sh").arg("-c").arg(script).uid(ORDINARY_USER).gid(ORDINARY_USER).output().unwrap()
}

/// Drops all of the kernel's caches.
pub struct Caches(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Caches {
    /// Waits until no other test of this program drops caches, and excludes them while this lives.
    pub fn alone() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        Self(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the kernel drop everything it can.
    pub fn drop_all(&self) {
        std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    }
}
