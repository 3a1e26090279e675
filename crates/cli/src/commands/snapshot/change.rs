//! `snapshot create`, `delete` and `rollback`.

use super::source::{image_of, is_mounted, mounted_at};
use crate::commands::mounted::refuse_mounted;
use crate::failure::{Cause, Failure, Outcome};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Error, Filesystem, ImageOptions};
use syncline_device::block_on;
use syncline_fuse::control::{self, ControlError};
use syncline_store::{Forked, Hold, SnapshotError};

/// Arguments of `create` and `delete`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Name of the snapshot: 1 to 255 bytes without slashes
    name: String,
}

/// Arguments of `rollback`.
#[derive(clap::Args)]
pub struct RollbackArgs {
    /// Image file or block device that is not mounted
    image: PathBuf,
    /// Name of the snapshot
    name: String,
    /// First make a snapshot of the present state under this name
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
}

/// Makes a snapshot.
pub fn create(args: &Args) -> Outcome {
    require_users(&args.name)?;
    change(args, directory(args)?, Change::Create, |fs| fs.create_snapshot(&args.name))
}

/// Deletes a snapshot.
pub fn delete(args: &Args) -> Outcome {
    require_users(&args.name)?;
    delete_at(args, directory(args)?)
}

/// Places a hold in an image or a mounted filesystem. The image may be mounted.
pub fn place_hold(source: &Path, hold: &Hold) -> Result<(), Failure> {
    let place = |fs: &Filesystem| block_on(fs.engine().hold_snapshot(hold)).map(drop).map_err(Error::from);
    change(&Args::of(source, &hold.name()), mounted_at(source)?, Change::Create, place).map(drop)
}

/// Deletes a snapshot or a hold of an image or a mounted filesystem. The image may be mounted.
pub fn delete_one(source: &Path, name: &str) -> Result<(), Failure> {
    delete_at(&Args::of(source, name), mounted_at(source)?).map(drop)
}

/// A base that is ready to release a hold: it is mounted, or open for writing.
pub enum ReadyBase {
    Mounted { source: PathBuf, directory: PathBuf },
    Open { source: PathBuf, fs: Filesystem },
}

impl ReadyBase {
    /// Opens the image at `source`, or finds the directory where it is mounted. Fails if the hold could not be
    /// released.
    pub fn of(source: &Path) -> Result<Self, Failure> {
        let source = source.to_owned();
        if let Some(directory) = mounted_at(&source)? {
            return Ok(Self::Mounted { source, directory });
        }
        let opened = Filesystem::open(&source, ImageOptions::default());
        let fs = opened.map_err(|error| Failure::from(error).about(&source))?;
        Ok(Self::Open { source, fs })
    }

    /// Releases the hold of this name.
    pub fn release(self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Mounted { source, directory } => {
                delete_at(&Args::of(&source, name), Some(directory)).map(drop)
            }
            Self::Open { source, fs } => {
                let released = fs.delete_snapshot(name).and_then(|()| fs.close());
                released.map_err(|error| Failure::from(error).about(&source))
            }
        }
    }
}

impl Args {
    fn of(source: &Path, name: &str) -> Self {
        Self { source: source.to_owned(), name: name.to_owned() }
    }
}

/// The directory of a mounted filesystem that the user named.
fn directory(args: &Args) -> Result<Option<PathBuf>, Failure> {
    Ok(is_mounted(&args.source)?.then(|| args.source.clone()))
}

/// Refuses the name of a hold, which only `fork` makes and releases.
fn require_users(name: &str) -> Result<(), Failure> {
    match Hold::of_name(name) {
        None => Ok(()),
        Some(_) => {
            let name = name.to_owned();
            Err(syncline_store::StoreError::from(SnapshotError::Name { name }).into())
        }
    }
}

fn delete_at(args: &Args, directory: Option<PathBuf>) -> Outcome {
    change(args, directory, Change::Delete, |fs| fs.delete_snapshot(&args.name))
}

/// Whether a snapshot or a hold is created or deleted.
#[derive(Clone, Copy)]
enum Change {
    Create,
    Delete,
}

/// Changes a filesystem that is mounted at `directory`, or an image that is not mounted.
fn change(
    args: &Args,
    directory: Option<PathBuf>,
    what: Change,
    unmounted: impl Fn(&Filesystem) -> syncline::Result<()>,
) -> Outcome {
    if let Some(directory) = directory {
        let asked = match what {
            Change::Create => control::create_snapshot(&directory, &args.name),
            Change::Delete => control::delete_snapshot(&directory, &args.name),
        };
        asked.map_err(|error| match refused(error, &args.name, what) {
            failure if failure.code() == Cause::InUse as u8 => {
                why_in_use(&directory, &args.name).unwrap_or(failure)
            }
            failure => failure,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let about = |error: Error| Failure::from(error).about(&args.source);
    let fs = Filesystem::open(&args.source, ImageOptions::default()).map_err(about)?;
    unmounted(&fs).map_err(about)?;
    fs.close().map_err(about)?;
    Ok(ExitCode::SUCCESS)
}

/// Why a mounted filesystem does not delete a snapshot, if its image tells.
fn why_in_use(directory: &Path, name: &str) -> Option<Failure> {
    if let Some(hold) = Hold::of_name(name) {
        let why = SnapshotError::ForkInUse { path: hold.path };
        return Some(syncline_store::StoreError::from(why).into());
    }
    let image = image_of(directory).ok()?;
    let forks = Filesystem::forks_of(&image).ok()?;
    let forks = forks.into_iter().filter(|fork| fork.snapshot == name).map(|fork| fork.path);
    let (name, forks) = (name.to_owned(), forks.collect::<Vec<_>>());
    let why = match forks.is_empty() {
        false => SnapshotError::from(Box::new(Forked { name, forks })),
        true if super::list::base_of(&image).ok()?.is_some_and(|base| base.snapshot == name) => {
            SnapshotError::IsBase { name }
        }
        true => return None,
    };
    Some(syncline_store::StoreError::from(why).into())
}

/// The daemon's errno in the store's words.
fn refused(error: ControlError, name: &str, what: Change) -> Failure {
    const NOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
    const BUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
    const EXIST: i32 = rustix::io::Errno::EXIST.raw_os_error();
    const INVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
    const MLINK: i32 = rustix::io::Errno::MLINK.raw_os_error();
    const PERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    let errno = match &error {
        ControlError::Failed { source, .. } => source.raw_os_error(),
        _ => None,
    };
    let name = name.to_owned();
    let known = match errno {
        Some(NOENT) if matches!(what, Change::Create) => SnapshotError::Gone,
        Some(NOENT) => SnapshotError::not_found(&name),
        Some(BUSY) => SnapshotError::InUse { name },
        Some(EXIST) => SnapshotError::Exists { name },
        Some(INVAL) => SnapshotError::Name { name },
        Some(MLINK) => SnapshotError::TooMany,
        Some(PERM) => {
            return Failure::of(Cause::Permission, error)
                .next("ask as root, or as the user whose daemon it is");
        }
        _ => return error.into(),
    };
    syncline_store::StoreError::from(known).into()
}

/// Rolls back to a snapshot.
pub fn roll_back(args: &RollbackArgs) -> Outcome {
    refuse_mounted(&args.image, "unmount it with 'syncline umount', then roll back the image")?;
    let about = |error: Error| Failure::from(error).about(&args.image);
    // A rollback that will be refused must not first make a snapshot of the present state.
    Filesystem::require_rollback(&args.image, &args.name).map_err(about)?;
    if let Some(keep) = &args.keep {
        let fs = Filesystem::open(&args.image, ImageOptions::default()).map_err(about)?;
        fs.create_snapshot(keep).map_err(about)?;
        fs.close().map_err(about)?;
    }
    Filesystem::roll_back(&args.image, &args.name).map_err(about)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same as for an image that is not mounted.
    #[test]
    fn a_mount_without_room_for_a_snapshot_says_so() {
        let source = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()).into();
        let failure = refused(ControlError::Failed { path: "mnt".into(), source }, "monday", Change::Create);
        assert_eq!(failure.code(), Cause::NoSpace as u8);
        assert!(failure.to_string().ends_with("enlarge it with 'syncline resize'"), "{failure}");
    }
}
