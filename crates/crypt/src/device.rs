//! The device of an encrypted image, as the filesystem sees it.

use crate::storage::{block_of, record_places, zeros};
use crate::{Cipher, HEADER_BLOCKS, KeyRecord, OVERHEAD_BYTES};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{AlignedBuf, BLOCK_BYTES, Claim, Completion, Device, DeviceError, Operation};

const BLOCK: u64 = BLOCK_BYTES as u64;
const HEADER_BYTES: u64 = HEADER_BLOCKS * BLOCK;

/// The blocks of a device behind its header, decrypted.
pub struct Encrypted {
    below: Arc<dyn Device>,
    cipher: Arc<Cipher>,
    record: KeyRecord,
    size_bytes: Arc<AtomicU64>,
}

impl Encrypted {
    /// The device `below`, which has this record, decrypted with the key that the record holds.
    pub fn new(below: Arc<dyn Device>, cipher: Arc<Cipher>, record: KeyRecord) -> Arc<Self> {
        let size_bytes = Arc::new(AtomicU64::new(below.size_bytes().saturating_sub(OVERHEAD_BYTES)));
        Arc::new(Self { below, cipher, record, size_bytes })
    }

    /// The device with the header.
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }

    /// The cipher, for other devices with the same key.
    pub fn cipher(&self) -> &Arc<Cipher> {
        &self.cipher
    }

    /// The keys of the image.
    pub fn record(&self) -> &KeyRecord {
        &self.record
    }

    fn check(&self, operation: Operation, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.size_bytes());
        let aligned = offset.is_multiple_of(BLOCK) && len_bytes.is_multiple_of(BLOCK);
        let outside = || DeviceError::out_of_range(operation, offset, len_bytes);
        (inside && aligned).then_some(()).ok_or_else(outside)
    }

    /// The buffers of a write, encrypted: shared buffers must not change.
    fn encrypted(&self, offset: u64, bufs: &[Bytes]) -> Result<Vec<Bytes>, DeviceError> {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check(Operation::Write, offset, len_bytes)?;
        if bufs.iter().any(|buf| !buf.len().is_multiple_of(BLOCK_BYTES)) {
            return Err(DeviceError::out_of_range(Operation::Write, offset, len_bytes));
        }
        let mut block = offset / BLOCK;
        let encrypt = |buf: &Bytes| {
            let mut encrypted = AlignedBuf::copy_from(buf);
            self.cipher.encrypt(block, &mut encrypted);
            block += buf.len() as u64 / BLOCK;
            encrypted.into_bytes()
        };
        Ok(bufs.iter().map(encrypt).collect())
    }
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Encrypted")
    }
}

impl Device for Encrypted {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn overhead_bytes(&self) -> u64 {
        OVERHEAD_BYTES
    }

    fn reads_bypass_caches(&self) -> bool {
        self.below.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        if let Err(error) = self.check(Operation::Read, offset, buf.len() as u64) {
            return done(Err(error));
        }
        let cipher = self.cipher.clone();
        let decrypted = move |read: Result<AlignedBuf, DeviceError>| {
            done(read.map(|mut buf| {
                cipher.decrypt(offset / BLOCK, &mut buf);
                buf
            }));
        };
        self.below.read(HEADER_BYTES + offset, buf, Box::new(decrypted));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        match self.encrypted(offset, &bufs) {
            Ok(bufs) => self.below.write(HEADER_BYTES + offset, bufs, done),
            Err(error) => done(Err(error)),
        }
    }

    fn flush(&self, done: Completion<()>) {
        self.below.flush(done);
    }

    fn writes_through(&self) -> bool {
        self.below.writes_through()
    }

    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        match self.encrypted(offset, &bufs) {
            Ok(bufs) => self.below.write_through(HEADER_BYTES + offset, bufs, done),
            Err(error) => done(Err(error)),
        }
    }

    fn submit(&self) {
        self.below.submit();
    }

    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        let (below, size, present) = (self.below.clone(), self.size_bytes.clone(), self.size_bytes());
        let record = block_of(&self.record);
        let enlarged = move |enlarged: Result<u64, DeviceError>| match enlarged {
            Ok(bytes) if bytes > present + OVERHEAD_BYTES => {
                // The last copy of the record moves, before the filesystem gets the block where it was.
                let [_, _, last] = record_places(bytes);
                let [_, _, former] = record_places(present + OVERHEAD_BYTES);
                let wiped = move |wiped: Result<(), DeviceError>| {
                    done(wiped.map(|()| {
                        size.fetch_max(bytes - OVERHEAD_BYTES, Ordering::AcqRel);
                        size.load(Ordering::Acquire)
                    }));
                };
                let on = below.clone();
                let written = move |written: Result<(), DeviceError>| match written {
                    // It would keep keys that are removed later.
                    Ok(()) => on.write(former * BLOCK, vec![zeros(1)], Box::new(wiped)),
                    Err(error) => wiped(Err(error)),
                };
                below.write(last * BLOCK, vec![record], Box::new(written));
            }
            Ok(_) => done(Ok(present)),
            Err(error) => done(Err(error)),
        };
        self.below.enlarge(size_bytes.saturating_add(OVERHEAD_BYTES), Box::new(enlarged));
    }

    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        self.below.claim_snapshot(number, claim)
    }

    fn discards(&self) -> bool {
        self.below.discards()
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        match self.check(Operation::Discard, offset, len_bytes) {
            Ok(()) => self.below.discard(HEADER_BYTES + offset, len_bytes, done),
            Err(error) => done(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests;
