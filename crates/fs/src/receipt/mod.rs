//! Receipts. Each of the last syncs has one: what the sync had to make durable and why, what it
//! wrote, which flush covered it, and the time in each stage.
//!
//! A receipt has a fixed size and is filled in on the way, from values that the sync has at hand
//! anyway; keeping it is one copy under a short lock. So receipts are on by default; `bench micro`
//! measures their cost.
//!
//! Stands on the store's traces alone.

mod draft;
mod ring;
mod why;

pub(crate) use draft::Draft;
pub use ring::Receipts;
pub use why::Why;

use crate::filesystem::Filesystem;
use crate::types::Ino;
use serde::{Serialize, Serializer};
use syncline_format::items::durability::Durability;
use syncline_store::{BatchesTrace, Cover, DurableMark, Stage};

/// Most inode numbers that one receipt lists.
const LISTED_MAX: usize = 8;

/// The sync call.
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
    /// The commit of a transaction of the library: its files and directories.
    Transaction,
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
    /// The files of a call.
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

    /// Number of files.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// At most eight of the files.
    pub fn listed(&self) -> &[Ino] {
        &self.listed[..LISTED_MAX.min(self.count as usize)]
    }
}

impl Serialize for Inodes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.listed())
    }
}

/// Amounts of files' data and of items that a call itself wrote or put into the log. The totals of
/// the batches also include those of other calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Submitted {
    /// Blocks written to the device.
    pub blocks: u64,
    /// Device writes that carried them.
    pub device_writes: u64,
    /// Blocks among these that had to be written before the log might name them: all but the last
    /// 256 of a large file.
    pub blocks_before_log: u64,
    /// Bytes of small files that went into the inode item instead.
    pub inline_bytes: u64,
    /// Blocks of data logged whole.
    pub blocks_in_log: u64,
    /// Inode items logged.
    pub inodes: u64,
    /// Extent items logged.
    pub extents: u64,
    /// Extent items removed.
    pub extents_removed: u64,
    /// Blocks that the files no longer use because they were overwritten; freed unless others share
    /// them.
    pub blocks_released: u64,
    /// Bytes by which the pending log grew.
    pub log_bytes: u64,
}

/// Nanoseconds in each stage; the stages add up to the total.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Times {
    /// Placing dirty data, starting its write, committing the transaction that names it.
    pub submit: u64,
    /// Waiting for the batch before.
    pub wait: u64,
    /// Waiting for others to join the group.
    pub gather: u64,
    /// From sealing the batch until the batch and all data that it names were written. If write and
    /// flush were one request, the flush is included.
    pub write: u64,
    /// The flush.
    pub flush: u64,
    /// A checkpoint.
    pub checkpoint: u64,
    /// From the end of the last stage until the caller continued.
    pub answer: u64,
    /// From the call to the answer.
    pub total: u64,
}

/// How a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Failed {
    /// The error's number.
    pub errno: i32,
    /// The stage that failed. `None` if this call succeeded and reports that an earlier write-back
    /// had failed.
    pub stage: Option<Stage>,
}

/// The receipt of one sync.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Receipt {
    /// Serial number since the mount, in the order of answers.
    pub serial: u64,
    /// Time of the answer, in nanoseconds since 1970.
    pub time_ns: i64,
    /// The sync call.
    pub call: Call,
    /// The durability class that the call had.
    #[serde(serialize_with = "class_name")]
    pub durability: Durability,
    /// Number of files that the call was for.
    pub files: u32,
    /// The first of these files.
    pub inodes: Inodes,
    /// The reasons of the sync: changes that were not durable when the call began.
    pub why: Why,
    /// The amounts that the call itself wrote and logged.
    pub submitted: Submitted,
    /// The newest operation that the sync had to make durable.
    pub target_op: u64,
    /// How the target became durable.
    pub cover: Cover,
    /// The sync was the driver of its group.
    pub drove: bool,
    /// Number of calls in its group; 0 if there was no group.
    pub members: u64,
    /// The batches that the sync waited for.
    pub batches: BatchesTrace,
    /// How far history was durable at the answer, and the batch and flush that made it so.
    pub durable: DurableMark,
    /// The time in each stage.
    pub times_ns: Times,
    /// The failure, if the sync failed.
    pub failed: Option<Failed>,
}

fn class_name<S: Serializer>(class: &Durability, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(class)
}

impl Receipt {
    /// The receipt of a call that has just begun.
    pub fn new(call: Call, inodes: Inodes) -> Self {
        Self {
            serial: 0,
            time_ns: 0,
            call,
            durability: Durability::Fsync,
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

    /// At most `max` receipts, of one file or of all, oldest first. For a call with many files only
    /// the first eight are known.
    pub fn recent_receipts(&self, max: usize, ino: Option<Ino>) -> Vec<Receipt> {
        self.receipts.recent(max, |receipt| ino.is_none_or(|ino| receipt.is_about(ino)))
    }

    /// The kept receipts with a serial number above this one, oldest first.
    pub fn receipts_since(&self, serial: u64) -> Vec<Receipt> {
        self.receipts.recent(usize::MAX, |receipt| receipt.serial > serial)
    }

    /// The receipt of the sync that was answered last.
    pub fn last_receipt(&self) -> Option<Receipt> {
        self.recent_receipts(1, None).pop()
    }
}
