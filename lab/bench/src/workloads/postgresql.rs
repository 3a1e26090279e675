//! PostgreSQL with its defaults under `pgbench`: transactions like those of TPC-B, by eight clients.

use crate::error::During;
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt, command};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Where Debian keeps the programs of each version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Clients, and branches of the bank: with fewer branches than clients, clients wait for each other's
/// rows.
const CLIENTS: &str = "8";
/// The user and group `nobody`: PostgreSQL refuses root.
const NOBODY: u32 = 65534;
/// Seconds that making, filling, starting and stopping a database take.
const MAKE_SECONDS: f64 = 6.0;
/// The directory of the database.
const NAME: &str = "postgresql";

/// The workload.
pub struct Postgresql {
    programs: PathBuf,
    version: String,
}

/// A server; stopped when dropped.
struct Server<'a> {
    programs: &'a Postgresql,
    data: PathBuf,
    /// The server's socket and its log.
    folder: TempDir,
}

impl Postgresql {
    /// With the installed PostgreSQL.
    pub fn new() -> Result<Self, BenchError> {
        let missing = BenchError::Missing { program: "pgbench", package: "postgresql" };
        let programs = programs().ok_or(missing)?;
        let version = command::succeed(Command::new(programs.join("postgres")).arg("--version"), None)?;
        let version = version.split_whitespace().nth(2).unwrap_or_default().to_owned();
        Ok(Self { programs, version })
    }

    /// A program of PostgreSQL, as a user that it accepts.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir("/");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn start(&self, directory: &Path) -> Result<Server<'_>, BenchError> {
        let folder = tempfile::tempdir()?;
        give(folder.path())?;
        let server = Server { programs: self, data: directory.join(NAME), folder };
        server.control("start")?;
        Ok(server)
    }
}

/// The folder with PostgreSQL's programs of the newest version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = debian.collect();
    all.sort_by_key(|path| {
        path.parent().and_then(|version| version.file_name()?.to_str()?.parse::<u32>().ok())
    });
    let all = all.into_iter().rev().chain(std::env::split_paths(&path).collect::<Vec<_>>());
    all.into_iter().find(|folder| {
        ["postgres", "initdb", "pg_ctl", "pgbench"].iter().all(|name| folder.join(name).is_file())
    })
}

/// Gives a directory to the user that PostgreSQL runs as.
fn give(directory: &Path) -> Result<(), BenchError> {
    if rustix::process::geteuid().is_root() {
        chown(directory, Some(NOBODY), Some(NOBODY)).at(directory)?;
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).at(directory)
}

impl Server<'_> {
    fn control(&self, what: &str) -> Result<(), BenchError> {
        let mut command = self.programs.program("pg_ctl");
        command.arg("-D").arg(&self.data).arg("-l").arg(self.folder.path().join("log"));
        command.arg("-o").arg(format!("-k {} -c listen_addresses=", self.folder.path().display()));
        command.args(["-m", "fast", "-w", what]);
        command::succeed(&mut command, None).map(|_| ())
    }

    fn pgbench(&self, words: &[&OsStr], interrupt: &Interrupt) -> Result<String, BenchError> {
        let mut command = self.programs.program("pgbench");
        command.arg("-h").arg(self.folder.path()).args(["-U", "bench"]).args(words).arg("postgres");
        command::succeed(&mut command, Some(interrupt))
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // A server that does not stop keeps the filesystem busy, which the unmount reports.
        let _ = self.control("stop");
    }
}

/// The count of transactions and their rate, in pgbench's report.
fn parse(text: &str) -> Result<Sample, BenchError> {
    let number = |label: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
        let digits = rest.trim().split(|other: char| !other.is_ascii_digit() && other != '.').next()?;
        digits.parse::<f64>().ok().filter(|number| *number > 0.0)
    };
    let both = number("number of transactions actually processed:").zip(number("tps ="));
    let (count, rate) = both.ok_or_else(|| BenchError::Answer {
        what: "pgbench's report".into(),
        said: text.trim().to_owned(),
    })?;
    Ok(Sample { operations: count as u64, seconds: count / rate, ..Sample::default() })
}

impl Workload for Postgresql {
    fn suite(&self) -> &'static str {
        "postgresql"
    }

    fn title(&self) -> String {
        format!("PostgreSQL, pgbench, {CLIENTS} clients")
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("", Unit::PerSecond("transactions"), "transaction")]
    }

    fn reads_back(&self) -> bool {
        true
    }

    fn engine(&self) -> String {
        format!("PostgreSQL {}", self.version)
    }

    fn expected_seconds(&self, duration: Duration) -> f64 {
        duration.as_secs_f64() + MAKE_SECONDS
    }

    fn prepare(&self, _phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        let data = directory.join(NAME);
        fs::create_dir(&data).at(&data)?;
        give(&data)?;
        let mut make = self.program("initdb");
        make.arg("-D").arg(&data).args([
            "-U",
            "bench",
            "-A",
            "trust",
            "--no-locale",
            "-E",
            "UTF8",
            "--no-sync",
        ]);
        command::succeed(&mut make, Some(interrupt))?;
        let words = ["-i", "-q", "-s", CLIENTS].map(OsStr::new);
        self.start(directory)?.pgbench(&words, interrupt).map(|_| ())
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let server = self.start(directory)?;
        let seconds = pace.duration.as_secs_f64().ceil().max(1.0).to_string();
        let words = ["-n", "-c", CLIENTS, "-j", "2", "-T", &seconds].map(OsStr::new);
        parse(&server.pgbench(&words, pace.interrupt)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbenchs_report_is_read() {
        let text = "latency average = 1.7 ms\nnumber of transactions actually processed: 4700\n\
                    tps = 4700.5 (without initial connection time)\n";
        let sample = parse(text).unwrap();
        assert_eq!(sample.operations, 4700);
        assert!((sample.seconds - 0.9999).abs() < 0.001, "{sample:?}");
        assert!(parse("pgbench: error").is_err());
    }
}
