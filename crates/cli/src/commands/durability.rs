//! `syncline durability`: when changes of a directory tree become durable.

use super::{cannot_open, files_and_directories, owners_only, require_syncline};
use crate::examples;
use crate::failure::{Failure, Outcome};
use crate::printed;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_fs::Durability;
use syncline_fuse::control::{self, ControlError};

/// Arguments of `durability`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Set the class of a file, or of a directory and of new files in it
    #[command(after_help = examples::DURABILITY_SET)]
    Set(SetArgs),
    /// Show the class of files and directories
    #[command(after_help = examples::DURABILITY_SHOW)]
    Show(ShowArgs),
    /// Show where below a directory another class begins
    #[command(after_help = examples::DURABILITY_LIST)]
    List(ListArgs),
}

/// Arguments of `set`.
#[derive(clap::Args)]
struct SetArgs {
    /// A directory or file of a mounted filesystem
    path: PathBuf,
    /// When its changes become durable
    #[arg(value_enum)]
    class: Choice,
    /// Seconds after a sync of class ordered by which a flush has begun, 1 to 255 (default: 5)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u8).range(1..))]
    within: Option<u8>,
    /// All files and directories below, too
    #[arg(long, short)]
    recursive: bool,
}

/// Arguments of `show`.
#[derive(clap::Args)]
struct ShowArgs {
    /// Files and directories of a mounted filesystem
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `list`.
#[derive(clap::Args)]
struct ListArgs {
    /// A directory of a mounted filesystem
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    /// Durable when a program syncs it
    Fsync,
    /// In order when a program syncs it, durable some seconds later
    Ordered,
    /// Durable before each call that changes it returns
    Strict,
    /// As the mount says
    Inherit,
}

/// A line about a file or directory.
#[derive(Serialize)]
struct Line {
    path: PathBuf,
    /// `fsync`, `ordered` or `strict`.
    class: &'static str,
    /// Seconds of class ordered.
    within_seconds: Option<u8>,
    /// False if the class is that of the mount.
    own: bool,
}

impl Line {
    fn of(path: &Path) -> Result<Self, ControlError> {
        let (own, class) = class_of(path)?;
        let (name, within_seconds) = match class {
            Durability::Fsync => ("fsync", None),
            Durability::Ordered(seconds) => ("ordered", Some(seconds)),
            Durability::Strict => ("strict", None),
        };
        Ok(Self { path: path.to_owned(), class: name, within_seconds, own: own.is_some() })
    }

    fn print(&self) {
        let within = self.within_seconds.map(|seconds| format!("within {seconds} s")).unwrap_or_default();
        let whose = if self.own { "" } else { "of the mount" };
        say!("{:<8} {within:<12} {whose:<12} {}", self.class, self.path.display());
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Set(args) => set(&args),
        Command::Show(args) => {
            args.paths.iter().try_for_each(|path| require_syncline(path))?;
            let lines = args.paths.iter().map(|path| Line::of(path)).collect::<Result<Vec<_>, _>>()?;
            print(&lines, args.json)
        }
        Command::List(args) => list(&args),
    }
}

fn set(args: &SetArgs) -> Outcome {
    let class = match (args.class, args.within) {
        (Choice::Ordered, within) => Some(Durability::Ordered(within.unwrap_or(Durability::WITHIN_DEFAULT))),
        (_, Some(_)) => {
            return Err(Failure::usage("--within belongs to class ordered"));
        }
        (Choice::Fsync, _) => Some(Durability::Fsync),
        (Choice::Strict, _) => Some(Durability::Strict),
        (Choice::Inherit, _) => None,
    };
    let (mut files, mut directories) = (0, 0);
    for entry in files_and_directories(&args.path, args.recursive)? {
        let entry = entry?;
        let (path, file) = (entry.path(), open(entry.path())?);
        // One that has this class already keeps its change time.
        if control::durability(&file, path)?.0 != class {
            control::set_durability(&file, path, class).map_err(owners_only)?;
        }
        if entry.file_type().is_dir() { directories += 1 } else { files += 1 }
    }
    let changed = printed::files_and_directories(files, directories);
    let there = match !args.recursive && has_entries(&args.path) {
        true => "; its present files keep their own class (--recursive includes them)",
        false => "",
    };
    match class {
        None => say!("{changed}: the class of the mount, from now on{there}"),
        Some(Durability::Ordered(seconds)) => {
            say!("{changed}: class ordered, within {seconds} s, from now on{there}");
        }
        Some(class) => say!("{changed}: class {class}, from now on{there}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// True for a directory with something in it.
fn has_entries(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}

/// Shows the directory, and all below that have another class than the directory that they are in.
fn list(args: &ListArgs) -> Outcome {
    let (mut classes, mut lines) = (HashMap::new(), Vec::new());
    for entry in files_and_directories(&args.directory, true)? {
        let entry = entry?;
        let path = entry.path();
        let class = class_of(path)?;
        if path.parent().and_then(|parent| classes.get(parent)) != Some(&class) {
            lines.push(Line::of(path)?);
        }
        if entry.file_type().is_dir() {
            classes.insert(path.to_owned(), class);
        }
    }
    print(&lines, args.json)
}

/// Opens without waiting for the other end of a FIFO.
fn open(path: &Path) -> Result<File, ControlError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    file.map(File::from).map_err(|errno| cannot_open(path, errno.into()))
}

fn class_of(path: &Path) -> Result<(Option<Durability>, Durability), ControlError> {
    control::durability(&open(path)?, path)
}

fn print(lines: &[Line], json: bool) -> Outcome {
    if json {
        printed::json(&lines);
    } else {
        lines.iter().for_each(Line::print);
    }
    Ok(ExitCode::SUCCESS)
}
