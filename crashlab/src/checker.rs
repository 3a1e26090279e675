//! Checkers: shell commands that run in a folder with the files of a state.

use crate::Error;
use crate::explore::{Case, Judge, Verdict};
use crate::export::export;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest end of a checker's output that is kept.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// The user's checker.
pub struct Checker<'a> {
    /// The command.
    pub command: String,
    /// How long it may take.
    pub timeout: Duration,
    /// An empty folder for states.
    pub folder: PathBuf,
    /// Ends it when set.
    pub stop: &'a AtomicBool,
}

impl Judge for Checker<'_> {
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, Error> {
        run_in(&self.folder, &self.command, self.timeout, self.stop, case)
    }
}

/// Writes the files of a case into a folder below `folder`, runs a shell command there, and removes them.
pub fn run_in(
    folder: &Path,
    command: &str,
    timeout: Duration,
    stop: &AtomicBool,
    case: &Case<'_>,
) -> Result<Verdict, Error> {
    let cannot = |error: io::Error| Error::Stopped(format!("the checker can't be run: {error}"));
    in_folder(folder, case, |directory| {
        let printed = folder.join(format!("printed-{}", case.worker));
        fs::write(&printed, case.printed).map_err(cannot)?;
        let mut output = tempfile::tempfile_in(folder).map_err(cannot)?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(directory);
        shell.env("CRASHLAB_DIR", directory).env("CRASHLAB_ACKED", &printed).env("CRASHLAB_STATE", case.name);
        let outputs = output.try_clone().and_then(|one| Ok((one, output.try_clone()?)));
        let (stdout, stderr) = outputs.map_err(cannot)?;
        // A process group of its own, so that processes it starts can be ended with it.
        shell.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        let mut child = shell.spawn().map_err(cannot)?;
        let status = wait(&mut child, timeout, stop).map_err(cannot)?;
        let output = end_of(&mut output).map_err(cannot)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(verdict(status, timeout, output))
    })
}

/// Writes the files of a case into a folder below `folder`, and removes it when `judge` has seen it.
pub fn in_folder(
    folder: &Path,
    case: &Case<'_>,
    judge: impl FnOnce(&Path) -> Result<Verdict, Error>,
) -> Result<Verdict, Error> {
    let directory = folder.join(format!("state-{}", case.worker));
    fs::create_dir(&directory).map_err(|error| Error::file(&directory, error))?;
    let _cleared = Cleared(&directory);
    export(case.tree, &directory)?;
    judge(&directory)
}

/// Waits for the checker; `None` if its time is up.
fn wait(child: &mut Child, timeout: Duration, stop: &AtomicBool) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    let mut pause = Duration::from_micros(500);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > timeout || stop.load(Ordering::Relaxed) {
            break None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    };
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Usually it has left no processes behind, and this fails.
        let _ = kill_process_group(group, Signal::KILL);
    }
    if status.is_none() {
        child.wait()?;
    }
    Ok(status)
}

fn verdict(status: Option<ExitStatus>, timeout: Duration, output: String) -> Verdict {
    let how = match status {
        None => format!("it took longer than {} s and was ended", timeout.as_secs_f32()),
        Some(status) if status.success() => return Verdict::Passed,
        Some(status) => match status.code() {
            Some(127) => {
                "exit code 127: there is no such command; the checker runs in the folder with the state"
                    .to_owned()
            }
            Some(code) => format!("exit code {code}"),
            None => format!("signal {} ended it", status.signal().unwrap_or(0)),
        },
    };
    let end = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    Verdict::Failed(format!("{output}{end}[{how}]"))
}

/// A directory that is removed at the end.
struct Cleared<'a>(&'a Path);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        if fs::remove_dir_all(self.0).is_err() {
            // Directories that forbid it.
            open_up(self.0);
            let _ = fs::remove_dir_all(self.0);
        }
    }
}

fn open_up(directory: &Path) {
    let _ = fs::set_permissions(directory, Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

fn end_of(output: &mut File) -> io::Result<String> {
    let len = output.metadata()?.len();
    output.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
