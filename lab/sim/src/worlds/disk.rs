//! Images that share almost everything: a base that never changes, and the blocks that differ from
//! it. An image costs as much as it differs, and knows a hash of its contents.

use bytes::Bytes;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Completion, Device, DeviceError, MemoryDevice, Operation};

/// Contents of a block, with a hash of them and of the block's number; the hash is 0 if they equal
/// the base.
#[derive(Clone)]
pub(super) struct Block {
    pub(super) bytes: Bytes,
    hash: u128,
}

/// A device's contents at one moment.
#[derive(Clone)]
pub(super) struct Image {
    base: Arc<Vec<u8>>,
    changed: BTreeMap<u64, Block>,
    hash: u128,
}

impl Image {
    /// The contents of `device`, as the base of other images.
    pub(super) fn of(device: &MemoryDevice) -> Self {
        Self { base: Arc::new(device.image()), changed: BTreeMap::new(), hash: 0 }
    }

    /// Identifies the contents among images of one base: the sum of keyed 128-bit hashes, one for
    /// each block that differs from the base.
    pub(super) fn hash(&self) -> u128 {
        self.hash
    }

    /// A block's contents.
    pub(super) fn get(&self, addr: u64) -> &[u8] {
        match self.changed.get(&addr) {
            Some(block) => &block.bytes,
            None => &self.base[addr as usize * BLOCK_BYTES..][..BLOCK_BYTES],
        }
    }

    /// `bytes` as contents of block `addr`.
    pub(super) fn block(&self, addr: u64, bytes: Bytes) -> Block {
        let same = self.base[addr as usize * BLOCK_BYTES..][..BLOCK_BYTES] == bytes[..];
        let hash = if same {
            0
        } else {
            let mut hasher = SipHasher13::new_with_keys(0x73_79_6e_63, addr);
            hasher.write(&bytes);
            hasher.finish128().as_u128()
        };
        Block { bytes, hash }
    }

    /// Changes a block.
    pub(super) fn put(&mut self, addr: u64, block: Block) {
        self.hash = self.hash.wrapping_add(block.hash);
        if let Some(before) = self.changed.insert(addr, block) {
            self.hash = self.hash.wrapping_sub(before.hash);
        }
    }

    /// A device that starts with this image and keeps its own writes.
    pub(super) fn device(&self) -> Arc<Disk> {
        Arc::new(Disk { contents: Mutex::new(self.clone()) })
    }

    fn size_bytes(&self) -> u64 {
        self.base.len() as u64
    }
}

/// A memory device that starts with an image; every operation completes at once.
pub(super) struct Disk {
    contents: Mutex<Image>,
}

impl Disk {
    fn refuse(&self, operation: Operation, offset: u64, len_bytes: u64) -> Option<DeviceError> {
        let size = self.contents.lock().size_bytes();
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= size);
        let whole = (offset | len_bytes).is_multiple_of(BLOCK_BYTES as u64);
        let reason = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "outside the device");
        (!inside || !whole).then(|| DeviceError::io(operation, offset, len_bytes, reason()))
    }
}

impl Device for Disk {
    fn size_bytes(&self) -> u64 {
        self.contents.lock().size_bytes()
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, done: Completion<AlignedBuf>) {
        if let Some(error) = self.refuse(Operation::Read, offset, buf.len() as u64) {
            return done(Err(error));
        }
        let contents = self.contents.lock();
        for (addr, into) in (offset / BLOCK_BYTES as u64..).zip(buf.chunks_mut(BLOCK_BYTES)) {
            into.copy_from_slice(contents.get(addr));
        }
        drop(contents);
        done(Ok(buf));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        if let Some(error) = self.refuse(Operation::Write, offset, len_bytes) {
            return done(Err(error));
        }
        let mut contents = self.contents.lock();
        for (addr, bytes) in blocks_of(offset, &bufs) {
            // A device is never asked for its hash, so the hash is not maintained.
            contents.put(addr, Block { bytes, hash: 0 });
        }
        drop(contents);
        done(Ok(()));
    }

    fn flush(&self, done: Completion<()>) {
        done(Ok(()));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        // The contents of a discarded range are undefined, so it may keep the old ones.
        match self.refuse(Operation::Discard, offset, len_bytes) {
            Some(error) => done(Err(error)),
            None => done(Ok(())),
        }
    }
}

/// The blocks of a write, with their numbers.
pub(super) fn blocks_of(offset: u64, bufs: &[Bytes]) -> impl Iterator<Item = (u64, Bytes)> {
    let pieces = bufs.iter().flat_map(|buf| {
        (0..buf.len() / BLOCK_BYTES).map(move |at| buf.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES))
    });
    (offset / BLOCK_BYTES as u64..).zip(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::{DeviceExt, block_on};

    fn bytes(fill: u8) -> Bytes {
        Bytes::from(vec![fill; BLOCK_BYTES])
    }

    #[test]
    fn equal_contents_have_equal_hashes_however_they_came_about() {
        let base = Image::of(&MemoryDevice::new(1 << 20));
        let (mut one, mut other) = (base.clone(), base.clone());
        for (addr, fill) in [(3, 1), (5, 2), (3, 7)] {
            one.put(addr, base.block(addr, bytes(fill)));
        }
        assert_ne!(one.hash(), base.hash());
        for (addr, fill) in [(5, 2), (3, 7), (9, 0)] {
            other.put(addr, base.block(addr, bytes(fill)));
        }
        assert_eq!(one.hash(), other.hash());
        other.put(4, base.block(4, bytes(7)));
        assert_ne!(one.hash(), other.hash());
        for addr in [3, 4, 5] {
            other.put(addr, base.block(addr, bytes(0)));
        }
        assert_eq!(other.hash(), base.hash());
        assert_eq!(one.get(3), &bytes(7)[..]);
    }

    #[test]
    fn a_device_keeps_what_is_written_for_itself() {
        let image = Image::of(&MemoryDevice::new(1 << 20));
        let (one, other) = (image.device(), image.device());
        block_on(one.write_at(4096, vec![Bytes::from([bytes(1), bytes(2)].concat())])).unwrap();
        assert_eq!(block_on(one.read_at(8192, 4096)).unwrap()[0], 2);
        assert_eq!(block_on(other.read_at(8192, 4096)).unwrap()[0], 0);
        assert!(block_on(one.write_at(1 << 20, vec![bytes(1)])).is_err());
    }
}
