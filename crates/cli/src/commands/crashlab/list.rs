//! `syncline crashlab list`: the moments at which something became durable or was told.

use super::report::{cause_text, images_text};
use crate::failure::{Failure, Outcome};
use crate::size;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline_cuts::{Cause, Names, Point, Recording, points};

/// Up to this many open writes, the number of images is given exactly.
const EXACT_MAX: usize = 52;

/// Arguments of `crashlab list`.
#[derive(clap::Args)]
pub struct Args {
    /// Recording
    recording: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let recording = syncline_cuts::read(&args.recording)?;
    let points = points(&recording);
    if args.json {
        print_json(&recording, &points)?;
    } else {
        print(&recording, &points)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(recording: &Recording, points: &[Point]) -> Result<(), Failure> {
    let info = &recording.info;
    say!("Recorded from {}: {}, exit code {}", info.image, info.command.join(" "), info.exit_code);
    if info.truncated {
        say!("It was ended because it wrote too much.");
    }
    say!("{:>5} {:>11} {:>7} {:>7} {:>10} {:>8}  what", "point", "ms", "event", "writes", "bytes", "images");
    let mut names = Names::new(recording)?;
    for (number, point) in points.iter().enumerate() {
        names.advance(recording, point.position);
        let what: Vec<String> = point.causes.iter().map(|cause| cause_text(cause, &names)).collect();
        say!(
            "{number:>5} {:>11.3} {:>7} {:>7} {:>10} {:>8}  {}",
            point.time_ns as f64 / 1e6,
            point.position,
            point.writes,
            size::show(point.bytes),
            images_text(point.open_writes),
            what.join(", ")
        );
    }
    say!(
        "images: the states that a power cut between the point before and this one can leave, whole writes only; torn writes add to it"
    );
    Ok(())
}

fn print_json(recording: &Recording, points: &[Point]) -> Result<(), Failure> {
    let mut names = Names::new(recording)?;
    let mut listed = Vec::new();
    for (number, point) in points.iter().enumerate() {
        names.advance(recording, point.position);
        let causes: Vec<serde_json::Value> =
            point.causes.iter().map(|cause| cause_json(cause, &names)).collect();
        listed.push(json!({
            "number": number,
            "position": point.position,
            "time_ns": point.time_ns,
            "causes": causes,
            "writes": point.writes,
            "bytes": point.bytes,
            "open_writes": point.open_writes,
            "images": (point.open_writes <= EXACT_MAX).then(|| 1_u64 << point.open_writes),
        }));
    }
    let info = &recording.info;
    let text = json!({
        "image": info.image,
        "command": info.command,
        "exit_code": info.exit_code,
        "started_seconds": info.started_seconds,
        "truncated": info.truncated,
        "events": recording.events.len(),
        "points": listed,
    });
    say_text!("{text:#}\n");
    Ok(())
}

fn cause_json(cause: &Cause, names: &Names) -> serde_json::Value {
    let kind = match cause {
        Cause::Begin => "begin",
        Cause::Flush => "flush",
        Cause::Fsync(_) => "fsync",
        Cause::Fdatasync(_) => "fdatasync",
        Cause::SyncFs => "syncfs",
        Cause::Line(_) => "stdout",
        Cause::Ended => "ended",
        Cause::Unmounted => "unmounted",
    };
    match cause {
        Cause::Fsync(ino) | Cause::Fdatasync(ino) => {
            json!({ "kind": kind, "path": names.path(*ino), "ino": ino })
        }
        Cause::Line(line) => json!({ "kind": kind, "line": String::from_utf8_lossy(line) }),
        _ => json!({ "kind": kind }),
    }
}
