//! Mounts that are removed again, however the measurement ends.

use crate::command::{self, Answer};
use crate::contestant::{Contestant, Peer};
use crate::counts::{Counts, daemon_stats};
use crate::error::During;
use crate::{BenchError, null::READY};
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Seconds that a daemon may take for its last checkpoint.
const CHECKPOINT_SECONDS: &str = "120";
/// How often, and at what interval, to retry a busy unmount.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// The server of a mount.
enum Server {
    /// A daemon of Syncline's program.
    Daemon { program: PathBuf, pid: Option<i64> },
    /// The kernel.
    Kernel,
    /// A process of this program that keeps nothing, and unmounts when its standard input ends: it
    /// can't outlive the measurement.
    Null(Child),
}

/// A mount; dropping it unmounts.
pub struct Mounted {
    directory: PathBuf,
    server: Server,
    mounted: bool,
}

impl Mounted {
    /// Mounts an image with Syncline's own program, as a user would. A refusal is
    /// [`BenchError::Program`] with its exit code.
    pub fn syncline(
        program: &Path,
        image: &Path,
        directory: &Path,
        options: &[OsString],
    ) -> Result<Self, BenchError> {
        let mut mount = Command::new(program);
        mount.arg("mount").arg(image).arg(directory).args(options);
        run_program(&mut mount)?;
        let server = Server::Daemon { program: program.to_owned(), pid: None };
        let mut mounted = Self { directory: directory.to_owned(), server, mounted: true };
        let daemon = daemon_stats(directory)?["daemon"]["pid"].as_i64();
        mounted.server = Server::Daemon { program: program.to_owned(), pid: daemon };
        Ok(mounted)
    }

    /// Mounts a filesystem of the kernel.
    pub fn kernel(peer: Peer, device: &Path, directory: &Path) -> Result<Self, BenchError> {
        let mut mount = Command::new("mount");
        mount.args(["-t", peer.filesystem_type()]).arg(device).arg(directory);
        command::succeed(&mut mount, None)?;
        Ok(Self { directory: directory.to_owned(), server: Server::Kernel, mounted: true })
    }

    /// Mounts the filesystem that keeps nothing, served by a process of its own, as Syncline's is: this
    /// program with the command `bench-null`.
    pub fn null(directory: &Path, options: &[OsString]) -> Result<Self, BenchError> {
        let program = std::env::current_exe()?;
        let mut null = Command::new(&program);
        null.arg("bench-null").arg(directory).args(options);
        let mut said = tempfile::tempfile()?;
        null.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said.try_clone()?);
        let mut child = null.spawn().during(|| format!("cannot run {}", program.display()))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it was asked for")).read_line(&mut line)?;
        if line.trim() != READY {
            let status = child.wait()?;
            return Err(refused(&Answer { status, out: line, err: command::text(&mut said)? }));
        }
        Ok(Self { directory: directory.to_owned(), server: Server::Null(child), mounted: true })
    }

    /// Mounts a contestant's filesystem; the options are for contestants behind FUSE.
    pub fn contestant(
        contestant: &Contestant,
        program: &Path,
        source: &Path,
        directory: &Path,
        options: &[OsString],
    ) -> Result<Self, BenchError> {
        match contestant {
            Contestant::Syncline(variant) => {
                // A variant's own options come last, so they win.
                let options = [options, &variant.mount_options()].concat();
                let program = variant.program().unwrap_or(program);
                Self::syncline(program, source, directory, &options)
            }
            Contestant::Peer(peer) => Self::kernel(*peer, source, directory),
            Contestant::Null(null) => Self::null(directory, &[options, &null.options(source)].concat()),
        }
    }

    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The process that serves it, if there is one.
    pub fn daemon(&self) -> Option<i64> {
        match &self.server {
            Server::Daemon { pid, .. } => *pid,
            Server::Kernel => None,
            Server::Null(child) => Some(child.id().into()),
        }
    }

    /// Syncline's own count of its requests to the device so far.
    pub fn daemon_counts(&self) -> Result<Option<Counts>, BenchError> {
        match self.server {
            Server::Daemon { .. } => Counts::from_daemon(&self.directory).map(Some),
            Server::Kernel | Server::Null(_) => Ok(None),
        }
    }

    /// Writes back everything that is not on the device yet, so that it is not counted with later
    /// work.
    pub fn settle(&self) -> Result<(), BenchError> {
        let directory = std::fs::File::open(&self.directory).at(&self.directory)?;
        rustix::fs::syncfs(&directory).at(&self.directory)?;
        if let Server::Daemon { .. } = self.server {
            // The kernel does not pass syncfs on to FUSE.
            syncline_fuse::control::sync(&self.directory)?;
        }
        Ok(())
    }

    /// Unmounts, and waits until everything is on the device.
    pub fn end(mut self) -> Result<(), BenchError> {
        self.unmount()?;
        self.mounted = false;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), BenchError> {
        match &mut self.server {
            Server::Daemon { program, .. } => {
                let mut umount = Command::new(program);
                umount.arg("umount").arg(&self.directory).args(["--timeout", CHECKPOINT_SECONDS]);
                run_program(&mut umount)
            }
            Server::Kernel => self.unmount_kernel(),
            Server::Null(child) => {
                // This closes its standard input.
                let status = child.wait()?;
                let said = || format!("the null filesystem ended with {status}");
                status.success().then_some(()).ok_or_else(|| BenchError::Program { code: 1, said: said() })
            }
        }
    }

    fn unmount_kernel(&self) -> Result<(), BenchError> {
        for _ in 1..TRIES {
            let answer = command::run(Command::new("umount").arg(&self.directory), None)?;
            if answer.status.success() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        command::succeed(Command::new("umount").arg(&self.directory), None).map(|_| ())
    }

    /// Detaches the mount, which is gone when nothing uses it any more; kills a remaining daemon.
    fn abandon(&mut self) {
        let (program, options) =
            if rustix::process::geteuid().is_root() { ("umount", "-l") } else { ("fusermount3", "-uz") };
        // If even this fails there is nothing left to try.
        let _ = command::run(Command::new(program).arg(options).arg(&self.directory), None);
        if let Server::Null(child) = &mut self.server {
            let _ = child.kill();
            return;
        }
        let pid = self.daemon().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted && self.unmount().is_err() {
            self.abandon();
        }
    }
}

/// Runs Syncline's own program; its message already says what is wrong and what to do.
pub fn run_program(command: &mut Command) -> Result<(), BenchError> {
    let answer = command::run(command, None)?;
    if answer.status.success() { Ok(()) } else { Err(refused(&answer)) }
}

fn refused(answer: &Answer) -> BenchError {
    let said = answer.said();
    let said =
        said.strip_prefix("syncline: ").or(said.strip_prefix("syncline-lab: ")).unwrap_or(&said).to_owned();
    let code = answer.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    BenchError::Program { code, said }
}
