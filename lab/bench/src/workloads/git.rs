//! Commits to a git repository with `core.fsync=all`: each is synced whole, objects, index and
//! references.

use crate::error::During;
use crate::jobs::{Job, drive};
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt, command};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file that each commit changes.
const NAME: &str = "counter";

/// The workload.
pub struct Git {
    program: PathBuf,
    version: String,
}

impl Git {
    /// With the installed git.
    pub fn new() -> Result<Self, BenchError> {
        let program = command::require("git", "git")?;
        let version = command::succeed(Command::new(&program).arg("version"), None)?;
        let version = version.split_whitespace().nth(2).unwrap_or_default().to_owned();
        Ok(Self { program, version })
    }

    /// git in the directory, with nobody's settings but these.
    fn git(&self, directory: &Path) -> Command {
        let mut git = Command::new(&self.program);
        git.current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        for setting in [
            "core.fsync=all",
            "gc.auto=0",
            "user.name=bench",
            "user.email=bench@localhost",
            "commit.gpgsign=false",
        ] {
            git.arg("-c").arg(setting);
        }
        git
    }

    fn commit(&self, directory: &Path, job: &mut Job<'_>) -> io::Result<()> {
        for number in 0_u64.. {
            if !job.goes_on() {
                break;
            }
            fs::write(directory.join(NAME), number.to_string())?;
            let mut commit = self.git(directory);
            commit.args(["commit", "-q", "-a", "-m"]).arg(number.to_string());
            let output = job.time(|| commit.output())?;
            if !output.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
            job.done(0);
        }
        Ok(())
    }
}

impl Workload for Git {
    fn suite(&self) -> &'static str {
        "git"
    }

    fn title(&self) -> String {
        "git commit of one file, core.fsync=all".into()
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("", Unit::PerSecond("commits"), "commit")]
    }

    fn reads_back(&self) -> bool {
        true
    }

    fn engine(&self) -> String {
        format!("git {}", self.version)
    }

    fn prepare(&self, _phase: usize, directory: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        let path = directory.join(NAME);
        fs::write(&path, "new").at(&path)?;
        for words in [&["init", "-q", "."][..], &["add", NAME], &["commit", "-q", "-m", "new"]] {
            command::succeed(self.git(directory).args(words), Some(interrupt))?;
        }
        Ok(())
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        drive(vec![()], pace, |(), job| self.commit(directory, job))
    }
}
