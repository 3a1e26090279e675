//! A device that logs every operation submitted to it and when each ended.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Completion, Device};
use syncline_format::crc;

/// One event. Its position in the log is its global time; an operation is identified by the
/// position of its submission.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write was submitted.
    Write {
        /// Byte offset.
        offset: u64,
        /// The data to write there.
        bufs: Vec<Bytes>,
    },
    /// The write submitted at `id` ended.
    WriteEnded {
        /// Position of its submission.
        id: usize,
        /// Whether the device reported success.
        ok: bool,
    },
    /// The write submitted at `id` was dropped before it reached the device: it never took place.
    WriteDropped {
        /// Position of its submission.
        id: usize,
    },
    /// A flush was submitted.
    Flush,
    /// The flush submitted at `id` ended.
    FlushEnded {
        /// Position of its submission.
        id: usize,
        /// Whether the device reported success.
        ok: bool,
    },
    /// A range was discarded.
    Discard {
        /// Byte offset.
        offset: u64,
        /// Length.
        len_bytes: u64,
    },
}

/// Passes all operations on to another device and logs them.
pub struct RecordingDevice {
    inner: Arc<dyn Device>,
    log: Arc<Mutex<Vec<Event>>>,
}

impl RecordingDevice {
    /// Records operations on `inner`. To make crash images, keep a snapshot of the current contents
    /// of `inner`.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, log: Arc::default() })
    }

    /// Records operations on `inner`, another path to the same device, in the same log.
    pub fn continued(&self, inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, log: self.log.clone() })
    }

    /// Number of events so far, which is the position of the next one.
    pub fn position(&self) -> usize {
        self.log.lock().len()
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().clone()
    }

    /// A checksum over the log, to compare two runs. The division of a write's bytes into buffers
    /// does not count: adjacent buffers may be passed as one, and where buffers lie in memory is
    /// not part of a run.
    pub fn digest(&self) -> u32 {
        let mut bytes = Vec::new();
        for event in self.log.lock().iter() {
            let (kind, a, b) = match event {
                Event::Write { offset, bufs } => {
                    let contents = bufs.concat();
                    bytes.extend(crc(&contents).to_le_bytes());
                    (1_u8, *offset, contents.len() as u64)
                }
                Event::WriteEnded { id, ok } => (2, *id as u64, u64::from(*ok)),
                Event::WriteDropped { id } => (6, *id as u64, 0),
                Event::Flush => (3, 0, 0),
                Event::FlushEnded { id, ok } => (4, *id as u64, u64::from(*ok)),
                Event::Discard { offset, len_bytes } => (5, *offset, *len_bytes),
            };
            bytes.push(kind);
            bytes.extend(a.to_le_bytes());
            bytes.extend(b.to_le_bytes());
        }
        crc(&bytes)
    }

    fn push(&self, event: Event) -> usize {
        let mut log = self.log.lock();
        log.push(event);
        log.len() - 1
    }
}

/// Logs the end of an operation before the caller learns of it.
struct Noting {
    log: Arc<Mutex<Vec<Event>>>,
    id: usize,
    write: bool,
    done: Option<Completion<()>>,
}

impl Noting {
    fn completion(device: &RecordingDevice, id: usize, write: bool, done: Completion<()>) -> Completion<()> {
        let mut noting = Self { log: device.log.clone(), id, write, done: Some(done) };
        Box::new(move |result| {
            let (id, ok) = (noting.id, result.is_ok());
            let event =
                if noting.write { Event::WriteEnded { id, ok } } else { Event::FlushEnded { id, ok } };
            noting.log.lock().push(event);
            if let Some(done) = noting.done.take() {
                done(result);
            }
        })
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        if self.done.is_some() && self.write {
            self.log.lock().push(Event::WriteDropped { id: self.id });
        }
    }
}

impl Device for RecordingDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.inner.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let id = self.push(Event::Write { offset, bufs: bufs.clone() });
        self.inner.write(offset, bufs, Noting::completion(self, id, true, done));
    }

    fn flush(&self, done: Completion<()>) {
        let id = self.push(Event::Flush);
        self.inner.flush(Noting::completion(self, id, false, done));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.push(Event::Discard { offset, len_bytes });
        self.inner.discard(offset, len_bytes, done);
    }
}
