//! Running other programs: found also in root's directories, and stopped when the user interrupts.

use crate::error::During;
use crate::{BenchError, Interrupt};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Directories of root's programs, searched even if PATH does not name them.
const SYSTEM_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// How often a running program is polled.
const POLL: Duration = Duration::from_millis(10);

/// Where a program is, if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_PATHS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Where a required program is.
pub fn require(program: &'static str, package: &'static str) -> Result<PathBuf, BenchError> {
    find(program).ok_or(BenchError::Missing { program, package })
}

/// The result of a program.
#[derive(Debug)]
pub struct Answer {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Answer {
    /// Its message after a failure, on one line.
    pub fn said(&self) -> String {
        let text = if self.err.trim().is_empty() { &self.out } else { &self.err };
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Runs a command to its end, or until the user interrupts. Its output goes to files, so no pipe
/// fills up.
pub fn run(command: &mut Command, interrupt: Option<&Interrupt>) -> Result<Answer, BenchError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let mut child = command.spawn().during(|| format!("cannot run {name}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupt.is_some_and(Interrupt::raised) {
            child.kill()?;
            child.wait()?;
            return Err(BenchError::Interrupted);
        }
        std::thread::sleep(POLL);
    };
    Ok(Answer { status, out: text(&mut out)?, err: text(&mut err)? })
}

/// Runs a command that must succeed; returns its standard output.
pub fn succeed(command: &mut Command, interrupt: Option<&Interrupt>) -> Result<String, BenchError> {
    let answer = run(command, interrupt)?;
    if answer.status.success() {
        return Ok(answer.out);
    }
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    Err(BenchError::Command { program: program.to_string_lossy().into_owned(), said: answer.said() })
}

/// Everything that was written to a file.
pub(crate) fn text(file: &mut File) -> Result<String, BenchError> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn output_and_failure_are_told() {
        assert_eq!(succeed(Command::new("echo").arg("word"), None).unwrap(), "word\n");
        let failed = succeed(Command::new("sh").args(["-c", "echo two; echo 'a  b' >&2; exit 3"]), None);
        assert_eq!(failed.unwrap_err().to_string(), "sh failed: a b");
    }

    #[test]
    fn an_interrupt_ends_what_runs() {
        let (interrupt, started) = (Interrupt::default(), Instant::now());
        interrupt.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        let ended = run(Command::new("sleep").arg("60"), Some(&interrupt));
        assert!(matches!(ended, Err(BenchError::Interrupted)));
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = require("mkfs.no-such-filesystem", "no-such-package").unwrap_err();
        assert!(error.to_string().contains("apt install no-such-package"));
    }
}
