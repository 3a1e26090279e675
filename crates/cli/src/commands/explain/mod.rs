//! `syncline explain`: the work of the last fsyncs, and its reasons.

mod busiest;
mod network;
mod text;

pub use busiest::{Busiest, BusyFile};

use crate::failure::{Cause, Failure, Outcome};
use crate::printed;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use syncline_fs::Filesystem;
use syncline_fuse::control::{self, Control, ControlError};
use text::Names;

/// The text on the control channel. Its argument is whose receipts, a colon, and how many.
const TEXT: &str = "explain";
const OF_FILE: &str = "file";
const OF_ALL: &str = "all";
/// The text on the control channel with the files synced most since a receipt, whose number follows
/// the colon.
pub const BUSIEST: &str = "busiest";

/// Arguments of `explain`.
#[derive(clap::Args)]
pub struct Args {
    /// A file of a mounted filesystem; a directory stands for all files of its mount
    file: PathBuf,
    /// How many of the last fsyncs
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    last: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The daemon's end.
pub fn register(control: &Control, fs: &Arc<Filesystem>) {
    const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
    const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    let weak = Arc::downgrade(fs);
    control.register_about(TEXT, move |asker| {
        let (whose, count) = asker.argument.split_once(':').ok_or(EINVAL)?;
        let count = count.parse().map_err(|_| EINVAL)?;
        let ino = match whose {
            // Anyone who could open the file may know when it was synced.
            OF_FILE => Some(asker.ino),
            OF_ALL if asker.is_owner => None,
            OF_ALL => return Err(EPERM),
            _ => return Err(EINVAL),
        };
        let receipts = weak.upgrade().map(|fs| fs.recent_receipts(count, ino)).unwrap_or_default();
        Ok(serde_json::json!(receipts).to_string())
    });
    let weak = Arc::downgrade(fs);
    control.register_about(BUSIEST, move |asker| {
        if !asker.is_owner {
            return Err(EPERM);
        }
        let since = asker.argument.parse().map_err(|_| EINVAL)?;
        let receipts = weak.upgrade().map(|fs| fs.receipts_since(since)).unwrap_or_default();
        Ok(serde_json::json!(Busiest::of(since, &receipts)).to_string())
    });
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let all = std::fs::metadata(&args.file).is_ok_and(|metadata| metadata.is_dir());
    let receipts = ask(&args.file, if all { OF_ALL } else { OF_FILE }, args.last)?;
    let mut output = printed::stdout();
    let written = if args.json {
        writeln!(output, "{receipts:#}")
    } else {
        let receipts = receipts.as_array().map_or(&[][..], Vec::as_slice);
        if receipts.is_empty() {
            return Err(none(&args.file, all));
        }
        let names = match all {
            true => Names::Known(names(&args.file, receipts)),
            false => Names::One(printed::one_line(args.file.display())),
        };
        let network = network_of(&args.file);
        output.write_all(text::explain(receipts, &names, network.as_ref()).as_bytes())
    };
    match written {
        // The reader has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        written => Ok(written.map(|()| ExitCode::SUCCESS)?),
    }
}

/// The first path of each inode that has one, asked of the daemon.
fn names(directory: &Path, receipts: &[Value]) -> BTreeMap<u64, String> {
    let path = |inode| control::paths(directory, inode).ok()?.into_iter().next();
    let named = |inode| Some((inode, printed::one_line(String::from_utf8_lossy(&path(inode)?))));
    text::inodes(receipts).into_iter().filter_map(named).collect()
}

/// The network's figures, if the image is on one.
fn network_of(path: &Path) -> Option<Value> {
    let stats: Value = serde_json::from_str(&control::stats(path).ok()?).ok()?;
    stats.get("network").filter(|network| network.is_object()).cloned()
}

fn ask(path: &Path, whose: &str, count: u32) -> Result<Value, Failure> {
    let text = control::text(path, &format!("{TEXT}:{whose}:{count}")).map_err(|error| match error {
        ControlError::Failed { ref source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            let text = format!(
                "{}: only root and the mount's owner may see the receipts of all files",
                path.display()
            );
            Failure::of(Cause::Permission, text).next("name one file that you may read")
        }
        ControlError::Unknown { path, .. } => ControlError::Unknown { path, name: TEXT.into() }.into(),
        error => error.into(),
    })?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("the daemon's answer makes no sense: {error}")))
}

fn none(path: &Path, all: bool) -> Failure {
    let why = if all { "nothing on this mount was synced of late" } else { "it was not synced of late" };
    let text = format!("{}: there are no receipts: {why}", path.display());
    Failure::new(text).next("the daemon keeps the receipts of the last 4096 fsyncs")
}
