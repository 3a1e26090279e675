//! `syncline clone`: a copy of a tree that shares all data with it.

mod attributes;
mod tree;

use super::image::spinner;
use super::missing;
use crate::failure::{Failure, Outcome};
use crate::printed::{self, several};
use crate::size;
use indicatif::ProgressStyle;
use rustix::fs::FileType;
use serde::Serialize;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_fuse::control::{self, ControlError};

/// Arguments of `clone`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory or file of a mounted filesystem
    source: PathBuf,
    /// Name of the copy, on the same mount; it must not exist yet
    destination: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The numbers of cloned files, directories and so on.
#[derive(Default, Serialize)]
struct Report {
    files: u64,
    directories: u64,
    symlinks: u64,
    /// Further names of files that have several.
    links: u64,
    /// Device nodes, FIFOs and sockets.
    specials: u64,
    /// Sizes of the files, together.
    bytes: u64,
    /// Entries that were removed before they could be copied.
    removed: u64,
    /// Owners and attributes that only root may set, and that were left out for this user.
    left_out: u64,
}

impl Report {
    /// Counts a copy of anything but a directory.
    fn count(&mut self, kind: FileType) {
        let count = if kind.is_file() {
            &mut self.files
        } else if kind.is_symlink() {
            &mut self.symlinks
        } else {
            &mut self.specials
        };
        *count += 1;
    }
}

/// An error and the path that it is about.
struct At {
    path: PathBuf,
    source: io::Error,
}

/// Attaches a path to an error.
trait AtPath<T> {
    fn at(self, path: &Path) -> Result<T, At>;
}

impl<T, E: Into<io::Error>> AtPath<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, At> {
        self.map_err(|error| At { path: path.to_owned(), source: error.into() })
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let source = args.source.symlink_metadata().map_err(|error| missing(&args.source, error))?;
    refuse_impossible(&args, &source)?;
    let style = ProgressStyle::with_template("{spinner} cloning: {human_pos} made, {elapsed}");
    let bar = spinner("").with_style(style.expect("the template is well-formed"));
    let mut report = Report::default();
    // The daemon gets what programs have stored through mappings. A single file is copied through the kernel.
    if source.is_dir() {
        control::sync(&args.source).map_err(Failure::from)?;
    }
    let cloned = tree::clone(&args.source, &args.destination, &mut report, &bar);
    bar.finish_and_clear();
    cloned.map_err(|error| unfinished(&args, &report, error))?;
    // One checkpoint for everything: names, attributes, shared blocks, and the contents of small
    // files that are in memory.
    control::sync(parent(&args.destination)).map_err(|error| {
        let failure = Failure::from(error);
        let text = format!("the copy is whole, but may not survive a crash: {failure}");
        failure.with_text(text)
    })?;
    print(&report, args.json);
    Ok(ExitCode::SUCCESS)
}

fn about(path: &Path, error: io::Error) -> Failure {
    Failure::from(error).about(path)
}

/// The directory that contains a path.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a clone that is impossible, before anything is made.
fn refuse_impossible(args: &Args, source: &Metadata) -> Result<(), Failure> {
    let (from, to) = (args.source.display(), args.destination.display());
    match args.destination.symlink_metadata() {
        Ok(_) => {
            let failure = Failure::usage(format!("{to} exists already"));
            return Err(failure.next("choose another name, or remove it first"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(about(&args.destination, error)),
    }
    if args.destination.file_name().is_none() {
        return Err(Failure::usage(format!("{to} is no name for a copy")));
    }
    let directory =
        parent(&args.destination).metadata().map_err(|error| about(parent(&args.destination), error))?;
    // The control channel can't be used on a symbolic link or a FIFO itself.
    let asked = if source.is_dir() { &args.source } else { parent(&args.source) };
    control::text(asked, "daemon").map_err(|error| match error {
        ControlError::NotSyncline { .. } => ControlError::NotSyncline { path: args.source.clone() },
        error => error,
    })?;
    if directory.dev() != source.dev() {
        let failure =
            Failure::usage(format!("{to} is on another filesystem than {from}, and can't share its blocks"));
        return Err(failure.next("copy with 'cp -a'"));
    }
    if !source.is_dir() {
        return Ok(());
    }
    let whole = args.source.canonicalize().map_err(|error| about(&args.source, error))?;
    let place =
        parent(&args.destination).canonicalize().map_err(|error| about(parent(&args.destination), error))?;
    if place.starts_with(&whole) {
        let failure = Failure::usage(format!("{to} lies inside of {from}"));
        return Err(failure.next("choose a place outside of the source"));
    }
    Ok(())
}

/// The failure, with what has been made so far.
fn unfinished(args: &Args, report: &Report, At { path, source }: At) -> Failure {
    let shared = source.raw_os_error() == Some(rustix::io::Errno::XDEV.raw_os_error());
    let failure = Failure::from(source).about(&path);
    let to = args.destination.display();
    let made = report.files + report.directories + report.symlinks + report.links + report.specials;
    let mut text = failure.text().to_owned();
    if shared {
        text += " (something else is mounted there)";
    }
    match args.destination.symlink_metadata() {
        // Somebody else has made it since we looked.
        Ok(_) if made == 0 => text += "; nothing was copied",
        Ok(there) if !there.is_dir() => {
            text += &format!("; {to} is there, and may lack some of its attributes: remove it ('rm')");
        }
        Ok(_) => {
            text += &format!(
                "; {to} is left unfinished, with {}: remove it ('rm -r')",
                several(made - 1, "entry", "entries")
            )
        }
        Err(_) if made == 0 => text += "; nothing is left of the copy",
        Err(error) => text += &format!("; the unfinished copy can't be found as {to} ({error})"),
    }
    failure.with_text(text)
}

fn print(report: &Report, json: bool) {
    if json {
        printed::json(report);
        return;
    }
    let Report { files, directories, symlinks, links, specials, bytes, removed, left_out } = report;
    let mut parts = vec![
        format!("{} of {}", several(*files, "file", "files"), size::show(*bytes)),
        several(*directories, "directory", "directories"),
    ];
    let others = [
        (symlinks, "symbolic link", "symbolic links"),
        (links, "hard link", "hard links"),
        (specials, "device node, FIFO or socket", "device nodes, FIFOs and sockets"),
    ];
    let there = others.iter().filter(|(count, ..)| **count > 0);
    parts.extend(there.map(|(count, one, more)| several(**count, one, more)));
    say!("cloned {}", parts.join(", "));
    if *removed > 0 {
        let what = several(*removed, "entry was", "entries were");
        say!("{what} left out: removed while the tree was copied");
    }
    if *left_out > 0 {
        let what = several(*left_out, "owner or attribute was", "owners or attributes were");
        say!("{what} left out: only root may set them");
    }
}
