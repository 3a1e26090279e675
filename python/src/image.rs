//! Open images.

use crate::change::Change;
use crate::failure::{about, raised, raised_for, raised_in_transaction};
use crate::file::RawFile;
use crate::handle::Handle;
use crate::inside::Inside;
use crate::stat::{Fork, NamedFork, Snapshot, Stat};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline::{DirBuilder, Durability, Filesystem, FormatOptions, ImageOptions, OpenOptions, RenameFlags};

/// An open image.
#[pyclass(frozen, subclass, module = "syncline")]
pub struct Image {
    filesystem: Handle<Filesystem>,
    /// Where the image is, also after a change of the current directory. `None` for one in memory and for a fork that ends when
    /// it is closed.
    place: Option<PathBuf>,
}

// The Linux errnos.
const ENOENT: i32 = 2;
const EOPNOTSUPP: i32 = 95;

impl Image {
    /// The image, unless it was closed.
    fn get(&self) -> PyResult<Filesystem> {
        self.filesystem.get()
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Filesystem) -> syncline::Result<T> + Send,
    ) -> PyResult<T> {
        let filesystem = self.get()?;
        py.detach(|| {
            let result = call(&filesystem);
            // It may be the last handle, whose end waits for the device.
            drop(filesystem);
            result
        })
        .map_err(|error| raised(&error))
    }

    fn call_about<T: Send>(
        &self,
        py: Python<'_>,
        path: Inside,
        call: impl FnOnce(&Filesystem, &Path) -> syncline::Result<T> + Send,
    ) -> PyResult<T> {
        let (filesystem, path) = (self.get()?, path.of(self)?);
        about(py, path, move |path| call(&filesystem, path))
    }
}

fn open(
    how: &str,
    image: &Path,
    size: u64,
    snapshot: &str,
    encrypted: bool,
) -> Option<syncline::Result<Filesystem>> {
    let (format, options) = (FormatOptions::default().encrypted(encrypted), ImageOptions::default());
    Some(match how {
        "open" => Filesystem::open(image, options),
        "read" => Filesystem::open(image, ImageOptions::read_only()),
        "create" => Filesystem::create(image, size, &format),
        "open_or_create" => Filesystem::open_or_create(image, size, &format, options),
        "memory" => Filesystem::in_memory(size),
        "snapshot" => Filesystem::open_snapshot(image, snapshot, ImageOptions::read_only()),
        "fork" => Filesystem::open_fork(image, snapshot, options),
        _ => return None,
    })
}

fn moment(nanoseconds: i128) -> PyResult<SystemTime> {
    let distance = u64::try_from(nanoseconds.unsigned_abs()).map(Duration::from_nanos).ok();
    let time = distance.and_then(|distance| match nanoseconds < 0 {
        true => UNIX_EPOCH.checked_sub(distance),
        false => UNIX_EPOCH.checked_add(distance),
    });
    time.ok_or_else(|| PyValueError::new_err("a time past all times"))
}

#[pymethods]
impl Image {
    #[new]
    fn new(
        py: Python<'_>,
        how: &str,
        image: PathBuf,
        size: u64,
        snapshot: &str,
        encrypted: bool,
    ) -> PyResult<Self> {
        let opened = py.detach(|| open(how, &image, size, snapshot, encrypted));
        let opened = opened.ok_or_else(|| PyValueError::new_err(format!("no way to open: {how:?}")))?;
        let filesystem = opened.map_err(|error| raised_for(&error, &image))?;
        let place = match how {
            "memory" | "fork" => None,
            // Exports have no path: they stay as they were given.
            _ => Some(image.canonicalize().unwrap_or(image)),
        };
        Ok(Self { filesystem: Handle::new("image", filesystem), place })
    }

    /// Writes everything back and leaves an image with nothing to recover. Does nothing the second time.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(filesystem) = self.filesystem.take() else { return Ok(()) };
        py.detach(|| filesystem.close()).map_err(|error| raised(&error))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.get().is_err()
    }

    #[expect(clippy::too_many_arguments, reason = "those of OpenOptions")]
    fn open_raw(
        &self,
        py: Python<'_>,
        path: Inside,
        read: bool,
        write: bool,
        append: bool,
        truncate: bool,
        create: bool,
        create_new: bool,
    ) -> PyResult<RawFile> {
        let mut options = OpenOptions::new();
        options.read(read).write(write).append(append);
        options.truncate(truncate).create(create).create_new(create_new);
        self.call_about(py, path, |fs, path| options.open(fs, path)).map(RawFile::new)
    }

    fn open_unnamed(&self, py: Python<'_>, directory: Inside) -> PyResult<RawFile> {
        self.call_about(py, directory, |fs, directory| fs.create_unnamed(directory)).map(RawFile::new)
    }

    /// Names in a directory.
    fn listdir(&self, py: Python<'_>, path: Inside) -> PyResult<Vec<OsString>> {
        self.call_about(py, path, |fs, path| fs.read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect())
    }

    /// Names in a directory and what is known about each, links told of themselves.
    fn scandir(&self, py: Python<'_>, path: Inside) -> PyResult<Vec<(OsString, Stat)>> {
        self.call_about(py, path, |fs, path| {
            let mut found = Vec::new();
            for entry in fs.read_dir(path)? {
                let entry = entry?;
                match entry.metadata() {
                    Ok(metadata) => found.push((entry.file_name(), Stat::from(metadata))),
                    // Somebody removed it since.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        })
    }

    fn stat(&self, py: Python<'_>, path: Inside) -> PyResult<Stat> {
        self.call_about(py, path, |fs, path| fs.metadata(path)).map(Stat::from)
    }

    fn lstat(&self, py: Python<'_>, path: Inside) -> PyResult<Stat> {
        self.call_about(py, path, |fs, path| fs.symlink_metadata(path)).map(Stat::from)
    }

    fn exists(&self, py: Python<'_>, path: Inside) -> PyResult<bool> {
        self.call_about(py, path, |fs, path| fs.try_exists(path))
    }

    #[pyo3(signature = (path, mode=0o755))]
    fn mkdir(&self, py: Python<'_>, path: Inside, mode: u16) -> PyResult<()> {
        self.call_about(py, path, |fs, path| DirBuilder::new().mode(mode).create(fs, path))
    }

    /// All directories on the way too; one that exists is good.
    #[pyo3(signature = (path, mode=0o755))]
    fn makedirs(&self, py: Python<'_>, path: Inside, mode: u16) -> PyResult<()> {
        self.call_about(py, path, |fs, path| DirBuilder::new().recursive(true).mode(mode).create(fs, path))
    }

    fn remove(&self, py: Python<'_>, path: Inside) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.remove_file(path))
    }

    fn rmdir(&self, py: Python<'_>, path: Inside) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.remove_dir(path))
    }

    fn rmtree(&self, py: Python<'_>, path: Inside) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.remove_dir_all(path))
    }

    #[pyo3(signature = (source, target, *, replace=true))]
    fn rename(&self, py: Python<'_>, source: Inside, target: Inside, replace: bool) -> PyResult<()> {
        let target = target.of(self)?;
        let flags = RenameFlags { no_replace: !replace, ..RenameFlags::default() };
        self.call_about(py, source, |fs, source| fs.rename_with(source, &target, flags))
    }

    fn exchange(&self, py: Python<'_>, one: Inside, other: Inside) -> PyResult<()> {
        let other = other.of(self)?;
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        self.call_about(py, one, |fs, one| fs.rename_with(one, &other, flags))
    }

    fn link(&self, py: Python<'_>, source: Inside, target: Inside) -> PyResult<()> {
        let target = target.of(self)?;
        self.call_about(py, source, |fs, source| fs.hard_link(source, &target))
    }

    fn symlink(&self, py: Python<'_>, leads_to: Inside, path: Inside) -> PyResult<()> {
        let leads_to = leads_to.of(self)?;
        self.call_about(py, path, |fs, path| fs.symlink(&leads_to, path))
    }

    fn readlink(&self, py: Python<'_>, path: Inside) -> PyResult<OsString> {
        self.call_about(py, path, |fs, path| fs.read_link(path)).map(PathBuf::into_os_string)
    }

    fn realpath(&self, py: Python<'_>, path: Inside) -> PyResult<OsString> {
        self.call_about(py, path, |fs, path| fs.canonicalize(path)).map(PathBuf::into_os_string)
    }

    /// Contents and permissions; whole blocks are shared. Returns the size.
    fn copy(&self, py: Python<'_>, source: Inside, target: Inside) -> PyResult<u64> {
        let target = target.of(self)?;
        self.call_about(py, source, |fs, source| fs.copy(source, &target))
    }

    fn read_bytes<'py>(&self, py: Python<'py>, path: Inside) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.call_about(py, path, |fs, path| fs.read(path))?))
    }

    fn write_bytes(&self, py: Python<'_>, path: Inside, data: &[u8]) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.write(path, data))
    }

    fn chmod(&self, py: Python<'_>, path: Inside, mode: u16) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.set_permissions(path, mode & 0o7777))
    }

    #[pyo3(signature = (path, uid=None, gid=None))]
    fn chown(&self, py: Python<'_>, path: Inside, uid: Option<u32>, gid: Option<u32>) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.set_owner(path, uid, gid))
    }

    #[pyo3(signature = (path, atime_ns=None, mtime_ns=None))]
    fn utime(
        &self,
        py: Python<'_>,
        path: Inside,
        atime_ns: Option<i128>,
        mtime_ns: Option<i128>,
    ) -> PyResult<()> {
        let (accessed, modified) = (atime_ns.map(moment).transpose()?, mtime_ns.map(moment).transpose()?);
        self.call_about(py, path, |fs, path| fs.set_times(path, accessed, modified))
    }

    /// None if it is not set.
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: Inside,
        name: OsString,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.call_about(py, path, |fs, path| fs.xattr(path, &name))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn setxattr(&self, py: Python<'_>, path: Inside, name: OsString, value: &[u8]) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.set_xattr(path, &name, value))
    }

    fn removexattr(&self, py: Python<'_>, path: Inside, name: OsString) -> PyResult<()> {
        self.call_about(py, path, |fs, path| fs.remove_xattr(path, &name))
    }

    fn listxattr(&self, py: Python<'_>, path: Inside) -> PyResult<Vec<OsString>> {
        self.call_about(py, path, |fs, path| fs.xattrs(path))
    }

    /// Makes everything durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Filesystem::sync)
    }

    fn sync_raw(&self, py: Python<'_>, files: Vec<PyRef<'_, RawFile>>) -> PyResult<()> {
        let files = files.iter().map(|file| file.get()).collect::<PyResult<Vec<_>>>()?;
        self.call(py, |fs| fs.sync_many(&files.iter().map(|file| &**file).collect::<Vec<_>>()))
    }

    fn barrier_raw(&self, py: Python<'_>, files: Vec<PyRef<'_, RawFile>>) -> PyResult<()> {
        let files = files.iter().map(|file| file.get()).collect::<PyResult<Vec<_>>>()?;
        self.call(py, |fs| fs.barrier(&files.iter().map(|file| &**file).collect::<Vec<_>>()))
    }

    /// Makes all of these changes, durably, or none.
    fn commit_raw(&self, py: Python<'_>, changes: Vec<Change<'_>>) -> PyResult<()> {
        let filesystem = self.get()?;
        let mut transaction = filesystem.transaction();
        for change in changes {
            change.add_to(self, &mut transaction)?;
        }
        py.detach(|| {
            let result = transaction.commit();
            drop(filesystem);
            result
        })
        .map_err(|error| raised_in_transaction(&error))
    }

    /// Sets when changes of a file or directory become durable; None: no class of its own.
    #[pyo3(signature = (path, durability))]
    fn set_durability(&self, py: Python<'_>, path: Inside, durability: Option<&str>) -> PyResult<()> {
        let class = durability.map(|text| text.parse::<Durability>().map_err(PyValueError::new_err));
        let class = class.transpose()?;
        self.call_about(py, path, |fs, path| fs.set_durability(path, class))
    }

    /// When changes of a file or directory become durable.
    fn durability(&self, py: Python<'_>, path: Inside) -> PyResult<String> {
        self.call_about(py, path, |fs, path| fs.durability(path).map(|class| class.to_string()))
    }

    fn create_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |fs| fs.create_snapshot(name))
    }

    fn delete_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |fs| fs.delete_snapshot(name))
    }

    fn snapshots(&self, py: Python<'_>) -> PyResult<Vec<Snapshot>> {
        Ok(self.call(py, Filesystem::snapshots)?.into_iter().map(Snapshot::from).collect())
    }

    #[staticmethod]
    fn roll_back(py: Python<'_>, image: PathBuf, name: &str) -> PyResult<()> {
        about(py, image, |image| Filesystem::roll_back(image, name))
    }

    /// Makes a fork: a writable image file `new`, which must not exist, that begins as a snapshot of this image and shares its
    /// blocks. Takes milliseconds and about 30 KiB, whatever the size of the image. The image keeps the snapshot until the fork
    /// is released by `forget_fork`, or made independent by `detach`. FileExistsError if something is at `new`. OSError with EROFS
    /// if the image is open for reading only; with EOPNOTSUPP for a filesystem in memory, and for a fork that `open_fork` opened.
    fn fork(&self, py: Python<'_>, snapshot: &str, new: PathBuf) -> PyResult<()> {
        let Some(place) = &self.place else {
            self.get()?;
            let text =
                "forks can't be made of a filesystem in memory, nor of a fork that ends when it is closed";
            return Err(PyOSError::new_err((EOPNOTSUPP, text)));
        };
        self.call(py, |fs| fs.fork(place, snapshot, &new))
    }

    /// The forks of this image, oldest first. A fork whose file was removed stays in the list until `forget_fork`.
    fn forks(&self, py: Python<'_>) -> PyResult<Vec<Fork>> {
        Ok(self.call(py, |fs| Ok(fs.forks()))?.into_iter().map(Fork::from).collect())
    }

    /// Releases a fork that is not needed any more, so that its snapshot can be deleted: one that `forks` returned, or all that
    /// were made at this path. A fork that is still there can't be opened afterwards. OSError with EBUSY while it is open.
    /// FileNotFoundError if the image knows of none.
    fn forget_fork(&self, py: Python<'_>, fork: NamedFork) -> PyResult<()> {
        let path = match fork {
            NamedFork::Told(fork) => return self.call(py, |fs| fs.forget_fork(&fork)),
            NamedFork::Path(path) => path,
        };
        let mut forks = self.call(py, |fs| Ok(fs.forks()))?;
        forks.retain(|fork| fork.was_made_at(&path));
        if forks.is_empty() {
            let text = "the image knows of no fork that was made there";
            return Err(PyOSError::new_err((ENOENT, text, path.into_os_string())));
        }
        self.call(py, |fs| forks.iter().try_for_each(|fork| fs.forget_fork(fork)))
    }

    /// Makes a fork, which must not be open, independent: copies the blocks that lie in its base to it, and releases it there.
    /// OSError with EINVAL if the image is no fork. If the base can't be opened for writing, OSError says that the fork is
    /// independent, but that the base still keeps the snapshot for it; `forget_fork` of the base releases it then.
    #[staticmethod]
    fn detach(py: Python<'_>, image: PathBuf) -> PyResult<()> {
        let detached = about(py, image, |image| Filesystem::detach(image, &mut |_, _| {}))?;
        py.detach(|| detached.release()).map_err(|error| raised(&error))
    }

    /// Bytes in all, free, and available to be written.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        const BLOCK: u64 = syncline::device::BLOCK_BYTES as u64;
        let has = self.call(py, |fs| Ok(fs.space()))?;
        Ok((has.blocks * BLOCK, has.free * BLOCK, has.available * BLOCK))
    }

    /// The counters, as JSON.
    fn statistics_json(&self, py: Python<'_>) -> PyResult<String> {
        let statistics = self.call(py, |fs| Ok(fs.statistics()))?;
        serde_json::to_string(&statistics).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Receipts of the last syncs, as JSON.
    fn receipts_json(&self, py: Python<'_>) -> PyResult<String> {
        let receipts = self.call(py, |fs| Ok(fs.receipts()))?;
        serde_json::to_string(&receipts).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}
