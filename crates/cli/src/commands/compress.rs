//! `syncline compress`: sets the compression of files, and on request rewrites what they contain
//! already.

use super::image::progress_bar;
use super::{cannot_open, files_and_directories, owners_only, settle};
use crate::failure::{Failure, Outcome};
use crate::printed;
use crate::size;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_fs::types::Algorithm;
use syncline_fuse::control::{self, ControlError};

/// Arguments of `compress`.
#[derive(clap::Args)]
pub struct Args {
    /// Files and directories of a mounted filesystem; new files in a directory inherit its setting
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Algorithm for new data; none: do not compress
    #[arg(long, value_enum, default_value = "zstd", value_name = "ALGORITHM")]
    algorithm: Choice,
    /// All files and directories below, too
    #[arg(long, short)]
    recursive: bool,
    /// Also rewrite the present contents of the files, except for shared blocks
    #[arg(long)]
    now: bool,
    /// Change nothing, only print how the files are compressed
    #[arg(long, conflicts_with_all = ["algorithm", "now"])]
    show: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How to compress.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Choice {
    /// Smaller
    Zstd,
    /// Faster
    Lz4,
    /// Stored as it is
    None,
}

impl Choice {
    fn algorithm(self) -> Option<Algorithm> {
        match self {
            Choice::Zstd => Some(Algorithm::Zstd),
            Choice::Lz4 => Some(Algorithm::Lz4),
            Choice::None => None,
        }
    }

    fn of(algorithm: Option<Algorithm>) -> Self {
        match algorithm {
            Some(Algorithm::Zstd) => Choice::Zstd,
            Some(Algorithm::Lz4) => Choice::Lz4,
            None => Choice::None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Choice::Zstd => "zstd",
            Choice::Lz4 => "lz4",
            Choice::None => "none",
        }
    }
}

/// A line of `--show`.
#[derive(Serialize)]
struct Line {
    path: PathBuf,
    algorithm: Choice,
}

/// The result.
#[derive(Default, Serialize)]
struct Report {
    files: u64,
    directories: u64,
    /// Bytes rewritten.
    rewritten_bytes: u64,
    /// Bytes that the files took before and take now, for the files that were rewritten.
    before_bytes: u64,
    after_bytes: u64,
    /// Bytes that other files share, which stay as they are.
    shared_bytes: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut found = Vec::new();
    for path in &args.paths {
        for entry in files_and_directories(path, args.recursive)? {
            let entry = entry?;
            let is_directory = entry.file_type().is_dir();
            found.push((entry.into_path(), is_directory));
        }
    }
    if args.show { show(found, args.json) } else { compress(&args, &found) }
}

fn open(path: &Path) -> Result<File, ControlError> {
    File::open(path).map_err(|source| cannot_open(path, source))
}

fn show(found: Vec<(PathBuf, bool)>, json: bool) -> Outcome {
    let mut lines = Vec::new();
    for (path, _) in found {
        let algorithm = Choice::of(control::compression(&open(&path)?, &path)?);
        lines.push(Line { path, algorithm });
    }
    if json {
        printed::json(&lines);
    } else {
        lines.iter().for_each(|line| say!("{:<5}{}", line.algorithm.name(), line.path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn compress(args: &Args, found: &[(PathBuf, bool)]) -> Outcome {
    let mut report = Report::default();
    let sizes = found.iter().filter(|(_, directory)| args.now && !directory);
    let total = sizes.filter_map(|(path, _)| path.symlink_metadata().ok()).map(|it| it.size()).sum();
    let bar = progress_bar(total, "rewriting");
    for (path, directory) in found {
        let (file, wanted) = (open(path)?, args.algorithm.algorithm());
        // A file that has this setting already keeps its change time, and leaves nothing to sync.
        if control::compression(&file, path)? != wanted {
            control::set_compression(&file, path, wanted).map_err(owners_only)?;
        }
        if *directory { report.directories += 1 } else { report.files += 1 }
    }
    if args.now {
        let files = || found.iter().filter(|(_, directory)| !directory).map(|(path, _)| &**path);
        // Dirty data takes no space yet.
        settle(files())?;
        files().try_for_each(|path| rewrite(path, &bar, &mut report))?;
    }
    bar.finish_and_clear();
    print(&report, args);
    Ok(ExitCode::SUCCESS)
}

fn rewrite(path: &Path, bar: &ProgressBar, report: &mut Report) -> Result<(), Failure> {
    let (file, begun) = (open(path)?, bar.position());
    report.before_bytes += control::usage(&file, path)?.total_bytes;
    let progress = |at| bar.set_position(begun + at);
    report.rewritten_bytes += control::rewrite(&file, path, progress).map_err(owners_only)?;
    let after = control::usage(&file, path)?;
    report.after_bytes += after.total_bytes;
    report.shared_bytes += after.shared_bytes;
    bar.set_position(begun + file.metadata().map_or(0, |it| it.len()));
    Ok(())
}

fn print(report: &Report, args: &Args) {
    if args.json {
        printed::json(report);
        return;
    }
    let what = args.algorithm.name();
    let changed = printed::files_and_directories(report.files, report.directories);
    say!("{changed}: {what}, from now on");
    if args.now {
        let (before, after) = (size::show(report.before_bytes), size::show(report.after_bytes));
        say!("{} rewritten; the files took {before}, take {after}", size::show(report.rewritten_bytes));
        if report.shared_bytes > 0 {
            let shared = size::show(report.shared_bytes);
            say!(
                "{shared} are shared between files, and stay as they are; 'syncline du --all' tells of which"
            );
        }
    }
}
