//! `crashlab record`.

use super::{interrupt, is_recording, note};
use crate::Error;
use crate::record::{NAMESPACE, SUFFIX, WITHOUT_CAPABILITIES, record};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use std::process::{Command, ExitCode, Stdio};

/// Arguments of `crashlab record`.
#[derive(clap::Args)]
#[command(
    after_help = "PROGRAM runs in a mount with a copy of the working folder, which only it can see; CRASHLAB_DIR is its path. \
                        The folder itself stays as it is. What PROGRAM prints counts as told to somebody at that moment, and \
                        checkers get it. Its output is a terminal, so that most programs print each line at once; others \
                        have to flush it after each line. The exit code is PROGRAM's."
)]
pub struct Args {
    /// Where the recording goes. Default: a new file here, named after PROGRAM
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, Error> {
    let in_place = enter_namespace();
    let folder = std::env::current_dir().map_err(|error| Error::file(Path::new("."), error))?;
    // An interrupt from the terminal reaches PROGRAM itself; the other signals are passed on to it.
    let _ignored = interrupt(&[SIGINT]);
    let stop = interrupt(&[SIGTERM, SIGHUP]);
    let (file, path) = output(&args)?;
    if !in_place {
        note(&format!(
            "the copy of this folder has another path, CRASHLAB_DIR: what PROGRAM does in {} itself is not recorded",
            folder.display()
        ));
    }
    let outcome = record(&folder, &args.program, Vec::new(), file, in_place, &stop);
    if outcome.is_err() {
        remove(&path);
    }
    let outcome = outcome?;
    if let Some(error) = outcome.unseen {
        note(&format!(
            "sync(2), syncfs(2) and sync_file_range(2) of PROGRAM can't be seen here, so they count for nothing: {error}"
        ));
    }
    if outcome.is_in_use {
        note("PROGRAM has left processes behind that use its folder; the recording ends here");
    }
    if outcome.exit_code != 0 {
        note(&format!("PROGRAM ended with exit code {}", outcome.exit_code));
    }
    match outcome.actions {
        0 => {
            remove(&path);
            note(
                "PROGRAM did nothing to the files of its working folder, so there is nothing to explore: give it relative \
                 paths, or $CRASHLAB_DIR",
            );
        }
        actions => {
            let named = args.output.as_ref().map_or(String::new(), |path| format!(" {}", path.display()));
            note(&format!(
                "recorded {actions} changes and syncs in {}; next: crashlab explore{named} --check 'COMMAND'",
                path.display()
            ));
        }
    }
    let is_empty = outcome.exit_code == 0 && outcome.actions == 0;
    Ok(ExitCode::from(if is_empty {
        super::RECORD_FAILED
    } else {
        u8::try_from(outcome.exit_code).unwrap_or(1)
    }))
}

/// Removes a recording without a use; a device that was named with -o stays.
fn remove(path: &Path) {
    if path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
        let _ = std::fs::remove_file(path);
    }
}

/// Starts this program again in a mount namespace of its own, where it can cover the folder, so that every
/// path to it leads to the copy. Returns whether it is in one: where there are none, or where one would keep
/// other mounts of the machine, the copy has another path.
fn enter_namespace() -> bool {
    if std::env::var_os(NAMESPACE).is_some() && has_namespace_of_its_own() {
        return true;
    }
    if !follows_the_machine() {
        return false;
    }
    let is_root = rustix::process::geteuid().is_root();
    let users: &[&str] = if is_root { &[] } else { &["--user", "--map-current-user", "--keep-caps"] };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(users).args(["--mount", "--propagation", "slave", "--"]);
        command
    };
    let mut trial = unshare();
    trial.args(if is_root { &[] } else { WITHOUT_CAPABILITIES }).arg("true");
    let quiet = trial.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if quiet.is_ok_and(|status| status.success())
        && let Ok(program) = std::env::current_exe()
    {
        let _failed = unshare().arg(program).args(std::env::args_os().skip(1)).env(NAMESPACE, "1").exec();
    }
    false
}

/// True if a mount that is removed goes from new namespaces too: the root is shared, as systemd makes it.
/// Elsewhere a namespace would keep all mounts of the machine for as long as the program runs.
fn follows_the_machine() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Number, parent, device, root, mount point, options, and then what is optional, up to a dash.
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/"));
    root.is_some_and(|line| {
        let optional = line.split(' ').skip(6).take_while(|field| *field != "-");
        optional.into_iter().any(|field| field.starts_with("shared:"))
    })
}

/// True if the process that started this one is in another mount namespace.
fn has_namespace_of_its_own() -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt"));
    let parent = rustix::process::getppid().map_or(1, |parent| parent.as_raw_nonzero().get());
    match (namespace("self"), namespace(&parent.to_string())) {
        (Ok(own), Ok(parents)) => own != parents,
        // It belongs to another user: unshare(1) has set the variable.
        (Ok(_), Err(_)) => true,
        _ => false,
    }
}

/// A new file for the recording.
fn output(args: &Args) -> Result<(File, PathBuf), Error> {
    if let Some(path) = &args.output {
        if path.exists() && !is_recording(path) {
            let text = format!("{} exists and is no recording: name another file with -o", path.display());
            return Err(Error::Usage(text));
        }
        return Ok((File::create(path).map_err(|error| Error::file(path, error))?, path.clone()));
    }
    let name = args.program.first().map(Path::new).and_then(Path::file_stem).unwrap_or("program".as_ref());
    for number in 1.. {
        let mut path = name.to_owned();
        path.push(format!("-{number}{SUFFIX}"));
        let path = PathBuf::from(path);
        match File::create_new(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                let text = format!("{}: {source}; name another place with -o FILE", path.display());
                return Err(Error::Usage(text));
            }
        }
    }
    unreachable!("there are more numbers than files")
}
