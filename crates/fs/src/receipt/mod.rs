//! Receipts: for each of the last syncs, what it had to make durable and why, what it wrote, which flush covered it, and the
//! time in each stage.
//!
//! A receipt is of fixed size and is filled in on the way, from what the sync has in hand anyway; keeping it is one copy
//! under a short lock. So they are always on; `bench micro` measures them.

mod draft;
mod ring;
mod why;

pub(crate) use draft::Draft;
pub use ring::Receipts;
pub use why::Why;

use crate::filesystem::Filesystem;
use crate::types::Ino;
use serde::{Serialize, Serializer};
use syncline_store::{BatchesTrace, Cover, DurableMark, Stage};

/// Inode numbers that one receipt lists.
const LISTED_MAX: usize = 8;

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// fsync of a file.
    Fsync,
    /// fdatasync of a file.
    Fdatasync,
    /// fsync of a directory.
    Fsyncdir,
    /// Many files at once: fsync2.
    SyncMany,
    /// The whole filesystem.
    Syncfs,
}

/// The files of a call: how many, and the first of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inodes {
    count: u32,
    listed: [Ino; LISTED_MAX],
}

impl Inodes {
    /// Of a call for these files.
    pub fn of(inos: impl IntoIterator<Item = Ino>) -> Self {
        let mut inodes = Self::default();
        for ino in inos {
            if let Some(place) = inodes.listed.get_mut(inodes.count as usize) {
                *place = ino;
            }
            inodes.count += 1;
        }
        inodes
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// At most eight of them.
    pub fn listed(&self) -> &[Ino] {
        &self.listed[..LISTED_MAX.min(self.count as usize)]
    }
}

impl Serialize for Inodes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.listed())
    }
}

/// What a call itself wrote of files' data, and put into the log about it. What others had put there and went along is the
/// difference to the whole of the batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Submitted {
    /// Blocks written to the device.
    pub blocks: u64,
    /// Device writes that carried them.
    pub device_writes: u64,
    /// Those of the blocks that had to be written before the log might name them: all but the last 256 of a large file.
    pub blocks_before_log: u64,
    /// Bytes of small files that went into the inode item instead.
    pub inline_bytes: u64,
    /// Blocks of data that the log has whole.
    pub blocks_in_log: u64,
    /// Inode items logged.
    pub inodes: u64,
    /// Extent items logged.
    pub extents: u64,
    /// Extent items removed.
    pub extents_removed: u64,
    /// Blocks that the files use no longer, since they were overwritten; freed unless others share them.
    pub blocks_released: u64,
    /// Bytes by which the pending log grew.
    pub log_bytes: u64,
}

/// Nanoseconds in each stage; together they are the total.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Times {
    /// Placing dirty data, starting its write, committing what names it.
    pub submit: u64,
    /// For the batch before.
    pub wait: u64,
    /// For others to join.
    pub gather: u64,
    /// From sealing the batch until it, and all data that it names, were written; and flushed, where that was one request.
    pub write: u64,
    /// The flush.
    pub flush: u64,
    /// A checkpoint.
    pub checkpoint: u64,
    /// Until the caller went on.
    pub answer: u64,
    /// From the call to the answer.
    pub total: u64,
}

/// How a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Failed {
    /// The error's number.
    pub errno: i32,
    /// Where. `None` if this call went well and reports that an earlier write-back had failed.
    pub stage: Option<Stage>,
}

/// The receipt of one sync.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Receipt {
    /// Its number since the mount, in the order of answers.
    pub serial: u64,
    /// When it was answered, nanoseconds since 1970.
    pub time_ns: i64,
    /// What was called.
    pub call: Call,
    /// How many files it was for.
    pub files: u32,
    /// The first of them.
    pub inodes: Inodes,
    /// What was not durable when it was called.
    pub why: Why,
    /// What it wrote and logged itself.
    pub submitted: Submitted,
    /// The newest operation that it had to make durable.
    pub target_op: u64,
    /// What made that durable.
    pub cover: Cover,
    /// It took the batch of its group to the device.
    pub drove: bool,
    /// Calls in its group; 0 where there was no group.
    pub members: u64,
    /// The batches that it waited for.
    pub batches: BatchesTrace,
    /// Up to where history was durable then, by which batch and flush.
    pub durable: DurableMark,
    /// The time in each stage.
    pub times_ns: Times,
    /// How it failed, if it did.
    pub failed: Option<Failed>,
}

impl Receipt {
    /// Of a call that has just begun.
    pub fn new(call: Call, inodes: Inodes) -> Self {
        Self {
            serial: 0,
            time_ns: 0,
            call,
            files: inodes.count(),
            inodes,
            why: Why::default(),
            submitted: Submitted::default(),
            target_op: 0,
            cover: Cover::Nothing,
            drove: false,
            members: 0,
            batches: BatchesTrace::default(),
            durable: DurableMark::default(),
            times_ns: Times::default(),
            failed: None,
        }
    }

    /// True when this file is among those listed.
    pub fn is_about(&self, ino: Ino) -> bool {
        self.inodes.listed().contains(&ino)
    }
}

impl Filesystem {
    /// The receipts that are kept, oldest first.
    pub fn receipts(&self) -> Vec<Receipt> {
        self.receipts.recent(usize::MAX, |_| true)
    }

    /// At most `max` receipts, of one file or of all, oldest first. Of a call for many files only the first eight are known.
    pub fn recent_receipts(&self, max: usize, ino: Option<Ino>) -> Vec<Receipt> {
        self.receipts.recent(max, |receipt| ino.is_none_or(|ino| receipt.is_about(ino)))
    }

    /// The receipts that are kept of syncs after the one with this serial number, oldest first.
    pub fn receipts_since(&self, serial: u64) -> Vec<Receipt> {
        self.receipts.recent(usize::MAX, |receipt| receipt.serial > serial)
    }

    /// The receipt of the sync that was answered last.
    pub fn last_receipt(&self) -> Option<Receipt> {
        self.recent_receipts(1, None).pop()
    }
}
