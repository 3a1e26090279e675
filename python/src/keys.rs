//! Keys of encrypted images.

use crate::failure::raised;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

/// Adds a passphrase (str or bytes), or the contents of a key file: 1 to 4000 bytes, without a line break at their end if they have
/// one. This process tries it on every encrypted image that it opens from now on. Without a key, opening such an image raises
/// OSError with ENOKEY; if no key opens it, with EKEYREJECTED.
#[pyfunction]
pub fn add_key(key: Key) -> PyResult<()> {
    let bytes = match &key {
        Key::Text(text) => text.as_bytes(),
        Key::Bytes(bytes) => bytes,
    };
    syncline::add_key(bytes).map_err(|error| raised(&error))
}

/// Forgets the keys that this process has. Images that are open stay open.
#[pyfunction]
pub fn forget_keys() {
    syncline::forget_keys();
}

#[derive(FromPyObject)]
pub enum Key {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
}
