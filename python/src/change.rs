//! The changes of a transaction, as Python collects them.

use crate::file::RawFile;
use crate::image::Image;
use crate::inside::Inside;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use syncline::Transaction;

/// One change: what is done, the path, and what it needs besides.
#[derive(FromPyObject)]
pub struct Change<'py>(String, Inside, More<'py>);

/// The parameters of a change after its path.
#[derive(FromPyObject)]
enum More<'py> {
    #[pyo3(transparent)]
    File(PyRef<'py, RawFile>),
    /// Contents, and where they go.
    #[pyo3(transparent)]
    Data((Bound<'py, pyo3::types::PyBytes>, u64)),
    /// An attribute and its value.
    #[pyo3(transparent)]
    Attribute((OsString, Bound<'py, pyo3::types::PyBytes>)),
    #[pyo3(transparent)]
    Number(u64),
    /// Another path, or the name of an attribute.
    #[pyo3(transparent)]
    Path(Inside),
    #[pyo3(transparent)]
    Nothing(Option<bool>),
}

impl Change<'_> {
    /// Adds the change to a transaction of `image`.
    pub fn add_to(self, image: &Image, transaction: &mut Transaction) -> PyResult<()> {
        let Self(what, path, more) = self;
        let path = path.of(image)?;
        match (&*what, more) {
            ("link", More::File(file)) => {
                transaction.link(&*file.get()?, path).map_err(|error| crate::failure::raised(&error))?;
            }
            ("link_new", More::File(file)) => {
                transaction.link_new(&*file.get()?, path).map_err(|error| crate::failure::raised(&error))?;
            }
            ("write", More::Data((data, _))) => _ = transaction.write(path, data.as_bytes()),
            ("write_at", More::Data((data, at))) => _ = transaction.write_at(path, data.as_bytes(), at),
            ("setxattr", More::Attribute((name, value))) => {
                transaction.set_xattr(path, name, value.as_bytes());
            }
            ("create", More::Number(mode)) => _ = transaction.create_new(path, (mode & 0o7777) as u16),
            ("mkdir", More::Number(mode)) => _ = transaction.create_dir_with(path, (mode & 0o7777) as u16),
            ("chmod", More::Number(mode)) => _ = transaction.set_permissions(path, (mode & 0o7777) as u16),
            ("truncate", More::Number(size)) => _ = transaction.set_len(path, size),
            ("rename", More::Path(to)) => _ = transaction.rename(path, to.of(image)?),
            ("symlink", More::Path(target)) => _ = transaction.symlink(target.of_any(), path),
            ("removexattr", More::Path(name)) => _ = transaction.remove_xattr(path, name.of_any()),
            ("remove", More::Nothing(None)) => _ = transaction.remove_file(path),
            ("rmdir", More::Nothing(None)) => _ = transaction.remove_dir(path),
            (what, _) => return Err(PyValueError::new_err(format!("no change of a transaction: {what:?}"))),
        }
        Ok(())
    }
}
