//! `snapshot list`.

use super::source::image_of;
use crate::commands::image;
use crate::failure::{Failure, Outcome};
use crate::size;
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Filesystem, Fork, Snapshot};
use syncline_device::{OpenOptions, block_on};
use syncline_image::{How, Image};

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
    let forks = Filesystem::forks_of(&image).map_err(|error| Failure::from(error).about(&image))?;
    let (receiving, base) = (keeps_part_of_stream(&image)?, base_of(&image)?);
    if args.json {
        let snapshots: Vec<_> = snapshots.iter().map(|snapshot| as_json(snapshot, &forks)).collect();
        let base = base.as_ref().map(BaseOf::as_json);
        say_text!("{:#}\n", json!({ "snapshots": snapshots, "part_of_stream": receiving, "base": base }));
        return Ok(ExitCode::SUCCESS);
    }
    if receiving {
        note!(
            "part of a stream is saved too: 'syncline receive --token' prints the token to continue it, and --abandon discards it"
        );
    }
    if snapshots.is_empty() {
        note!("no snapshots; 'syncline snapshot create' makes one");
        return Ok(ExitCode::SUCCESS);
    }
    say!("{:>10} {:>10}  {:<20} name", "used", "exclusive", "created (UTC)");
    for snapshot in snapshots {
        let (used, exclusive) = (size::show(snapshot.used_bytes), size::show(snapshot.exclusive_bytes));
        say!("{used:>10} {exclusive:>10}  {:<20} {}", created(&snapshot), snapshot.name);
        for fork in forks.iter().filter(|fork| fork.snapshot == snapshot.name) {
            say!("{:44}  base of {}", "", fork.path);
        }
        if let Some(base) = base.as_ref().filter(|base| base.snapshot == snapshot.name) {
            say!("{:44}  shared with {}, the base of this fork", "", base.image.display());
        }
    }
    // For people: a script knows.
    if std::io::stdout().is_terminal() {
        let source = args.source.display();
        note!(
            "'syncline ls {source}@NAME:/' lists its files, 'syncline snapshot mount {source} NAME DIRECTORY' mounts it"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The base of a fork.
pub struct BaseOf {
    pub image: PathBuf,
    /// The name that the base's snapshot has in the fork.
    pub snapshot: String,
}

impl BaseOf {
    pub fn as_json(&self) -> serde_json::Value {
        json!({ "image": self.image.to_string_lossy(), "snapshot": self.snapshot })
    }
}

/// The base of an image, if it is a fork.
pub fn base_of(image: &Path) -> Result<Option<BaseOf>, Failure> {
    base_in(&beside(image)?).map_err(|failure| failure.about(image))
}

/// The base of an open image, if it is a fork.
pub fn base_in(opened: &Image) -> Result<Option<BaseOf>, Failure> {
    let Some(base) = opened.base() else { return Ok(None) };
    let read = block_on(syncline_store::read_snapshots(&opened.device()));
    let (superblock, snapshots) = read?;
    let snapshot = snapshots.into_iter().find(|snapshot| snapshot.id == superblock.base);
    Ok(snapshot.map(|snapshot| BaseOf { image: base.to_owned(), snapshot: snapshot.name }))
}

/// Opens an image beside its daemon.
fn beside(image: &Path) -> Result<Image, Failure> {
    let options = OpenOptions { beside_writer: true, ..OpenOptions::default() };
    image::open(image, &How::new(options)).map_err(|error| Failure::from(error).about(image))
}

/// True if there is a part of a stream that was cut off.
fn keeps_part_of_stream(image: &Path) -> Result<bool, Failure> {
    let about = |failure: Failure| failure.about(image);
    let read = block_on(syncline_store::read_snapshots(&beside(image)?.device()));
    let (_, snapshots) = read.map_err(|error| about(error.into()))?;
    Ok(snapshots.iter().any(|snapshot| snapshot.is_receiving()))
}

fn as_json(snapshot: &Snapshot, forks: &[Fork]) -> serde_json::Value {
    let forks = forks.iter().filter(|fork| fork.snapshot == snapshot.name).map(|fork| &fork.path);
    json!({
        "forks": forks.collect::<Vec<_>>(),
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
