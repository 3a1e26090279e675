//! Runs a program in a mount of its own, over a copy of a folder, and records what it does.

use crate::Error;
use crate::action::Action;
use crate::export::import;
use crate::kernel;
use crate::leftovers;
use crate::output::Output;
use crate::recording::Recorder;
use crate::serve::Recorded;
use crate::unwind::{Callers, Mounted, Unwinder};
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// How long other processes may keep printing once the program has ended.
const PRINT: Duration = Duration::from_secs(1);
/// How long they may keep using the mount.
const LEAVE: Duration = Duration::from_secs(5);
/// Set in the environment of a process that has a mount namespace of its own.
pub const NAMESPACE: &str = "CRASHLAB_NAMESPACE";
/// Runs a program without the capabilities that a user has in a namespace of its own.
pub const WITHOUT_CAPABILITIES: &[&str] = &["setpriv", "--ambient-caps=-all", "--inh-caps=-all", "--"];
/// End of the names of recordings.
pub const SUFFIX: &str = ".crashlab";

/// Variables to set, or to remove, for a program.
pub type Environment = Vec<(OsString, Option<OsString>)>;

/// How a recording went.
#[derive(Debug)]
pub struct Outcome {
    /// The program's exit code; 128 plus the number of the signal that ended it.
    pub exit_code: i32,
    /// Changes and syncs recorded.
    pub actions: u64,
    /// Processes that the program left behind still use the mount.
    pub is_in_use: bool,
    /// Why sync(2), syncfs(2) and sync_file_range(2) were not seen.
    pub unseen: Option<io::Error>,
}

/// Copies `folder` into a mount in memory, runs `command` there, and writes what it does into `file`. The
/// mount covers the folder itself if `in_place`, which needs a mount namespace of its own; otherwise it is
/// somewhere else. Setting `stop` ends the program.
pub fn record(
    folder: &Path,
    command: &[OsString],
    environment: Environment,
    file: File,
    in_place: bool,
    stop: &AtomicBool,
) -> Result<Outcome, Error> {
    let own = file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    let own = own.map_err(|error| Error::file(folder, error))?;
    let recorder = Recorder::new(file).map_err(|error| Error::file(folder, error))?;
    let recorder = Arc::new(recorder);
    let skip = |entry: &DirEntry| {
        let is_recording = entry.file_name().as_encoded_bytes().ends_with(SUFFIX.as_bytes());
        let is_own = || entry.metadata().is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == own);
        is_recording && entry.path().parent() == Some(folder) || is_own()
    };
    let (tree, next_ino) = import(folder, Some(&recorder), skip, stop)?;
    recorder.record(0, Action::Begin, &[]);
    let before = recorder.actions();
    let elsewhere = tempfile::Builder::new().prefix("crashlab-").tempdir();
    let elsewhere = elsewhere.map_err(|error| Error::file(&std::env::temp_dir(), error))?;
    let directory = if in_place { folder } else { elsewhere.path() };
    let no_terminal = |source| Error::Run { what: "the program".into(), source };
    let (output, stdout) = Output::new(recorder.clone()).map_err(no_terminal)?;
    let mounted = Arc::new(OnceLock::new());
    let mut unwinder = Unwinder::new(recorder.clone(), mounted.clone());
    let callers = Callers::new(move |thread, tree| unwinder.caller(thread, tree));
    let callers = callers.map_err(|error| Error::file(folder, error))?;
    let served = Recorded::new(tree, next_ino, recorder.clone(), output.clone(), callers);
    let session = mount(served.clone(), directory)?;
    if let (Ok(path), Ok(metadata)) = (directory.canonicalize(), directory.metadata()) {
        let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let _ = mounted.set(Mounted { device, path, folder: folder.to_owned() });
    }
    let ran = run(command, environment, directory, (&recorder, &output, served), stdout, stop);
    output.end();
    let actions = recorder.actions() - before;
    let is_in_use = leave(session, directory);
    let (exit_code, unseen) = ran?;
    recorder.finish().map_err(|error| Error::Stopped(format!("the recording is incomplete: {error}")))?;
    Ok(Outcome { exit_code, actions, is_in_use, unseen })
}

fn mount(recorded: Recorded, directory: &Path) -> Result<BackgroundSession, Error> {
    leftovers::remove();
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName(leftovers::source()), MountOption::DefaultPermissions, MountOption::NoAtime];
    if rustix::process::geteuid().is_root() {
        // A program of root may start others as other users.
        config.acl = SessionACL::All;
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    fuser::spawn_mount(recorded, directory, &config).map_err(Error::NoFuse)
}

/// Unmounts, and waits for the last write-back. Returns true if others still use the mount, which goes
/// out of sight then.
fn leave(session: BackgroundSession, directory: &Path) -> bool {
    let started = Instant::now();
    while !unmounted(directory) {
        if started.elapsed() > LEAVE {
            // Its thread goes on for as long as this process.
            drop(session);
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = session.umount_and_join();
    false
}

/// Unmounts unless somebody uses the mount.
fn unmounted(directory: &Path) -> bool {
    match rustix::mount::unmount(directory, rustix::mount::UnmountFlags::empty()) {
        // A user has to ask fusermount3, unless in a namespace.
        Err(rustix::io::Errno::PERM) => {}
        outcome => return outcome.is_ok(),
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").arg(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs the program. Returns its exit code, and why not all of its syncs were seen.
fn run(
    command: &[OsString],
    environment: Environment,
    directory: &Path,
    (recorder, output, served): (&Recorder, &Arc<Output>, Recorded),
    stdout: Stdio,
    stop: &AtomicBool,
) -> Result<(i32, Option<io::Error>), Error> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(Error::Usage("name a program to run".into()));
    };
    let failed = |source: io::Error| Error::Run { what: name.to_string_lossy().into_owned(), source };
    let mut words: Vec<&OsStr> = Vec::new();
    if std::env::var_os(NAMESPACE).is_some() && !rustix::process::geteuid().is_root() {
        words.extend(WITHOUT_CAPABILITIES.iter().map(OsStr::new));
    }
    words.push(name);
    words.extend(arguments.iter().map(OsString::as_os_str));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(directory).stdout(stdout);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("CRASHLAB_DIR", directory).env("PWD", directory).env_remove(NAMESPACE);
    let (mut child, listener) = kernel::spawn(&mut command).map_err(failed)?;
    let unseen = listener.and_then(|listener| served.watch(listener, directory.to_owned())).err();
    // Our copy of its end of the terminal.
    drop(command);
    let (sender, printed) = mpsc::channel();
    let listener = output.clone();
    let listening = std::thread::Builder::new().name("crashlab-output".into()).spawn(move || {
        while listener.wait() {}
        let _ = sender.send(());
    });
    listening.map_err(failed)?;
    let mut told = false;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if stop.load(Ordering::Relaxed)
            && !std::mem::replace(&mut told, true)
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    output.drain();
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    recorder.record(0, Action::End { code }, &[]);
    let _ = printed.recv_timeout(PRINT);
    Ok((code, unseen))
}
