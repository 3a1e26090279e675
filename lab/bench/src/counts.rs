//! Requests that reached the device, counted in the same way for all contestants, and their cost in
//! CPU time.

use crate::BenchError;
use crate::error::During;
use serde::Serialize;
use serde_json::Value;
use std::ops::Sub;
use std::path::{Path, PathBuf};
use syncline_fuse::control;

/// The kernel's unit, whatever the device's block size.
const SECTOR_BYTES: u64 = 512;

/// Requests that a device has served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Cache flushes.
    pub flushes: u64,
    /// Writes. The block layer also counts a flush that is a request of its own here (as all of
    /// Syncline's flushes are).
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            flushes: self.flushes - before.flushes,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
        }
    }
}

impl Counts {
    /// From the text of /sys/block/NAME/stat (Documentation/admin-guide/iostats.rst); kernels
    /// before 5.5 count no flushes.
    pub fn from_block_stat(text: &str) -> Result<Self, BenchError> {
        let no_sense =
            || BenchError::Answer { what: "the device's statistics".into(), said: text.trim().to_owned() };
        let fields: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        match fields.map_err(|_| no_sense())?.as_slice() {
            [_, _, _, _, writes, _, sectors, _, _, _, _, _, _, _, _, flushes, ..] => {
                Ok(Self { flushes: *flushes, writes: *writes, write_bytes: sectors * SECTOR_BYTES })
            }
            _ => Err(no_sense()),
        }
    }

    /// From the daemon's own counters, behind a mount.
    pub fn from_daemon(directory: &Path) -> Result<Self, BenchError> {
        let stats = daemon_stats(directory)?;
        let get = |name: &str| {
            stats["store"][name].as_u64().ok_or_else(|| BenchError::Answer {
                what: "the daemon's counters".into(),
                said: format!("{name} is missing"),
            })
        };
        Ok(Self {
            flushes: get("flushes_issued")?,
            writes: get("device_writes")?,
            write_bytes: get("device_write_bytes")?,
        })
    }
}

/// Where the counts are read from.
#[derive(Clone, Debug)]
pub enum Source {
    /// /sys/block/NAME/stat of a loop device.
    Block(PathBuf),
    /// The daemon behind the mount.
    Daemon,
    /// There is no device, so nothing is counted.
    Nowhere,
}

impl Source {
    /// For a block device.
    pub fn of_device(device: &Path) -> Self {
        let name = device.file_name().unwrap_or_default();
        Self::Block(Path::new("/sys/block").join(name).join("stat"))
    }

    /// The current counts for the filesystem mounted at `directory`.
    pub fn read(&self, directory: &Path) -> Result<Counts, BenchError> {
        match self {
            Self::Block(path) => Counts::from_block_stat(&std::fs::read_to_string(path).at(path)?),
            Self::Daemon => Counts::from_daemon(directory),
            Self::Nowhere => Ok(Counts::default()),
        }
    }
}

/// All statistics of a daemon.
pub fn daemon_stats(directory: &Path) -> Result<Value, BenchError> {
    let text = control::stats(directory)?;
    serde_json::from_str(&text)
        .map_err(|error| BenchError::Answer { what: "the daemon's answer".into(), said: error.to_string() })
}

/// CPU time of this process, of the children it has waited for, and of a daemon, in seconds. Work
/// on the kernel's own threads is not included.
pub fn cpu_seconds(daemon: Option<i64>) -> f64 {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let own = std::fs::read_to_string("/proc/self/stat").ok();
    let other = daemon.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    let spent: u64 = [own, other].iter().flatten().filter_map(|stat| cpu_ticks(stat)).sum();
    spent as f64 / ticks
}

/// User and system time, including that of children, from a line of proc(5)'s `stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name may contain anything, so count the fields that follow its end.
    let (_, rest) = stat.rsplit_once(") ")?;
    let times: Vec<u64> =
        rest.split_whitespace().skip(11).take(4).map_while(|field| field.parse().ok()).collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "    7456      679  1627559     3176  4831080  1016300 404883013  3409531        0   631572  3741292      344        0    44032      429  1053928   328155\n";

    #[test]
    fn a_block_devices_statistics_are_read() {
        let counts = Counts::from_block_stat(STAT).unwrap();
        assert_eq!(counts, Counts { flushes: 1_053_928, writes: 4_831_080, write_bytes: 404_883_013 * 512 });
        let later = Counts { flushes: 1_053_930, writes: 4_831_084, write_bytes: 404_883_021 * 512 };
        assert_eq!(later - counts, Counts { flushes: 2, writes: 4, write_bytes: 4096 });
    }

    #[test]
    fn statistics_without_flushes_are_refused() {
        let old = STAT.split_whitespace().take(11).collect::<Vec<_>>().join(" ");
        assert!(Counts::from_block_stat(&old).is_err());
        assert!(Counts::from_block_stat("1 2 many").is_err());
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194560 100 0 0 0 30 12 5 3 20 0 1 0 100 1000 10 184467";
        assert_eq!(cpu_ticks(stat), Some(50));
        assert_eq!(cpu_ticks("12 (cut) S 1"), None);
    }
}
