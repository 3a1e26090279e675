//! The cut of a checkpoint: freeze and seal are one point between two transactions.

use super::Log;
use super::commit::CommitState;
use super::inflight::DataWrite;
use super::seal::{Cut, LogEnd, Sealed, Then};
use super::shown::Guard;
use super::transaction::DataWrites;
use crate::Store;
use syncline_device::FlushTracker;
use syncline_format::BlockRun;
use syncline_format::superblock::LogStart;
use syncline_log::Pending;
use syncline_space::Space;
use syncline_sync::atomic::Ordering;

/// The log held still: while it lives, nothing is committed and nothing is sealed.
pub(crate) struct Still<'a> {
    commit: Guard<'a, CommitState>,
    end: Guard<'a, LogEnd>,
}

/// Pending changes that found no room in the log; only the superblock will make them durable.
pub(crate) struct Unsealed {
    pending: Pending,
    data: DataWrites,
}

/// Bytes in memory because no flush covers them: counted, and as they are.
pub(crate) struct Unflushed {
    /// Log that is not sealed.
    pub(crate) pending_log: u64,
    /// Data that the unsealed log names.
    pub(crate) pending_data: (u64, u64),
    /// Sealed log, and the data that it names.
    pub(crate) sealed: (u64, u64),
}

impl Log {
    /// Holds the log still.
    pub(crate) fn still(&self) -> Still<'_> {
        let end = self.end.lock();
        let commit = self.commit.lock();
        Still { commit, end }
    }

    /// Lets the log go on after changes that it lacks: `adopt` notes the superblock that has them.
    pub(crate) fn resume(&self, adopt: impl FnOnce()) {
        let mut end = self.end.lock();
        end.stalled = false;
        adopt();
    }
}

impl Still<'_> {
    /// Generation of the active memtable.
    pub(crate) fn generation(&self) -> u64 {
        self.commit.generation
    }

    /// Number of objects that exist.
    pub(crate) fn objects(&self) -> u64 {
        self.commit.objects
    }

    /// Number of the newest batch.
    pub(crate) fn newest_seq(&self) -> u64 {
        self.end.chain.newest_seq()
    }

    /// The position behind the newest batch.
    pub(crate) fn chain_end(&self) -> LogStart {
        self.end.chain.end()
    }

    /// The segments in use since the last freeze.
    pub(crate) fn segments(&self) -> &[BlockRun] {
        &self.end.segments
    }

    /// Lets nothing more into the log.
    pub(crate) fn stall(&mut self) {
        self.end.stalled = true;
    }

    /// Begins the next generation. The current segment continues; the others, which `hold` gets, are
    /// not needed once the superblock of this generation is durable.
    pub(crate) fn begin_generation(&mut self, hold: impl FnMut(BlockRun)) {
        let current = self.end.segments.pop();
        self.end.segments.drain(..).for_each(hold);
        self.end.segments.extend(current);
        self.end.bytes_since_freeze = 0;
        self.commit.generation += 1;
    }

    /// Keeps the segment of a log that was not entered and may be on the device. The current segment
    /// stays the last.
    pub(crate) fn keep_segment(&mut self, segment: Option<BlockRun>) {
        self.end.segments.splice(0..0, segment);
    }

    /// Puts unsealed changes back before the pending ones, and lets the log go on.
    pub(crate) fn take_back(&mut self, unsealed: Option<Unsealed>, tracker: &FlushTracker, space: &Space) {
        self.end.stalled = false;
        let Some(Unsealed { mut pending, mut data }) = unsealed else { return };
        // No batch holds these writes, so rewriting batches would not repeat them if they are lost
        // (rule R6).
        data.iter().for_each(|data| data.write().rewrite(tracker, space));
        pending.append(std::mem::take(&mut self.commit.pending));
        self.commit.pending = pending;
        data.append(&mut self.commit.writes.take());
        self.commit.writes.extend(data);
    }

    /// The bytes of the writes that no flush covers yet.
    pub(crate) fn unflushed(&self) -> Unflushed {
        // A batch's copy shares its memory with the batch, so it counts once.
        let held = |sealed: &Sealed| sealed.writes().map(|write| write.held_bytes()).sum::<u64>();
        let copy = |sealed: &Sealed| sealed.copy.as_ref().map_or(0, |write| write.held_bytes());
        let sealed = self.end.sealed.iter().map(|sealed| held(sealed) - copy(sealed)).sum();
        let data = self.commit.writes.iter().map(|data| data.write().held_bytes()).sum();
        Unflushed {
            pending_log: self.commit.pending.payload_bytes() as u64,
            pending_data: (self.commit.writes.bytes(), data),
            sealed: (self.end.unflushed_bytes, sealed),
        }
    }
}

impl Unsealed {
    /// The data writes that the changes name.
    pub(crate) fn data(&self) -> &[DataWrite] {
        &self.data
    }
}

impl Store {
    /// Seals what is pending. Returns it if the log can't take it: nothing may follow in the chain
    /// then until the superblock holds the changes that are missing from it.
    pub(crate) fn seal_still(&self, still: &mut Still<'_>) -> Option<Unsealed> {
        let Still { commit, end } = still;
        if commit.pending.is_empty() {
            return None;
        }
        let pending = commit.pending.take(std::mem::take(&mut end.spare));
        let data = commit.writes.take();
        let (generation, op_seq) = (commit.generation, self.log.last_op.load(Ordering::Acquire));
        match self.segment_for(end, &pending) {
            Ok(segment) => {
                self.seal_into(end, Cut { pending, data, generation, op_seq, segment }, Then::Nothing);
                None
            }
            Err(_) => {
                end.stalled = true;
                Some(Unsealed { pending, data })
            }
        }
    }
}
