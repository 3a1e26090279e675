//! `syncline crashlab record`: runs a command on a copy of an image, and records everything that
//! reaches the device.
//!
//! The copy is in memory, and so is the recording until it is written at the end; the image stays
//! as it is.

use crate::commands::mount_options::MountChoices;
use crate::commands::{figures, image};
use crate::failure::{Failure, Outcome};
use crate::size;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use syncline_cuts::{Info, Mark, MarkKind, Recorder, Recording};
use syncline_device::block_on;
use syncline_fs::Filesystem;
use syncline_fuse::{MountError, Mounted, Session, SyncObserver, Synced};
use syncline_store::Store;

/// Default limit on recorded bytes: they are all in memory.
const RECORDED_DEFAULT: &str = "1GiB";
/// Limits of the recorded lines: bytes of a piece of a line, and of all lines.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINES_BYTES_MAX: usize = 64 << 20;
/// How long other processes may keep using the mount, and keep printing, once COMMAND has ended.
const LEAVE: Duration = Duration::from_secs(5);
const PRINT: Duration = Duration::from_secs(1);
/// How long COMMAND may take to end when told to.
const END: Duration = Duration::from_secs(5);

/// Arguments of `crashlab record`.
#[derive(clap::Args)]
#[command(
    after_help = "COMMAND finds the mount in SYNCLINE_CRASHLAB_DIR. What it prints is taken as told to somebody at that moment: a \
                        checker gets it. Its standard output is a terminal, so that most programs print each line at once; \
                        others have to flush it after each line. \
                        The exit code is COMMAND's; 126 and 127 if it can't be run."
)]
pub struct Args {
    /// Image to start from, unmounted cleanly; it is only read, and its blocks in use (at most 1
    /// GiB) are copied into memory
    image: PathBuf,
    /// Empty directory to mount the copy at
    directory: PathBuf,
    /// Where the recording goes. Default: IMAGE.crashlab
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Options of the mount, as with 'mount -o'
    #[arg(long, value_name = "OPTION,...", value_delimiter = ',')]
    mount_options: Vec<String>,
    /// Limit of the bytes written; COMMAND is ended when it is exceeded
    #[arg(long, value_name = "SIZE", default_value = RECORDED_DEFAULT, value_parser = size::parse)]
    max_recorded: u64,
    /// Command to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let image = image::whole_name(&args.image)?;
    let choices = choices(&args.mount_options)?;
    let output = output(&args)?;
    require_folder(&output)?;
    let about = |failure: Failure| failure.about(&image);
    let base = syncline_cuts::load(image::open_read_only(&image)?).map_err(|error| about(error.into()))?;
    let uuid = base.uuid;
    let recorder = Recorder::new(base);
    let (fs, mounted) = serve(&recorder, &image, &args.directory, choices).map_err(about)?;
    let begin = recorder.position();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = fs.store().last_change();
    let ran = run_command(&args, &mounted, &recorder);
    let end = recorder.mark(MarkKind::Ended);
    let changed_nothing = fs.store().last_change() == before;
    leave(mounted)?;
    image::close(&fs)?;
    let (exit_code, truncated) = match ran? {
        Ran::Ended { code, truncated } => (code, truncated),
        Ran::NotRun { failure } => return Err(failure),
    };
    let info = Info {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        image: image.display().to_string(),
        uuid,
        size_bytes: syncline_device::Device::size_bytes(&*recorder),
        command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        exit_code: i32::from(exit_code),
        started_seconds: started.as_secs(),
        begin,
        end,
        truncated,
    };
    let recording = recorder.finish(info);
    if changed_nothing {
        note!(
            "syncline: COMMAND changed nothing on the mount, so there is nothing to explore: it has to work in $SYNCLINE_CRASHLAB_DIR, here {}",
            args.directory.display()
        );
    }
    tell_of_late_lines(&recording);
    syncline_cuts::write(&recording, &output)?;
    note!(
        "syncline: recorded {} device events, {} written, in {}; next: syncline crashlab explore {} --check 'COMMAND'",
        recording.events.len(),
        size::show(recorder.written_bytes()),
        output.display(),
        output.display()
    );
    Ok(ExitCode::from(exit_code))
}

/// Warns of output that was held back: its lines count as printed only when COMMAND has ended.
fn tell_of_late_lines(recording: &Recording) {
    let is_line = |mark: &Mark| matches!(mark.kind, MarkKind::Line(_));
    let is_sync =
        |mark: &Mark| matches!(mark.kind, MarkKind::Fsync(_) | MarkKind::Fdatasync(_) | MarkKind::SyncFs);
    let lines = recording.marks.iter().filter(|mark| is_line(mark)).count();
    let before = recording.marks.iter().take_while(|mark| !is_line(mark)).filter(|mark| is_sync(mark));
    let ended = recording.marks.iter().take_while(|mark| mark.kind != MarkKind::Ended);
    let syncs = ended.filter(|mark| is_sync(mark)).count();
    if lines > 1 && syncs > 1 && before.count() >= syncs {
        note!(
            "syncline: all {lines} lines that COMMAND printed came at its end: it has to flush its output after each line"
        );
    }
}

/// Reads the options of the mount, and refuses those that a copy in memory has no use for.
fn choices(options: &[String]) -> Result<MountChoices, Failure> {
    let choices = MountChoices::parse(options)?;
    if choices.store.read_only || choices.snapshot.is_some() || choices.log.is_some() {
        return Err(Failure::usage(
            "--mount-options: a recorded mount is writable, and has no log of its own",
        )
        .next("leave out ro, snapshot and log"));
    }
    Ok(choices)
}

/// Where the recording goes.
fn output(args: &Args) -> Result<PathBuf, Failure> {
    match &args.output {
        Some(path) => refuse_option(path).map(|()| path.clone()),
        None if syncline_image::is_remote(&args.image) => {
            Err(Failure::usage("the recording of an image on a network needs a name")
                .next("add --output FILE"))
        }
        None => {
            let mut path = args.image.clone().into_os_string();
            path.push(".crashlab");
            Ok(path.into())
        }
    }
}

/// Refuses a recording that has the name of a mount option, since `mount` and `run` take those with
/// `-o`.
fn refuse_option(output: &Path) -> Result<(), Failure> {
    match output.to_str() {
        Some(text) if text.split(',').all(MountChoices::is_option) => Err(Failure::usage(format!(
            "-o {text}: that is an option of a mount, and -o names the recording"
        ))
        .next(format!("use --mount-options {text}; for a file of that name write ./{text}"))),
        _ => Ok(()),
    }
}

/// Checks now that the recording can be written, since that happens only at the very end.
fn require_folder(output: &Path) -> Result<(), Failure> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let probe = tempfile::Builder::new().prefix(".crashlab-").tempfile_in(folder);
    probe.map(drop).map_err(|error| {
        let text = format!("cannot write {}: {error}", output.display());
        Failure::from(error).with_text(text).next("name a place that can be written with --output")
    })
}

/// Opens the copy and mounts it, with the recorder below it and an observer of its syncs.
fn serve(
    recorder: &Arc<Recorder>,
    image: &Path,
    directory: &Path,
    choices: MountChoices,
) -> Result<(Arc<Filesystem>, Mounted), Failure> {
    let spawn = image::background()?;
    let mut options = choices.kernel(image);
    let (store, _) = block_on(Store::open(recorder.clone(), choices.store, spawn.clone()))?;
    let fs = block_on(Filesystem::open(store, spawn.clone(), choices.fs))?;
    let ear = recorder.clone();
    options.sync_observer = Some(SyncObserver::new(move |synced| {
        ear.mark(match synced {
            Synced::Fsync(ino) => MarkKind::Fsync(ino),
            Synced::Fdatasync(ino) => MarkKind::Fdatasync(ino),
            Synced::Filesystem => MarkKind::SyncFs,
        });
    }));
    let mounted = match Session::mount(fs.clone(), directory, &options) {
        Ok(mounted) => mounted,
        Err(error) => {
            // It was a copy, so ignore this error: the first one is reported.
            let _ = image::close(&fs);
            return Err(error.into());
        }
    };
    figures::register_without_image(mounted.session(), &fs, spawn);
    Ok((fs, mounted))
}

/// The outcome of COMMAND.
enum Ran {
    Ended { code: u8, truncated: bool },
    NotRun { failure: Failure },
}

fn run_command(args: &Args, mounted: &Mounted, recorder: &Arc<Recorder>) -> Result<Ran, Failure> {
    let (name, arguments) = args.command.split_first().expect("the argument is required");
    // An interrupt from the terminal reaches COMMAND itself; signals that would end only us are
    // passed on to it.
    let told = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::default())?;
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, told.clone())?;
    }
    let mut command = Command::new(name);
    let (output, stdout) = terminal()?;
    command.args(arguments).env("SYNCLINE_CRASHLAB_DIR", mounted.path()).stdout(stdout);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            let text = format!("cannot run {}: {error}", name.to_string_lossy());
            let failure = Failure::new(text).next("name a program after '--'").with_code(code);
            return Ok(Ran::NotRun { failure });
        }
    };
    // Our copy of its end of the terminal.
    drop(command);
    let (sender, printed) = mpsc::channel();
    let listener = recorder.clone();
    std::thread::Builder::new().name("syncline-crashlab-output".into()).spawn(move || {
        listen(output, &listener);
        let _ = sender.send(());
    })?;
    let (status, truncated) = wait(&mut child, recorder, args.max_recorded, &told)?;
    // Other processes that hold the pipe are not waited for.
    let _ = printed.recv_timeout(PRINT);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(Ran::Ended { code: u8::try_from(code).unwrap_or(1), truncated })
}

/// A terminal for COMMAND's output, which programs flush after each line; a pipe where no terminal
/// can be made.
fn terminal() -> io::Result<(Box<dyn Read + Send>, Stdio)> {
    if let Ok((ours, its)) = pty_process::blocking::open() {
        return Ok((Box::new(ours), its.as_fd().try_clone_to_owned()?.into()));
    }
    let (ours, its) = io::pipe()?;
    Ok((Box::new(ours), its.into()))
}

/// Records each line when it arrives, and passes it on. A line that arrives was printed earlier, so
/// a crash after the recorded position is certainly later than the printing.
fn listen(output: impl Read, recorder: &Recorder) {
    let mut output = BufReader::new(output);
    let mut kept = 0;
    loop {
        let mut line = Vec::new();
        match (&mut output).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // The terminal turns each newline into these two.
        if line.ends_with(b"\r\n") {
            line.remove(line.len() - 2);
        }
        if kept + line.len() <= LINES_BYTES_MAX {
            recorder.mark(MarkKind::Line(line.clone()));
        } else if kept <= LINES_BYTES_MAX {
            note!("syncline: COMMAND printed more than {LINES_BYTES_MAX} bytes: the rest is not recorded");
        }
        kept += line.len();
        let mut stdout = io::stdout().lock();
        // If nobody reads our output, the line is recorded all the same.
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    }
}

/// Waits for COMMAND; ends it if it writes too much, and returns whether it did.
fn wait(
    child: &mut Child,
    recorder: &Recorder,
    max_recorded: u64,
    told: &AtomicBool,
) -> Result<(ExitStatus, bool), Failure> {
    let mut ending: Option<Instant> = None;
    let mut truncated = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, truncated));
        }
        let too_much = recorder.written_bytes() > max_recorded;
        if too_much && !truncated {
            truncated = true;
            note!(
                "syncline: {} were written, which are all in memory: ending COMMAND; raise --max-recorded",
                size::show(recorder.written_bytes())
            );
        }
        if ending.is_none() && (too_much || told.load(Ordering::Relaxed)) {
            ending = Some(Instant::now());
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                kill_process(pid, Signal::TERM)?;
            }
        }
        if ending.is_some_and(|since| since.elapsed() > END) {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Unmounts; others that still use the mount are cut off.
fn leave(mounted: Mounted) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        match mounted.unmount() {
            Ok(()) => return Ok(mounted.run_until_unmounted()?),
            Err(MountError::Busy { .. }) if started.elapsed() < LEAVE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(MountError::Busy { path }) => {
                note!(
                    "syncline: {} is still in use by a process that COMMAND left behind; the recording ends here",
                    path.display()
                );
                // Dropping the mount detaches it; it ends with this process.
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
