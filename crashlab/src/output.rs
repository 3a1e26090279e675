//! What the program prints. It is recorded in its order among the changes of files: before each change
//! everything is read that was printed until then.

use crate::action::Action;
use crate::recording::Recorder;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest piece of a line that is recorded at once.
const LINE_BYTES_MAX: usize = 64 << 10;
/// How long a wait for output lasts at most.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The end of a terminal on whose other end the program prints: most programs flush after each line
/// there.
pub struct Output {
    recorder: Arc<Recorder>,
    reader: Mutex<Reader>,
    /// To wait for output without holding the reader.
    descriptor: OwnedFd,
    ended: AtomicBool,
}

struct Reader {
    file: File,
    /// The beginning of a line.
    begun: Vec<u8>,
    has_ended: bool,
}

impl Output {
    /// A terminal, or a pipe where none can be made, and the program's end of it.
    pub fn new(recorder: Arc<Recorder>) -> io::Result<(Arc<Self>, Stdio)> {
        let (ours, its): (OwnedFd, Stdio) = match pty_process::blocking::open() {
            Ok((ours, its)) => (ours.as_fd().try_clone_to_owned()?, its.as_fd().try_clone_to_owned()?.into()),
            Err(_) => {
                let (ours, its) = io::pipe()?;
                (ours.into(), its.into())
            }
        };
        // A read without waiting sees everything printed before it: the kernel ends its own work on the
        // terminal first.
        let flags = rustix::fs::fcntl_getfl(&ours)?;
        rustix::fs::fcntl_setfl(&ours, flags | OFlags::NONBLOCK)?;
        let descriptor = ours.try_clone()?;
        let reader = Mutex::new(Reader { file: ours.into(), begun: Vec::new(), has_ended: false });
        Ok((Arc::new(Self { recorder, reader, descriptor, ended: AtomicBool::new(false) }), its))
    }

    /// Records what has been printed until now. A power cut after that is certainly later than the
    /// printing.
    pub fn drain(&self) {
        let mut reader = self.reader.lock();
        let mut bytes = [0; 4096];
        while !reader.has_ended {
            match reader.file.read(&mut bytes) {
                Ok(0) => reader.has_ended = true,
                Ok(count) => reader.add(&bytes[..count], &self.recorder),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // All other ends of a terminal are closed.
                Err(_) => reader.has_ended = true,
            }
        }
        reader.end_line(&self.recorder);
    }

    /// Waits for output and records it; false when there will be no more.
    pub fn wait(&self) -> bool {
        let mut poll_fds = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let _ = poll(&mut poll_fds, Some(&WAIT));
        self.drain();
        !self.reader.lock().has_ended && !self.ended.load(Ordering::Relaxed)
    }

    /// Ends every wait: processes that still could print don't matter.
    pub fn end(&self) {
        self.drain();
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Reader {
    fn add(&mut self, bytes: &[u8], recorder: &Recorder) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LINE_BYTES_MAX {
                self.end_line(recorder);
            }
        }
    }

    fn end_line(&mut self, recorder: &Recorder) {
        let mut line = std::mem::take(&mut self.begun);
        if line.is_empty() {
            return;
        }
        // The terminal turns each newline into these two.
        if line.ends_with(b"\r\n") {
            line.remove(line.len() - 2);
        }
        recorder.record(0, Action::Printed(line.clone()), &[]);
        let mut stdout = io::stdout().lock();
        // If nobody reads our output, the line is recorded all the same.
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    }
}
