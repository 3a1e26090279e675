//! `syncline sync` and `syncline barrier`: fsync2 and fbarrier for scripts.

use crate::failure::{Cause, Failure, Outcome};
use std::path::PathBuf;
use std::process::ExitCode;
use syncline_fuse::control::{self, ControlError};

/// Arguments of `sync`.
#[derive(clap::Args)]
pub struct SyncArgs {
    /// Files and directories on one mount; of a directory, only the names in it are made durable.
    /// If all are of durability class ordered, their order is fixed, and a flush follows
    #[arg(required_unless_present = "all", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Make everything durable on the filesystem that is mounted at or above DIR
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    all: Option<PathBuf>,
}

/// Arguments of `barrier`.
#[derive(clap::Args)]
pub struct BarrierArgs {
    /// Files and directories on one mount
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Makes the files durable: one log batch, at most one flush, all or nothing after a crash. With
/// `--all`, makes everything durable.
pub fn sync(args: SyncArgs) -> Outcome {
    let Some(directory) = args.all else { return done(control::sync_files(&args.files)) };
    // Refuse another filesystem before syncing it.
    control::text(&directory, "daemon")?;
    done(control::sync(&directory))
}

/// Orders the data written to the files before everything that comes later.
pub fn barrier(args: BarrierArgs) -> Outcome {
    done(control::order_files(&args.files))
}

fn done(result: Result<(), ControlError>) -> Outcome {
    const EXDEV: i32 = rustix::io::Errno::XDEV.raw_os_error();
    const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
    const EFBIG: i32 = rustix::io::Errno::FBIG.raw_os_error();
    const EROFS: i32 = rustix::io::Errno::ROFS.raw_os_error();
    let Err(error) = result else { return Ok(ExitCode::SUCCESS) };
    let errno = match &error {
        ControlError::File { source, .. } | ControlError::Failed { source, .. } => source.raw_os_error(),
        _ => None,
    };
    Err(match (errno, &error) {
        (Some(EXDEV), _) => Failure::of(Cause::Usage, error).next("name files of one mount at a time"),
        (Some(EINVAL), _) => Failure::of(Cause::Usage, error).next("name regular files and directories"),
        (Some(EFBIG), _) => Failure::new(error)
            .next("nothing was done: more than 64 MiB are unwritten; sync the large files one by one first"),
        // A mount that was made read-only has nothing to sync.
        (Some(EROFS), _) => Failure::of(Cause::Device, error).next(
            "it gave up writing, so unsynced changes may be lost: 'syncline stats DIR' says why; unmount, mend the device and mount again",
        ),
        (_, ControlError::TooMany { .. }) => {
            Failure::of(Cause::Usage, error).next("name fewer files at a time; each call is a separate unit")
        }
        _ => error.into(),
    })
}
