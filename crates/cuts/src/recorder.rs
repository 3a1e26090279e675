//! Recording: the device under the engine, and the moments noted along with it.

use crate::base::Base;
use crate::recording::{Info, Mark, MarkKind, Recording};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use syncline_device::{AlignedBuf, Completion, Device};
use syncline_powercut::RecordingDevice;

/// A device that works on a copy of an image in memory and logs all writes to it.
pub struct Recorder {
    log: Arc<RecordingDevice>,
    base: Base,
    marks: Arc<Mutex<Vec<Mark>>>,
    started: Instant,
    written_bytes: AtomicU64,
}

impl Recorder {
    /// Starts from `base`, which is not changed.
    pub fn new(base: Base) -> Arc<Self> {
        let log = RecordingDevice::new(base.device.snapshot());
        let (marks, started) = (Arc::default(), Instant::now());
        Arc::new(Self { log, base, marks, started, written_bytes: AtomicU64::new(0) })
    }

    /// Number of events so far.
    pub fn position(&self) -> usize {
        self.log.position()
    }

    /// Bytes written so far, all of them kept in memory.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Records that an event has happened by now, and returns the position.
    ///
    /// The position is taken during the call, after the event: a crash after the position is
    /// certainly after the event.
    pub fn mark(&self, kind: MarkKind) -> usize {
        mark(&self.marks, &self.log, self.started, kind)
    }

    /// The recording so far. The end position in `info` is limited to the recording.
    pub fn finish(&self, mut info: Info) -> Recording {
        let events = self.log.events();
        info.end = info.end.min(events.len());
        let mut marks = self.marks.lock().clone();
        marks.retain(|mark| mark.position <= events.len());
        let Base { device, blocks, .. } = self.base.clone();
        Recording { info, base: device, base_blocks: blocks, events, marks }
    }
}

/// Takes position and time under the lock, so that marks are in order.
fn mark(marks: &Mutex<Vec<Mark>>, log: &RecordingDevice, started: Instant, kind: MarkKind) -> usize {
    let mut marks = marks.lock();
    let position = log.position();
    let time_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    marks.push(Mark { position, time_ns, kind });
    position
}

impl Device for Recorder {
    fn size_bytes(&self) -> u64 {
        self.log.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.log.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.written_bytes.fetch_add(len, Ordering::Relaxed);
        self.log.write(offset, bufs, done);
    }

    fn flush(&self, done: Completion<()>) {
        let (marks, log, started) = (self.marks.clone(), self.log.clone(), self.started);
        self.log.flush(Box::new(move |result| {
            mark(&marks, &log, started, MarkKind::Flush);
            done(result);
        }));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.log.discard(offset, len_bytes, done);
    }
}
