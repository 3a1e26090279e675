//! Reading: items from memtable, frozen memtable and tree; data blocks with a check of their
//! checksums.

use crate::{Canary, Store, StoreError};
use bytes::Bytes;
use syncline_device::{DeviceError, Room};
use syncline_format::{BLOCK_BYTES, BlockRun, Crc, FormatError, Key, block_checksums};
use syncline_space::Pin;

/// Items of a range, in key order.
pub struct Chunk {
    /// The items.
    pub items: Vec<(Key, Bytes)>,
    /// True when the requested range has nothing more.
    pub complete: bool,
}

/// The last key up to which this part of the tree is known, if it was read up to `to`.
pub(crate) fn reaches(part: &syncline_tree::Chunk, to: Key) -> Key {
    match part.items.last() {
        Some((last, _)) if !part.complete => *last,
        _ => to,
    }
}

impl Store {
    /// The value of `key`.
    pub async fn get(&self, key: Key) -> Result<Option<Bytes>, StoreError> {
        let _pin = self.space.pin();
        let root = {
            let layers = self.layers.read();
            if let Some(value) = layers.get(&key) {
                return Ok(value.clone());
            }
            layers.root
        };
        Ok(self.tree.get(root, key).await?)
    }

    /// The value of `key` if it is known without waiting for the device.
    pub fn try_get(&self, key: Key) -> Option<Result<Option<Bytes>, StoreError>> {
        let _pin = self.space.pin();
        let root = {
            let layers = self.layers.read();
            if let Some(value) = layers.get(&key) {
                return Some(Ok(value.clone()));
            }
            layers.root
        };
        Some(self.tree.try_get(root, key)?.map_err(StoreError::from))
    }

    /// At least one and at most `max_items` items from `from` to `to`, both included, as of one
    /// moment.
    pub async fn scan(&self, from: Key, to: Key, max_items: usize) -> Result<Chunk, StoreError> {
        self.scan_near(from, from, to, max_items).await
    }

    /// Scans from the last item at or before `at` that is not before `low`, or from `at` if there is
    /// none. An extent that covers `at` begins there. The chunk may have more items from `low` on.
    pub async fn scan_near(
        &self,
        mut low: Key,
        mut at: Key,
        to: Key,
        max_items: usize,
    ) -> Result<Chunk, StoreError> {
        let max_items = max_items.max(1);
        loop {
            let _pin = self.space.pin();
            let root = self.layers.read().root;
            let below = self.tree.scan_near(root, low, at, to, max_items).await?;
            let limit = reaches(&below, to);
            let layers = self.layers.read();
            if layers.root != root {
                // A checkpoint ended meanwhile: the items it merged are in neither of the two
                // halves read.
                continue;
            }
            let before = if low < at {
                let below = below.items.first().map(|(key, _)| *key).filter(|key| *key <= at);
                layers.floor(low, at).max(below)
            } else {
                None
            };
            let first = before.unwrap_or(at);
            let (items, cut) = if layers.has_any(first, limit) {
                let tree = below.items.into_iter().skip_while(|(key, _)| *key < first);
                layers.over(tree, (first, limit), max_items)
            } else {
                (below.items, false)
            };
            drop(layers);
            let has_before = items.first().is_some_and(|(key, _)| *key <= at);
            if before.is_some() && (first > limit || !has_before) {
                // The last key was removed in memory, or the tree's part ends before it: look at all
                // items from `low` on.
                at = low;
                continue;
            }
            let complete = !cut && limit == to;
            match limit.next() {
                Some(next) if items.is_empty() && !complete => (low, at) = (next, next),
                _ => return Ok(Chunk { items, complete }),
            }
        }
    }

    /// Keeps addresses looked up from now on from being reused, until the pin is dropped (rule R2).
    pub fn pin(&self) -> Pin {
        self.space.pin()
    }

    /// Reads data blocks of an inode and checks them; a mismatch is `Corrupt` (promise P4). That, and a
    /// failure of the device, is counted and logged.
    ///
    /// Blocks whose write is not known to be durable are served from the memory that the write
    /// keeps.
    pub async fn read_data(&self, ino: u64, run: BlockRun, checksums: &[Crc]) -> Result<Bytes, StoreError> {
        self.read_data_into(ino, run, checksums, None).await
    }

    /// Like `read_data`; a read from the device goes into `room`, if that has the right length.
    pub async fn read_data_into(
        &self,
        ino: u64,
        run: BlockRun,
        checksums: &[Crc],
        room: Option<Room>,
    ) -> Result<Bytes, StoreError> {
        if let Some(bytes) = self.inflight.get(run) {
            return Ok(bytes);
        }
        if self.inflight.touches(run) {
            return self.read_pieces(ino, run, checksums).await;
        }
        self.read_device(ino, run, checksums, room).await
    }

    /// Reads a run that is partly in memory, block by block.
    async fn read_pieces(&self, ino: u64, run: BlockRun, checksums: &[Crc]) -> Result<Bytes, StoreError> {
        let mut whole = Vec::with_capacity(run.len_bytes() as usize);
        for (block, checksum) in (run.start..run.end()).zip(checksums) {
            let piece = BlockRun::new(block, 1);
            match self.inflight.get(piece) {
                Some(bytes) => whole.extend_from_slice(&bytes),
                None => whole.extend_from_slice(&self.read_device(ino, piece, &[*checksum], None).await?),
            }
        }
        Ok(whole.into())
    }

    async fn read_device(
        &self,
        ino: u64,
        run: BlockRun,
        checksums: &[Crc],
        room: Option<Room>,
    ) -> Result<Bytes, StoreError> {
        let read = self.tracker.read_into(run.offset_bytes(), run.len_bytes() as usize, room).await;
        let bytes = read.map_err(|error| self.unread(ino, run.start, error))?.into_bytes();
        self.counters.data_bytes_read.add(run.len_bytes());
        if self.breaks(Canary::UncheckedReads) {
            return Ok(bytes);
        }
        let wrong = block_checksums(&bytes).zip(checksums).position(|(found, expected)| found != *expected);
        if checksums.len() * BLOCK_BYTES != bytes.len() {
            return Err(self.corrupt(
                ino,
                run.start,
                FormatError::Field { structure: "data", field: "length" },
            ));
        }
        match wrong {
            Some(block) => {
                Err(self.corrupt(ino, run.start + block as u64, FormatError::Checksum { structure: "data" }))
            }
            None => Ok(bytes),
        }
    }

    /// Counts and logs damage.
    fn corrupt(&self, ino: u64, addr: u64, detail: FormatError) -> StoreError {
        self.counters.checksum_errors.add(1);
        tracing::error!(
            "inode {ino}, block {addr}: {detail}; 'syncline path DIR {ino}' names the file, 'syncline scrub DIR' finds all that is damaged"
        );
        StoreError::Corrupt { addr, detail }
    }

    /// Counts and logs a failure of the device.
    fn unread(&self, ino: u64, addr: u64, error: DeviceError) -> StoreError {
        self.counters.device_reads_failed.add(1);
        let error = StoreError::from(error);
        if self.is_end(&error) {
            return error;
        }
        tracing::error!(
            "inode {ino}, block {addr}: data: {error}; 'dmesg' tells more of the device, 'syncline path DIR {ino}' names the file"
        );
        error
    }
}
