//! `syncline du`: how much space files use alone, and how much they share.

use super::files_below;
use super::image::spinner;
use crate::failure::{Failure, Outcome};
use crate::printed;
use crate::size;
use serde::Serialize;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_fuse::control::{self, ControlError, Usage};

/// Arguments of `du`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Files and directories of a mounted filesystem; of a directory, all files below it together
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print a line for each file
    #[arg(long, short)]
    all: bool,
    /// Print a line for each PATH only, as without --all
    #[arg(long = "summarize", short = 's', conflicts_with = "all")]
    _summarize: bool,
    /// Print sizes for people, as is done in any case; --json has bytes
    #[arg(long = "human-readable", short = 'h')]
    _human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A line of the output.
#[derive(Serialize)]
struct Line {
    path: PathBuf,
    total_bytes: u64,
    exclusive_bytes: u64,
    shared_bytes: u64,
}

impl Line {
    fn new(path: &Path, usage: Usage) -> Self {
        Self {
            path: path.to_owned(),
            total_bytes: usage.total_bytes,
            exclusive_bytes: usage.total_bytes.saturating_sub(usage.shared_bytes),
            shared_bytes: usage.shared_bytes,
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let bar = spinner("looking at files");
    let lines = lines(&args);
    bar.finish_and_clear();
    let lines = lines?;
    if args.json {
        printed::json(&lines);
        return Ok(ExitCode::SUCCESS);
    }
    say!("{:>12} {:>12} {:>12}  path", "total", "exclusive", "shared");
    for line in lines {
        let columns = [line.total_bytes, line.exclusive_bytes, line.shared_bytes].map(size::show);
        say!("{:>12} {:>12} {:>12}  {}", columns[0], columns[1], columns[2], line.path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(args: &Args) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    // A file with several names counts once.
    let mut seen = HashSet::new();
    for path in &args.paths {
        let mut sum = Usage::default();
        for file in files_below(path)? {
            let opened = File::open(&file)
                .map_err(|source| ControlError::Open { path: file.clone(), source: source.into() })?;
            let fresh = opened.metadata().is_ok_and(|metadata| seen.insert((metadata.dev(), metadata.ino())));
            if !fresh {
                continue;
            }
            let usage = control::usage(&opened, &file)?;
            sum.total_bytes += usage.total_bytes;
            sum.shared_bytes += usage.shared_bytes;
            if args.all && file != *path {
                lines.push(Line::new(&file, usage));
            }
        }
        lines.push(Line::new(path, sum));
    }
    Ok(lines)
}
