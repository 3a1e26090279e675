//! The writes and discards that no flush covers yet, kept to be done again.
//!
//! A server that was restarted may have forgotten everything that no flush covered. So each write stays
//! here, as shared bytes, until a flush covers it, and is written again after a reconnect. The order is
//! that of the calls. Two changes that overlap are never in flight at once (the later one waits). So
//! for each block the calls, the executions and the completions have one order, and the replay ends
//! with the contents that were written last.
//!
//! *When a flush fails* (rule R6). Its error goes to the caller, always, and no later success takes it
//! back: the caller writes again the data that it still needs, wherever it wants. The changes that the
//! flush would have covered are *poisoned*. They stay here until a later flush succeeds or room is
//! needed:
//!
//! - A reconnect in between writes them again, so that reads go on finding the newest contents.
//!   Everything that the caller has written since, at the same place or another, has a later number and
//!   comes after them, so nothing newer is overwritten with something older.
//! - A later flush that succeeds ends them, though it proves nothing about them: the caller has been
//!   told not to rely on them. If they stayed, a replay could overwrite contents that are durable by
//!   now.
//! - They can be dropped at any time, since nobody relies on them. Older changes at the same place were
//!   poisoned with them or before, or are covered by a flush.
//!
//! *A write that fails* is not kept: its range holds anything now. Older writes of that range stay;
//! a replay gives the range one of the contents that it may have.
//!
//! *A flush without an answer* counts as not sent. All changes that it may have lost are here, and are
//! written again before the flush is sent again.

use super::operation::Change;
use std::collections::BTreeMap;

/// Counted for each write in addition to its bytes, so that discards, which have none, are bounded
/// too.
const ENTRY_BYTES: u64 = 128;

/// Position in the order of completions. A flush that is sent now covers the changes that have
/// completed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Cover(u64);

#[derive(Default)]
pub(super) struct Kept {
    /// By the number of the call.
    entries: BTreeMap<u64, Entry>,
    /// The ranges in flight, start to end. They do not overlap.
    in_flight: BTreeMap<u64, u64>,
    completions: u64,
    /// Of all entries.
    bytes: u64,
    /// Of those that have completed.
    completed_bytes: u64,
    /// Of those that a flush would make durable.
    open_bytes: u64,
}

struct Entry {
    offset: u64,
    len_bytes: u64,
    change: Change,
    state: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    InFlight,
    Completed(Cover),
    Poisoned(Cover),
}

impl Entry {
    fn weight(&self) -> u64 {
        weight(&self.change)
    }

    fn cover(&self) -> Option<Cover> {
        match self.state {
            Progress::InFlight => None,
            Progress::Completed(cover) | Progress::Poisoned(cover) => Some(cover),
        }
    }
}

/// The bytes that a change counts for.
pub(super) fn weight(change: &Change) -> u64 {
    let data_bytes = match change {
        Change::Write(bufs) => bufs.iter().map(|buf| buf.len() as u64).sum(),
        Change::Discard | Change::Zero => 0,
    };
    data_bytes + ENTRY_BYTES
}

impl Kept {
    /// Notes a change that is about to be sent. It overlaps none in flight.
    pub(super) fn begin(&mut self, seq: u64, offset: u64, len_bytes: u64, change: Change) {
        debug_assert!(!self.is_in_flight(offset, len_bytes));
        let entry = Entry { offset, len_bytes, change, state: Progress::InFlight };
        self.bytes += entry.weight();
        self.in_flight.insert(offset, offset + len_bytes);
        self.entries.insert(seq, entry);
    }

    /// Notes that the server has answered it with success.
    pub(super) fn complete(&mut self, seq: u64) {
        self.completions += 1;
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        entry.state = Progress::Completed(Cover(self.completions));
        self.in_flight.remove(&entry.offset);
        self.completed_bytes += entry.weight();
        self.open_bytes += entry.weight();
    }

    /// Forgets one in flight: it failed, is durable by itself, or will be sent again.
    pub(super) fn forget(&mut self, seq: u64) {
        let Some(entry) = self.entries.remove(&seq) else { return };
        debug_assert!(entry.state == Progress::InFlight);
        self.in_flight.remove(&entry.offset);
        self.bytes -= entry.weight();
    }

    /// The cover of a flush that is sent now (rule R4).
    pub(super) fn cover(&self) -> Cover {
        Cover(self.completions)
    }

    /// A flush with this cover succeeded.
    pub(super) fn flushed(&mut self, cover: Cover) {
        self.drop_those(|entry| entry.cover().is_some_and(|own| own <= cover));
    }

    /// A flush with this cover failed.
    pub(super) fn poison(&mut self, cover: Cover) {
        for entry in self.entries.values_mut() {
            if let Progress::Completed(own) = entry.state
                && own <= cover
            {
                entry.state = Progress::Poisoned(own);
                self.open_bytes -= entry.weight();
            }
        }
    }

    /// Drops the poisoned changes, on which nobody relies any more.
    pub(super) fn drop_poisoned(&mut self) {
        if self.completed_bytes > self.open_bytes {
            self.drop_those(|entry| matches!(entry.state, Progress::Poisoned(_)));
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        *self = Self { completions: self.completions, ..Self::default() };
    }

    fn drop_those(&mut self, of: impl Fn(&Entry) -> bool) {
        let Self { entries, bytes, completed_bytes, open_bytes, .. } = self;
        (*bytes, *completed_bytes, *open_bytes) = (0, 0, 0);
        entries.retain(|_, entry| {
            if of(entry) {
                return false;
            }
            *bytes += entry.weight();
            match entry.state {
                Progress::InFlight => {}
                Progress::Poisoned(_) => *completed_bytes += entry.weight(),
                Progress::Completed(_) => {
                    *completed_bytes += entry.weight();
                    *open_bytes += entry.weight();
                }
            }
            true
        });
    }

    /// True if a change in flight has some byte of this range.
    pub(super) fn is_in_flight(&self, offset: u64, len_bytes: u64) -> bool {
        // They do not overlap each other, so only the last one that begins in front of the end can.
        let before_end = self.in_flight.range(..offset.saturating_add(len_bytes)).next_back();
        before_end.is_some_and(|(_, &end)| end > offset)
    }

    /// True if some change has completed that no flush has covered, be it poisoned.
    pub(super) fn awaits_flush(&self) -> bool {
        self.completed_bytes > 0
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes kept that a flush would make durable.
    pub(super) fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    /// The completed changes, in the order in which they must be done again.
    pub(super) fn completed(&self) -> Vec<(u64, u64, Change)> {
        let completed = self.entries.values().filter(|entry| entry.cover().is_some());
        completed.map(|entry| (entry.offset, entry.len_bytes, entry.change.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn write(fill: u8) -> Change {
        Change::Write([Bytes::from(vec![fill; 4096])].into())
    }

    fn fills(kept: &Kept) -> Vec<u8> {
        let fill = |change: &Change| match change {
            Change::Write(bufs) => bufs[0][0],
            _ => 0,
        };
        kept.completed().iter().map(|(_, _, change)| fill(change)).collect()
    }

    #[test]
    fn a_flush_covers_what_completed_before_it_was_sent() {
        let mut kept = Kept::default();
        (1..=3).for_each(|seq| kept.begin(seq, seq * 4096, 4096, write(seq as u8)));
        kept.complete(2);
        let cover = kept.cover();
        kept.complete(1);
        kept.flushed(cover);
        assert_eq!(fills(&kept), [1]);
        assert!(kept.awaits_flush());
        let cover = kept.cover();
        kept.flushed(cover);
        assert!(!kept.awaits_flush());
        assert_eq!((kept.bytes(), kept.open_bytes()), (4096 + ENTRY_BYTES, 0), "one is in flight");
        kept.forget(3);
        assert_eq!(kept.bytes(), 0);
    }

    #[test]
    fn replays_come_in_the_order_of_the_calls() {
        let mut kept = Kept::default();
        kept.begin(5, 0, 4096, write(5));
        kept.begin(4, 8192, 4096, write(4));
        kept.complete(5);
        kept.begin(9, 0, 4096, write(9));
        kept.complete(9);
        kept.complete(4);
        assert_eq!(fills(&kept), [4, 5, 9]);
    }

    #[test]
    fn what_a_failed_flush_left_goes_with_the_next_that_succeeds() {
        let mut kept = Kept::default();
        kept.begin(1, 0, 4096, write(1));
        kept.complete(1);
        kept.poison(kept.cover());
        assert_eq!(kept.open_bytes(), 0);
        kept.begin(2, 0, 4096, write(2));
        kept.complete(2);
        assert_eq!(fills(&kept), [1, 2], "the newer one is done again after the older one");
        let cover = kept.cover();
        kept.flushed(cover);
        assert_eq!(fills(&kept), [] as [u8; 0], "the older one would overwrite what is durable");
        kept.begin(3, 0, 4096, write(3));
        kept.complete(3);
        kept.poison(kept.cover());
        kept.begin(4, 0, 4096, write(4));
        kept.complete(4);
        kept.drop_poisoned();
        assert_eq!(fills(&kept), [4]);
        assert_eq!(kept.bytes(), 4096 + ENTRY_BYTES);
    }

    #[test]
    fn overlaps_in_flight_are_found() {
        let mut kept = Kept::default();
        kept.begin(1, 8192, 8192, Change::Discard);
        kept.begin(2, 0, 4096, Change::Zero);
        for (offset, len, expected) in [
            (0, 4096, true),
            (4096, 4096, false),
            (4096, 8192, true),
            (12288, 4096, true),
            (16384, 4096, false),
            (0, 1 << 20, true),
        ] {
            assert_eq!(kept.is_in_flight(offset, len), expected, "{offset}+{len}");
        }
        kept.complete(1);
        assert!(!kept.is_in_flight(8192, 8192));
    }
}
