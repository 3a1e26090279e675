//! A device that keeps all writes to itself and leaves the device below unchanged.
//!
//! A repair is first done here, so its result can be read, checked and compared before the image is
//! touched.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Claim, Completion, Device, DeviceError, Operation};
use syncline_format::{BLOCK_BYTES, BlockAddr};

/// Blocks kept in memory (64 MiB); further ones go to a temporary file.
const MEMORY_BLOCKS: usize = 16 << 10;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Written blocks, layered over another device.
pub(crate) struct Overlay {
    below: Arc<dyn Device>,
    written: Arc<Mutex<Written>>,
}

/// The written blocks, in the order of their first writes.
#[derive(Default)]
struct Written {
    places: BTreeMap<BlockAddr, usize>,
    memory: Vec<Box<[u8]>>,
    /// An unlinked file, so that it disappears with the process.
    spill: Option<File>,
}

impl Written {
    fn put(&mut self, block: BlockAddr, bytes: &[u8]) -> io::Result<()> {
        let fresh = self.places.len();
        let place = *self.places.entry(block).or_insert(fresh);
        if let Some(kept) = self.memory.get_mut(place) {
            kept.copy_from_slice(bytes);
        } else if place < MEMORY_BLOCKS {
            self.memory.push(bytes.into());
        } else {
            let spill = match &mut self.spill {
                Some(spill) => spill,
                none => none.insert(tempfile::tempfile()?),
            };
            spill.write_all_at(bytes, (place - MEMORY_BLOCKS) as u64 * BLOCK)?;
        }
        Ok(())
    }

    /// Reads a written block; returns false if the block was not written.
    fn get(&self, block: BlockAddr, into: &mut [u8]) -> io::Result<bool> {
        let Some(&place) = self.places.get(&block) else { return Ok(false) };
        match (self.memory.get(place), &self.spill) {
            (Some(kept), _) => into.copy_from_slice(kept),
            (None, Some(spill)) => spill.read_exact_at(into, (place - MEMORY_BLOCKS) as u64 * BLOCK)?,
            (None, None) => return Err(io::ErrorKind::NotFound.into()),
        }
        Ok(true)
    }

    /// The first written block in a range.
    fn first(&self, from: BlockAddr, to: BlockAddr) -> Option<BlockAddr> {
        self.places.range(from..to).next().map(|(block, _)| *block)
    }
}

impl Overlay {
    pub(crate) fn new(below: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { below, written: Arc::default() })
    }

    /// All written blocks, ascending.
    pub(crate) fn blocks(&self) -> Vec<BlockAddr> {
        self.written.lock().places.keys().copied().collect()
    }

    /// The contents written to a block, if any.
    pub(crate) fn written(&self, block: BlockAddr) -> Result<Option<Bytes>, DeviceError> {
        let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
        let found = self.written.lock().get(block, &mut bytes);
        let found = found.map_err(|error| DeviceError::io(Operation::Read, block * BLOCK, BLOCK, error))?;
        Ok(found.then(|| bytes.into_bytes()))
    }
}

impl Device for Overlay {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let (from, to) = (offset / BLOCK, offset.saturating_add(buf.len() as u64).div_ceil(BLOCK));
        if self.written.lock().first(from, to).is_none() {
            return self.below.read(offset, buf, done);
        }
        read_rest(self.below.clone(), self.written.clone(), offset, buf, 0, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let whole =
            offset.is_multiple_of(BLOCK) && bufs.iter().all(|buf| buf.len().is_multiple_of(BLOCK_BYTES));
        if !whole || offset.checked_add(len).is_none_or(|end| end > self.size_bytes()) {
            let error = io::ErrorKind::InvalidInput.into();
            return done(Err(DeviceError::io(Operation::Write, offset, len, error)));
        }
        let mut written = self.written.lock();
        let blocks = bufs.iter().flat_map(|buf| buf.chunks_exact(BLOCK_BYTES));
        let put = (offset / BLOCK..).zip(blocks).try_for_each(|(block, bytes)| written.put(block, bytes));
        drop(written);
        done(put.map_err(|error| DeviceError::io(Operation::Write, offset, len, error)));
    }

    fn flush(&self, done: Completion<()>) {
        done(Ok(()));
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.below.claim_snapshot(number, claim)
    }

    fn discard(&self, _: u64, _: u64, done: Completion<()>) {
        done(Ok(()));
    }
}

/// Reads the rest of `whole`, from byte `at` on. Written blocks are not read from below, where they
/// may be unreadable.
fn read_rest(
    below: Arc<dyn Device>,
    written: Arc<Mutex<Written>>,
    offset: u64,
    mut whole: AlignedBuf,
    mut at: usize,
    done: Completion<AlignedBuf>,
) {
    let end = offset + whole.len() as u64;
    while at < whole.len() {
        let place = offset + at as u64;
        let found = written.lock().get(place / BLOCK, &mut whole[at..at + BLOCK_BYTES]);
        match found {
            Ok(true) => at += BLOCK_BYTES,
            Ok(false) => {
                let next = written.lock().first(place / BLOCK, end / BLOCK);
                let len = (next.map_or(end, |block| block * BLOCK) - place) as usize;
                let reader = below.clone();
                let then = move |read: Result<AlignedBuf, DeviceError>| match read {
                    Ok(bytes) => {
                        whole[at..at + len].copy_from_slice(&bytes);
                        read_rest(below, written, offset, whole, at + len, done);
                    }
                    Err(error) => done(Err(error)),
                };
                return reader.read(place, AlignedBuf::for_read(len), Box::new(then));
            }
            Err(error) => {
                return done(Err(DeviceError::io(Operation::Read, place, BLOCK, error)));
            }
        }
    }
    done(Ok(whole));
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::{DeviceExt, MemoryDevice, block_on};

    fn blocks(fill: u8, count: usize) -> Bytes {
        Bytes::from(vec![fill; count * BLOCK_BYTES])
    }

    #[test]
    fn what_is_written_lies_over_what_was_there() {
        let below = MemoryDevice::new(1 << 20);
        block_on(below.write_at(0, vec![blocks(1, 256)])).unwrap();
        let overlay = Overlay::new(below.clone());
        block_on(overlay.write_at(3 * BLOCK, vec![blocks(2, 1), blocks(3, 1)])).unwrap();
        block_on(overlay.write_at(4 * BLOCK, vec![blocks(4, 1)])).unwrap();
        block_on(overlay.write_at(7 * BLOCK, vec![blocks(5, 1)])).unwrap();
        let read = block_on(overlay.read_at(2 * BLOCK, 8 * BLOCK_BYTES)).unwrap();
        let found: Vec<u8> = read.chunks(BLOCK_BYTES).map(|block| block[9]).collect();
        assert_eq!(found, [1, 2, 4, 1, 1, 5, 1, 1]);
        assert_eq!(overlay.blocks(), [3, 4, 7]);
        assert_eq!(overlay.written(4).unwrap().unwrap()[0], 4);
        assert_eq!(overlay.written(5).unwrap(), None);
        assert!(below.image().iter().all(|&byte| byte == 1), "nothing reached it");
        assert!(block_on(overlay.write_at(1 << 20, vec![blocks(1, 1)])).is_err());
    }

    #[test]
    fn what_does_not_fit_the_memory_goes_to_a_file() {
        let count = MEMORY_BLOCKS as u64 + 300;
        let overlay = Overlay::new(MemoryDevice::new(2 * count * BLOCK));
        for block in 0..count {
            block_on(overlay.write_at(2 * block * BLOCK, vec![blocks(block as u8, 1)])).unwrap();
        }
        block_on(overlay.write_at(2 * (count - 1) * BLOCK, vec![blocks(77, 1)])).unwrap();
        assert_eq!(overlay.written.lock().memory.len(), MEMORY_BLOCKS);
        for block in [0, 5, MEMORY_BLOCKS as u64 - 1, MEMORY_BLOCKS as u64, count - 2] {
            let read = block_on(overlay.read_at(2 * block * BLOCK, 2 * BLOCK_BYTES)).unwrap();
            assert_eq!((read[1], read[BLOCK_BYTES]), (block as u8, 0), "block {block}");
        }
        assert_eq!(overlay.written(2 * (count - 1)).unwrap().unwrap()[5], 77);
    }
}
