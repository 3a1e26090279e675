//! The workloads, one file each.

mod append;
mod git;
mod k1;
mod k2;
mod k3;
mod k4;
mod k5;
mod mail;
mod names;
mod overwrite;
mod postgresql;
mod profile;
mod read;
mod replace;
mod sqlite;

use crate::BenchError;
use crate::fio::Fio;
use crate::workload::Workload;
use sqlite::{Change, Journal};
use std::str::FromStr;

/// Groups of workloads, by their names on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suite {
    /// Random 64 KiB writes and fsyncs, with an attribute and without.
    K1,
    /// The ffsb profile.
    K2,
    /// fsync of a large directory.
    K3,
    /// Creating and removing files.
    K4,
    /// Sequential 64 KiB writes and fsyncs.
    K5,
    /// 4 KiB random overwrite and fdatasync.
    Overwrite,
    /// Small appends to an allocated log.
    Append,
    /// Maildir deliveries.
    Mail,
    /// Replacing a file by rename.
    Replace,
    /// SQLite transactions.
    Sqlite,
    /// PostgreSQL under pgbench.
    Postgresql,
    /// git commits.
    Git,
    /// Reading, and streaming writes.
    Read,
}

impl Suite {
    /// All suites, in the order in which they run.
    pub const ALL: [Self; 13] = [
        Self::K5,
        Self::K1,
        Self::K2,
        Self::K3,
        Self::K4,
        Self::Overwrite,
        Self::Append,
        Self::Mail,
        Self::Replace,
        Self::Sqlite,
        Self::Postgresql,
        Self::Git,
        Self::Read,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::K1 => "k1",
            Self::K2 => "k2",
            Self::K3 => "k3",
            Self::K4 => "k4",
            Self::K5 => "k5",
            Self::Overwrite => "overwrite",
            Self::Append => "append",
            Self::Mail => "mail",
            Self::Replace => "replace",
            Self::Sqlite => "sqlite",
            Self::Postgresql => "postgresql",
            Self::Git => "git",
            Self::Read => "read",
        }
    }

    /// Its workloads. Fails if a program is missing, and says which.
    pub fn workloads(self, scale: &Scale) -> Result<Vec<Box<dyn Workload>>, BenchError> {
        Ok(match self {
            Self::K1 => [true, false].map(|xattr| boxed(k1::K1::new(scale, xattr))).into(),
            Self::K2 => vec![boxed(k2::K2::new(scale))],
            Self::K3 => vec![boxed(k3::K3::new(scale))],
            Self::K4 => vec![boxed(k4::K4::new(scale))],
            Self::K5 => {
                let jobs: &[usize] = if scale.quick { &[1, 8, 64] } else { &[1, 8, 64, 256, 1024] };
                jobs.iter().map(|&jobs| boxed(k5::K5::new(scale, jobs))).collect()
            }
            Self::Overwrite => [(1, 1), (16, 16), (16, 1)]
                .map(|(jobs, files)| boxed(overwrite::Overwrite::new(scale, jobs, files)))
                .into(),
            Self::Append => vec![boxed(append::Append::new(scale))],
            Self::Mail => [1, 16].map(|jobs| boxed(mail::Mail::new(jobs))).into(),
            Self::Replace => vec![boxed(replace::Replace)],
            Self::Sqlite => {
                let all = [
                    (Journal::Rollback, Change::Insert),
                    (Journal::Wal, Change::Insert),
                    (Journal::Wal, Change::Update),
                ];
                let each = all.map(|(journal, change)| sqlite::Sqlite::new(journal, change).map(boxed));
                each.into_iter().collect::<Result<_, _>>()?
            }
            Self::Postgresql => vec![boxed(postgresql::Postgresql::new()?)],
            Self::Git => vec![boxed(git::Git::new()?)],
            Self::Read => vec![boxed(read::Read::new(scale)), boxed(read::Stream::new(scale))],
        })
    }
}

fn boxed(workload: impl Workload + 'static) -> Box<dyn Workload> {
    Box::new(workload)
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|suite| suite.name() == text);
        named.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|suite| suite.name()).collect();
            format!("no such workload; choose among {}, micro and all", names.join(", "))
        })
    }
}

/// The parameters that determine the size of workloads.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Size of the device.
    pub device_bytes: u64,
    /// A quick run, small and short.
    pub quick: bool,
    /// CPUs of this machine.
    pub cpus: usize,
    /// fio, unless it is missing or not wanted.
    pub fio: Option<Fio>,
    /// fs_mark, unless it is missing or not wanted.
    pub fs_mark: Option<std::path::PathBuf>,
}

impl Scale {
    /// Length of each of this many files, so that together they take two fifths of the device; a
    /// multiple of 64 KiB, and at most 1 GiB, as in the published tables.
    fn file_bytes(&self, files: usize) -> u64 {
        let each = (self.device_bytes * 2 / 5 / files as u64).min(1 << 30);
        (each - each % WRITE_BYTES).max(WRITE_BYTES)
    }
}

/// Bytes of a write of K1 and K5.
const WRITE_BYTES: u64 = 64 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Interrupt;
    use crate::workload::{Pace, Sample};
    use std::time::Duration;

    fn small() -> Scale {
        Scale { device_bytes: 24 << 20, quick: true, cpus: 2, fio: None, fs_mark: None }
    }

    /// Runs a load by a foreign program longer and longer: on a busy machine it may do nothing in a short
    /// time.
    pub(crate) fn until_something_is_done(interrupt: &Interrupt, run: impl Fn(Pace<'_>) -> Sample) -> Sample {
        let times = (0..10).map(|doubled| run(Pace::new(Duration::from_millis(60 << doubled), interrupt)));
        { times }.find(|sample| sample.operations > 0).expect("something in half a minute")
    }

    /// Runs every workload on an ordinary directory, so that none stops working unnoticed.
    #[test]
    fn all_workloads_run_anywhere() {
        let interrupt = Interrupt::default();
        for suite in Suite::ALL {
            let workloads = match suite.workloads(&small()) {
                Err(error @ BenchError::Missing { .. }) => {
                    eprintln!("skipped {}: {error}", suite.name());
                    continue;
                }
                workloads => workloads.unwrap(),
            };
            for workload in workloads {
                assert_eq!(workload.suite(), suite.name());
                let folder = tempfile::tempdir().unwrap();
                for (index, phase) in workload.phases().iter().enumerate() {
                    let name = format!("{} {} {}", workload.title(), workload.variant(), phase.name);
                    workload.prepare(index, folder.path(), &interrupt).expect(&name);
                    let sample = until_something_is_done(&interrupt, |pace| {
                        workload.run(index, folder.path(), pace).expect(&name)
                    });
                    assert!(sample.seconds > 0.0, "{name}: {sample:?}");
                    assert!(phase.unit.value(&sample) > 0.0, "{name}: {sample:?}");
                }
            }
        }
    }

    /// Runs every load that has one in a process with the library.
    #[test]
    fn loads_run_inside_the_program() {
        let interrupt = Interrupt::default();
        let mut run = Vec::new();
        for suite in Suite::ALL {
            let Ok(workloads) = suite.workloads(&small()) else { continue };
            for workload in workloads {
                let Some(embedded) = workload.embedded() else { continue };
                let folder = tempfile::tempdir().unwrap();
                let image = folder.path().join("image");
                let format = syncline::FormatOptions::default();
                syncline::Filesystem::create(&image, 64 << 20, &format).unwrap().close().unwrap();
                let name = format!("{} {}", workload.title(), workload.variant());
                let mut opened = embedded.open(&image, &interrupt).expect(&name);
                let pace = Pace::new(Duration::from_millis(60), &interrupt);
                assert!(opened.run(pace).expect(&name).operations > 0, "{name}");
                run.push(suite.name());
            }
        }
        assert!(run.contains(&"k5") && run.contains(&"mail"), "{run:?}");
        if !run.contains(&"sqlite") {
            eprintln!("skipped SQLite: sqlite3 or the extension is missing");
        }
    }

    #[test]
    fn files_fill_two_fifths_of_the_device() {
        let scale = Scale { device_bytes: 4 << 30, ..small() };
        assert_eq!(scale.file_bytes(1), 1 << 30);
        assert_eq!(scale.file_bytes(8), ((4 << 30) * 2 / 5 / 8) / WRITE_BYTES * WRITE_BYTES);
        assert_eq!(small().file_bytes(1024), WRITE_BYTES, "one write at least");
    }

    #[test]
    fn suites_are_read_by_name() {
        for suite in Suite::ALL {
            assert_eq!(suite.name().parse(), Ok(suite));
        }
    }
}
