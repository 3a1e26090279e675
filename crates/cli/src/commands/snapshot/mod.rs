//! `syncline snapshot`: named states of a whole filesystem.

mod change;
mod diff;
mod list;
mod prune;
mod source;

pub use change::{ReadyBase, delete_one, place_hold};
pub use list::{BaseOf, base_in, base_of};
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
    /// Make a snapshot of the filesystem: instant, at any size
    #[command(after_help = examples::SNAPSHOT_CREATE)]
    Create(change::Args),
    /// Show the snapshots and the space that only they use
    #[command(after_help = examples::SNAPSHOT_LIST)]
    List(list::Args),
    /// Delete a snapshot; its exclusive space is free at once
    #[command(after_help = examples::SNAPSHOT_DELETE)]
    Delete(change::Args),
    /// Delete old snapshots, except for some of each hour, day, week, month or year
    #[command(after_help = examples::SNAPSHOT_PRUNE)]
    Prune(prune::Args),
    /// Mount a snapshot, read-only; the filesystem itself may be mounted too
    #[command(after_help = examples::SNAPSHOT_MOUNT)]
    Mount(MountArgs),
    /// Return the filesystem to a snapshot, if it still has that size; later changes are lost
    #[command(after_help = examples::SNAPSHOT_ROLLBACK)]
    Rollback(change::RollbackArgs),
    /// List the changes between two snapshots, or since one
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
