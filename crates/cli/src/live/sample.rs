//! A daemon's figures at one moment.

use crate::commands::figures::DISTRIBUTIONS;
use crate::failure::{Cause, Failure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use syncline_counters::Distribution;
use syncline_fuse::control::{self, ControlError};
use syncline_fuse::mounts;

/// Why a mount that its daemon could write to is read-only.
const REMOUNTED: &str = "remounted read-only";

/// All counters and distributions of a mount.
#[derive(Clone, Debug)]
pub struct Sample {
    /// In the form of `stats --json`.
    pub stats: Value,
    /// The store's distributions, by name.
    pub distributions: BTreeMap<String, Distribution>,
    /// When they were requested.
    pub taken: Instant,
}

impl Sample {
    /// Asks the daemon behind a path.
    pub fn take(path: &Path) -> Result<Self, Failure> {
        let stats = stats(path)?;
        let distributions = parsed(&control::text(path, DISTRIBUTIONS)?)?;
        Ok(Self { stats, distributions, taken: Instant::now() })
    }

    /// Takes a later sample of a mount that is known to have been there: if it is not there any
    /// more, it was unmounted.
    pub fn take_again(path: &Path) -> Result<Self, Failure> {
        let ended = |error: ControlError| match error {
            ControlError::NotSyncline { .. } | ControlError::Open { .. } => gone(path),
            // The daemon has released the filesystem or the connection while the mount is being
            // removed.
            ControlError::Failed { ref source, .. } if is_dead(source) => gone(path),
            error => error.into(),
        };
        let stats: Value = parsed(&control::stats(path).map_err(ended)?)?;
        if stats.get("daemon").is_none() {
            return Err(gone(path));
        }
        let stats = with_mode_of_mount(path, stats);
        let distributions = parsed(&control::text(path, DISTRIBUTIONS).map_err(ended)?)?;
        Ok(Self { stats, distributions, taken: Instant::now() })
    }

    /// The number at this JSON pointer; 0 if the daemon has none.
    pub fn number(&self, pointer: &str) -> u64 {
        self.stats.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    /// The text at this JSON pointer.
    pub fn text(&self, pointer: &str) -> &str {
        self.stats.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// True if both came from the same daemon.
    pub fn is_of_same_daemon(&self, other: &Self) -> bool {
        self.number("/daemon/pid") == other.number("/daemon/pid")
    }

    /// True if the daemon can't write any more, although it was mounted for that.
    pub fn gave_up_writing(&self) -> bool {
        let reason = self.text("/read_only");
        let was_writable = self.stats.pointer("/daemon/read_only") == Some(&Value::Bool(false));
        was_writable && !reason.is_empty() && reason != REMOUNTED
    }

    /// How long the filesystem has been mounted.
    pub fn uptime(&self) -> Duration {
        Duration::from_millis(self.number("/process/uptime_ms"))
    }
}

/// The counters alone of the daemon behind a path.
pub fn stats(path: &Path) -> Result<Value, Failure> {
    Ok(with_mode_of_mount(path, parsed(&control::stats(path)?)?))
}

/// The daemon's figures, read-only where the kernel has the mount so. The daemon is not told of a
/// remount.
fn with_mode_of_mount(path: &Path, mut stats: Value) -> Value {
    let entries = path.canonicalize().and_then(|whole| Ok((mounts()?, whole)));
    let is_read_only = entries.is_ok_and(|(entries, whole)| {
        let above = entries.into_iter().filter(|entry| whole.starts_with(&entry.mount_point));
        // The last one of several at one place is the one that is seen.
        let here = above.max_by_key(|entry| entry.mount_point.components().count());
        here.is_some_and(|entry| entry.is_read_only())
    });
    if is_read_only && stats["read_only"].is_null() && stats.is_object() {
        stats["read_only"] = REMOUNTED.into();
    }
    stats
}

fn is_dead(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let dead = [Errno::NOTCONN, Errno::CONNABORTED, Errno::STALE, Errno::NODEV, Errno::IO];
    dead.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn gone(path: &Path) -> Failure {
    let text = format!("{}: it was unmounted, or its daemon has ended", path.display());
    Failure::of(Cause::MountPoint, text).next(
        "remove the rest of the mount with 'syncline umount', mount the image again, and start this command again",
    )
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::new(format!("the daemon's answer makes no sense: {error}"))
            .next("if the daemon is of another version, mount again with this one")
    })
}
