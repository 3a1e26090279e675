//! Reading: items from memtable, frozen memtable and tree; data blocks with a check of their
//! checksums.

use crate::{Canary, Store, StoreError};
use bytes::Bytes;
use syncline_device::{DeviceError, Room};
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Crc, FormatError, Key, block_checksums};
use syncline_space::Pin;
use syncline_tree::{Difference, Unreadable};

/// Items of a range, in key order.
pub struct Chunk {
    /// The items.
    pub items: Vec<(Key, Bytes)>,
    /// True when the requested range has nothing more.
    pub complete: bool,
}

impl Store {
    /// The value of `key`.
    pub async fn get(&self, key: Key) -> Result<Option<Bytes>, StoreError> {
        self.layers.get(self.room.space(), key).await
    }

    /// The value of `key` if it is known without waiting for the device.
    pub fn try_get(&self, key: Key) -> Option<Result<Option<Bytes>, StoreError>> {
        self.layers.try_get(self.room.space(), key)
    }

    /// At least one and at most `max_items` items from `from` to `to`, both included, as of one
    /// moment.
    pub async fn scan(&self, from: Key, to: Key, max_items: usize) -> Result<Chunk, StoreError> {
        self.scan_near(from, from, to, max_items).await
    }

    /// Scans from the last item at or before `at` that is not before `low`, or from `at` if there is
    /// none. An extent that covers `at` begins there. The chunk may have more items from `low` on.
    pub async fn scan_near(&self, low: Key, at: Key, to: Key, max_items: usize) -> Result<Chunk, StoreError> {
        self.layers.scan_near(self.room.space(), low, at, to, max_items).await
    }

    /// Like [`Store::scan`] from `from` to the end, but reads each tree node on the way from the
    /// device, verifies it and reports it to `visit`. The items are those of one moment. A caller
    /// that goes on to read the blocks that they name must hold a pin ([`Store::pin`]) taken before
    /// the call (rule R2).
    pub async fn scan_device(
        &self,
        from: Key,
        max_items: usize,
        visit: &mut (dyn FnMut(Result<BlockAddr, Box<Unreadable>>) + Send),
    ) -> Chunk {
        self.layers.scan_device(self.room.space(), from, max_items, visit).await
    }

    /// Like [`Store::scan`], but skips lost tree nodes and reports them to `unreadable`. For a
    /// store that is not written to.
    pub async fn scan_readable(
        &self,
        from: Key,
        to: Key,
        max_items: usize,
        unreadable: &mut (dyn FnMut(Unreadable) + Send),
    ) -> Chunk {
        self.layers.scan_readable(from, to, max_items, unreadable).await
    }

    /// Items whose keys are `wanted`, put since the last checkpoint and not removed since.
    pub fn recent_items(&self, wanted: impl Fn(Key) -> bool) -> Vec<(Key, Bytes)> {
        self.layers.recent_items(wanted)
    }

    /// Visits the items that differ between this store and `before`, a snapshot of the same image,
    /// in key order. Reads only the tree nodes that they do not share. Both must be open read-only
    /// and have nothing in their logs.
    pub async fn differences(
        &self,
        before: &Store,
        visit: &mut (dyn FnMut(Difference) + Send),
    ) -> Result<(), StoreError> {
        let root = |store: &Store| store.layers.settled_root().filter(|_| store.options.read_only);
        let (Some(old), Some(new)) = (root(before), root(self)) else {
            return Err(StoreError::Unusable(
                "the image was not closed cleanly; mount and unmount it once, or compare two snapshots"
                    .into(),
            ));
        };
        Ok(self.layers.tree().differences(old, new, visit).await?)
    }

    /// Keeps addresses looked up from now on from being reused, until the pin is dropped (rule R2).
    pub fn pin(&self) -> Pin {
        self.room.space().pin()
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
        if let Some(bytes) = self.log.inflight().get(run) {
            return Ok(bytes);
        }
        if self.log.inflight().touches(run) {
            return self.read_pieces(ino, run, checksums).await;
        }
        self.read_device(ino, run, checksums, room).await
    }

    /// Reads a run that is partly in memory, block by block.
    async fn read_pieces(&self, ino: u64, run: BlockRun, checksums: &[Crc]) -> Result<Bytes, StoreError> {
        let mut whole = Vec::with_capacity(run.len_bytes() as usize);
        for (block, checksum) in (run.start..run.end()).zip(checksums) {
            let piece = BlockRun::new(block, 1);
            match self.log.inflight().get(piece) {
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
