//! `syncline demo`: the whole story in half a minute. Makes an image, mounts it, measures the cost
//! of an fsync, cuts the power under load, recovers, and compares every acknowledged byte.

mod counts;
mod interrupt;
mod jobs;
mod mount;
mod power;
mod target;
mod verify;
mod workload;

use super::{check, image};
use crate::failure::{Cause, Failure, Outcome};
use crate::size;
use indicatif::{HumanCount, ProgressBar};
use interrupt::Interrupt;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use syncline::FormatOptions;
use syncline_device::block_on;
use syncline_image::How;
use target::Target;
use workload::{Row, WORKLOADS};

/// Preferred image size, and the smallest that will do.
const IMAGE_BYTES: u64 = 2 << 30;
const IMAGE_BYTES_MIN: u64 = 256 << 20;
/// Duration of the load under which the power is cut.
const POWER_LOAD: Duration = Duration::from_secs(3);

/// Arguments of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Keep the folder with the image
    #[arg(long)]
    keep: bool,
    /// Use this image, which may lie on a network and must hold nothing: block device, NBD export or RBD
    /// image
    #[arg(long, value_name = "IMAGE", conflicts_with = "keep")]
    image: Option<PathBuf>,
    /// Seconds for each workload
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=30))]
    seconds: u64,
    /// Use the embedded engine even where FUSE works
    #[arg(long)]
    embedded: bool,
    /// Seed of the power cuts; a new one each time unless given
    #[arg(long)]
    seed: Option<u64>,
    /// Print the measurements as JSON, and nothing else
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints a text for people.
    fn say(&self, text: impl Display) {
        if !self.json {
            say_text!("{text}\n");
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let interrupt = Interrupt::watch()?;
    let mut folder = tempfile::Builder::new().prefix("syncline-demo-").tempdir()?;
    folder.disable_cleanup(args.keep);
    let image = args.image.clone().unwrap_or_else(|| folder.path().join("image"));
    let result = show(&args, &image, folder.path(), &interrupt);
    if args.keep {
        args.say(format_args!("\nThe image is {}", image.display()));
    }
    let mut figures = result?;
    if args.json {
        figures["image"] = args.keep.then(|| image.to_string_lossy()).into();
        say_text!("{figures:#}\n");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs everything and returns the figures.
fn show(args: &Args, path: &Path, folder: &Path, interrupt: &Interrupt) -> Result<Value, Failure> {
    let bytes = make_image(args, path, folder)?;
    let target = Target::start(path, bytes, folder, args.embedded)?;
    let description = target.description();
    args.say(format_args!("{description}\n"));
    let rows = measure(args, &target, interrupt);
    target.end()?;
    let rows = rows?;
    explain(args, &rows);
    let checked = check_image(args, path)?;
    interrupt.check()?;
    let power_cuts = cut_the_power(args, interrupt)?;
    let workloads: Vec<Value> = rows.iter().map(Row::json).collect();
    Ok(json!({
        "image_bytes": bytes,
        "target": description,
        "workloads": workloads,
        "checked": checked,
        "power_cuts": power_cuts,
    }))
}

/// Makes the filesystem, and returns its size.
fn make_image(args: &Args, path: &Path, folder: &Path) -> Result<u64, Failure> {
    let size_bytes = match &args.image {
        Some(path) => {
            require_size(path, image::open_read_only(path)?.size_bytes())?;
            args.say(format_args!("Making a filesystem on\n{}", path.display()));
            None
        }
        None => {
            let bytes = image_bytes(folder)?;
            let (size, folder) = (size::show(bytes), folder.display());
            args.say(format_args!("Making an image of {size}, every block of it written, in\n{folder}"));
            Some(bytes)
        }
    };
    let made = image::make(path, size_bytes, false, false, &How::default(), &FormatOptions::default())?;
    Ok(made.device().size_bytes())
}

fn require_size(path: &Path, bytes: u64) -> Result<(), Failure> {
    if bytes >= IMAGE_BYTES_MIN {
        return Ok(());
    }
    let (there, least) = (size::show(bytes), size::show(IMAGE_BYTES_MIN));
    let text = format!("{} has {there}, and the demo needs {least}", path.display());
    Err(Failure::of(Cause::NoSpace, text).next("name a larger image"))
}

/// The preferred size, or half of the free space if that is less.
fn image_bytes(folder: &Path) -> Result<u64, Failure> {
    let space = rustix::fs::statvfs(folder)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let bytes = IMAGE_BYTES.min(free / 2);
    if bytes < IMAGE_BYTES_MIN {
        let text = format!("only {} are free in {}", size::show(free), folder.display());
        return Err(Failure::of(Cause::NoSpace, text).next("point TMPDIR to a folder with 1 GiB free"));
    }
    Ok(bytes)
}

fn measure(args: &Args, target: &Target, interrupt: &Interrupt) -> Result<Vec<Row>, Failure> {
    args.say(Row::HEADING);
    let mut rows = Vec::new();
    for (index, workload) in WORKLOADS.iter().enumerate() {
        if let Some(before) = index.checked_sub(1) {
            for name in WORKLOADS[before].files() {
                target.remove(&name)?;
            }
        }
        let row = workload.run(target, args.seconds, interrupt)?;
        args.say(&row);
        rows.push(row);
        interrupt.check()?;
    }
    Ok(rows)
}

fn explain(args: &Args, rows: &[Row]) {
    let fsyncs: u64 = rows.iter().map(Row::fsyncs).sum();
    args.say(format_args!(
        "\n{} fsyncs. Each waits for its data and its log, written side by side, and\n\
         for one flush; those that come together share both. A kernel filesystem needs\n\
         two flushes for the first line.",
        HumanCount(fsyncs)
    ));
}

fn check_image(args: &Args, path: &Path) -> Result<Value, Failure> {
    let report =
        block_on(syncline_check::check(image::open_read_only(path)?, image::background()?, &mut |_| {}))?;
    if !report.is_clean() {
        let text = format!("the image is not clean after it was unmounted: {}", report.findings[0]);
        return Err(Failure::of(Cause::Damaged, text).with_code(check::ERRORS_FOUND));
    }
    let blocks = report.data_blocks;
    args.say(format_args!(
        "Unmounted and checked: {} blocks of data and {} tree nodes,\nall as their checksums say.\n",
        HumanCount(blocks),
        report.nodes
    ));
    Ok(json!({ "data_blocks": blocks, "tree_nodes": report.nodes }))
}

fn cut_the_power(args: &Args, interrupt: &Interrupt) -> Result<Value, Failure> {
    let seed = args.seed.unwrap_or_else(rand::random);
    let cuts = (10 * args.seconds).clamp(10, 100);
    args.say(format_args!(
        "Cutting the power {cuts} times under load (seed {seed}):\n\
         what no flush covered is dropped, reordered or torn"
    ));
    let bar = bar(cuts, "cuts");
    let plan = power::Plan { seed, cuts, load: POWER_LOAD, canary: None };
    let outcome = power::run(&plan, interrupt, &bar);
    bar.finish_and_clear();
    let outcome = outcome?;
    args.say(&outcome);
    let mut figures = outcome.json();
    figures["seed"] = seed.into();
    Ok(figures)
}

/// A bar that counts; silent if standard error is not a terminal.
fn bar(total: u64, what: &str) -> ProgressBar {
    let bar = image::progress_bar(total, what);
    let style = indicatif::ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}");
    bar.with_style(style.expect("the template is well-formed"))
}
