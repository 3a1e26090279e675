//! `syncline quota`: limits on directory trees.

use super::{ask, image};
use crate::failure::{Cause, Failure, Outcome};
use crate::{examples, size};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Error, Filesystem, ImageOptions, QuotaUsage};
use syncline_fs::FsError;
use syncline_fuse::control::{self, ControlError};

/// Arguments of `quota`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Limit the bytes and files of a directory tree
    #[command(after_help = examples::QUOTA_SET)]
    Set(SetArgs),
    /// Show the limits of a directory, and the usage of its tree
    #[command(after_help = examples::QUOTA_SHOW)]
    Show(ShowArgs),
    /// Show all directories that have a quota
    #[command(after_help = examples::QUOTA_LIST)]
    List(ListArgs),
    /// Take a directory's quota away; its contents stay as they are
    #[command(after_help = examples::QUOTA_REMOVE)]
    Remove(RemoveArgs),
}

/// Arguments of `set`.
#[derive(clap::Args)]
struct SetArgs {
    /// A directory of a mounted filesystem
    dir: PathBuf,
    #[command(flatten)]
    limits: Limits,
}

#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct Limits {
    /// Limit of allocated bytes, such as 10GiB; 0 for no limit. Default: unchanged
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    bytes: Option<u64>,
    /// Limit of files and directories, including itself; 0 for no limit. Default: unchanged
    #[arg(long, value_name = "NUMBER")]
    inodes: Option<u64>,
}

/// Arguments of `show`.
#[derive(clap::Args)]
struct ShowArgs {
    /// A directory of a mounted filesystem that has a quota
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `list`.
#[derive(clap::Args)]
struct ListArgs {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `remove`.
#[derive(clap::Args)]
struct RemoveArgs {
    /// A directory of a mounted filesystem that has a quota
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let asked = match &args.command {
        Command::Set(SetArgs { dir, .. })
        | Command::Show(ShowArgs { dir, .. })
        | Command::List(ListArgs { source: dir, .. })
        | Command::Remove(RemoveArgs { dir }) => dir,
    };
    ask::require_answer(asked, ask::PATIENCE)?;
    match args.command {
        Command::Set(args) => set(&args),
        Command::Show(args) => show(&args),
        Command::List(args) => list(&args).map_err(Failure::or_its_directory),
        Command::Remove(args) => {
            control::remove_quota(&args.dir).map_err(|error| refused(error, &args.dir))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn set(args: &SetArgs) -> Outcome {
    let Limits { bytes, inodes } = args.limits;
    let bar = image::spinner("counting the present files");
    let set = control::set_quota(&args.dir, bytes, inodes);
    bar.finish_and_clear();
    set.map_err(|error| refused(error, &args.dir))?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ShowArgs) -> Outcome {
    let text = control::quota(&args.dir).map_err(|error| refused(error, &args.dir))?;
    let mut told: Value = serde_json::from_str(&text).unwrap_or_default();
    told["path"] = args.dir.to_string_lossy().into();
    if args.json {
        say_text!("{told:#}\n");
    } else {
        print(&[told]);
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> Outcome {
    let all = if args.source.is_dir() {
        let text = control::quotas(&args.source).map_err(|error| refused(error, &args.source))?;
        serde_json::from_str(&text).unwrap_or_default()
    } else {
        of_image(&args.source)?
    };
    if args.json {
        say_text!("{:#}\n", json!({ "quotas": all }));
    } else if all.is_empty() {
        note!("no quotas; 'syncline quota set' makes one");
    } else {
        print(&all);
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the image read-only.
fn of_image(image: &Path) -> Result<Vec<Value>, Failure> {
    let about = |error: Error| Failure::from(error).about(image);
    let fs = Filesystem::open(image, ImageOptions::read_only()).map_err(about)?;
    let path = |usage: &QuotaUsage| fs.paths(usage.root).ok().and_then(|paths| paths.into_iter().next());
    let told = |usage: QuotaUsage| json!({ "path": path(&usage).as_deref().map(String::from_utf8_lossy), "usage": usage });
    Ok(fs.quotas().into_iter().map(told).collect())
}

fn print(all: &[Value]) {
    say!("{:>12} {:>12} {:>10} {:>10}  directory", "used", "limit", "inodes", "limit");
    for told in all {
        let usage = &told["usage"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let limit = |value: &Value, show: &dyn Fn(u64) -> String| match number(value) {
            0 => "none".to_owned(),
            limit => show(limit),
        };
        let used = number(&usage["used_bytes"]) + number(&usage["reserved_bytes"]);
        let root = number(&usage["root"]);
        let directory = told["path"].as_str().map_or_else(|| format!("inode {root}"), str::to_owned);
        let state = if usage["being_set"] == true {
            "  (not all is counted and nothing limited yet: run 'quota set' again if that was interrupted)"
        } else {
            ""
        };
        say!(
            "{:>12} {:>12} {:>10} {:>10}  {directory}{state}",
            size::show(used),
            limit(&usage["limits"]["bytes"], &size::show),
            number(&usage["used_inodes"]),
            limit(&usage["limits"]["inodes"], &|inodes| inodes.to_string()),
        );
    }
}

/// The daemon's errno in the engine's words.
fn refused(error: ControlError, directory: &Path) -> Failure {
    let errno = match &error {
        ControlError::Failed { source, .. } => source.raw_os_error(),
        _ => None,
    };
    let known = [FsError::NoQuota, FsError::QuotaNested, FsError::QuotaUnsupported, FsError::NotDirectory];
    if let Some(why) = known.into_iter().find(|why| Some(why.errno()) == errno) {
        return Failure::new(why).about(directory);
    }
    if errno == Some(rustix::io::Errno::PERM.raw_os_error()) {
        return Failure::of(Cause::Permission, error).next("ask as root, or as the user whose daemon it is");
    }
    error.into()
}
