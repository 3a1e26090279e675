//! Open files, below Python's layers of buffers and text.

use crate::failure::{about, raised};
use crate::handle::Handle;
use crate::inside::Inside;
use crate::stat::Stat;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io::Write;
use std::sync::Arc;
use syncline::File;

/// Most that is read at a time.
const PIECE_BYTES: usize = 4 << 20;

/// An open file. Reads and writes say where; there is no position.
#[pyclass(frozen, module = "syncline")]
pub struct RawFile {
    file: Handle<Arc<File>>,
}

impl RawFile {
    pub fn new(file: File) -> Self {
        Self { file: Handle::new("file", Arc::new(file)) }
    }

    /// The file, unless it was closed.
    pub fn get(&self) -> PyResult<Arc<File>> {
        self.file.get()
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&File) -> syncline::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.get()?;
        py.detach(|| call(&file)).map_err(|error| raised(&error))
    }
}

/// An empty buffer with room for so many bytes. Where there is none: MemoryError, as Python's own files raise on any filesystem.
fn memory_for(count: u64) -> PyResult<(Vec<u8>, usize)> {
    let mut buffer = Vec::new();
    match usize::try_from(count) {
        Ok(count) if buffer.try_reserve_exact(count).is_ok() => Ok((buffer, count)),
        _ => Err(raised(&syncline::Error::Memory { bytes: count })),
    }
}

#[pymethods]
impl RawFile {
    /// At most `count` bytes at `offset`; fewer only at the end.
    fn read_at<'py>(&self, py: Python<'py>, count: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.get()?;
        let read = py.detach(|| {
            // Not more than there is, whatever was asked for.
            let left = file.metadata().map_err(|error| raised(&error))?.len().saturating_sub(offset);
            let (mut buffer, count) = memory_for((count as u64).min(left))?;
            loop {
                let have = buffer.len();
                // As it comes: what a file that ends early does not have takes no memory.
                buffer.resize(count.min(have + PIECE_BYTES), 0);
                let read = file.read_at(&mut buffer[have..], offset + have as u64);
                let read = read.map_err(|error| raised(&error))?;
                buffer.truncate(have + read);
                if read == 0 || buffer.len() == count {
                    return Ok::<_, PyErr>(buffer);
                }
            }
        })?;
        Ok(PyBytes::new(py, &read))
    }

    /// Fills a buffer from `offset` on, and returns how many bytes that were.
    fn readinto_at(&self, py: Python<'_>, buffer: PyBuffer<u8>, offset: u64) -> PyResult<usize> {
        let count = buffer.item_count();
        // Other threads may look at Python's buffer meanwhile, so it is filled when they can't.
        let read = self.call(py, |file| {
            let mut data = vec![0; count.min(PIECE_BYTES)];
            let read = file.read_at(&mut data, offset)?;
            data.truncate(read);
            Ok(data)
        })?;
        let cells = buffer
            .as_mut_slice(py)
            .ok_or_else(|| PyBufferError::new_err("a buffer that can't be written to"))?;
        for (cell, &byte) in cells.iter().zip(&read) {
            cell.set(byte);
        }
        Ok(read.len())
    }

    /// Writes bytes at `offset`, all of them.
    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        if let Ok(bytes) = data.extract::<&[u8]>() {
            // Nobody can change a `bytes`.
            self.call(py, |file| file.write_all_at(bytes, offset))?;
            return Ok(bytes.len());
        }
        let copy = PyBuffer::<u8>::get(data)?.to_vec(py)?;
        self.call(py, |file| file.write_all_at(&copy, offset))?;
        Ok(copy.len())
    }

    /// Writes bytes at the end, wherever that is; for files opened for appending.
    fn append(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<usize> {
        let copy = data.to_vec(py)?;
        let file = self.get()?;
        py.detach(|| (&*file).write_all(&copy))?;
        Ok(copy.len())
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.call(py, |file| file.set_len(size))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |file| Ok(file.metadata()?.len()))
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.call(py, |file| file.metadata()).map(Stat::from)
    }

    fn chmod(&self, py: Python<'_>, mode: u16) -> PyResult<()> {
        self.call(py, |file| file.set_permissions(mode & 0o7777))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, File::sync_all)
    }

    fn sync_data(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, File::sync_data)
    }

    fn link(&self, py: Python<'_>, path: Inside) -> PyResult<()> {
        let file = self.get()?;
        about(py, path.of_any(), |path| file.link(path))
    }

    #[pyo3(signature = (offset, to, to_offset, count=None))]
    fn copy_range_to(
        &self,
        py: Python<'_>,
        offset: u64,
        to: &RawFile,
        to_offset: u64,
        count: Option<u64>,
    ) -> PyResult<u64> {
        let to = to.get()?;
        self.call(py, |file| file.copy_range_to(offset, &to, to_offset, count.unwrap_or(u64::MAX)))
    }

    /// Does not make anything durable.
    fn close(&self, py: Python<'_>) {
        let file = self.file.take();
        // The last handle of an image that was closed does what closing does.
        py.detach(|| drop(file));
    }

    #[getter]
    fn closed(&self) -> bool {
        self.get().is_err()
    }
}
