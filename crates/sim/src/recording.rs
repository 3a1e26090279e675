//! A device that keeps a log of everything that was asked of it and when it ended.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Completion, Device};
use syncline_format::crc;

/// One thing that happened. The position of an event in the log is its global time; an operation is named by the
/// position at which it was submitted.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write was asked for.
    Write {
        /// Byte offset.
        offset: u64,
        /// What is to be written there.
        bufs: Vec<Bytes>,
    },
    /// The write submitted at `id` ended.
    WriteEnded {
        /// Position of its submission.
        id: usize,
        /// Whether the device said that it was done.
        ok: bool,
    },
    /// The write submitted at `id` was dropped before it reached the device: it never happened.
    WriteDropped {
        /// Position of its submission.
        id: usize,
    },
    /// A flush was asked for.
    Flush,
    /// The flush submitted at `id` ended.
    FlushEnded {
        /// Position of its submission.
        id: usize,
        /// Whether the device said that it was done.
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

/// Passes everything on to another device and keeps the log.
pub struct RecordingDevice {
    inner: Arc<dyn Device>,
    log: Arc<Mutex<Vec<Event>>>,
}

impl RecordingDevice {
    /// Records what goes to `inner`. To make images of crashes, keep a snapshot of what `inner` holds now.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, log: Arc::default() })
    }

    /// Records what goes to `inner`, another way to the same device, in the same log.
    pub fn continued(&self, inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, log: self.log.clone() })
    }

    /// Number of events so far: the position of the next.
    pub fn position(&self) -> usize {
        self.log.lock().len()
    }

    /// Everything that happened so far.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().clone()
    }

    /// A checksum over the log, to compare two runs. How a write's bytes are spread over buffers does not count: neighbours in
    /// memory may be passed as one, and where buffers lie is no part of a run.
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

/// Notes the end of an operation in the log before whoever waits for it learns of it.
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
