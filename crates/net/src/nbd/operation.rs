//! The operations of callers, from the call to the answer.

use super::protocol::{Command, export, flag};
use bytes::Bytes;
use smallvec::SmallVec;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Completion, DeviceError, Operation};

/// A change of a range of the export.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// These buffers, one after the other.
    Write(Arc<[Bytes]>),
    /// The contents do not matter any more.
    Discard,
    /// Zeros, with room for them.
    Zero,
}

/// An operation that has not been answered.
pub(super) struct Op {
    /// The number of the call, which is its place in the order of changes.
    pub(super) seq: u64,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    pub(super) work: Work,
    pub(super) asked: Instant,
    /// Requests of it without an answer.
    pub(super) parts_left: u32,
    /// The first error of a request of it.
    pub(super) error: Option<u32>,
    /// Its requests make it durable.
    pub(super) durable: bool,
    /// It could not be sent at the call.
    pub(super) waited: bool,
    pub(super) breaks: Breaks,
}

/// The connections that an operation was lost with.
#[derive(Clone, Copy, Default)]
pub(super) struct Breaks {
    count: u32,
    first: Option<Instant>,
}

impl Breaks {
    /// Counts one more.
    pub(super) fn add(&mut self, now: Instant) {
        self.count += 1;
        self.first.get_or_insert(now);
    }

    /// Since when a server that comes back again and again has not answered it.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.first.filter(|_| self.count >= 3)
    }
}

pub(super) enum Work {
    /// The buffer is with a receiver while that fills it.
    Read { buf: Option<AlignedBuf>, done: Completion<AlignedBuf> },
    /// With `through`, a flush belongs to it.
    Change { change: Change, through: bool, done: Completion<()> },
}

impl Op {
    pub(super) fn new(offset: u64, len_bytes: u64, work: Work) -> Self {
        Self {
            seq: 0,
            offset,
            len_bytes,
            work,
            asked: Instant::now(),
            parts_left: 0,
            error: None,
            durable: false,
            waited: false,
            breaks: Breaks::default(),
        }
    }

    pub(super) fn operation(&self) -> Operation {
        match &self.work {
            Work::Read { .. } => Operation::Read,
            Work::Change { change: Change::Discard, .. } => Operation::Discard,
            Work::Change { .. } => Operation::Write,
        }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.len_bytes && other.offset < self.offset + self.len_bytes
    }

    /// Ends it with this error.
    pub(super) fn fail(self, source: Arc<io::Error>) -> Answer {
        let (operation, offset, len_bytes) = (self.operation(), self.offset, self.len_bytes);
        let error = DeviceError::Io { operation, offset, len_bytes, source };
        match self.work {
            Work::Read { done, .. } => Answer::Read(done, Err(error)),
            Work::Change { done, .. } => Answer::Done(done, Err(error)),
        }
    }
}

/// A caller's completion and its result. The state must not be locked when the completion is called.
pub(super) enum Answer {
    Read(Completion<AlignedBuf>, Result<AlignedBuf, DeviceError>),
    Done(Completion<()>, Result<(), DeviceError>),
    Size(Completion<u64>, Result<u64, DeviceError>),
}

impl Answer {
    /// Calls the completion. A panic in it is reported; the thread has others to call.
    pub(super) fn deliver(self) {
        let complete = AssertUnwindSafe(|| match self {
            Self::Read(done, result) => done(result),
            Self::Done(done, result) => done(result),
            Self::Size(done, result) => done(result),
        });
        if std::panic::catch_unwind(complete).is_err() {
            tracing::error!("the completion of a device operation panicked");
        }
    }
}

/// One request of a change.
pub(super) struct Piece {
    pub(super) command: Command,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) len_bytes: u32,
    pub(super) data: SmallVec<[Bytes; 2]>,
}

/// A range in pieces of at most `max_bytes`, which is a multiple of 4096.
pub(super) fn split(offset: u64, len_bytes: u64, max_bytes: u32) -> impl Iterator<Item = (u64, u32)> {
    let max = u64::from(max_bytes);
    (0..len_bytes.div_ceil(max)).map(move |index| {
        let start = index * max;
        (offset + start, (len_bytes - start).min(max) as u32)
    })
}

/// The requests for a change, as an export with these flags takes them. None for a discard that it
/// does not support: that is a hint.
pub(super) fn pieces(
    change: &Change,
    (offset, len_bytes): (u64, u64),
    (export_flags, max_bytes): (u16, u32),
    durable: bool,
) -> Vec<Piece> {
    let fua = if durable { flag::FUA } else { 0 };
    let offers = |feature: u16| export_flags & feature == feature;
    let bare = |command, flags| {
        let piece = |(offset, len_bytes)| Piece { command, flags, offset, len_bytes, data: SmallVec::new() };
        split(offset, len_bytes, max_bytes).map(piece).collect()
    };
    match change {
        Change::Write(bufs) => cut(bufs, offset, len_bytes, max_bytes, fua),
        Change::Discard if offers(export::TRIM) => bare(Command::Trim, fua),
        Change::Discard if offers(export::WRITE_ZEROES | export::FAST_ZERO) => {
            bare(Command::WriteZeroes, fua | flag::FAST_ZERO)
        }
        Change::Discard => Vec::new(),
        Change::Zero if offers(export::WRITE_ZEROES) => bare(Command::WriteZeroes, fua | flag::NO_HOLE),
        Change::Zero => {
            let zeros = Bytes::from_static(&ZEROS);
            let whole = (0..len_bytes.div_ceil(ZEROS.len() as u64)).map(|index| {
                let left = len_bytes - index * ZEROS.len() as u64;
                zeros.slice(..left.min(ZEROS.len() as u64) as usize)
            });
            cut(&whole.collect::<Vec<_>>(), offset, len_bytes, max_bytes, fua)
        }
    }
}

static ZEROS: [u8; 16 * BLOCK_BYTES] = [0; 16 * BLOCK_BYTES];

/// Cuts buffers into requests for writes, without a copy.
fn cut(bufs: &[Bytes], offset: u64, len_bytes: u64, max_bytes: u32, flags: u16) -> Vec<Piece> {
    let mut left = bufs.iter().cloned();
    let mut current = Bytes::new();
    split(offset, len_bytes, max_bytes)
        .map(|(offset, len_bytes)| {
            let mut data = SmallVec::new();
            let mut wanted = len_bytes as usize;
            while wanted > 0 {
                if current.is_empty() {
                    current = left.next().expect("the buffers are as long as the range");
                    continue;
                }
                let taken = current.split_to(wanted.min(current.len()));
                wanted -= taken.len();
                data.push(taken);
            }
            Piece { command: Command::Write, flags, offset, len_bytes, data }
        })
        .collect()
}

/// The bytes of a read that have arrived.
#[derive(Default)]
pub(super) struct Arrived(SmallVec<[(u64, u64); 1]>);

impl Arrived {
    /// Adds a range; false if it overlaps what arrived before.
    pub(super) fn add(&mut self, offset: u64, len_bytes: u64) -> bool {
        let (mut start, mut end) = (offset, offset + len_bytes);
        let next = self.0.partition_point(|&(_, other_end)| other_end < start);
        // A range that ends where this one begins, or begins where it ends, becomes one with it.
        let mut replaced = next;
        while let Some(&(other_start, other_end)) = self.0.get(replaced).filter(|other| other.0 <= end) {
            if other_end > offset && other_start < offset + len_bytes {
                return false;
            }
            (start, end) = (start.min(other_start), end.max(other_end));
            replaced += 1;
        }
        self.0.drain(next..replaced);
        self.0.insert(next, (start, end));
        true
    }

    /// Number of ranges that lie apart.
    pub(super) fn parts(&self) -> usize {
        self.0.len()
    }

    /// True if exactly this range has arrived.
    pub(super) fn is_all_of(&self, offset: u64, len_bytes: u64) -> bool {
        self.0[..] == [(offset, offset + len_bytes)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buffers_are_cut_without_a_copy() {
        let bufs = [Bytes::from(vec![1; 4096]), Bytes::from(vec![2; 12288]), Bytes::from(vec![3; 4096])];
        let change = Change::Write(bufs.clone().into());
        let pieces = pieces(&change, (4096, 20480), (0, 8192), true);
        let shape: Vec<_> = pieces
            .iter()
            .map(|piece| {
                (piece.offset, piece.len_bytes, piece.data.iter().map(Bytes::len).collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(
            shape,
            [(4096, 8192, vec![4096, 4096]), (12288, 8192, vec![8192]), (20480, 4096, vec![4096])]
        );
        assert_eq!(pieces[1].data[0].as_ptr(), bufs[1][4096..].as_ptr());
        assert!(pieces.iter().all(|piece| piece.flags == flag::FUA && piece.command == Command::Write));
    }

    #[test]
    fn discards_and_zeros_use_what_is_offered() {
        let commands = |change: &Change, flags| -> Vec<(Command, u16, u32)> {
            let pieces = pieces(change, (0, 200 << 10), (flags, 128 << 10), false);
            pieces.iter().map(|piece| (piece.command, piece.flags, piece.len_bytes)).collect()
        };
        let (discard, zero) = (&Change::Discard, &Change::Zero);
        let halves = |command, flags| [(command, flags, 128 << 10), (command, flags, 72 << 10)];
        assert_eq!(commands(discard, export::TRIM), halves(Command::Trim, 0));
        assert_eq!(commands(discard, export::WRITE_ZEROES), []);
        let fast = export::WRITE_ZEROES | export::FAST_ZERO;
        assert_eq!(commands(discard, fast), halves(Command::WriteZeroes, flag::FAST_ZERO));
        assert_eq!(commands(zero, fast), halves(Command::WriteZeroes, flag::NO_HOLE));
        assert_eq!(commands(zero, export::TRIM), halves(Command::Write, 0));
    }

    proptest! {
        #[test]
        fn what_arrived_is_known_exactly(ranges in proptest::collection::vec((0u64..24, 1u64..8), 0..12)) {
            let mut arrived = Arrived::default();
            let mut model = [false; 32];
            for (offset, len) in ranges {
                let range = &mut model[offset as usize..(offset + len) as usize];
                let free = range.iter().all(|&byte| !byte);
                if free {
                    range.fill(true);
                }
                prop_assert_eq!(arrived.add(offset, len), free);
            }
            let first = model.iter().position(|&byte| byte).unwrap_or(0) as u64;
            let count = model.iter().filter(|&&byte| byte).count() as u64;
            let one = count > 0 && model[first as usize..(first + count) as usize].iter().all(|&byte| byte);
            prop_assert_eq!(arrived.is_all_of(first, count), one);
        }
    }
}
