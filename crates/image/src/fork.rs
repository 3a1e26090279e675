//! Forks: images that have a part of their blocks in another image, their base.

mod holds;

pub use holds::LeftHold;

use crate::keys::refused;
use crate::lost::Watch;
use crate::{How, Image, location};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::{Device, DeviceError, FileDevice, OpenOptions, block_on};
use syncline_fork::{Base, ForkError, ForkRecord, Forked};
use syncline_net::Location;
use syncline_store::{Hold, SnapshotError, StoreError, read_snapshots, require_visible};

/// Most forks that lie behind each other.
const DEPTH_MAX: usize = 16;

/// The base of an open fork.
pub(crate) struct Behind {
    /// Keeps the base open.
    image: Image,
    forked: Arc<Forked>,
    /// Where the fork is.
    name: PathBuf,
    record: ForkRecord,
}

impl Image {
    /// Where the base of a fork is; `None` of any other image.
    pub fn base(&self) -> Option<&Path> {
        self.behind.as_ref().map(|behind| behind.record.base.as_path())
    }

    /// True for a temporary fork, which is of no use once it is closed.
    pub fn is_temporary(&self) -> bool {
        self.behind.as_ref().is_some_and(|behind| behind.record.fork_id == 0)
    }

    /// The name of the hold in the base that keeps the blocks of this fork.
    pub fn hold_in_base(&self) -> Option<&str> {
        self.behind.as_ref()?.forked.hold()
    }

    /// Where the base believes this fork to be, if that is another place: somebody moved or copied it.
    pub fn is_known_at(&self) -> Option<String> {
        let behind = self.behind.as_ref()?;
        let hold = Hold::of_name(behind.forked.hold()?)?;
        let present = whole(&behind.name).ok()?;
        (!hold.is_at(&present)).then_some(hold.path)
    }

    /// Copies the blocks of a fork's base to the fork, which is an image like any other from then on. It
    /// was closed cleanly and is open for writing. `progress` is told how many bytes are there.
    pub fn detach(&self, name: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), DeviceError> {
        let Some(behind) = &self.behind else { return Ok(()) };
        block_on(syncline_fork::detach(&behind.forked, progress)).map_err(|error| failed(name, error))
    }

    /// Bytes that [`detach`](Self::detach) would copy.
    pub fn bytes_in_base(&self) -> u64 {
        const BLOCK: u64 = syncline_device::BLOCK_BYTES as u64;
        self.behind.as_ref().map_or(0, |behind| behind.forked.kept().blocks() * BLOCK)
    }

    /// Makes a temporary fork of a snapshot: an image file in this directory, which the caller removes by
    /// dropping the path. While it is open nobody can delete the snapshot; it can't be opened once the
    /// snapshot is gone.
    pub fn make_temporary_fork(
        base: &Path,
        snapshot: &str,
        directory: &Path,
        how: &How,
    ) -> Result<tempfile::TempPath, DeviceError> {
        let base = whole(base)?;
        let failed = |error| failed(&base, error);
        require_visible(snapshot).map_err(|error| failed(error.into()))?;
        let image = Self::open(&base, &beside(how))?;
        image.require_depth(&base)?;
        let claimed = block_on(Base::claim(image.device(), snapshot)).map_err(failed)?;
        let size_bytes = claimed.size_bytes() + image.overhead_bytes();
        let NewFile { file, device } = NewFile::in_directory(directory, size_bytes, how)?;
        let own = image.encrypt_fork(device).map_err(|error| refused(&base, error))?;
        block_on(syncline_fork::make(own, claimed, &base)).map_err(failed)?;
        Ok(file.into_temp_path())
    }

    /// Makes a fork of a snapshot: a new image file `new`. `base` may be in use. `place` places the hold
    /// in the base's table of snapshots, durably; `release` removes it if the fork can't be made after that.
    ///
    /// The hold comes first, then the fork under a name of its own, and `new` is its name when
    /// everything is durable. A crash in between leaves a hold without a fork.
    pub fn make_fork<E: From<DeviceError>>(
        base: &Path,
        snapshot: &str,
        new: &Path,
        how: &How,
        place: impl FnOnce(&Hold) -> Result<(), E>,
        release: impl Fn(&Hold),
    ) -> Result<(), E> {
        let base = whole(base)?;
        let about = |error| failed(&base, error);
        let (id, size_bytes) = find(&base, snapshot, how)?;
        let file = NewFile::beside(new, size_bytes, how)?;
        let path = whole_of_new(new)?;
        let hold = Hold::new(id, rand::random(), &path);
        // It may be there even if that failed.
        place(&hold).inspect_err(|_| release(&hold))?;
        let made = (|| {
            let image = Self::open(&base, &beside(how))?;
            let claimed = block_on(Base::claim(image.device(), &hold.name())).map_err(about)?;
            let own = image.encrypt_fork(file.device.clone()).map_err(|error| refused(&base, error))?;
            block_on(syncline_fork::make(own, claimed, &base)).map_err(about)?;
            file.keep_as(new)
        })();
        made.map_err(|error| {
            release(&hold);
            E::from(error)
        })
    }

    /// This image, with its base behind it if it is a fork.
    pub(crate) fn with_any_base(self, name: &Path, how: &How, depth: usize) -> Result<Self, DeviceError> {
        match block_on(syncline_fork::record_of(&self.device)).map_err(|error| failed(name, error))? {
            None => Ok(self),
            Some(record) => self.behind(name, &record, how, depth),
        }
    }

    /// The fork of this record, whose own blocks this image has.
    fn behind(self, name: &Path, record: &ForkRecord, how: &How, depth: usize) -> Result<Self, DeviceError> {
        if depth >= DEPTH_MAX {
            return Err(failed(name, ForkError::Depth(DEPTH_MAX)));
        }
        let image = Self::open_at(&record.base, &beside(how), depth + 1).map_err(|error| {
            // The innermost fork says enough.
            let is_deep = matches!(crate::fork_error(&error), Some(ForkError::Depth(_)));
            if is_deep { error } else { failed(name, ForkError::Base { error }) }
        })?;
        let forked = block_on(syncline_fork::open(self.device.clone(), image.device(), record));
        let forked = forked.map_err(|error| failed(name, error))?;
        let (name, record) = (name.to_owned(), record.clone());
        Ok(self.with_base(Behind { image, forked, name, record }))
    }

    /// Where the images behind this one are, the nearest first.
    fn bases(&self) -> impl Iterator<Item = &Path> {
        let behind = std::iter::successors(self.behind.as_deref(), |it| it.image.behind.as_deref());
        behind.map(|behind| behind.record.base.as_path())
    }

    /// Refuses to be the base of a fork that could not be opened.
    fn require_depth(&self, name: &Path) -> Result<(), DeviceError> {
        let forks = self.bases().count();
        match forks < DEPTH_MAX {
            true => Ok(()),
            false => Err(failed(name, ForkError::Depth(DEPTH_MAX))),
        }
    }

    /// Refuses to be the base of a fork that would be lost with it.
    fn require_lasting(&self, name: &Path) -> Result<(), DeviceError> {
        match self.is_temporary() {
            true => Err(failed(name, ForkError::Temporary { base: name.to_owned() })),
            false => Ok(()),
        }
    }

    fn with_base(self, behind: Behind) -> Self {
        // Without its base it can't be used either.
        let watch: Arc<Watch> = self.watch.clone();
        behind.image.on_lost(move |lost| watch.lose(lost.clone()));
        let device: Arc<dyn Device> = behind.forked.clone();
        Self { device, behind: Some(Arc::new(behind)), ..self }
    }
}

/// A file that becomes a fork. It is removed unless it is kept.
struct NewFile {
    file: tempfile::NamedTempFile,
    device: Arc<FileDevice>,
}

impl NewFile {
    /// A file without blocks, in this directory.
    fn in_directory(directory: &Path, size_bytes: u64, how: &How) -> Result<Self, DeviceError> {
        let failed = |error: io::Error| {
            // Without the temporary name of the file.
            let errno = match error.kind() {
                io::ErrorKind::NotFound => libc::ENOENT,
                io::ErrorKind::PermissionDenied => libc::EACCES,
                io::ErrorKind::ReadOnlyFilesystem => libc::EROFS,
                io::ErrorKind::StorageFull => libc::ENOSPC,
                _ => error.raw_os_error().unwrap_or(libc::EIO),
            };
            let error = io::Error::from_raw_os_error(errno);
            DeviceError::Create { path: directory.display().to_string(), source: Arc::new(error) }
        };
        let file = tempfile::Builder::new()
            .prefix(".syncline-fork-")
            .suffix(".img")
            .tempfile_in(directory)
            .map_err(failed)?;
        file.as_file().set_len(size_bytes).map_err(failed)?;
        let options = OpenOptions { read_only: false, beside_writer: false, ..how.device };
        let device = FileDevice::open(file.path(), options)?;
        Ok(Self { file, device })
    }

    /// The file that is to be called `new`, which does not exist.
    fn beside(new: &Path, size_bytes: u64, how: &How) -> Result<Self, DeviceError> {
        if syncline_net::Location::parse(new.as_os_str()).is_ok_and(|at| !matches!(at, Location::Path(_))) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "a fork is a file: give a path");
            return Err(DeviceError::Create { path: new.display().to_string(), source: Arc::new(error) });
        }
        if new.as_os_str().as_bytes().ends_with(b"/") {
            let error = io::Error::new(
                io::ErrorKind::InvalidInput,
                "a fork is a file: give a path without a slash at its end",
            );
            return Err(DeviceError::Create { path: new.display().to_string(), source: Arc::new(error) });
        }
        if new.symlink_metadata().is_ok() {
            return Err(exists(new));
        }
        Self::in_directory(&directory_of(new), size_bytes, how)
    }

    /// Gives the file its name, durably. Its contents are durable.
    fn keep_as(self, new: &Path) -> Result<(), DeviceError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(new),
            _ => DeviceError::Create { path: new.display().to_string(), source: Arc::new(error) },
        };
        drop(self.device);
        self.file.persist_noclobber(new).map_err(|error| failed(error.error))?;
        let synced = std::fs::File::open(directory_of(new)).and_then(|directory| directory.sync_all());
        synced.map_err(|error| {
            let _ = std::fs::remove_file(new);
            failed(error)
        })
    }
}

/// The name that an image has from everywhere on this host: its own, not that of a link that leads to it.
pub fn whole(name: &Path) -> Result<PathBuf, DeviceError> {
    let missing = |error| DeviceError::Open { path: name.display().to_string(), source: Arc::new(error) };
    match location(name)? {
        Location::Path(path) => path.canonicalize().map_err(missing),
        _ => Ok(name.to_owned()),
    }
}

/// The name that a file to be made will have from everywhere on this host.
pub fn whole_of_new(new: &Path) -> Result<PathBuf, DeviceError> {
    let failed = |error| DeviceError::Create { path: new.display().to_string(), source: Arc::new(error) };
    let directory = directory_of(new).canonicalize().map_err(failed)?;
    Ok(new.file_name().map_or(directory.clone(), |name| directory.join(name)))
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn exists(new: &Path) -> DeviceError {
    let error = io::Error::from_raw_os_error(libc::EEXIST);
    DeviceError::Create { path: new.display().to_string(), source: Arc::new(error) }
}

/// Number of the snapshot of this name, and the bytes that a fork of it takes.
fn find(base: &Path, snapshot: &str, how: &How) -> Result<(u64, u64), DeviceError> {
    let about = |error: StoreError| failed(base, error.into());
    require_visible(snapshot).map_err(about)?;
    let image = Image::open(base, &beside(how))?;
    image.require_depth(base)?;
    image.require_lasting(base)?;
    let (_, entries) = block_on(read_snapshots(&image.device())).map_err(about)?;
    let found = entries.into_iter().find(|entry| entry.name == snapshot);
    let found = found.ok_or_else(|| SnapshotError::NotFound { name: snapshot.to_owned() });
    let found = found.map_err(|error| about(error.into()))?;
    let size_bytes = found.total_blocks * syncline_device::BLOCK_BYTES as u64 + image.overhead_bytes();
    Ok((found.id, size_bytes))
}

/// How to open a base: beside its writer.
fn beside(how: &How) -> How {
    let device = OpenOptions { read_only: true, beside_writer: true, ..how.device };
    How { device, take_over: None, shared: false, ..how.clone() }
}

/// Turns an error into one of opening the image `name`, unless it comes from a device.
fn failed(name: &Path, error: ForkError) -> DeviceError {
    let kind = match &error {
        ForkError::Store(StoreError::Snapshot(
            SnapshotError::NotFound { .. } | SnapshotError::Gone | SnapshotError::NotHeld { .. },
        )) => io::ErrorKind::NotFound,
        ForkError::Store(StoreError::Snapshot(
            SnapshotError::InUse { .. } | SnapshotError::ForkInUse { .. },
        )) => io::ErrorKind::ResourceBusy,
        ForkError::Store(StoreError::Device(error)) => return error.clone(),
        ForkError::Base { error: DeviceError::InUse { .. } } => io::ErrorKind::ResourceBusy,
        ForkError::Base { error } => error.io_error().map_or(io::ErrorKind::Other, |error| error.kind()),
        _ => io::ErrorKind::Other,
    };
    DeviceError::Open { path: name.display().to_string(), source: Arc::new(io::Error::new(kind, error)) }
}
