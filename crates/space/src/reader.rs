//! Reads pages of space maps, and other blocks of metadata that may have two copies; mends a damaged copy from
//! the other one.

use crate::SpaceError;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use syncline_device::{AlignedBuf, DeviceError, FlushTracker, Operation};
use syncline_format::superblock::Pointer;
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, crc};
use syncline_sync::Mutex;

/// Pages read by one device operation, at most.
const PAGES_PER_READ: usize = 64;
/// Reads in flight at a time.
const READS_IN_FLIGHT: usize = 16;

/// Reads the first sound copy of each page, and remembers the copies that were not sound.
pub struct PageReader {
    tracker: Arc<FlushTracker>,
    /// Both copies of each page are read.
    both: bool,
    rotten: Mutex<BTreeMap<BlockAddr, RottenPage>>,
}

/// A damaged copy of a page whose other copy is sound.
#[derive(Clone, Debug)]
pub struct RottenPage {
    /// The pointer to the page.
    pub pointer: Pointer,
    /// Address of the damaged copy.
    pub addr: BlockAddr,
    /// The error in the copy.
    pub why: String,
}

impl RottenPage {
    /// Writes the copy again from the other one. The page must be in use: later the block could hold something
    /// else.
    pub async fn mend(&self, tracker: &Arc<FlushTracker>) -> Result<(), DeviceError> {
        let Pointer { addr, copy, checksum } = self.pointer;
        let sound = if self.addr == addr { copy } else { addr };
        let offset = BlockRun::new(sound, 1).offset_bytes();
        let bytes = tracker.read(offset, BLOCK_BYTES).await?.into_bytes();
        if crc(&bytes) != checksum {
            let why = io::Error::new(io::ErrorKind::InvalidData, "the other copy is damaged too by now");
            return Err(DeviceError::io(Operation::Read, offset, BLOCK_BYTES as u64, why));
        }
        let offset = BlockRun::new(self.addr, 1).offset_bytes();
        tracker.write(offset, vec![bytes]).wait().await?;
        Ok(())
    }
}

impl PageReader {
    /// A reader that is content with one sound copy of each page.
    pub fn new(tracker: Arc<FlushTracker>) -> Self {
        Self { tracker, both: false, rotten: Mutex::default() }
    }

    /// A reader that reads all copies, for a check.
    pub fn of_all_copies(tracker: Arc<FlushTracker>) -> Self {
        Self { both: true, ..Self::new(tracker) }
    }

    /// Takes the damaged copies found so far, in the order of their addresses.
    pub fn take_rotten(&self) -> Vec<RottenPage> {
        std::mem::take(&mut *self.rotten.lock()).into_values().collect()
    }

    /// Reads a page. If no copy is sound, the result is the first.
    pub async fn read(&self, pointer: Pointer) -> Result<AlignedBuf, DeviceError> {
        let first = self.read_at(pointer.addr).await;
        match self.other(pointer, first.as_deref()).await {
            Some(other) => Ok(other),
            None => first,
        }
    }

    /// Reads pages, neighbours together, and passes each to `each` with the value given for it.
    pub(crate) async fn read_all<T>(
        &self,
        mut wanted: Vec<(Pointer, T)>,
        each: &mut (impl FnMut(&[u8], &T) -> Result<(), SpaceError> + ?Sized),
    ) -> Result<(), SpaceError> {
        wanted.sort_by_key(|(pointer, _)| pointer.addr);
        let together = |a: &(Pointer, T), b: &(Pointer, T)| a.0.addr.checked_add(1) == Some(b.0.addr);
        let runs: Vec<_> = wanted.chunk_by(together).flat_map(|run| run.chunks(PAGES_PER_READ)).collect();
        for batch in runs.chunks(READS_IN_FLIGHT) {
            // A read starts when it is created, so the whole batch is in flight before the first is
            // awaited.
            let reads = batch.iter().map(|run| {
                let offset = run[0].0.addr.saturating_mul(BLOCK_BYTES as u64);
                self.tracker.read(offset, run.len() * BLOCK_BYTES)
            });
            for (read, run) in reads.collect::<Vec<_>>().into_iter().zip(batch) {
                let bytes = match read.await {
                    Ok(bytes) => bytes,
                    // One unreadable block fails the whole run.
                    Err(_) => {
                        for (pointer, with) in *run {
                            each(&self.read(*pointer).await?, with)?;
                        }
                        continue;
                    }
                };
                for (block, (pointer, with)) in bytes.chunks_exact(BLOCK_BYTES).zip(*run) {
                    match self.other(*pointer, Ok(block)).await {
                        Some(other) => each(&other, with)?,
                        None => each(block, with)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// The second copy of a page, if the first one is damaged and the second one sound. Remembers the
    /// damaged one.
    async fn other(&self, pointer: Pointer, first: Result<&[u8], &DeviceError>) -> Option<AlignedBuf> {
        let unsound = |read: Result<&[u8], &DeviceError>| match read {
            Ok(block) => (crc(block) != pointer.checksum).then(|| "its checksum does not match".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        let first_is = unsound(first);
        if pointer.copy == 0 || (first_is.is_none() && !self.both) {
            return None;
        }
        let second = self.read_at(pointer.copy).await;
        let (addr, why) = match (first_is, unsound(second.as_deref())) {
            (Some(why), None) => (pointer.addr, why),
            (None, Some(why)) => (pointer.copy, why),
            _ => return None,
        };
        self.rotten.lock().insert(addr, RottenPage { pointer, addr, why });
        second.ok().filter(|_| addr == pointer.addr)
    }

    async fn read_at(&self, addr: BlockAddr) -> Result<AlignedBuf, DeviceError> {
        self.tracker.read(addr.saturating_mul(BLOCK_BYTES as u64), BLOCK_BYTES).await
    }
}
