//! Errors of the library become OSError, which Python makes FileNotFoundError and so on by its errno.

use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

/// The exception of Python for an error of the library.
pub fn raised(error: &syncline::Error) -> PyErr {
    if let syncline::Error::Memory { .. } = error.cause() {
        return PyMemoryError::new_err(error.to_string());
    }
    PyOSError::new_err((error.errno(), error.to_string()))
}

/// The same for a call about a path, which the message then has.
pub fn raised_for(error: &syncline::Error, path: &Path) -> PyErr {
    let cause = error.cause();
    if let syncline::Error::Memory { .. } = cause {
        return PyMemoryError::new_err(format!("{}: {cause}", path.display()));
    }
    PyOSError::new_err((error.errno(), cause.to_string(), path.as_os_str().to_owned()))
}

/// The same for a transaction, of whose changes the error names the path.
pub fn raised_in_transaction(error: &syncline::Error) -> PyErr {
    match error {
        syncline::Error::At { path, .. } => raised_for(error, path),
        error => raised(error),
    }
}

/// The exception of Python for a handle that was closed.
pub fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("the {what} is closed"))
}

/// Runs a call about a path while other threads of Python run.
pub fn about<T: Send>(
    py: Python<'_>,
    path: PathBuf,
    call: impl FnOnce(&Path) -> syncline::Result<T> + Send,
) -> PyResult<T> {
    py.detach(|| call(&path)).map_err(|error| raised_for(&error, &path))
}
