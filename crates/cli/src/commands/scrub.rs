//! `syncline scrub`: the daemon verifies its image in the background; this program starts that and
//! shows its progress.

use super::{ask, found, image, remote};
use crate::failure::{Cause, Failure, Outcome};
use crate::printed::several;
use crate::size;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use syncline_check::Scrub;
use syncline_fuse::control::{self, Control, ControlError};

/// The texts and commands of the control channel.
const REPORT: &str = "scrub";
const START: &str = "scrub-start";
const CANCEL: &str = "scrub-cancel";
/// How often the daemon is asked for its progress.
const POLL: Duration = Duration::from_millis(200);
/// Exit code when something is damaged.
const DAMAGED: u8 = Cause::Damaged as u8;
/// Exit code of a program ended by SIGINT.
const INTERRUPTED: u8 = 130;

/// Arguments of `scrub`.
#[derive(clap::Args)]
#[command(
    after_help = "Only root and the user whose daemon it is may scrub, and see what was found; 'syncline stats' tells everybody \
how much that is.\n\nExit codes: 0 nothing is damaged; 4 something is; 130 it was interrupted."
)]
pub struct Args {
    /// Any directory or file of a mounted filesystem
    directory: PathBuf,
    /// Most bytes read in a second; 0 for no limit
    #[arg(long, value_name = "SIZE", default_value = "50MiB", value_parser = rate)]
    rate: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// A size, perhaps followed by "/s".
fn rate(text: &str) -> Result<u64, String> {
    size::parse(text.strip_suffix("/s").unwrap_or(text))
}

/// The daemon's end: lets others start, follow and cancel its scrubs.
pub fn register(control: &Control, scrub: &Arc<Scrub>) {
    let (started, cancelled, followed) = (scrub.clone(), scrub.clone(), scrub.clone());
    control.register_command(START, move |rate| if started.start(rate) { Ok(()) } else { Err(libc_ebusy()) });
    control.register_command(CANCEL, move |_| {
        cancelled.cancel();
        Ok(())
    });
    control.register_about(REPORT, move |asker| match asker.is_owner {
        true => Ok(serde_json::json!(followed.report()).to_string()),
        // Its paths lead through directories that not everybody may enter. `stats` tells everybody
        // the number of findings.
        false => Err(rustix::io::Errno::PERM.raw_os_error()),
    });
}

fn libc_ebusy() -> i32 {
    rustix::io::Errno::BUSY.raw_os_error()
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    ask::require_answer(&args.directory, ask::PATIENCE)?;
    refuse_lost(&args.directory)?;
    start(&args)?;
    let report = follow(&args.directory, &interrupted)?;
    refuse_lost(&args.directory)?;
    if args.json {
        say_text!("{report:#}\n");
    } else {
        print(&args.directory, &report);
    }
    let damaged = findings(&report).next().is_some();
    Ok(ExitCode::from(match report["cancelled"].as_bool() {
        _ if damaged => DAMAGED,
        Some(true) => INTERRUPTED,
        _ => 0,
    }))
}

/// Refuses if the image was lost: then an unreadable block is not damaged.
fn refuse_lost(directory: &Path) -> Result<(), Failure> {
    remote::lost_by(directory).map_or(Ok(()), Err)
}

fn start(args: &Args) -> Result<(), Failure> {
    control::command(&args.directory, START, args.rate).map_err(|error| match &error {
        ControlError::Failed { source, .. } if source.raw_os_error() == Some(libc_ebusy()) => {
            let text = format!("{}: a scrub is under way already", args.directory.display());
            Failure::of(Cause::InUse, text).next("wait for it, or interrupt it where it was started")
        }
        ControlError::Failed { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            let text = format!("{}: only root and the mount's owner may scrub", args.directory.display());
            Failure::of(Cause::Permission, text)
        }
        ControlError::NotSyncline { path } if !path.is_dir() => Failure::of(Cause::MountPoint, error)
            .next("name a directory of a mount, or verify an unmounted image with 'syncline check'"),
        _ => error.into(),
    })
}

/// Follows the scrub to its end; an interruption ends it.
fn follow(directory: &Path, interrupted: &AtomicBool) -> Result<Value, Failure> {
    let bar = image::progress_bar(0, "scrubbing");
    let mut asked = false;
    loop {
        let text = match control::text(directory, REPORT) {
            // Interrupted by the same signal that interrupts the scrub.
            Err(ControlError::Failed { source, .. }) if source.kind() == std::io::ErrorKind::Interrupted => {
                continue;
            }
            text => text?,
        };
        let report: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("the daemon's answer makes no sense: {error}")))?;
        bar.set_length(report["total_bytes"].as_u64().unwrap_or(0));
        bar.set_position(report["bytes"].as_u64().unwrap_or(0));
        if report["running"] != Value::Bool(true) {
            bar.finish_and_clear();
            return Ok(report);
        }
        if interrupted.load(Ordering::Acquire) && !asked {
            asked = true;
            control::command(directory, CANCEL, 0)?;
        }
        std::thread::sleep(if asked { POLL / 10 } else { POLL });
    }
}

fn findings(report: &Value) -> impl Iterator<Item = &Value> {
    report["findings"].as_array().into_iter().flatten()
}

fn print(directory: &Path, report: &Value) {
    let all: Vec<&Value> = findings(report).collect();
    for (finding, more) in found::runs(&all, |one, next| follows(one, next)) {
        let path = finding["object"].as_u64().and_then(|object| report["paths"][object.to_string()].as_str());
        let words = ["id", "name", "text"].map(|field| text(&finding[field]));
        let line = found::line(words, finding["object"].as_u64(), finding["block"].as_u64(), path);
        say!("{line}{}", found::and_more(more));
    }
    let number = |name: &str| report[name].as_u64().unwrap_or(0);
    let directory = directory.display();
    let damaged = findings(report).count() as u64 + number("findings_dropped");
    let how = if report["cancelled"] == Value::Bool(true) { "interrupted, " } else { "" };
    let mended = number("copies_mended");
    let what = match (damaged, mended) {
        (0, 0) => "nothing is damaged".to_owned(),
        (0, _) => "nothing is damaged any more".to_owned(),
        _ => several(damaged, "error", "errors"),
    };
    say!(
        "{directory}: {how}{what} ({}, {}, {} read in {:.1} s)",
        several(number("nodes"), "tree node", "tree nodes"),
        several(number("data_blocks"), "data block", "data blocks"),
        size::show(number("bytes")),
        number("milliseconds") as f64 / 1000.0
    );
    if mended > 0 {
        let blocks = several(mended, "block", "blocks");
        say!("{directory}: {blocks} of metadata had a damaged copy, which is mended from the other one");
    }
    if damaged > 0 {
        say!("{directory}: {}", next_step(report));
    }
}

/// True for the damage of the next block of the same file.
fn follows(one: &Value, next: &Value) -> bool {
    let block = |finding: &Value| finding["block"].as_u64();
    let same = one["id"] == next["id"] && one["object"] == next["object"];
    let is_data = ["data-damaged", "data-unreadable"].contains(&text(&one["name"]));
    same && is_data && block(one).is_some_and(|at| block(next) == Some(at + 1))
}

/// The next step for these findings: no repair mends data.
fn next_step(report: &Value) -> String {
    let is = |finding: &Value, names: &[&str]| names.contains(&text(&finding["name"]));
    let data = ["data-damaged", "data-unreadable"];
    if findings(report).all(|finding| is(finding, &["copy-damaged"])) {
        return "the other copies are sound, so nothing is lost yet: unmount it and run 'syncline check --repair'".into();
    }
    let mut steps = Vec::new();
    if findings(report).any(|finding| is(finding, &data)) {
        steps.push(
            "restore these files from a backup, or from a snapshot in which they are whole, or delete them",
        );
    }
    if findings(report).any(|finding| !is(finding, &data)) {
        steps.push(
            "unmount it: 'syncline check --repair --dry-run' lists the possible repairs, 'mount -o ro' saves the readable files",
        );
    }
    if findings(report).any(|finding| is(finding, &["snapshot-damaged"])) {
        steps.push("delete the snapshots that stay damaged ('syncline snapshot delete')");
    }
    format!("reading damaged data fails: {}", steps.join("; "))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_sizes_in_a_second() {
        assert_eq!(rate("50MiB/s"), Ok(50 << 20));
        assert_eq!(rate("1G"), Ok(1 << 30));
        assert_eq!(rate("0"), Ok(0));
        assert!(rate("fast").is_err());
    }
}
