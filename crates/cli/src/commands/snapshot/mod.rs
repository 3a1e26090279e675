//! `syncline snapshot`: named states of a whole filesystem.

mod change;
mod diff;
mod list;
mod prune;
mod source;

pub use change::delete_one;
pub use source::{image_of, is_mounted};

use crate::examples;
use crate::failure::{Failure, Outcome};
use std::path::PathBuf;

/// Arguments of `snapshot`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Keep the filesystem as it is now under a name: instant, whatever its size
    #[command(after_help = examples::SNAPSHOT_CREATE)]
    Create(change::Args),
    /// Show the snapshots and the space that only they use
    #[command(after_help = examples::SNAPSHOT_LIST)]
    List(list::Args),
    /// Delete a snapshot; what only it used is free at once
    #[command(after_help = examples::SNAPSHOT_DELETE)]
    Delete(change::Args),
    /// Delete old snapshots, and keep some of each hour, day, week, month or year
    #[command(after_help = examples::SNAPSHOT_PRUNE)]
    Prune(prune::Args),
    /// Mount a snapshot, read-only, beside the filesystem itself
    #[command(after_help = examples::SNAPSHOT_MOUNT)]
    Mount(MountArgs),
    /// Make the filesystem what it was when the snapshot was made, if it still has that size; what
    /// has changed since is given up
    #[command(after_help = examples::SNAPSHOT_ROLLBACK)]
    Rollback(change::RollbackArgs),
    /// Show what changed between two snapshots, or since one
    #[command(after_help = examples::SNAPSHOT_DIFF)]
    Diff(diff::Args),
}

/// Arguments of `snapshot mount`.
#[derive(clap::Args)]
struct MountArgs {
    /// Image file or block device, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Name of the snapshot
    name: String,
    /// Empty directory to mount it at
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Create(args) => change::create(&args).map_err(Failure::or_its_directory),
        Command::List(args) => list::run(&args),
        Command::Delete(args) => change::delete(&args).map_err(Failure::or_its_directory),
        Command::Prune(args) => prune::run(&args).map_err(Failure::or_its_directory),
        Command::Mount(args) => {
            let image = source::image_of(&args.source)?;
            super::mount::run(super::mount::Args::of_snapshot(image, &args.name, args.directory))
        }
        Command::Rollback(args) => change::roll_back(&args),
        Command::Diff(args) => diff::run(&args).map_err(Failure::or_its_directory),
    }
}
