//! `syncline path`: the paths of an inode, from its parent pointers.

use crate::failure::{Cause, Failure, Outcome};
use crate::printed;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline::{Error, Filesystem, ImageOptions};
use syncline_fs::FsError;
use syncline_fuse::control::{self, ControlError};

/// Arguments of `path`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Number of the inode, as 'ls -i', 'stat' and 'syncline check' print it
    #[arg(value_parser = inode_number)]
    inode: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn inode_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "give a number, as 'ls -i' shows it".to_owned())
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let paths = if args.source.is_dir() { of_mount(&args)? } else { of_image(&args)? };
    if args.json {
        let texts: Vec<_> = paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
        say_text!("{:#}\n", json!({ "inode": args.inode, "paths": texts }));
        return Ok(ExitCode::SUCCESS);
    }
    // Names are bytes, and each path gets a line of its own.
    let mut output = printed::stdout();
    for path in paths {
        output.write_all(&printed::name(&path))?;
        output.write_all(b"\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the daemon.
fn of_mount(args: &Args) -> Result<Vec<Vec<u8>>, Failure> {
    control::paths(&args.source, args.inode).map_err(|error| {
        let errno = match &error {
            ControlError::Failed { source, .. } => source.raw_os_error(),
            _ => None,
        };
        let refused = [FsError::NoParentPointers, FsError::NoName, FsError::Stale];
        if let Some(why) = refused.into_iter().find(|why| Some(why.errno()) == errno) {
            return refuse(args, &why);
        }
        if errno == Some(rustix::io::Errno::PERM.raw_os_error()) {
            return Failure::of(Cause::Permission, error)
                .next("ask as root, or as the user whose daemon it is: paths may be secret");
        }
        error.into()
    })
}

/// Opens the image read-only.
fn of_image(args: &Args) -> Result<Vec<Vec<u8>>, Failure> {
    let about = |error: Error| Failure::from(error).about(&args.source);
    let fs = Filesystem::open(&args.source, ImageOptions::read_only()).map_err(about)?;
    fs.paths(args.inode).map_err(|error| match error {
        Error::Filesystem(why @ (FsError::NoParentPointers | FsError::NoName | FsError::Stale)) => {
            refuse(args, &why)
        }
        error => about(error),
    })
}

/// The failure when there are no paths to print.
fn refuse(args: &Args, why: &FsError) -> Failure {
    let failure = match why {
        FsError::Stale => Failure::new(format!("there is no inode {}", args.inode)),
        FsError::NoName => Failure::new(format!("inode {} has no name left: it was removed", args.inode)),
        why => Failure::new(why).next("without them only 'find -inum' finds the names of an inode"),
    };
    failure.about(&args.source)
}
