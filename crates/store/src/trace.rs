//! The trace of a sync: the store's part of a receipt. It has a fixed size and is copied around,
//! and costs no more than a few reads of the clock.

use serde::{Serialize, Serializer};
use std::time::Instant;
use syncline_device::{FlushCover, Flushed};
use syncline_format::Kind;
use syncline_log::ITEM_KINDS;

/// How a sync's target became durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cover {
    /// Nothing did: the sync failed.
    #[default]
    Nothing,
    /// A flush that had already completed, so none had to be requested.
    Elided,
    /// A flush that another caller had requested.
    Joined,
    /// A flush that this sync requested.
    Issued,
    /// A checkpoint: for syncfs, and where the log found no room.
    Checkpoint,
    /// Nothing yet: the sync fixed an order, and a flush follows in some seconds.
    Ordered,
}

/// A stage of a sync, in chronological order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Dirty data was placed, its write started, and the transaction that names it committed.
    Submit,
    /// The previous batch was still in flight.
    Wait,
    /// Others were given a moment to join.
    Gather,
    /// The batch was sealed, and it and all data that it names were written, and also flushed if
    /// one request did both.
    Write,
    /// The flush.
    Flush,
    /// A checkpoint.
    Checkpoint,
}

/// Nanoseconds spent in each stage inside the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StageTimes {
    /// See [`Stage::Wait`].
    pub wait_ns: u64,
    /// See [`Stage::Gather`].
    pub gather_ns: u64,
    /// See [`Stage::Write`].
    pub write_ns: u64,
    /// See [`Stage::Flush`].
    pub flush_ns: u64,
    /// See [`Stage::Checkpoint`].
    pub checkpoint_ns: u64,
}

/// Numbers of items by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ItemCounts(pub [u32; ITEM_KINDS]);

impl ItemCounts {
    /// Items of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|&count| u64::from(count)).sum()
    }

    /// Items of one kind.
    pub fn of(&self, kind: Kind) -> u32 {
        self.0[kind as usize]
    }
}

impl Serialize for ItemCounts {
    /// Serializes the names of kinds with their counts, without zeros.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let name = |kind: usize| u8::try_from(kind).ok().and_then(Kind::from_u8).map_or("other", Kind::name);
        let counted = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        to.collect_map(counted.map(|(kind, count)| (name(kind), count)))
    }
}

/// The batches that a sync waited for: all that were not known to be durable, up to the one that
/// its own group sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BatchesTrace {
    /// Number of batches. If 0, other syncs had already made the pending changes durable.
    pub count: u32,
    /// Number of the first batch.
    pub first: u64,
    /// Number of the last batch.
    pub last: u64,
    /// Bytes of log written, in whole blocks.
    pub log_bytes: u64,
    /// Bytes of data that these batches name, written by any task.
    pub data_bytes: u64,
    /// Items set.
    pub items: ItemCounts,
    /// Items removed.
    pub removed: u64,
    /// Runs of blocks freed.
    pub freed: u64,
    /// Puts that replaced an earlier put and so were not logged twice.
    pub coalesced: u64,
    /// The newest operation in these batches.
    pub op: u64,
}

/// How far the history is durable, and what made it so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct DurableMark {
    /// The newest operation that is durable.
    pub op: u64,
    /// The batch that holds it.
    pub batch: u64,
    /// The flush that covered the batch, counted from 1; 0 if a superblock or the opening of the
    /// image made it durable.
    pub flush: u64,
    /// The newest completed write that this flush covers.
    pub ticket: u64,
    /// Generation of the superblock that made it durable, else 0.
    pub generation: u64,
}

impl DurableMark {
    /// The mark set by a flush.
    pub(crate) fn flushed(op: u64, batch: u64, by: Flushed) -> Self {
        Self { op, batch, flush: by.flush, ticket: by.through.0, generation: 0 }
    }

    /// Advances the mark. Operations that are already durable keep the mark that first made them
    /// so.
    pub(crate) fn advance(&mut self, to: Self) {
        if to.op > self.op {
            *self = to;
        }
    }
}

/// The course of a sync, successful or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncTrace {
    /// The operation that had to be durable.
    pub target_op: u64,
    /// How it became durable.
    pub cover: Cover,
    /// This caller drove the batch to the device.
    pub drove: bool,
    /// Callers in its group; 0 if there was no group.
    pub members: u64,
    /// The batches it waited for.
    pub batches: BatchesTrace,
    /// The mark that it is durable by.
    pub durable: DurableMark,
    /// The stage in which it failed.
    pub failed_in: Option<Stage>,
    /// The time taken by each stage.
    pub stages: StageTimes,
}

impl SyncTrace {
    /// The trace of a sync whose target was already durable.
    pub(crate) fn elided(target_op: u64, durable: DurableMark) -> Self {
        Self { target_op, cover: Cover::Elided, durable, ..Self::default() }
    }
}

/// The course of a group, as its driver records it.
#[derive(Clone, Copy)]
pub(crate) struct Drive {
    /// When the driver's turn came.
    pub(crate) begun: Instant,
    pub(crate) gathered: Option<Instant>,
    pub(crate) written: Option<Instant>,
    pub(crate) flushed: Option<Instant>,
    pub(crate) checkpointed: Option<Instant>,
    pub(crate) cover: Cover,
    pub(crate) members: u64,
    pub(crate) batches: BatchesTrace,
    pub(crate) durable: DurableMark,
}

impl Drive {
    pub(crate) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            gathered: None,
            written: None,
            flushed: None,
            checkpointed: None,
            cover: Cover::Nothing,
            members: 0,
            batches: BatchesTrace::default(),
            durable: DurableMark::default(),
        }
    }

    /// Records the flush from the driver's point of view.
    pub(crate) fn covered(&mut self, cover: FlushCover) {
        self.cover = match cover {
            FlushCover::Elided => Cover::Elided,
            FlushCover::Joined => Cover::Joined,
            FlushCover::Issued => Cover::Issued,
        };
    }

    /// The trace for a member that asked at `asked`. A stage already in progress then counts from
    /// `asked` on.
    pub(crate) fn trace(&self, target_op: u64, drove: bool, asked: Instant, failed: bool) -> SyncTrace {
        let mut at = asked;
        let mut until = |moment: Option<Instant>| {
            let from = at;
            at = moment.map_or(at, |moment| at.max(moment));
            u64::try_from((at - from).as_nanos()).unwrap_or(u64::MAX)
        };
        let stages = StageTimes {
            wait_ns: until(Some(self.begun)),
            gather_ns: until(self.gathered),
            write_ns: until(self.written),
            flush_ns: until(self.flushed),
            checkpoint_ns: until(self.checkpointed),
        };
        // The end of each stage is recorded, successful or not.
        let last = [
            (self.checkpointed, Stage::Checkpoint),
            (self.flushed, Stage::Flush),
            (self.written, Stage::Write),
        ];
        let last =
            last.into_iter().find(|(ended, _)| ended.is_some()).map_or(Stage::Gather, |(_, stage)| stage);
        let cover = match self.cover {
            _ if failed => Cover::Nothing,
            Cover::Issued if !drove => Cover::Joined,
            cover => cover,
        };
        SyncTrace {
            target_op,
            cover,
            drove,
            members: self.members,
            batches: self.batches,
            durable: if failed { DurableMark::default() } else { self.durable },
            failed_in: failed.then_some(last),
            stages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_member_counts_from_when_it_asked() {
        let begun = Instant::now();
        let after = |ms| Some(begun + Duration::from_millis(ms));
        let drive = Drive { gathered: after(5), written: after(7), flushed: after(10), ..Drive::begin() };
        let drive = Drive { begun, cover: Cover::Issued, ..drive };
        let times = |trace: SyncTrace| {
            let times = trace.stages;
            [times.wait_ns, times.gather_ns, times.write_ns, times.flush_ns].map(|ns| ns / 1_000_000)
        };
        let driver = drive.trace(9, true, begun - Duration::from_millis(2), false);
        assert_eq!((times(driver), driver.cover), ([2, 5, 2, 3], Cover::Issued));
        let late = drive.trace(9, false, begun + Duration::from_millis(4), false);
        assert_eq!((times(late), late.cover), ([0, 1, 2, 3], Cover::Joined));
        let failed = drive.trace(9, true, begun, true);
        assert_eq!((failed.cover, failed.failed_in), (Cover::Nothing, Some(Stage::Flush)));
        let unwritten = Drive { flushed: None, ..drive }.trace(9, false, begun, true);
        assert_eq!(unwritten.failed_in, Some(Stage::Write));
    }

    #[test]
    fn a_mark_only_moves_on() {
        let mut mark = DurableMark { op: 5, batch: 2, flush: 1, ticket: 3, generation: 0 };
        let before = mark;
        mark.advance(DurableMark { op: 5, generation: 7, ..DurableMark::default() });
        assert_eq!(mark, before, "it was durable by the flush before the superblock came");
        mark.advance(DurableMark { op: 6, generation: 7, ..DurableMark::default() });
        assert_eq!((mark.op, mark.generation), (6, 7));
    }
}
