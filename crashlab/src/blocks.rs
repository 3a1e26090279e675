//! The bytes of blocks: in memory up to a budget, and beyond it in a temporary file without a name, which the
//! kernel caches.

use crate::Error;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;
/// Blocks of this process that are kept in memory: 256 MiB; tests are to use the file.
const IN_MEMORY_MAX: usize = if cfg!(test) { 4 } else { 64 << 10 };
/// The folder of the file if TMPDIR is not set: /tmp may be memory.
const FOLDER: &str = "/var/tmp";

/// All blocks of this process.
pub static BLOCKS: Blocks = Blocks::new(IN_MEMORY_MAX);

/// A place for blocks.
pub struct Blocks {
    in_memory_max: usize,
    in_memory: AtomicUsize,
    file: OnceLock<File>,
    slots: Mutex<Slots>,
}

/// The slots of the file, each of one block.
struct Slots {
    /// Number of slots.
    end: u64,
    free: Vec<u64>,
}

impl Blocks {
    const fn new(in_memory_max: usize) -> Self {
        Self {
            in_memory_max,
            in_memory: AtomicUsize::new(0),
            file: OnceLock::new(),
            slots: Mutex::new(Slots { end: 0, free: Vec::new() }),
        }
    }

    /// Keeps a block of bytes.
    pub fn keep(&'static self, bytes: Box<[u8]>) -> Result<Bytes, Error> {
        if self.in_memory.fetch_add(1, Ordering::Relaxed) < self.in_memory_max {
            return Ok(Bytes { blocks: self, place: Place::Memory(bytes) });
        }
        self.in_memory.fetch_sub(1, Ordering::Relaxed);
        let (file, slot) = self.slot().map_err(failed)?;
        // From here on it is freed when it is dropped.
        let kept = Bytes { blocks: self, place: Place::Slot(slot) };
        file.write_all_at(&bytes, slot * BLOCK_BYTES).map_err(failed)?;
        Ok(kept)
    }

    /// The file. A thread with a table of descriptors of its own needs it in there before it touches a block.
    pub fn file(&'static self) -> Result<&'static File, Error> {
        self.file_of(&self.slots.lock()).map_err(failed)
    }

    fn file_of(&self, _: &Slots) -> io::Result<&File> {
        match self.file.get() {
            Some(file) => Ok(file),
            None => {
                let file = tempfile::tempfile_in(folder())?;
                Ok(self.file.get_or_init(|| file))
            }
        }
    }

    /// The file, and a free slot of it.
    fn slot(&self) -> io::Result<(&File, u64)> {
        let mut slots = self.slots.lock();
        let file = self.file_of(&slots)?;
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.end += 1;
            slots.end - 1
        });
        Ok((file, slot))
    }
}

/// The folder of the file.
fn folder() -> PathBuf {
    match std::env::var_os("TMPDIR") {
        None if rustix::fs::access(FOLDER, rustix::fs::Access::WRITE_OK).is_ok() => FOLDER.into(),
        _ => std::env::temp_dir(),
    }
}

fn failed(source: io::Error) -> Error {
    Error::NoRoom { path: folder(), source }
}

/// A block of bytes.
pub struct Bytes {
    blocks: &'static Blocks,
    place: Place,
}

enum Place {
    Memory(Box<[u8]>),
    Slot(u64),
}

impl Bytes {
    /// The bytes.
    pub fn read(&self) -> Result<Cow<'_, [u8]>, Error> {
        let slot = match &self.place {
            Place::Memory(bytes) => return Ok(Cow::Borrowed(bytes)),
            Place::Slot(slot) => *slot,
        };
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let file = self.blocks.file.get().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        file.read_exact_at(&mut bytes, slot * BLOCK_BYTES).map_err(failed)?;
        Ok(Cow::Owned(bytes))
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        match self.place {
            Place::Memory(_) => drop(self.blocks.in_memory.fetch_sub(1, Ordering::Relaxed)),
            Place::Slot(slot) => self.blocks.slots.lock().free.push(slot),
        }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Memory(_) => write!(f, "in memory"),
            Place::Slot(slot) => write!(f, "slot {slot}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(in_memory_max: usize) -> &'static Blocks {
        Box::leak(Box::new(Blocks::new(in_memory_max)))
    }

    fn block(byte: u8) -> Box<[u8]> {
        vec![byte; BLOCK_BYTES as usize].into()
    }

    #[test]
    fn blocks_beyond_the_budget_come_back_and_slots_are_used_again() {
        let blocks = blocks(2);
        let mut kept: Vec<Bytes> = (0..10).map(|byte| blocks.keep(block(byte)).unwrap()).collect();
        for (byte, kept) in (0..).zip(&kept) {
            assert_eq!(*kept.read().unwrap(), *block(byte));
        }
        assert_eq!(blocks.slots.lock().end, 8);
        kept.drain(..5);
        kept.extend((20..25).map(|byte| blocks.keep(block(byte)).unwrap()));
        for (byte, kept) in (5..10).chain(20..25).zip(&kept) {
            assert_eq!(*kept.read().unwrap(), *block(byte));
        }
        assert_eq!(blocks.slots.lock().end, 8, "two went to memory, and three to slots that were free");
    }

    #[test]
    fn a_full_disk_is_an_error_and_costs_no_slot() {
        let blocks = blocks(0);
        blocks.file.set(File::options().write(true).open("/dev/full").unwrap()).unwrap();
        for _ in 0..2 {
            let error = blocks.keep(block(1)).unwrap_err();
            assert!(
                matches!(error, Error::NoRoom { source, .. } if source.kind() == io::ErrorKind::StorageFull)
            );
        }
        assert_eq!(blocks.slots.lock().end, 1);
    }
}
