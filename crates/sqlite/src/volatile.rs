//! Files that need not survive the process: rollback journals and super-journals.
//!
//! Commits are atomic without them, so a crash needs none. A rollback does.

use crate::failure::{Failure, Result, code};
use crate::file::fill;
use parking_lot::Mutex;
use syncline::{File, Filesystem};

/// Bytes kept in memory. A longer file lies in the image, without a name, so a crash removes it.
const MEMORY_BYTES_MAX: u64 = 8 << 20;

/// A file in memory.
pub(crate) struct Volatile {
    fs: Filesystem,
    contents: Mutex<Contents>,
}

enum Contents {
    Memory(Vec<u8>),
    Image(File),
}

impl Volatile {
    pub(crate) fn new(fs: &Filesystem) -> Self {
        Self { fs: fs.clone(), contents: Mutex::new(Contents::Memory(Vec::new())) }
    }

    /// Reads, and returns the number of bytes: less than asked for at the end of the file.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match &*self.contents.lock() {
            Contents::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let len = buffer.len().min(bytes.len() - start);
                buffer[..len].copy_from_slice(&bytes[start..start + len]);
                Ok(len)
            }
            Contents::Image(file) => fill(file, buffer, offset),
        }
    }

    pub(crate) fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut contents = self.contents.lock();
        let end = offset + data.len() as u64;
        if let Contents::Memory(bytes) = &mut *contents {
            if end <= MEMORY_BYTES_MAX {
                let (start, end) = (offset as usize, end as usize);
                if start == bytes.len() {
                    bytes.extend_from_slice(data);
                } else {
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[start..end].copy_from_slice(data);
                }
                return Ok(());
            }
            let file = self.fs.create_unnamed("/").map_err(Failure::of(code::IOERR_WRITE))?;
            file.write_all_at(bytes, 0).map_err(Failure::of(code::IOERR_WRITE))?;
            *contents = Contents::Image(file);
        }
        match &*contents {
            Contents::Image(file) => file.write_all_at(data, offset).map_err(Failure::of(code::IOERR_WRITE)),
            Contents::Memory(_) => Ok(()),
        }
    }

    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        match &mut *self.contents.lock() {
            Contents::Memory(bytes) if size <= bytes.len() as u64 => bytes.truncate(size as usize),
            Contents::Memory(bytes) if size <= MEMORY_BYTES_MAX => bytes.resize(size as usize, 0),
            Contents::Memory(_) => {
                return Err(Failure::new(code::IOERR_TRUNCATE, "a journal only grows by writes"));
            }
            Contents::Image(file) => file.set_len(size).map_err(Failure::of(code::IOERR_TRUNCATE))?,
        }
        Ok(())
    }

    pub(crate) fn size(&self) -> Result<u64> {
        match &*self.contents.lock() {
            Contents::Memory(bytes) => Ok(bytes.len() as u64),
            Contents::Image(file) => {
                file.metadata().map(|metadata| metadata.len()).map_err(Failure::of(code::IOERR_FSTAT))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_outgrows_memory_keeps_its_bytes() {
        let fs = Filesystem::in_memory(64 << 20).unwrap();
        let file = Volatile::new(&fs);
        file.write(b"header", 0).unwrap();
        let piece = vec![7; 1 << 20];
        for index in 0..9 {
            file.write(&piece, 512 + (index << 20)).unwrap();
        }
        assert!(matches!(*file.contents.lock(), Contents::Image(_)));
        assert_eq!(file.size().unwrap(), 512 + (9 << 20));
        let mut buffer = [1; 600];
        assert_eq!(file.read(&mut buffer, 0).unwrap(), 600);
        assert_eq!((&buffer[..6], buffer[6], buffer[511], buffer[512]), (&b"header"[..], 0, 0, 7));
        assert_eq!(file.read(&mut buffer, 412 + (9 << 20)).unwrap(), 100);
        file.set_size(100).unwrap();
        assert_eq!((file.size().unwrap(), file.read(&mut buffer, 100).unwrap()), (100, 0));
        assert_eq!(fs.read_dir("/").unwrap().count(), 0, "it has no name");
    }
}
