//! `snapshot list`.

use super::source::image_of;
use crate::failure::{Failure, Outcome};
use crate::size;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline::{Filesystem, Snapshot};

/// Arguments of `list`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the snapshots.
pub fn run(args: &Args) -> Outcome {
    let image = image_of(&args.source)?;
    let snapshots = Filesystem::snapshots_of(&image).map_err(|error| Failure::from(error).about(&image))?;
    if args.json {
        let snapshots: Vec<_> = snapshots.iter().map(as_json).collect();
        say_text!("{:#}\n", json!({ "snapshots": snapshots }));
        return Ok(ExitCode::SUCCESS);
    }
    if snapshots.is_empty() {
        note!("no snapshots; 'syncline snapshot create' makes one");
        return Ok(ExitCode::SUCCESS);
    }
    say!("{:>10} {:>10}  {:<20} name", "used", "exclusive", "created (UTC)");
    for snapshot in snapshots {
        let (used, exclusive) = (size::show(snapshot.used_bytes), size::show(snapshot.exclusive_bytes));
        say!("{used:>10} {exclusive:>10}  {:<20} {}", created(&snapshot), snapshot.name);
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(snapshot: &Snapshot) -> serde_json::Value {
    json!({
        "name": snapshot.name,
        "created": created(snapshot),
        "used_bytes": snapshot.used_bytes,
        "exclusive_bytes": snapshot.exclusive_bytes,
    })
}

/// When it was made, in the format of RFC 3339.
fn created(snapshot: &Snapshot) -> String {
    humantime::format_rfc3339_seconds(snapshot.created).to_string()
}
