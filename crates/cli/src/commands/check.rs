//! `syncline check`: read everything and tell what is wrong. It changes nothing.

use super::image;
use crate::failure::{Failure, Outcome};
use indicatif::ProgressBar;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline_check::{FINDINGS_MAX, Progress, Report, Stage};
use syncline_device::block_on;

/// Exit code for "errors found" of fsck(8).
pub const ERRORS_FOUND: u8 = 4;
/// Exit code for "the check could not be done" of fsck(8).
pub const OPERATIONAL_ERROR: u8 = 8;
/// Exit code for wrong usage of fsck(8).
pub const WRONG_USAGE: u8 = 16;
const BLOCK_BYTES: u64 = syncline_format::BLOCK_BYTES as u64;

/// Arguments of `check`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes, as of fsck(8): 0 nothing is wrong; 4 errors were found; 8 the check could not be \
                        done; 16 wrong usage."
)]
pub struct Args {
    /// Image file or block device that is not mounted
    image: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let report = examine(&args).map_err(|failure| failure.with_code(OPERATIONAL_ERROR))?;
    if args.json {
        println!("{:#}", serde_json::to_value(&report).expect("numbers and texts are JSON"));
    } else {
        print(&args, &report);
    }
    Ok(ExitCode::from(if report.is_clean() { 0 } else { ERRORS_FOUND }))
}

fn examine(args: &Args) -> Result<Report, Failure> {
    let device = image::open_read_only(&args.image)?;
    let spawn = image::background()?;
    let bar = image::progress_bar(0, "reading the tree");
    let report = block_on(syncline_check::check(device, spawn, &mut |progress| show(&bar, progress)));
    bar.finish_and_clear();
    report.map_err(|error| Failure::from(error).about(&args.image))
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total * BLOCK_BYTES);
    bar.set_position(progress.done * BLOCK_BYTES);
    bar.set_message(match progress.stage {
        Stage::Nodes => "reading the tree",
        Stage::Contents => "reading the files",
        Stage::Comparison => "comparing",
    });
}

fn print(args: &Args, report: &Report) {
    for finding in &report.findings {
        println!("{finding}");
    }
    if report.findings_dropped > 0 {
        println!("... and {} findings more than the {FINDINGS_MAX} shown", report.findings_dropped);
    }
    let image = args.image.display();
    let read = format!(
        "{} inodes, {} names, {} tree nodes, {} data blocks read",
        report.inodes, report.names, report.nodes, report.data_blocks
    );
    if report.is_clean() {
        println!("{image}: clean ({read})");
        return;
    }
    let errors = report.findings.len() as u64 + report.findings_dropped;
    println!("{image}: {errors} errors ({read})");
    if report.incomplete {
        println!("{image}: parts could not be read, so not everything was compared");
    }
    println!("{image}: mount it with -o ro to save what can be read; docs/FORMAT.md explains the structures");
}
