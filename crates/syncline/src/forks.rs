//! Forks: writable images that begin as a snapshot of another image and share its blocks.

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::options::ImageOptions;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::{Claim, DeviceError, Holder, OpenOptions, block_on};
use syncline_image::{How, Image, LeftHold};
use syncline_store::{Forked, Hold, Snapshot, SnapshotError, StoreError, read_snapshots};

/// A fork, as the table of snapshots of its base tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fork {
    /// The snapshot as which it began.
    pub snapshot: String,
    /// Where it was made; of a long path only the end.
    pub path: String,
    /// The random number that the fork and its hold in the base share.
    pub fork_id: u128,
    /// The name of the hold.
    pub(crate) hold: String,
}

impl Fork {
    /// The name of its hold in the base.
    pub fn hold(&self) -> &str {
        &self.hold
    }

    /// True if the fork was made at this path.
    pub fn was_made_at(&self, path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        let whole = syncline_image::whole_of_new(path).ok();
        // Its directory may be gone as well.
        let whole = whole.or_else(|| std::path::absolute(path).ok()).unwrap_or_else(|| path.to_owned());
        Hold::of_name(&self.hold).is_some_and(|hold| hold.is_at(&whole))
    }

    /// The path where it was made; `None` if the hold has only its end, or replaced some of its characters.
    pub fn place(&self) -> Option<PathBuf> {
        Hold::of_name(&self.hold)?.place().map(Path::to_owned)
    }

    /// True if the fork is at this path, or if that can't be told.
    pub fn may_be_at(&self, path: impl AsRef<Path>) -> bool {
        Image::may_be_fork(path.as_ref(), self.fork_id)
    }
}

/// The base of a fork that no longer needs it, and the hold that is still there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detached {
    /// The fork.
    pub fork: PathBuf,
    /// The image that was its base.
    pub base: PathBuf,
    /// The name of the hold that can be released; `None` if there is none.
    pub hold: Option<String>,
    /// Where another fork may be that uses the hold, since this one is a copy: then the hold stays.
    pub other: Option<String>,
}

impl Detached {
    fn of(fork: &Path, base: PathBuf, left: Option<LeftHold>) -> Self {
        let (hold, other) = match left {
            Some(LeftHold { name, other: None }) => (Some(name), None),
            Some(LeftHold { other, .. }) => (None, other),
            None => (None, None),
        };
        Self { fork: fork.to_owned(), base, hold, other }
    }

    /// Fails if the hold could not be released.
    fn require_release(&self) -> Result<()> {
        if self.hold.is_none() {
            return Ok(());
        }
        match Image::open(&self.base, &How::default()) {
            // The caller may have the base open, and release the hold there.
            Err(DeviceError::InUse { holder, .. }) if is_this_process(&holder) => Ok(()),
            opened => opened.map(drop).map_err(Error::from),
        }
    }

    /// Releases the hold in the base, which nobody may have open. Until then the base keeps the snapshot.
    pub fn release(&self) -> Result<()> {
        let Some(hold) = &self.hold else { return Ok(()) };
        changed(&self.base, |base| base.delete_snapshot(hold)).map_err(|cause| Error::Unreleased {
            fork: self.fork.clone(),
            base: self.base.clone(),
            cause: Box::new(cause),
        })
    }
}

/// The forks that a table of snapshots tells of.
fn forks_in(entries: &[Snapshot]) -> Vec<Fork> {
    let name_of = |id| entries.iter().find(|entry| entry.id == id).map(|entry| entry.name.clone());
    let forks = entries.iter().filter_map(|entry| entry.hold().map(|hold| (entry, hold)));
    let fork = |(entry, hold): (&Snapshot, Hold)| Fork {
        snapshot: name_of(hold.snapshot).unwrap_or_default(),
        path: hold.path,
        fork_id: hold.fork_id,
        hold: entry.name.clone(),
    };
    forks.map(fork).collect()
}

impl Filesystem {
    /// Makes a writable image `new` that begins as a snapshot of the image at `base` and shares its
    /// blocks. It takes milliseconds and about 30 KiB whatever the size of the image. `base` must
    /// not be in use by others; of an image that this process has open, use
    /// [`fork`](Self::fork).
    ///
    /// The base keeps the blocks of the snapshot until the fork is released:
    /// [`forget_fork`](Self::forget_fork).
    pub fn fork_of(base: impl AsRef<Path>, snapshot: &str, new: impl AsRef<Path>) -> Result<()> {
        let base = base.as_ref();
        Image::make_fork(
            base,
            snapshot,
            new.as_ref(),
            &How::default(),
            |hold| changed(base, |fs| fs.place(hold)),
            |hold| drop(changed(base, |fs| fs.delete_snapshot(&hold.name()))),
        )
    }

    /// Makes a fork like [`fork_of`](Self::fork_of) of this image, which lies at `base` and is open for
    /// writing.
    pub fn fork(&self, base: impl AsRef<Path>, snapshot: &str, new: impl AsRef<Path>) -> Result<()> {
        Image::make_fork(
            base.as_ref(),
            snapshot,
            new.as_ref(),
            &How::default(),
            |hold| self.place(hold),
            |hold| drop(self.delete_snapshot(&hold.name())),
        )
    }

    /// Opens a new fork of a snapshot that ends when it is closed: a sandbox. Its blocks lie in a file
    /// without a name in the directory of temporary files. The image itself may be in use, and the
    /// snapshot can't be deleted meanwhile.
    pub fn open_fork(base: impl AsRef<Path>, snapshot: &str, options: ImageOptions) -> Result<Self> {
        let how = How::new(OpenOptions { read_only: false, ..options.device() });
        let file = Image::make_temporary_fork(base.as_ref(), snapshot, &std::env::temp_dir(), &how)?;
        Self::open(&file, options)
    }

    /// The forks of an image file or block device, which may be open or mounted.
    pub fn forks_of(path: impl AsRef<Path>) -> Result<Vec<Fork>> {
        let options = OpenOptions { beside_writer: true, ..OpenOptions::default() };
        let device = Image::open(path, &How::new(options))?.device();
        Ok(forks_in(&block_on(read_snapshots(&device))?.1))
    }

    /// The forks of this image.
    pub fn forks(&self) -> Vec<Fork> {
        forks_in(&block_on(self.engine().store().snapshots()))
    }

    /// Releases a fork that is not needed any more, so that its snapshot can be deleted. The fork can't
    /// be opened afterwards. EBUSY while it is open.
    pub fn forget_fork(&self, fork: &Fork) -> Result<()> {
        self.delete_snapshot(&fork.hold)
    }

    fn place(&self, hold: &Hold) -> Result<()> {
        block_on(self.engine().hold_snapshot(hold))?;
        Ok(())
    }

    /// Makes a fork independent: copies the blocks that lie in its base. `progress` is
    /// told how many bytes of how many are there. The fork must not be open. The base still has a hold,
    /// which is to be released ([`Detached::release`]).
    pub fn detach(path: impl AsRef<Path>, progress: &mut dyn FnMut(u64, u64)) -> Result<Detached> {
        let path = &syncline_image::whole(path.as_ref())?;
        // Opening recovers the fork after a crash.
        Self::open(path, ImageOptions::default())?.close()?;
        let image =
            Image::open(path, &How::new(OpenOptions { punch_holes: true, ..OpenOptions::default() }))?;
        let base = image.base().ok_or(Error::Invalid("it is no fork"))?.to_owned();
        let total = image.bytes_in_base();
        image.detach(path, &mut |bytes| progress(bytes, total))?;
        // A hard link at the path in the hold is the same file, and so no fork any more either.
        Ok(Detached::of(path, base, image.left_hold()?))
    }

    /// Removes a fork. A symbolic link that leads to it stays. The base still has a hold, which is to be released
    /// ([`Detached::release`]). EBUSY if the fork or a snapshot of it is in use, or if it has forks itself; EMLINK if
    /// its file has several names. It stays as well if another process has the base, or if the base can't be written.
    pub fn remove_fork(path: impl AsRef<Path>) -> Result<Detached> {
        Self::remove_fork_when(path, Detached::require_release)
    }

    /// Removes a fork like [`remove_fork`](Self::remove_fork). `ready` is called before anything is changed,
    /// and fails if the hold could not be released.
    pub fn remove_fork_when<E: From<Error>>(
        path: impl AsRef<Path>,
        ready: impl FnOnce(&Detached) -> std::result::Result<(), E>,
    ) -> std::result::Result<Detached, E> {
        let path = &syncline_image::whole(path.as_ref()).map_err(Error::from)?;
        let failed = |source| {
            Error::from(DeviceError::Open { path: path.display().to_string(), source: Arc::new(source) })
        };
        let image = Image::open(path, &How::default()).map_err(Error::from)?;
        let base = image.base().ok_or(Error::Invalid("it is no fork"))?.to_owned();
        // The fork would live on under the other names, without its hold.
        let names = path.metadata().map_err(failed)?.nlink();
        if names > 1 {
            return Err(Error::HardLinks { names }.into());
        }
        claim_all(&image)?;
        let detached = Detached::of(path, base, image.left_hold().map_err(Error::from)?);
        ready(&detached)?;
        std::fs::remove_file(path).map_err(failed)?;
        // Before the hold is released: a fork that comes back after a crash needs it.
        let directory = path.parent().unwrap_or(path);
        std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(detached)
    }

    /// Makes a new hold for a fork in its base, and records where the base is. Call it after the fork or the
    /// base was moved, after the fork was copied, or after it was released by mistake. `base` must have the
    /// snapshot. Neither image may be open.
    pub fn rebase_fork(fork: impl AsRef<Path>, base: impl AsRef<Path>) -> Result<()> {
        let (fork, base) = (fork.as_ref(), base.as_ref());
        Image::rebase_fork(
            fork,
            base,
            &How::default(),
            |hold| changed(base, |fs| fs.place(hold)),
            |hold| drop(changed(base, |fs| fs.delete_snapshot(&hold.name()))),
        )
        .map(drop)
    }
}

fn is_this_process(holder: &Holder) -> bool {
    matches!(holder, Holder::Process { pid, .. } if *pid == std::process::id())
}

/// Claims all snapshots of a fork that is to be removed. Fails if one is in use, or has forks.
fn claim_all(image: &Image) -> Result<()> {
    let device = image.device();
    let entries = block_on(read_snapshots(&device))?.1;
    let forks = forks_in(&entries);
    if let Some(first) = forks.first() {
        let (name, forks) = (first.snapshot.clone(), forks.iter().map(|fork| fork.path.clone()));
        let why = Box::new(Forked { name, forks: forks.collect() });
        return Err(StoreError::from(SnapshotError::from(why)).into());
    }
    for Snapshot { id, name, .. } in entries {
        if !device.claim_snapshot(id, Claim::Exclusive)? {
            return Err(StoreError::from(SnapshotError::InUse { name }).into());
        }
    }
    Ok(())
}

/// Opens an image, changes it, and closes it.
fn changed(image: &Path, change: impl FnOnce(&Filesystem) -> Result<()>) -> Result<()> {
    let fs = Filesystem::open(image, ImageOptions::default())?;
    change(&fs)?;
    fs.close()
}
