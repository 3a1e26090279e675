//! What a sync learned on its way to being durable: the store's part of a receipt. All of it is of fixed size and is copied
//! around; none of it costs more than a few reads of the clock.

use crate::seal::Sealed;
use serde::{Serialize, Serializer};
use std::time::Instant;
use syncline_device::{FlushCover, Flushed, Ticket};
use syncline_format::Kind;
use syncline_log::{ITEM_KINDS, PendingCounts};

/// Stands for the flush that a canary left out.
pub(crate) const NO_FLUSH: Flushed = Flushed { cover: FlushCover::Elided, flush: 0, through: Ticket(0) };

/// What made a sync's target durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cover {
    /// Nothing did: it failed.
    #[default]
    Nothing,
    /// A flush that had completed before anybody had to ask for one.
    Elided,
    /// A flush that another caller had asked for.
    Joined,
    /// A flush of its own.
    Issued,
    /// A checkpoint: for syncfs, and where the log found no room.
    Checkpoint,
}

/// A stage of a sync, in the order in which they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Dirty data was placed, its write started, and the transaction that names it committed.
    Submit,
    /// The batch before was still on its way.
    Wait,
    /// Others were given a moment to join.
    Gather,
    /// The batch was sealed, and it and all data that it names were written; and flushed, where that was one request.
    Write,
    /// The flush.
    Flush,
    /// A checkpoint.
    Checkpoint,
}

/// Nanoseconds in each stage that lies in the store.
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

/// Items by kind.
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
    /// Names of kinds and their counts, without zeros.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let name = |kind: usize| u8::try_from(kind).ok().and_then(Kind::from_u8).map_or("other", Kind::name);
        let counted = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        to.collect_map(counted.map(|(kind, count)| (name(kind), count)))
    }
}

/// The batches that a sync had to wait for: all that were not known durable, up to the one that its own group sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BatchesTrace {
    /// How many. With none, other syncs had made durable what was pending.
    pub count: u32,
    /// Number of the first.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// Bytes of log written, whole blocks.
    pub log_bytes: u64,
    /// Bytes of data whose writes they name, whoever wrote them.
    pub data_bytes: u64,
    /// Items set.
    pub items: ItemCounts,
    /// Items removed.
    pub removed: u64,
    /// Runs of blocks freed.
    pub freed: u64,
    /// Puts that replaced an earlier one and so were not logged twice.
    pub coalesced: u64,
    /// The newest operation in them.
    pub op: u64,
}

impl BatchesTrace {
    pub(crate) fn add(&mut self, sealed: &Sealed) {
        let PendingCounts { deletes, frees, coalesced, items, .. } = sealed.counts;
        if self.count == 0 {
            self.first = sealed.seq;
        }
        self.count += 1;
        self.last = sealed.seq;
        self.log_bytes += sealed.log.run.len_bytes();
        self.data_bytes += sealed.bytes - sealed.log.run.len_bytes();
        self.items.0.iter_mut().zip(items).for_each(|(mine, more)| *mine += more);
        self.removed += deletes;
        self.freed += frees;
        self.coalesced += coalesced;
        self.op = sealed.op_seq;
    }
}

/// Up to where the history is durable, and what made it so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct DurableMark {
    /// The newest operation that is durable.
    pub op: u64,
    /// The batch that holds it.
    pub batch: u64,
    /// The flush that covered the batch, counted from 1; 0 if a superblock or the opening of the image made it durable.
    pub flush: u64,
    /// The newest completed write that this flush covers.
    pub ticket: u64,
    /// Generation of the superblock that made it durable, else 0.
    pub generation: u64,
}

impl DurableMark {
    /// Of a flush.
    pub(crate) fn flushed(op: u64, batch: u64, by: Flushed) -> Self {
        Self { op, batch, flush: by.flush, ticket: by.through.0, generation: 0 }
    }

    /// Moves on; what is durable stays so by what made it durable first.
    pub(crate) fn advance(&mut self, to: Self) {
        if to.op > self.op {
            *self = to;
        }
    }
}

/// How a sync went, well or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncTrace {
    /// The operation that had to be durable.
    pub target_op: u64,
    /// What made it durable.
    pub cover: Cover,
    /// This caller took the batch to the device.
    pub drove: bool,
    /// Callers in its group; 0 where there was no group.
    pub members: u64,
    /// What it waited for.
    pub batches: BatchesTrace,
    /// What it is durable by.
    pub durable: DurableMark,
    /// Where it failed.
    pub failed_in: Option<Stage>,
    /// What took how long.
    pub stages: StageTimes,
}

impl SyncTrace {
    /// Of a sync whose target was durable already.
    pub(crate) fn elided(target_op: u64, durable: DurableMark) -> Self {
        Self { target_op, cover: Cover::Elided, durable, ..Self::default() }
    }
}

/// A group's way, as its driver notes it.
#[derive(Clone, Copy)]
pub(crate) struct Drive {
    /// The driver's turn came.
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

    /// Notes what the flush was to the driver.
    pub(crate) fn covered(&mut self, cover: FlushCover) {
        self.cover = match cover {
            FlushCover::Elided => Cover::Elided,
            FlushCover::Joined => Cover::Joined,
            FlushCover::Issued => Cover::Issued,
        };
    }

    /// What it was to a member that asked at `asked`. A stage that had begun before counts from then.
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
        // Each stage is noted when it ends, well or not.
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
