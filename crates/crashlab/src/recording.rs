//! What was recorded: the image at the start, everything that was asked of the device, and the moments worth remembering.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_sim::Event;

/// About a recording as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Info {
    /// Version of the program that recorded.
    pub program: String,
    /// Path of the image that it started from.
    pub image: String,
    /// UUID of the filesystem in it.
    pub uuid: [u8; 16],
    /// Size of the device.
    pub size_bytes: u64,
    /// The command and its arguments, as far as they are text.
    pub command: Vec<String>,
    /// Its exit code; 128 and the signal's number if a signal ended it.
    pub exit_code: i32,
    /// When it began, seconds since 1970.
    pub started_seconds: u64,
    /// Position in the log at which the mount was usable and COMMAND began.
    pub begin: usize,
    /// Position at which COMMAND had ended.
    pub end: usize,
    /// The recording was cut off because it had become too large.
    pub truncated: bool,
}

/// A moment worth remembering: everything before `position` had happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Position in the log.
    pub position: usize,
    /// Nanoseconds since the start.
    pub time_ns: u64,
    /// What it is.
    pub kind: MarkKind,
}

/// What a mark stands for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MarkKind {
    /// A flush had ended; only to tell the time.
    Flush,
    /// The filesystem answered an fsync of this inode with success.
    Fsync(u64),
    /// The same for fdatasync.
    Fdatasync(u64),
    /// The same for a sync of the whole filesystem.
    SyncFs,
    /// COMMAND had printed this line (with its line end, if it had one).
    Line(Vec<u8>),
    /// COMMAND had ended.
    Ended,
}

/// A recording.
#[derive(Clone)]
pub struct Recording {
    /// About it as a whole.
    pub info: Info,
    /// What lay on the device before the first event. Not to be written.
    pub base: Arc<MemoryDevice>,
    /// Blocks of it that hold something, ascending.
    pub base_blocks: Vec<u64>,
    /// What happened to the device.
    pub events: Vec<Event>,
    /// The moments, in order.
    pub marks: Vec<Mark>,
}

impl Recording {
    /// How many lines COMMAND had printed for certain before a crash after `position` events.
    pub fn lines_before(&self, position: usize) -> usize {
        self.lines().take_while(|(at, _)| *at <= position).count()
    }

    /// What COMMAND had printed with its first `lines` lines.
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
