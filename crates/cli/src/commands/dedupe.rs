//! `syncline dedupe`: finds blocks with equal checksums in files, and has them compared, and shared
//! if they are equal.

use super::image::progress_bar;
use super::{cannot_open, files_below, settle};
use crate::failure::{Cause, Failure, Outcome};
use crate::printed::{self, several};
use crate::size;
use indicatif::ProgressBar;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline_fs::Deduplicated;
use syncline_fuse::control::{self, Block, ControlError};

const BLOCK: u64 = syncline_format::BLOCK_BYTES as u64;
/// Most blocks compared in one call.
const RUN_BLOCKS_MAX: u64 = 1024;

/// Arguments of `dedupe`.
#[derive(clap::Args)]
pub struct Args {
    /// Files, and directories with all files below them, on one mount
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Default, Serialize)]
struct Report {
    files: u64,
    /// Bytes whose checksums were examined.
    looked_at_bytes: u64,
    /// Bytes whose blocks were shared by this run.
    shared_bytes: u64,
    /// Bytes whose blocks were shared before.
    already_shared_bytes: u64,
    /// Bytes with equal checksums that differ, or that changed meanwhile.
    different_bytes: u64,
}

/// The file being examined.
struct Opened {
    path: PathBuf,
    file: File,
    inode: u64,
    size: u64,
}

/// Where a block with each checksum was first seen.
type Known = HashMap<u32, (u64, Block)>;

/// Consecutive blocks that may equal those at another place.
#[derive(Clone, Copy)]
struct Run {
    from: (u64, u64),
    to: u64,
    blocks: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut files = Vec::new();
    for path in &args.paths {
        for file in files_below(path)? {
            let metadata = file.symlink_metadata().map_err(|source| cannot_open(&file, source))?;
            files.push((metadata.dev(), metadata.ino(), metadata.size(), file));
        }
    }
    // A file with several names counts once.
    files.sort_by_key(|(device, inode, ..)| (*device, *inode));
    files.dedup_by_key(|(device, inode, ..)| (*device, *inode));
    if files.windows(2).any(|pair| pair[0].0 != pair[1].0) {
        let failure = Failure::of(Cause::Usage, "the files are not all on one mount");
        return Err(failure.next("name files of one mount at a time"));
    }
    let bar = progress_bar(files.iter().map(|(_, _, size, _)| size).sum(), "looking for equal blocks");
    let (mut known, mut report) = (Known::new(), Report::default());
    // Dirty data has no blocks yet.
    settle(files.iter().map(|(.., path)| &**path))?;
    for (_, inode, size, path) in files {
        let file = File::open(&path).map_err(|source| cannot_open(&path, source))?;
        let opened = Opened { path, file, inode, size };
        go_through(&opened, &mut known, &mut report, &bar).map_err(owner)?;
    }
    bar.finish_and_clear();
    print(&report, args.json);
    Ok(ExitCode::SUCCESS)
}

/// Names the next step if only an owner may do this.
fn owner(error: ControlError) -> Failure {
    const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    let denied =
        matches!(&error, ControlError::Failed { source, .. } if source.raw_os_error() == Some(EPERM));
    if denied {
        let failure = Failure::of(Cause::Permission, error);
        return failure.next("only root and the owner of all the files may deduplicate them");
    }
    error.into()
}

/// Examines every block of a file, and shares those that were seen before.
fn go_through(
    file: &Opened,
    known: &mut Known,
    report: &mut Report,
    bar: &ProgressBar,
) -> Result<(), ControlError> {
    report.files += 1;
    let before = bar.position();
    let (mut next, mut run) = (0, None);
    loop {
        let blocks = control::blocks(&file.file, &file.path, next)?;
        let Some(last) = blocks.last() else { break };
        next = last.number + 1;
        for block in blocks {
            report.looked_at_bytes += BLOCK;
            let Some(&(inode, first)) = known.get(&block.checksum) else {
                known.insert(block.checksum, (file.inode, block));
                continue;
            };
            if first.addr == block.addr {
                report.already_shared_bytes += BLOCK;
                continue;
            }
            let found = Run { from: (inode, first.number), to: block.number, blocks: 1 };
            run = match run.take() {
                Some(before) => Some(extend(file, before, found, report)?),
                None => Some(found),
            };
        }
        bar.set_position(before + (next * BLOCK).min(file.size));
    }
    bar.set_position(before + file.size);
    match run {
        Some(run) => share(file, run, report),
        None => Ok(()),
    }
}

/// Extends the run by a block if that is the next one on both sides; otherwise shares the run, and
/// the block begins another.
fn extend(file: &Opened, mut run: Run, found: Run, report: &mut Report) -> Result<Run, ControlError> {
    let follows = found.from == (run.from.0, run.from.1 + run.blocks) && found.to == run.to + run.blocks;
    // Ranges in the same file must not overlap.
    let meets = run.from.0 == file.inode && found.from.1 >= run.to;
    if follows && !meets && run.blocks < RUN_BLOCKS_MAX {
        run.blocks += 1;
        return Ok(run);
    }
    share(file, run, report)?;
    Ok(found)
}

fn share(file: &Opened, run: Run, report: &mut Report) -> Result<(), ControlError> {
    let len = (run.blocks * BLOCK).min(file.size.saturating_sub(run.to * BLOCK));
    let mut done = 0;
    while done < len {
        let (from, to) = (run.from.1 * BLOCK + done, run.to * BLOCK + done);
        match control::dedupe((run.from.0, from), (&file.file, to), len - done, &file.path)? {
            Deduplicated::Shared(0) | Deduplicated::Already(0) => break,
            Deduplicated::Shared(bytes) => {
                report.shared_bytes += bytes;
                done += bytes;
            }
            Deduplicated::Already(bytes) => {
                report.already_shared_bytes += bytes;
                done += bytes;
            }
            Deduplicated::Differ if run.blocks > 1 && done == 0 => return one_by_one(file, run, report),
            Deduplicated::Differ => {
                report.different_bytes += len - done;
                break;
            }
        }
    }
    Ok(())
}

/// Shares a run block by block: one of its blocks differs, but the others may be equal.
fn one_by_one(file: &Opened, run: Run, report: &mut Report) -> Result<(), ControlError> {
    (0..run.blocks).try_for_each(|at| {
        share(file, Run { from: (run.from.0, run.from.1 + at), to: run.to + at, blocks: 1 }, report)
    })
}

fn print(report: &Report, json: bool) {
    if json {
        printed::json(report);
        return;
    }
    let files = several(report.files, "file", "files");
    say!("{files}, {} looked at", size::show(report.looked_at_bytes));
    say!("{} share their blocks now", size::show(report.shared_bytes));
    say!("{} shared them before", size::show(report.already_shared_bytes));
    if report.different_bytes > 0 {
        say!(
            "{} have equal checksums and are different, or changed meanwhile",
            size::show(report.different_bytes)
        );
    }
}
