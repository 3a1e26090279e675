//! A device in memory: everything completes at once, on the calling thread.

use crate::device::{check_range, check_write};
use crate::{AlignedBuf, BLOCK_BYTES, Completion, Device, DeviceError, Operation};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Memory is allocated in pieces of this size when they are first written.
const CHUNK_BYTES: u64 = 16 << 10;
/// Number of locks over the chunks, so that threads seldom contend.
const SHARDS: u64 = 64;

type Chunks = HashMap<u64, Arc<[u8]>>;

/// A device in memory. Only written chunks take memory, so a huge one is cheap.
pub struct MemoryDevice {
    size_bytes: u64,
    shards: Vec<RwLock<Chunks>>,
}

impl MemoryDevice {
    /// A device full of zeros. The size is rounded down to a multiple of 4096.
    pub fn new(size_bytes: u64) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Arc::new(Self { size_bytes: size_bytes - size_bytes % BLOCK_BYTES as u64, shards })
    }

    /// A device that holds `image`, padded with zeros to a multiple of 4096.
    pub fn from_image(image: &[u8]) -> Arc<Self> {
        let device = Self::new((image.len() as u64).next_multiple_of(BLOCK_BYTES as u64));
        for (index, piece) in image.chunks(CHUNK_BYTES as usize).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                device.put(index as u64 * CHUNK_BYTES, piece);
            }
        }
        device
    }

    /// A second device with the same contents, which the two share until one of them writes.
    pub fn snapshot(&self) -> Arc<Self> {
        let shards = self.shards.iter().map(|shard| RwLock::new(shard.read().clone())).collect();
        Arc::new(Self { size_bytes: self.size_bytes, shards })
    }

    /// All of its contents.
    pub fn image(&self) -> Vec<u8> {
        let mut image = vec![0; usize::try_from(self.size_bytes).expect("the image fits in memory")];
        self.get(0, &mut image);
        image
    }

    /// Bytes of memory allocated so far.
    pub fn allocated_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64 * CHUNK_BYTES).sum()
    }

    fn shard(&self, chunk: u64) -> &RwLock<Chunks> {
        &self.shards[(chunk % SHARDS) as usize]
    }

    fn get(&self, offset: u64, mut into: &mut [u8]) {
        let mut offset = offset;
        while !into.is_empty() {
            let (chunk, start, len) = piece(offset, into.len());
            let (head, rest) = into.split_at_mut(len);
            match self.shard(chunk).read().get(&chunk) {
                Some(bytes) => head.copy_from_slice(&bytes[start..start + len]),
                None => head.fill(0),
            }
            into = rest;
            offset += len as u64;
        }
    }

    fn put(&self, offset: u64, mut from: &[u8]) {
        let mut offset = offset;
        while !from.is_empty() {
            let (chunk, start, len) = piece(offset, from.len());
            let (head, rest) = from.split_at(len);
            let mut chunks = self.shard(chunk).write();
            let bytes = chunks.entry(chunk).or_insert_with(|| Arc::from([0; CHUNK_BYTES as usize]));
            // A chunk shared with a snapshot is copied here, on its first write.
            Arc::make_mut(bytes)[start..start + len].copy_from_slice(head);
            drop(chunks);
            from = rest;
            offset += len as u64;
        }
    }

    fn forget(&self, offset: u64, len_bytes: u64) {
        // Visits only chunks that exist, so a discard of a terabyte costs only what was written of
        // it. All of the range reads as zeros afterwards, so that tests notice a discard of data in
        // use.
        let (first, end) = (offset.div_ceil(CHUNK_BYTES), (offset + len_bytes) / CHUNK_BYTES);
        for shard in &self.shards {
            shard.write().retain(|chunk, _| !(first..end).contains(chunk));
        }
        let head = (first * CHUNK_BYTES).min(offset + len_bytes);
        let tail = (end * CHUNK_BYTES).max(head);
        for (from, to) in [(offset, head), (tail, offset + len_bytes)] {
            if from < to && self.shard(from / CHUNK_BYTES).read().contains_key(&(from / CHUNK_BYTES)) {
                self.put(from, &vec![0; (to - from) as usize]);
            }
        }
    }
}

/// The chunk at `offset`, the position in it, and how many of `len` bytes are in it.
fn piece(offset: u64, len: usize) -> (u64, usize, usize) {
    let start = offset % CHUNK_BYTES;
    (offset / CHUNK_BYTES, start as usize, len.min((CHUNK_BYTES - start) as usize))
}

impl Device for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let result = check_range(Operation::Read, self.size_bytes, offset, buf.len() as u64);
        done(result.map(|()| {
            self.get(offset, &mut buf);
            buf
        }));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let result = check_write(self.size_bytes, offset, &bufs).map(|_| {
            let mut at = offset;
            for buf in &bufs {
                self.put(at, buf);
                at += buf.len() as u64;
            }
        });
        done(result);
    }

    fn flush(&self, done: Completion<()>) {
        done(Ok(()));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        let result: Result<(), DeviceError> =
            check_range(Operation::Discard, self.size_bytes, offset, len_bytes);
        if result.is_ok() {
            self.forget(offset, len_bytes);
        }
        done(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceExt;
    use futures_lite::future::block_on;

    fn block(fill: u8) -> Bytes {
        Bytes::from(vec![fill; BLOCK_BYTES])
    }

    #[test]
    fn what_was_written_is_read_back_and_the_rest_is_zero() {
        let device = MemoryDevice::new(1 << 20);
        // Across the border of two chunks.
        let offset = CHUNK_BYTES - 4096;
        block_on(device.write_at(offset, vec![block(1), block(2)])).unwrap();
        let read = block_on(device.read_at(offset - 4096, 16384)).unwrap();
        for (index, fill) in [0, 1, 2, 0].into_iter().enumerate() {
            assert!(read[index * 4096..][..4096].iter().all(|&byte| byte == fill));
        }
    }

    #[test]
    fn a_huge_device_is_cheap_and_forgets_what_is_discarded() {
        let device = MemoryDevice::new(1 << 40);
        block_on(device.write_at((1 << 40) - 4096, vec![block(9)])).unwrap();
        assert_eq!(device.allocated_bytes(), CHUNK_BYTES);
        assert_eq!(block_on(device.read_at((1 << 40) - 4096, 4096)).unwrap()[0], 9);
        block_on(device.discard_at(0, 1 << 40)).unwrap();
        assert_eq!(device.allocated_bytes(), 0);
    }

    #[test]
    fn exactly_what_is_discarded_reads_as_zeros() {
        for (first, blocks) in [(0, 1), (3, 1), (1, 2), (2, 9), (3, 6), (4, 4), (0, 16)] {
            let device = MemoryDevice::new(64 << 10);
            block_on(device.write_at(0, vec![block(5); 16])).unwrap();
            block_on(device.discard_at(first * 4096, blocks * 4096)).unwrap();
            for (index, bytes) in (0..).zip(device.image().chunks(4096)) {
                let expected = if (first..first + blocks).contains(&index) { 0 } else { 5 };
                assert!(bytes.iter().all(|&byte| byte == expected), "block {index} of {first}+{blocks}");
            }
        }
    }

    #[test]
    fn a_snapshot_and_its_origin_part_ways() {
        let origin = MemoryDevice::new(1 << 20);
        block_on(origin.write_at(0, vec![block(1)])).unwrap();
        let fork = origin.snapshot();
        block_on(fork.write_at(0, vec![block(2)])).unwrap();
        block_on(origin.write_at(4096, vec![block(3)])).unwrap();
        assert_eq!(origin.image()[0], 1);
        assert_eq!(fork.image()[0], 2);
        assert_eq!(fork.image()[4096], 0);
        assert_eq!(MemoryDevice::from_image(&origin.image()).image(), origin.image());
    }

    #[test]
    fn ranges_that_are_crooked_or_outside_are_refused() {
        let device = MemoryDevice::new(1 << 20);
        assert!(block_on(device.read_at(1 << 20, 4096)).is_err());
        assert!(block_on(device.read_at(u64::MAX - 4095, 4096)).is_err());
        assert!(block_on(device.read_at(512, 4096)).is_err());
        assert!(block_on(device.read_at(0, usize::MAX - 4095)).is_err());
        assert!(block_on(device.write_at((1 << 20) - 4096, vec![block(0), block(0)])).is_err());
        assert!(
            block_on(device.write_at(0, vec![Bytes::from(vec![0; 2048]), Bytes::from(vec![0; 2048])]))
                .is_err()
        );
    }
}
