//! A device that takes written data, at no particular place, is flushed at each sync, and is read
//! where a file's offset points, whatever lies there: the lowest possible cost of a sync and of a
//! read.

use super::tree::Errno;
use bytes::Bytes;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{
    AlignedBuf, BLOCK_BYTES, Device, DeviceError, FlushTracker, Room, Ticket, WriteHandle,
};

/// Number of tables that files are spread over by inode number.
const SHARDS: usize = 64;
/// After this many writes of a file are in flight, check which have ended.
const LOOK_EVERY: usize = 64;
/// Where data begins: behind the first superblock and a lease, which somebody may be holding.
const BEGIN: u64 = 1 << 20;

/// Writes to a file that have not been synced.
#[derive(Default)]
struct Unsynced {
    under_way: Vec<WriteHandle>,
    /// The newest ticket of those that have ended.
    newest: Option<Ticket>,
}

/// Takes data and makes it durable.
pub struct Sink {
    tracker: Arc<FlushTracker>,
    room: u64,
    next: AtomicU64,
    files: [Mutex<HashMap<u64, Unsynced, FixedState>>; SHARDS],
}

impl Sink {
    /// A sink on a device, whose contents are lost.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let room = device.size_bytes() - BEGIN;
        let files = std::array::from_fn(|_| Mutex::default());
        Self { tracker: FlushTracker::new(device), room, next: AtomicU64::new(0), files }
    }

    /// Starts writing data that was written to a file.
    pub fn write(&self, ino: u64, data: Bytes) {
        let handle = self.start(data);
        let mut files = self.shard(ino).lock();
        let file = files.entry(ino).or_default();
        file.under_way.push(handle);
        if file.under_way.len() >= LOOK_EVERY {
            file.let_go_of_ended();
        }
    }

    /// Makes a file's writes durable; if there are none, writes a block for its name.
    pub async fn sync(&self, ino: u64) -> Result<(), Errno> {
        let unsynced = self.shard(ino).lock().remove(&ino);
        let unsynced = unsynced.unwrap_or_else(|| {
            let block = AlignedBuf::zeroed(BLOCK_BYTES).into_bytes();
            Unsynced { under_way: vec![self.start(block)], newest: None }
        });
        self.tracker.submit();
        let mut newest = unsynced.newest;
        for write in unsynced.under_way {
            newest = newest.max(Some(write.wait().await.map_err(|error| failed(&error))?));
        }
        if let Some(ticket) = newest {
            self.tracker.make_durable(ticket).await.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Reads the bytes that the device holds at a file's offset. They belong to no file. Their
    /// length is the length that was asked for, and they are consecutive where the file is read in
    /// order.
    pub async fn read(&self, offset: u64, len_bytes: usize, room: Option<Room>) -> Result<Bytes, Errno> {
        let blocks = BLOCK_BYTES as u64;
        let begin = offset / blocks * blocks;
        let whole = (offset - begin) as usize + len_bytes;
        let place = self.within(begin, whole.next_multiple_of(BLOCK_BYTES) as u64);
        let read = self.tracker.read_into(place, whole.next_multiple_of(BLOCK_BYTES), room);
        let data = read.await.map_err(|error| failed(&error))?.into_bytes();
        Ok(data.slice(whole - len_bytes..whole))
    }

    /// Called when the file has gone.
    pub fn forget(&self, ino: u64) {
        self.shard(ino).lock().remove(&ino);
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Unsynced, FixedState>> {
        &self.files[ino as usize % SHARDS]
    }

    fn start(&self, data: Bytes) -> WriteHandle {
        let len = data.len().next_multiple_of(BLOCK_BYTES);
        let aligned = data.len() == len && data.as_ptr().addr().is_multiple_of(BLOCK_BYTES);
        let data = if aligned { data } else { copied(&data, len) };
        self.tracker.write(self.place(len as u64), vec![data])
    }

    /// Consecutive places, starting over at the end of the device.
    fn place(&self, len: u64) -> u64 {
        self.within(self.next.fetch_add(len, Ordering::Relaxed), len)
    }

    fn within(&self, at: u64, len: u64) -> u64 {
        let at = at % self.room;
        BEGIN + if at + len <= self.room { at } else { 0 }
    }
}

impl Unsynced {
    fn let_go_of_ended(&mut self) {
        let newest = &mut self.newest;
        self.under_way.retain(|write| match write.outcome() {
            Some(Ok(ticket)) => {
                *newest = (*newest).max(Some(ticket));
                false
            }
            // Keep an error for the sync to report.
            _ => true,
        });
    }
}

fn copied(data: &[u8], len: usize) -> Bytes {
    let mut padded = data.to_vec();
    padded.resize(len, 0);
    AlignedBuf::copy_from(&padded).into_bytes()
}

fn failed(error: &DeviceError) -> Errno {
    Errno(error.io_error().and_then(|error| error.raw_os_error()).unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use syncline_device::{FileDevice, OpenOptions, block_on};

    fn sink(folder: &Path) -> Sink {
        let path = folder.join("image");
        std::fs::write(&path, vec![0; 2 << 20]).unwrap();
        Sink::new(FileDevice::open(&path, OpenOptions::default()).unwrap())
    }

    #[test]
    fn a_sync_is_a_write_and_a_flush() {
        let folder = tempfile::tempdir().unwrap();
        let sink = sink(folder.path());
        sink.write(7, Bytes::from(vec![1; 5000]));
        block_on(sink.sync(7)).unwrap();
        let counters = sink.tracker.counters();
        assert_eq!((counters.writes, counters.write_bytes, counters.flushes_issued), (1, 8192, 1));
        // A file without data.
        block_on(sink.sync(8)).unwrap();
        let counters = sink.tracker.counters();
        assert_eq!((counters.writes, counters.write_bytes, counters.flushes_issued), (2, 12288, 2));
    }

    #[test]
    fn a_read_is_a_read_of_the_device_wherever_the_file_ends() {
        let folder = tempfile::tempdir().unwrap();
        let sink = sink(folder.path());
        // Behind the first MiB there is one more.
        for (offset, len) in
            [(0, 4096), (4096, 100), (5000, 4096), (1 << 20, 8192), ((1 << 20) - 4096, 8192), (1 << 40, 1)]
        {
            assert_eq!(block_on(sink.read(offset, len, None)).unwrap().len(), len, "{offset}");
        }
        assert!(block_on(sink.read(0, 3 << 20, None)).is_err(), "longer than the device");
    }

    #[test]
    fn what_nobody_syncs_goes_round_and_takes_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let sink = sink(folder.path());
        for _ in 0..600 {
            sink.write(7, Bytes::from(vec![1; 4096]));
            sink.tracker.submit();
        }
        let left = || {
            let mut files = sink.shard(7).lock();
            let file = files.get_mut(&7).unwrap();
            file.let_go_of_ended();
            file.under_way.len()
        };
        while left() > 0 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
