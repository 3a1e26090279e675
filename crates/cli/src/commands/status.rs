//! `syncline status`: all mounts of this machine at a glance.

use super::stats::{network, summary};
use super::{ask, reach};
use crate::failure::{Failure, Outcome};
use crate::live::Sample;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use syncline_fuse::{MountEntry, mounts};

/// How long a daemon may take before it counts as silent, and how long fsyncs are counted.
const PATIENCE: Duration = Duration::from_secs(4);
const COUNTED: Duration = Duration::from_secs(1);

/// Arguments of `status`.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON: an array with an object for each mount
    #[arg(long)]
    json: bool,
}

/// A daemon's sample and fsyncs a second, or why there is none.
type Found = Result<(Sample, f64), Failure>;

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let mut entries: Vec<MountEntry> = Vec::new();
    for entry in mounts()?.into_iter().filter(MountEntry::is_ours) {
        // If a filesystem is bind-mounted at several places, the first one counts.
        if !entries.iter().any(|other| other.is_of_the_same(&entry)) {
            entries.push(entry);
        }
    }
    let found: Vec<Found> = thread::scope(|scope| {
        let looks: Vec<_> = entries.iter().map(|entry| scope.spawn(|| look(entry))).collect();
        let panicked = |_| Err(Failure::new("asking it failed"));
        looks.into_iter().map(|look| look.join().unwrap_or_else(panicked)).collect()
    });
    if args.json {
        let told: Vec<Value> =
            entries.iter().zip(&found).map(|(entry, found)| object(entry, found)).collect();
        say_text!("{:#}\n", Value::from(told));
        return Ok(ExitCode::SUCCESS);
    }
    if entries.is_empty() {
        say!("No Syncline filesystem is mounted here.");
    }
    for (entry, found) in entries.iter().zip(&found) {
        say!("{}: {}", entry.mount_point.display(), image_of(entry, found));
        match found {
            Ok((sample, fsyncs)) => {
                say!("    {}", summary::space(sample));
                say!("    {}", summary::state(sample));
                if let Some(lease) = network::lease(sample) {
                    say!("    lease {lease}");
                }
                let errors = summary::errors(sample).unwrap_or_else(|| "none".into());
                say!("    {fsyncs:.1} fsyncs/s; errors: {errors}");
                if let Some(words) = reach::in_words(&sample.stats["daemon"]) {
                    say!("    {words}");
                }
            }
            Err(failure) => say!("    {failure}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks a daemon twice, an interval apart.
fn look(entry: &MountEntry) -> Found {
    let directory = &entry.mount_point;
    ask::require_answer(directory, PATIENCE)?;
    let before = Sample::take(directory)?;
    thread::sleep(COUNTED);
    let sample = Sample::take_again(directory)?;
    let fsyncs = |sample: &Sample| sample.number("/files/fsyncs") + sample.number("/files/fdatasyncs");
    let seconds = (sample.taken - before.taken).as_secs_f64();
    let rate = fsyncs(&sample).saturating_sub(fsyncs(&before)) as f64 / seconds;
    Ok((sample, rate))
}

/// The image, as named by its daemon or otherwise by the kernel.
fn image_of<'a>(entry: &'a MountEntry, found: &'a Found) -> &'a str {
    match found {
        Ok((sample, _)) => sample.text("/daemon/image"),
        Err(_) => &entry.image,
    }
}

fn object(entry: &MountEntry, found: &Found) -> Value {
    let mount = entry.mount_point.to_string_lossy();
    match found {
        Ok((sample, fsyncs)) => json!({
            "mount": mount,
            "image": sample.text("/daemon/image"),
            "pid": sample.number("/daemon/pid"),
            "space": sample.stats["space"],
            "read_only": sample.stats["read_only"],
            "sync": sample.stats["daemon"]["sync"],
            "lease": sample.stats["lease"],
            "lost": sample.stats["lost"],
            "image_changed": sample.stats["image_changed"],
            "fsyncs_per_second": fsyncs,
            "errors": summary::errors(sample),
        }),
        Err(failure) => {
            json!({ "mount": mount, "image": entry.image, "failure": failure.to_string() })
        }
    }
}
