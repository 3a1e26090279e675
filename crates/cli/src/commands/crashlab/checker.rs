//! The user's checker: a shell command that runs in a directory where a state is mounted, or copied
//! to if nothing can be mounted.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline_cuts::{Case, CutsError, Judge, Verdict, export};
use syncline_fuse::{MountError, MountOptions, Mounted, Session};

/// The longest end of a checker's output that is stored.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// A shell's exit codes for a command that it can't run.
const CANNOT_RUN: [i32; 2] = [126, 127];

/// Runs a checker.
pub struct Checker {
    command: String,
    timeout: Duration,
    folder: PathBuf,
    /// Nothing can be mounted here, so states are copied.
    copies: bool,
    interrupted: Arc<AtomicBool>,
}

/// A directory with a state; removed when dropped.
enum Place {
    Mounted(Option<Mounted>),
    Copied(PathBuf),
}

impl Checker {
    /// Runs `command`, for at most `timeout`, with states in `folder`.
    pub fn new(
        command: String,
        timeout: Duration,
        folder: &Path,
        copies: bool,
        interrupted: Arc<AtomicBool>,
    ) -> Self {
        Self { command, timeout, folder: folder.to_owned(), copies, interrupted }
    }

    /// Why nothing can be mounted here; `None` if it can.
    pub fn why_not_mounted(case_fs: &Arc<syncline_fs::Filesystem>, folder: &Path) -> Option<MountError> {
        let directory = folder.join("probe");
        if let Err(error) = fs::create_dir(&directory) {
            return Some(MountError::Workers { source: Arc::new(error) });
        }
        match mount(case_fs, &directory) {
            Ok(mounted) => {
                drop(Place::Mounted(Some(mounted)));
                None
            }
            Err(error) => Some(error),
        }
    }

    fn place(&self, case: &Case<'_>) -> Result<(Place, PathBuf), CutsError> {
        let directory = self.folder.join(format!("state-{}", case.worker));
        let failed = |error: std::io::Error| {
            CutsError::Stopped(format!("cannot use {}: {error}", directory.display()))
        };
        if self.copies {
            fs::create_dir(&directory).map_err(failed)?;
            let place = Place::Copied(directory.clone());
            export(case.fs.engine(), &directory)?;
            return Ok((place, directory));
        }
        match fs::create_dir(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let mounted = mount(case.fs.engine(), &directory)
            .map_err(|error| CutsError::Stopped(format!("cannot mount a state: {error}")))?;
        Ok((Place::Mounted(Some(mounted)), directory))
    }

    fn start(&self, case: &Case<'_>, directory: &Path, output: &File) -> std::io::Result<Child> {
        let printed = self.folder.join(format!("printed-{}", case.worker));
        fs::write(&printed, case.printed)?;
        Command::new("sh")
            .arg("-c")
            .arg(&self.command)
            .current_dir(directory)
            .env("SYNCLINE_CRASHLAB_DIR", directory)
            .env("SYNCLINE_CRASHLAB_ACKED", &printed)
            .env("SYNCLINE_CRASHLAB_STATE", case.state.to_string())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            // A process group of its own, so that processes it starts can be ended with it.
            .process_group(0)
            .spawn()
    }

    /// Waits for the checker; `None` if its time is up.
    fn wait(&self, child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        let mut pause = Duration::from_micros(500);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if started.elapsed() > self.timeout || self.interrupted.load(Ordering::Relaxed) {
                break None;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        };
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // Processes that it left behind would keep the mount busy. Usually there are none, and
            // this fails.
            let _ = kill_process_group(group, Signal::KILL);
        }
        if status.is_none() {
            child.wait()?;
        }
        Ok(status)
    }

    fn verdict(&self, status: Option<ExitStatus>, output: String) -> Result<Verdict, CutsError> {
        let how = match status {
            _ if self.interrupted.load(Ordering::Relaxed) => return Ok(Verdict::Passed),
            None => format!("it took longer than {} s and was ended", self.timeout.as_secs_f32()),
            Some(status) if status.success() => return Ok(Verdict::Passed),
            Some(status) => match status.code() {
                Some(code) if CANNOT_RUN.contains(&code) => {
                    let text = format!(
                        "the checker can't be run (exit code {code}): {}; it runs in the recovered tree, so name it with an absolute path",
                        output.trim()
                    );
                    return Err(CutsError::Stopped(text));
                }
                Some(code) => format!("exit code {code}"),
                None => format!("signal {} ended it", status.signal().unwrap_or(0)),
            },
        };
        Ok(Verdict::Failed(format!(
            "{output}{}[{how}]",
            if output.is_empty() || output.ends_with('\n') { "" } else { "\n" }
        )))
    }
}

impl Judge for Checker {
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, CutsError> {
        let stopped = |error: std::io::Error| CutsError::Stopped(format!("cannot run the checker: {error}"));
        let mut output = tempfile::tempfile_in(&self.folder).map_err(stopped)?;
        let (place, directory) = self.place(case)?;
        let mut child = self.start(case, &directory, &output).map_err(stopped)?;
        let status = self.wait(&mut child).map_err(stopped)?;
        drop(place);
        let output = end_of(&mut output).map_err(stopped)?;
        self.verdict(status, output)
    }
}

fn mount(fs: &Arc<syncline_fs::Filesystem>, directory: &Path) -> Result<Mounted, MountError> {
    let mut options = MountOptions::new("crashlab");
    // These mounts are short-lived and several at once, so no thread for each CPU.
    options.workers = 1;
    options.pin_workers = false;
    Session::mount(fs.clone(), directory, &options)
}

fn end_of(output: &mut File) -> std::io::Result<String> {
    let len = output.metadata()?.len();
    output.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Drop for Place {
    fn drop(&mut self) {
        match self {
            Self::Mounted(mounted) => {
                let Some(mounted) = mounted.take() else { return };
                // A killed process releases the mount a moment later.
                for _ in 0..200 {
                    match mounted.unmount() {
                        Ok(()) => {
                            let _ = mounted.run_until_unmounted();
                            return;
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(5)),
                    }
                }
                tracing::warn!("a state is still in use; its mount goes out of sight");
            }
            Self::Copied(directory) => drop(fs::remove_dir_all(directory)),
        }
    }
}
