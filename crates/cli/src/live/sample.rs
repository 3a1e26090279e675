//! What a daemon says at one moment.

use crate::commands::figures::DISTRIBUTIONS;
use crate::failure::{Cause, Failure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use syncline_fuse::control::{self, ControlError};
use syncline_store::Distribution;

/// All counters and distributions of a mount.
#[derive(Clone, Debug)]
pub struct Sample {
    /// As `stats --json` has them.
    pub stats: Value,
    /// Those of the store, by name.
    pub distributions: BTreeMap<String, Distribution>,
    /// When they were asked for.
    pub taken: Instant,
}

impl Sample {
    /// Asks the daemon behind a path.
    pub fn take(path: &Path) -> Result<Self, Failure> {
        let stats = parsed(&control::stats(path)?)?;
        let distributions = parsed(&control::text(path, DISTRIBUTIONS)?)?;
        Ok(Self { stats, distributions, taken: Instant::now() })
    }

    /// The same, once a first sample has shown that a mount is there: if it is not any more, it was unmounted.
    pub fn take_again(path: &Path) -> Result<Self, Failure> {
        let ended = |error: ControlError| match error {
            ControlError::NotSyncline { .. } | ControlError::Open { .. } => gone(path),
            // The daemon has let go of the filesystem, or of the connection, while the mount is being taken away.
            ControlError::Failed { ref source, .. } if is_dead(source) => gone(path),
            error => error.into(),
        };
        let stats: Value = parsed(&control::stats(path).map_err(ended)?)?;
        if stats.get("daemon").is_none() {
            return Err(gone(path));
        }
        let distributions = parsed(&control::text(path, DISTRIBUTIONS).map_err(ended)?)?;
        Ok(Self { stats, distributions, taken: Instant::now() })
    }

    /// A number, by its place; 0 where this daemon has none.
    pub fn number(&self, pointer: &str) -> u64 {
        self.stats.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    /// A text, by its place.
    pub fn text(&self, pointer: &str) -> &str {
        self.stats.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// True when the same daemon told both.
    pub fn is_of_same_daemon(&self, other: &Self) -> bool {
        self.number("/daemon/pid") == other.number("/daemon/pid")
    }

    /// How long the mount has been there.
    pub fn uptime(&self) -> Duration {
        Duration::from_millis(self.number("/process/uptime_ms"))
    }
}

fn is_dead(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let dead = [Errno::NOTCONN, Errno::CONNABORTED, Errno::STALE, Errno::NODEV, Errno::IO];
    dead.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn gone(path: &Path) -> Failure {
    let text = format!("{}: it was unmounted, or its daemon has ended", path.display());
    Failure::of(Cause::MountPoint, text).next("mount it again, and begin anew")
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::new(format!("the daemon's answer makes no sense: {error}"))
            .next("if the daemon is of another version, mount again with this one")
    })
}
