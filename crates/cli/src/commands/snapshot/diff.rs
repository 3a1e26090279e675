//! `snapshot diff`.

use super::source::image_of;
use crate::failure::{Failure, Outcome};
use crate::printed;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Change, ChangeKind, Error, Filesystem, ImageOptions};
use syncline_fs::FsError;

/// Arguments of `diff`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Name of the older snapshot
    from: String,
    /// Name of the later snapshot. Default: the present state, of an image that is not mounted
    to: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Compares the two states.
pub fn run(args: &Args) -> Outcome {
    let image = image_of(&args.source)?;
    let about = |error: Error| match error {
        Error::Filesystem(why @ FsError::NoParentPointers) => {
            Failure::new(why).next("mount both snapshots and compare them with 'diff -r'").about(&image)
        }
        error => Failure::from(error).about(&image),
    };
    let open = |name: &str| Filesystem::open_snapshot(&image, name, ImageOptions::default()).map_err(about);
    let before = open(&args.from)?;
    let after = match &args.to {
        Some(name) => open(name)?,
        None => present(&args.source, &image)?,
    };
    let changes = after.changes_since(&before).map_err(about)?;
    if args.json {
        let changes: Vec<_> = changes.iter().map(as_json).collect();
        say_text!("{:#}\n", json!({ "changes": changes }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut output = printed::stdout();
    printed::written(changes.iter().try_for_each(|change| print(&mut output, change)))?;
    Ok(ExitCode::SUCCESS)
}

/// The present state of the filesystem.
fn present(source: &Path, image: &Path) -> Result<Filesystem, Failure> {
    if source.is_dir() {
        return Err(Failure::usage("a mounted filesystem is changing: name two snapshots")
            .next("make one of the present state with 'syncline snapshot create'"));
    }
    Filesystem::open(image, ImageOptions::read_only()).map_err(|error| Failure::from(error).about(image))
}

/// One line: the kind of change, and the path.
fn print(output: &mut impl Write, change: &Change) -> std::io::Result<()> {
    let letter = match &change.kind {
        ChangeKind::Added => "+",
        ChangeKind::Removed => "-",
        ChangeKind::Contents => "M",
        ChangeKind::Attributes => "A",
        ChangeKind::Renamed { from } => {
            output.write_all(b"R ")?;
            output.write_all(&printed::name(from))?;
            output.write_all(b" -> ")?;
            output.write_all(&printed::name(&change.path))?;
            return output.write_all(b"\n");
        }
    };
    output.write_all(letter.as_bytes())?;
    output.write_all(b" ")?;
    output.write_all(&printed::name(&change.path))?;
    output.write_all(b"\n")
}

fn as_json(change: &Change) -> serde_json::Value {
    let (what, from) = match &change.kind {
        ChangeKind::Added => ("added", None),
        ChangeKind::Removed => ("removed", None),
        ChangeKind::Contents => ("contents", None),
        ChangeKind::Attributes => ("attributes", None),
        ChangeKind::Renamed { from } => ("renamed", Some(String::from_utf8_lossy(from))),
    };
    json!({
        "path": String::from_utf8_lossy(&change.path),
        "change": what,
        "from": from,
        "inode": change.ino,
    })
}
