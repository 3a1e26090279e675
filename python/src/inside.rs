//! Paths inside an image, as Python gives them.

use crate::image::Image;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use std::path::PathBuf;

/// A path inside an image: text, what `os.fspath` takes, or a `syncline.Path`. The last is no path of the host, so it has no
/// `__fspath__`, and only calls of this package take it.
pub struct Inside {
    path: PathBuf,
    /// Where the image lies that a `syncline.Path` belongs to. It is compared, not followed.
    image: Option<usize>,
}

impl Inside {
    /// The path, unless it is one of another image.
    pub fn of(self, image: &Image) -> PyResult<PathBuf> {
        match self.image {
            Some(other) if other != std::ptr::from_ref(image).addr() => {
                Err(PyValueError::new_err(format!("{}: a path of another image", self.path.display())))
            }
            _ => Ok(self.path),
        }
    }

    /// The path, whatever image it belongs to.
    pub fn of_any(self) -> PathBuf {
        self.path
    }
}

impl<'py> FromPyObject<'py> for Inside {
    fn extract_bound(given: &Bound<'py, PyAny>) -> PyResult<Self> {
        static PATH: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        if given.is_exact_instance_of::<PyString>()
            || !given.is_instance(PATH.import(given.py(), "syncline.path", "Path")?)?
        {
            return Ok(Self { path: given.extract()?, image: None });
        }
        let filesystem = given.getattr("filesystem")?;
        let image = std::ptr::from_ref(filesystem.downcast::<Image>()?.get()).addr();
        Ok(Self { path: given.str()?.extract()?, image: Some(image) })
    }
}
