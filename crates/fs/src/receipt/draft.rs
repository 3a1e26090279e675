//! A receipt while its sync is under way.

use super::{Call, Failed, Inodes, Receipt, Submitted, Why};
use crate::FsError;
use crate::filesystem::Filesystem;
use std::time::Instant;
use syncline_format::items::durability::Durability;
use syncline_store::{Cover, OpSeq, Stage, SyncTrace};

/// The notes of a sync under way. A draft that is dropped, because its caller gave up, leaves no
/// receipt.
pub(crate) struct Draft {
    begun: Instant,
    receipt: Receipt,
    failed_in: Option<Stage>,
}

impl Draft {
    /// Starts the receipt of a sync.
    pub(crate) fn begin(call: Call, inodes: Inodes) -> Self {
        Self { begun: Instant::now(), receipt: Receipt::new(call, inodes), failed_in: Some(Stage::Submit) }
    }

    /// Notes the files of a call that did not know them when it began.
    pub(crate) fn of_files(&mut self, inodes: Inodes) {
        self.receipt.files = inodes.count();
        self.receipt.inodes = inodes;
    }

    /// Notes the durability class of the call.
    pub(crate) fn of_class(&mut self, class: Durability) {
        self.receipt.durability = class;
    }

    /// The reasons, for the caller to add to.
    pub(crate) fn why(&mut self) -> &mut Why {
        &mut self.receipt.why
    }

    /// The record of the call's own writes and log records, for the caller to fill in.
    pub(crate) fn submitted(&mut self) -> &mut Submitted {
        &mut self.receipt.submitted
    }

    /// Ends the stage of submitting; the store does the rest.
    pub(crate) fn end_submit(&mut self) {
        self.receipt.times_ns.submit = self.elapsed_ns();
    }

    /// Takes over the store's trace.
    pub(crate) fn synced(&mut self, trace: SyncTrace) {
        let receipt = &mut self.receipt;
        receipt.target_op = trace.target_op;
        receipt.cover = trace.cover;
        receipt.drove = trace.drove;
        receipt.members = trace.members;
        receipt.batches = trace.batches;
        receipt.durable = trace.durable;
        let (times, stages) = (&mut receipt.times_ns, trace.stages);
        times.wait = stages.wait_ns;
        times.gather = stages.gather_ns;
        times.write = stages.write_ns;
        times.flush = stages.flush_ns;
        times.checkpoint = stages.checkpoint_ns;
        self.failed_in = trace.failed_in;
    }

    /// Notes that everything up to an operation has its place in the log, and is promised.
    pub(crate) fn ordered(&mut self, fs: &Filesystem, target: OpSeq) {
        self.receipt.target_op = target.0;
        self.receipt.cover = if fs.store.is_durable(target) { Cover::Elided } else { Cover::Ordered };
        self.failed_in = None;
    }

    /// Notes a checkpoint that was made, or one that had been made already.
    pub(crate) fn checkpointed(&mut self, fs: &Filesystem, was: u64, target_op: u64, ended_well: bool) {
        self.receipt.times_ns.checkpoint = self.elapsed_ns() - self.receipt.times_ns.submit;
        self.receipt.target_op = target_op;
        self.failed_in = (!ended_well).then_some(Stage::Checkpoint);
        if ended_well {
            let newest = fs.store.superblock();
            let made = newest.generation != was;
            self.receipt.cover = if made { Cover::Checkpoint } else { Cover::Elided };
            self.receipt.durable.generation = newest.generation;
            self.receipt.durable.op = newest.op_seq;
        }
    }

    /// Ends the sync and records the receipt.
    pub(crate) fn end(mut self, fs: &Filesystem, result: &Result<(), FsError>) {
        if fs.receipts.is_off() {
            return;
        }
        let total = self.elapsed_ns();
        let Receipt { times_ns: times, submitted, why, .. } = &mut self.receipt;
        let known = times.submit + times.wait + times.gather + times.write + times.flush + times.checkpoint;
        // The rest of the total, measured with the same clock later.
        times.answer = total.saturating_sub(known);
        times.total = known + times.answer;
        // Data written after the reasons were noted, which this sync submitted too.
        why.add_if(
            submitted.blocks > 0 || submitted.blocks_in_log > 0 || submitted.inline_bytes > 0,
            Why::DIRTY_DATA,
        );
        let now = fs.now();
        self.receipt.time_ns =
            now.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(now.nanoseconds));
        self.receipt.failed =
            result.as_ref().err().map(|error| Failed { errno: error.errno(), stage: self.failed_in });
        fs.receipts.record(self.receipt);
    }

    fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
