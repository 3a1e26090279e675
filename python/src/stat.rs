//! Attributes of files, snapshots and forks.

use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The attributes of a file, with the names of os.stat_result.
#[pyclass(frozen, get_all, module = "syncline")]
pub struct Stat {
    st_ino: u64,
    st_mode: u32,
    st_nlink: u32,
    st_uid: u32,
    st_gid: u32,
    st_size: u64,
    st_blocks: u64,
    st_atime_ns: i128,
    st_mtime_ns: i128,
    st_ctime_ns: i128,
    st_birthtime_ns: i128,
}

/// Nanoseconds since 1970, negative before.
fn nanoseconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

impl From<syncline::Metadata> for Stat {
    fn from(metadata: syncline::Metadata) -> Self {
        Self {
            st_ino: metadata.ino(),
            st_mode: metadata.mode(),
            st_nlink: metadata.nlink(),
            st_uid: metadata.uid(),
            st_gid: metadata.gid(),
            st_size: metadata.len(),
            st_blocks: metadata.blocks(),
            st_atime_ns: nanoseconds(metadata.accessed()),
            st_mtime_ns: nanoseconds(metadata.modified()),
            st_ctime_ns: nanoseconds(metadata.changed()),
            st_birthtime_ns: nanoseconds(metadata.created()),
        }
    }
}

#[pymethods]
impl Stat {
    /// Seconds, as a float that can't tell all of them apart.
    #[getter]
    fn st_mtime(&self) -> f64 {
        self.st_mtime_ns as f64 / 1e9
    }

    fn __repr__(&self) -> String {
        format!("Stat(st_ino={}, st_mode=0o{:o}, st_size={})", self.st_ino, self.st_mode, self.st_size)
    }
}

/// A snapshot of an image.
#[pyclass(frozen, get_all, module = "syncline")]
pub struct Snapshot {
    name: String,
    created_ns: i128,
    used_bytes: u64,
    exclusive_bytes: u64,
}

impl From<syncline::Snapshot> for Snapshot {
    fn from(snapshot: syncline::Snapshot) -> Self {
        Self {
            created_ns: nanoseconds(snapshot.created),
            name: snapshot.name,
            used_bytes: snapshot.used_bytes,
            exclusive_bytes: snapshot.exclusive_bytes,
        }
    }
}

#[pymethods]
impl Snapshot {
    fn __repr__(&self) -> String {
        format!("Snapshot(name={:?}, exclusive_bytes={})", self.name, self.exclusive_bytes)
    }
}

/// A fork of an image, as the image tells of it.
#[pyclass(frozen, module = "syncline")]
pub struct Fork(syncline::Fork);

impl From<syncline::Fork> for Fork {
    fn from(fork: syncline::Fork) -> Self {
        Self(fork)
    }
}

#[pymethods]
impl Fork {
    /// The name of the snapshot as which it began.
    #[getter]
    fn snapshot(&self) -> &str {
        &self.0.snapshot
    }

    /// Where it was made; of a path of more than about 200 bytes only the end, after an ellipsis.
    #[getter]
    fn path(&self) -> &str {
        &self.0.path
    }

    fn __repr__(&self) -> String {
        format!("Fork(snapshot={:?}, path={:?})", self.0.snapshot, self.0.path)
    }
}

/// A fork as a program names it.
pub enum NamedFork {
    /// One that the image told of.
    Told(syncline::Fork),
    /// The place where it was made.
    Path(PathBuf),
}

impl<'py> FromPyObject<'py> for NamedFork {
    fn extract_bound(given: &Bound<'py, PyAny>) -> PyResult<Self> {
        match given.downcast::<Fork>() {
            Ok(fork) => Ok(Self::Told(fork.get().0.clone())),
            Err(_) => given.extract().map(Self::Path),
        }
    }
}
