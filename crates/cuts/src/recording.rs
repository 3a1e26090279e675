//! A recording: the starting image, all operations on the device, and the moments to remember.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_powercut::Event;

/// Facts about a recording as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Info {
    /// Version of the program that recorded.
    pub program: String,
    /// Path of the image that the recording started from.
    pub image: String,
    /// UUID of the filesystem in it.
    pub uuid: [u8; 16],
    /// Size of the device.
    pub size_bytes: u64,
    /// The command and its arguments, as text where possible.
    pub command: Vec<String>,
    /// Its exit code; 128 plus the signal's number if a signal ended it.
    pub exit_code: i32,
    /// When it began, seconds since 1970.
    pub started_seconds: u64,
    /// Position in the log at which the mount was usable and COMMAND began.
    pub begin: usize,
    /// Position at which COMMAND had ended.
    pub end: usize,
    /// The recording was cut off because it became too large.
    pub truncated: bool,
}

/// A moment to remember: everything before `position` had happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Position in the log.
    pub position: usize,
    /// Nanoseconds since the start.
    pub time_ns: u64,
    /// The kind of moment.
    pub kind: MarkKind,
}

/// The event that a mark stands for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MarkKind {
    /// A flush ended; kept only for its time.
    Flush,
    /// The filesystem answered an fsync of this inode with success.
    Fsync(u64),
    /// The filesystem answered an fdatasync of this inode with success.
    Fdatasync(u64),
    /// The filesystem answered a sync of the whole filesystem with success.
    SyncFs,
    /// COMMAND printed this line (with its line end, if it had one).
    Line(Vec<u8>),
    /// COMMAND ended.
    Ended,
}

/// A recording.
#[derive(Clone)]
pub struct Recording {
    /// Facts about it as a whole.
    pub info: Info,
    /// Contents of the device before the first event. Must not be written.
    pub base: Arc<MemoryDevice>,
    /// Its blocks with contents, ascending.
    pub base_blocks: Vec<u64>,
    /// The operations on the device.
    pub events: Vec<Event>,
    /// The marks, in order.
    pub marks: Vec<Mark>,
}

impl Recording {
    /// Number of lines that COMMAND had certainly printed before a crash after `position` events.
    pub fn lines_before(&self, position: usize) -> usize {
        self.lines().take_while(|(at, _)| *at <= position).count()
    }

    /// The output of COMMAND's first `lines` lines.
    pub fn printed(&self, lines: usize) -> Vec<u8> {
        self.lines().take(lines).flat_map(|(_, line)| line.iter().copied()).collect()
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &Vec<u8>)> {
        self.marks.iter().filter_map(|mark| match &mark.kind {
            MarkKind::Line(line) => Some((mark.position, line)),
            _ => None,
        })
    }
}
