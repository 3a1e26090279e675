//! `syncline defragment`: has the daemon rewrite files that are scattered on the device.

use super::image::progress_bar;
use super::{cannot_open, files_below, missing, settle};
use crate::failure::{Cause, Failure, Outcome};
use crate::printed::{self, several};
use crate::size;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline_fuse::control::{self, ControlError};

const BLOCK: u64 = syncline_format::BLOCK_BYTES as u64;

/// Arguments of `defragment`.
#[derive(clap::Args)]
pub struct Args {
    /// Files of a mounted filesystem; with -r directories, too
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Include all files below directories
    #[arg(long, short)]
    recursive: bool,
    /// Also rewrite blocks that a file shares with others; they take new space
    #[arg(long)]
    unshare: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result for one file.
#[derive(Serialize)]
struct Line {
    path: PathBuf,
    fragments_before: u64,
    fragments_after: u64,
    moved_bytes: u64,
    /// Copied in vain, because it was overwritten in the meantime.
    overtaken_bytes: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut files = Vec::new();
    for path in &args.paths {
        let metadata = path.symlink_metadata().map_err(|error| missing(path, error))?;
        if metadata.is_dir() && !args.recursive {
            return Err(Failure::usage(format!("{} is a directory", path.display())).next("add -r"));
        }
        for file in files_below(path)? {
            let metadata = file.symlink_metadata().map_err(|source| cannot_open(&file, source))?;
            files.push((metadata.dev(), metadata.ino(), metadata.size(), file));
        }
    }
    // A file with several names counts once.
    files.sort_by_key(|(device, inode, ..)| (*device, *inode));
    files.dedup_by_key(|(device, inode, ..)| (*device, *inode));
    let bar = progress_bar(files.iter().map(|(_, _, size, _)| size).sum(), "defragmenting");
    let mut lines = Vec::new();
    // Dirty data has no place yet.
    settle(files.iter().map(|(.., path)| &**path))?;
    for (_, _, size, path) in files {
        let before = bar.position();
        lines.push(one(path, args.unshare, &bar).map_err(explain)?);
        bar.set_position(before + size);
    }
    bar.finish_and_clear();
    print(&lines, args.json);
    Ok(ExitCode::SUCCESS)
}

/// Names the next step where there is one.
fn explain(error: ControlError) -> Failure {
    let errno = match &error {
        ControlError::Failed { source, .. } => {
            source.raw_os_error().map(rustix::io::Errno::from_raw_os_error)
        }
        _ => None,
    };
    match errno {
        Some(rustix::io::Errno::PERM) => {
            Failure::of(Cause::Permission, error).next("only root and the owner of a file may defragment it")
        }
        Some(rustix::io::Errno::NOSPC) => Failure::of(Cause::NoSpace, error)
            .next("make room for a second copy of the scattered parts; nothing is lost"),
        _ => error.into(),
    }
}

fn one(path: PathBuf, unshare: bool, bar: &ProgressBar) -> Result<Line, ControlError> {
    let file = File::open(&path).map_err(|source| cannot_open(&path, source))?;
    let fragments_before = control::fragments(&file, &path)?.fragments;
    let (mut moved_bytes, mut overtaken_bytes) = (0, 0);
    let (start, mut next) = (bar.position(), Some(0));
    while let Some(first) = next.filter(|_| fragments_before > 1) {
        let done = control::defragment(&file, &path, first, unshare)?;
        moved_bytes += done.moved_bytes;
        overtaken_bytes += done.overtaken_bytes;
        next = done.next;
        bar.set_position(start + next.unwrap_or(0) * BLOCK);
    }
    let fragments_after = control::fragments(&file, &path)?.fragments;
    Ok(Line { path, fragments_before, fragments_after, moved_bytes, overtaken_bytes })
}

fn print(lines: &[Line], json: bool) {
    if json {
        printed::json(&lines);
        return;
    }
    for line in lines.iter().filter(|line| line.moved_bytes > 0) {
        let (path, before, after) = (line.path.display(), line.fragments_before, line.fragments_after);
        let before = several(before, "fragment", "fragments");
        say!("{path}: {before} before, {after} now, {} moved", size::show(line.moved_bytes));
    }
    let sum = |number: fn(&Line) -> u64| lines.iter().map(number).sum::<u64>();
    say!(
        "{}, {} before, {} now, {} moved",
        several(lines.len() as u64, "file", "files"),
        several(sum(|line| line.fragments_before), "fragment", "fragments"),
        sum(|line| line.fragments_after),
        size::show(sum(|line| line.moved_bytes))
    );
}
