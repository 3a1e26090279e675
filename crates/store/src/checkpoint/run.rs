//! The checkpoint: merges the memtable into the tree and writes a superblock that makes the result
//! the new start.
//!
//! Steps, and what a crash leaves at each: (1) freeze: seal, then cut memtable, space map and log
//! position at one point; (2) group commit makes the sealed batches durable; (3) nodes and space
//! pages are written to free space: the old superblock and its log still tell everything; (4)
//! flush; (5) the superblock goes to the slot that does not hold the newest durable one; (6) flush:
//! from here on the new one counts; (7) what only the old one needed is released.

use super::CheckpointState;
use super::slots::write_slot;
use super::table::{NewTable, TableChange};
use crate::layers::Memtable;
use crate::log::{NewLog, Tickets, Unsealed};
use crate::room::allocate_nodes;
use crate::trace::DurableMark;
use crate::{Canary, DataWrite, OpSeq, Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use syncline_device::WriteHandle;
use syncline_format::BlockRun;
use syncline_format::superblock::{LogStart, Superblock};
use syncline_space::FrozenMap;
use syncline_sync::asynchronous::MutexGuard;
use syncline_tree::Merged;

/// Pause between two attempts to write a superblock.
const SUPERBLOCK_PAUSE: Duration = Duration::from_millis(250);

/// The kind of a checkpoint: its work besides updating the tree.
#[derive(Clone)]
struct Sort {
    /// It is the last one before an unmount.
    clean: bool,
    /// It changes the table of snapshots: makes, removes or moves something.
    change: Option<TableChange>,
    /// It leaves the current log for a new one.
    leaves_log: bool,
}

/// The state at the point where a checkpoint is cut.
struct Frozen {
    generation: u64,
    memtable: Arc<Memtable>,
    space: FrozenMap,
    log: LogStart,
    /// Newest batch before the cut.
    seq: u64,
    op_seq: u64,
    objects: u64,
    next_object: u64,
    unsealed: Option<Unsealed>,
    /// The new log, if this checkpoint leaves the current one.
    new_log: Option<NewLog>,
    /// All nodes and pages were written: if the checkpoint still fails, their blocks are as good as
    /// before.
    sound: bool,
}

impl Frozen {
    /// Data writes named by changes that were frozen without being sealed.
    fn unsealed_data(&self) -> &[DataWrite] {
        self.unsealed.as_ref().map_or(&[], Unsealed::data)
    }
}

/// Guards a checkpoint from its cut to its end. If the caller gives up or panics in between, the store turns
/// read-only: the next checkpoint would lack the changes that were cut, and would end the log that has them.
struct Unended<'a>(&'a Store);

impl Unended<'_> {
    fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unended<'_> {
    fn drop(&mut self) {
        self.0.turn_read_only("a checkpoint was broken off; unmount and mount again to recover");
    }
}

/// The superblock to write, beside the frozen figures.
struct Written {
    superblock: Superblock,
    tree_nodes: u64,
}

impl Store {
    /// Brings the tree up to date and empties the log. The caller holds no lease.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        match self.checkpoint_keeping_log().await {
            // A task that relocates data may come here for room, and must not wait for itself.
            Err(StoreError::Device(error)) if self.log.has_hole() && !self.health.is_leaving_log() => {
                Box::pin(self.leave_log_after(error)).await
            }
            result => result,
        }
    }

    /// A checkpoint for callers that may hold leases. Relocating refused data takes the leases of
    /// files, so the caller would wait for itself: that is left to the background.
    pub(crate) async fn checkpoint_for_room(&self) -> Result<(), StoreError> {
        let wanted = self.last_op();
        // Whoever holds checkpoints off may need such a lease.
        let Some(state) = self.unless_held_off(self.checkpoint.lock()).await else { return Ok(()) };
        let result = self.checkpoint_of(wanted, state).await;
        if matches!(result, Err(StoreError::Device(_))) {
            self.ask_for_checkpoint();
        }
        result
    }

    async fn checkpoint_keeping_log(&self) -> Result<(), StoreError> {
        let wanted = self.last_op();
        self.checkpoint_of(wanted, self.checkpoint.lock().await).await
    }

    /// A checkpoint of everything up to `wanted`, unless there has been one.
    async fn checkpoint_of(
        &self,
        wanted: OpSeq,
        mut state: MutexGuard<'_, CheckpointState>,
    ) -> Result<(), StoreError> {
        if self.checkpoint.superblock.read().op_seq >= wanted.0 {
            return Ok(());
        }
        self.run_checkpoint(&mut state, false).await
    }

    /// Runs a checkpoint even when nothing changed; `clean` marks the superblock as written by an
    /// unmount.
    pub(crate) async fn run_checkpoint(
        &self,
        state: &mut CheckpointState,
        clean: bool,
    ) -> Result<(), StoreError> {
        self.run_checkpoint_with(state, clean, None).await
    }

    /// Runs a checkpoint that may also change the table of snapshots.
    pub(crate) async fn run_checkpoint_with(
        &self,
        state: &mut CheckpointState,
        clean: bool,
        change: Option<TableChange>,
    ) -> Result<(), StoreError> {
        self.run_checkpoint_as(state, Sort { clean, change, leaves_log: false }).await
    }

    /// Runs a checkpoint that begins a new log: writes of the current log that failed are not
    /// needed any more.
    pub(crate) async fn run_checkpoint_leaving_log(
        &self,
        state: &mut CheckpointState,
    ) -> Result<(), StoreError> {
        self.run_checkpoint_as(state, Sort { clean: false, change: None, leaves_log: true }).await
    }

    async fn run_checkpoint_as(&self, state: &mut CheckpointState, sort: Sort) -> Result<(), StoreError> {
        self.health.writable()?;
        let started = Instant::now();
        let leaves_log = sort.leaves_log;
        // A snapshot is cut at one moment only, which its maker has prepared.
        let may_repeat = !matches!(sort.change, Some(TableChange::Create { .. }));
        // Boxed: nearly every operation may have to wait for a checkpoint, and hardly any ever
        // does.
        let mut result = Box::pin(self.freeze_and_write(state, sort.clone())).await;
        if may_repeat
            && matches!(&result, Err(error @ StoreError::Device(_)) if !self.is_end(error))
            && self.health.writable().is_ok()
        {
            // The retry writes to other blocks: those of the first attempt are not released before
            // a superblock is durable.
            tracing::warn!("a checkpoint failed, and is tried again elsewhere");
            result = Box::pin(self.freeze_and_write(state, sort)).await;
        }
        match &result {
            Ok(()) => {
                self.counters.checkpoints.add(1);
                self.counters.checkpoint_ns.record(started.elapsed());
                self.health.checkpoint_succeeded();
            }
            Err(error) => {
                self.counters.checkpoints_failed.add(1);
                match self.is_end(error) {
                    true => tracing::debug!("checkpoint failed: {error}"),
                    false => tracing::error!("checkpoint failed: {error}"),
                }
                // Another checkpoint leaves a bad log, and its failures count instead.
                if leaves_log || !matches!(error, StoreError::Device(_)) || !self.log.has_hole() {
                    self.note_checkpoint_failure(error);
                }
            }
        }
        self.checkpoint.due.store(false, Ordering::Release);
        self.checkpoint.notify_ended();
        // Changes that could not be sealed before may fit now.
        self.wake.notify(usize::MAX);
        result
    }

    /// Counts consecutive failures; too many over too long a time turn the filesystem read-only.
    pub(crate) fn note_checkpoint_failure(&self, error: &StoreError) {
        // Room can still be made.
        if !matches!(error, StoreError::NoSpace) && self.health.checkpoint_failed(self.options.patience) {
            let next = match error {
                StoreError::Device(_) => format!("{} and mount again to recover", error.mending_device()),
                _ => "run 'syncline check --repair'".to_owned(),
            };
            // Otherwise callers that wait for a checkpoint to make room would wait for ever
            // (promise P5).
            self.turn_read_only(&format!("checkpoints could not be written ({error}); unmount and {next}"));
        }
    }

    async fn freeze_and_write(&self, state: &mut CheckpointState, sort: Sort) -> Result<(), StoreError> {
        let Sort { clean, change, leaves_log } = sort;
        let new_log = leaves_log.then(|| self.new_log()).transpose()?;
        let mut frozen = self.freeze(new_log);
        let unended = Unended(self);
        self.move_on();
        self.give_way();
        let (mut started, mut table) = (Vec::new(), change.map(NewTable::new));
        let written = match self.write_out(state, &mut frozen, &mut started, clean, &mut table).await {
            Ok(written) => written,
            Err(error) => {
                // These blocks are released now or by the next checkpoint; by then nothing may be
                // in flight to them (rule R2).
                for write in started {
                    frozen.sound &= write.wait().await.is_ok();
                }
                table.into_iter().for_each(|table| table.undo(self.room.space()));
                self.fold_back(frozen, true);
                unended.end();
                return Err(error);
            }
        };
        self.give_way();
        let slot = 1 - state.slot;
        if let Err(error) = self.write_slot_patiently(slot, &written.superblock).await {
            // Not undone: that superblock may count.
            table.into_iter().for_each(|table| table.hold(self.room.space(), frozen.generation));
            self.superblock_uncertain(frozen, &error);
            return Err(error);
        }
        state.slot = slot;
        self.give_way();
        self.adopt(state, frozen, written, table);
        unended.end();
        Ok(())
    }

    /// Writes a superblock, retrying while the device fails and patience lasts: the same bytes, to
    /// the slot that does not hold the newest durable one.
    async fn write_slot_patiently(&self, slot: usize, superblock: &Superblock) -> Result<(), StoreError> {
        let begun = Instant::now();
        loop {
            match write_slot(&self.tracker, slot, superblock).await {
                Err(StoreError::Device(error))
                    if begun.elapsed() < self.options.patience && !self.is_end(&error.clone().into()) =>
                {
                    tracing::warn!("{error}; writing the superblock again");
                    // A flush may have failed and taken with it writes of others (rule R6).
                    self.log.demand_rewrite();
                    self.spawn.sleep(SUPERBLOCK_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// A superblock may or may not be on the device: everything it refers to must stay, and so must
    /// everything the old one refers to.
    ///
    /// The log must continue from either of them. Seen from the new one, changes that its
    /// checkpoint froze without sealing are in the tree already; a batch with the same changes
    /// would name blocks that are in use. So the log stays stalled, and syncs of these changes get
    /// an error.
    fn superblock_uncertain(&self, frozen: Frozen, error: &StoreError) {
        self.log.demand_rewrite();
        self.turn_read_only(&format!("the superblock could not be written ({error})"));
        let may_seal = self.breaks(Canary::SealAfterSuperblock);
        self.fold_back(Frozen { sound: false, ..frozen }, may_seal);
    }

    /// Cuts memtable, pending log, space map and log position at one point.
    fn freeze(&self, mut new_log: Option<NewLog>) -> Frozen {
        let mut still = self.log.still();
        let generation = still.generation();
        if new_log.is_some() {
            // Nothing more goes into a log that is being left.
            still.stall();
        }
        let unsealed = self.seal_still(&mut still);
        still.begin_generation(|segment| self.room.space().hold(segment, generation));
        let memtable = self.layers.freeze();
        let end = still.chain_end();
        let frozen = Frozen {
            generation,
            memtable,
            space: self.room.space().freeze(generation),
            log: new_log.as_mut().map_or(end, |new| new.start_behind(end)),
            seq: still.newest_seq(),
            op_seq: self.log.last_op(),
            objects: still.objects(),
            next_object: self.log.next_object(),
            unsealed,
            new_log,
            sound: false,
        };
        drop(still);
        self.log.notify_drained();
        frozen
    }

    /// Steps 2 to 4: makes everything durable that the superblock will refer to.
    async fn write_out(
        &self,
        state: &CheckpointState,
        frozen: &mut Frozen,
        started: &mut Vec<WriteHandle>,
        clean: bool,
        table: &mut Option<NewTable>,
    ) -> Result<Written, StoreError> {
        let mut tickets = self.settle_frozen(frozen).await?;
        let (root, tree_nodes) = self.layers.root_and_nodes();
        let merged = self.merge(root, frozen).await?;
        started.extend(merged.written.iter().map(|written| written.handle.clone()));
        // The count starts from the superblock's figure, which may be damaged: a wrong figure must
        // not end the writing.
        let tree_nodes = (tree_nodes + merged.nodes_written)
            .saturating_sub(merged.nodes_freed)
            .min(self.geometry().total_blocks);
        let persisted = self.room.space().persist(&self.tracker, &mut frozen.space).await?;
        started.extend(persisted.written.iter().map(|written| written.handle.clone()));
        frozen.sound = true;
        let log = if self.breaks(Canary::LogStartsLate) { self.log.chain_end() } else { frozen.log };
        let mut superblock = Superblock {
            generation: frozen.generation,
            // The size that the map it points to was written for.
            geometry: self.room.space().map_geometry(),
            epoch: frozen.new_log.as_ref().map_or(state.epoch, |new| new.epoch),
            tree: merged.root,
            space: persisted.root,
            log,
            next_object: frozen.next_object,
            op_seq: frozen.op_seq,
            tree_nodes,
            used_blocks: persisted.used_blocks,
            objects: frozen.objects,
            clean,
            ..self.checkpoint.superblock.read().clone()
        };
        let mut makes_room = !state.is_open || self.room.space().map_geometry() != self.geometry();
        if let Some(table) = table {
            makes_room |= table.removes();
            table.write(&state.table, &mut superblock, self.room.space(), &self.tracker, started)?;
        }
        let table_blocks = table.as_ref().map_or(state.table.blocks().len(), NewTable::blocks) as u64;
        let adds = table.as_ref().is_some_and(NewTable::adds);
        if adds && !self.leaves_room_for_accepted(table_blocks) {
            return Err(StoreError::NoSpace);
        }
        if !makes_room && !self.leaves_room_to_open(table_blocks) {
            // With a snapshot, which keeps replaced blocks, each checkpoint takes a little more.
            return Err(StoreError::NoSpace);
        }
        for handle in started.iter() {
            tickets.add(handle.wait().await?, &self.tracker);
        }
        let flushed = self.lab_flush_before_superblock(tickets).await?;
        if frozen.new_log.is_none() {
            self.batches_durable(frozen.seq, flushed);
        }
        Ok(Written { superblock, tree_nodes })
    }

    /// Step 2: waits for the writes that the frozen changes need; returns their tickets.
    async fn settle_frozen(&self, frozen: &Frozen) -> Result<Tickets, StoreError> {
        let unsealed = frozen.unsealed_data();
        if frozen.new_log.is_some() {
            return self.settle_without_log(unsealed, |run| frozen.space.names_any(run)).await;
        }
        let mut tickets = self.settle(frozen.seq).await?;
        for data in unsealed {
            tickets.add(self.completed(data.write()).await?, &self.tracker);
        }
        Ok(tickets)
    }

    /// Merges the frozen memtable into the tree, in free space, and updates the frozen space map.
    async fn merge(
        &self,
        root: syncline_format::superblock::TreeRoot,
        frozen: &mut Frozen,
    ) -> Result<Merged, StoreError> {
        let allocate = |copy, blocks| allocate_nodes(self.room.space(), copy, blocks);
        let merged =
            self.layers.tree().merge(root, frozen.generation, frozen.memtable.items(), &allocate).await;
        let merged = match merged {
            Ok(merged) => merged,
            Err(failed) => {
                failed.allocated.into_iter().for_each(|run| self.room.space().give_back(run));
                return Err(failed.error.into());
            }
        };
        merged.unused.iter().for_each(|run| self.room.space().give_back(*run));
        merged.written.iter().for_each(|written| frozen.space.name(written.run));
        merged.freed.iter().for_each(|run| frozen.space.unname(*run));
        Ok(merged)
    }

    /// Step 7: the new superblock counts from now on.
    fn adopt(
        &self,
        state: &mut CheckpointState,
        mut frozen: Frozen,
        written: Written,
        table: Option<NewTable>,
    ) {
        state.is_open = true;
        if let Some(table) = table {
            state.table = self.lab_table(table).adopt(&state.table, self.room.space(), &frozen.space);
            self.checkpoint.note_table(&state.table);
        }
        if let Some(new) = frozen.new_log.take() {
            state.epoch = new.epoch;
            self.enter_log(new, frozen.seq, frozen.op_seq, frozen.generation);
        }
        let Written { superblock, tree_nodes } = written;
        self.log.resume(|| {
            self.layers.adopt(superblock.tree, tree_nodes, || {
                self.geometry.set_total(superblock.geometry.total_blocks);
                *self.checkpoint.superblock.write() = superblock;
            });
        });
        let (op, batch, generation) = (frozen.op_seq, frozen.seq, frozen.generation);
        self.log.advance(DurableMark { op, batch, generation, ..DurableMark::default() });
        frozen.unsealed_data().iter().for_each(|data| self.retire(data));
        let forget = |runs: &[BlockRun]| runs.iter().for_each(|run| self.layers.tree().forget(*run));
        self.room.space().superblock_durable_with(frozen.generation, forget);
    }

    /// Undoes a failed checkpoint: its changes go back under the newer ones and belong to the next
    /// checkpoint.
    ///
    /// Blocks that its generation freed stay held until a superblock of that or a later generation
    /// is durable. So do the blocks it wrote, unless they are sound. Unsealed changes return to the
    /// pending log if `may_seal`; otherwise a stalled log stays stalled.
    fn fold_back(&self, frozen: Frozen, may_seal: bool) {
        match frozen.sound {
            true => {
                let forget = |runs: &[BlockRun]| runs.iter().for_each(|run| self.layers.tree().forget(*run));
                self.room.space().checkpoint_given_up(frozen.space, forget);
            }
            false => self.room.space().checkpoint_failed(frozen.space),
        }
        self.lab_release(frozen.generation);
        let mut still = self.log.still();
        match may_seal {
            true => still.take_back(frozen.unsealed, &self.tracker, self.room.space()),
            // Nothing is written any more.
            false => still.keep_segment(frozen.new_log.and_then(NewLog::keep_segment)),
        }
        self.layers.fold_back(&frozen.memtable);
    }

    /// The last checkpoint, at unmount: afterwards there is nothing to replay, and nothing can be
    /// changed. Once it has succeeded, further calls do nothing.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.close_as(true).await
    }

    /// The same for a filesystem that could not write all that it had accepted: its image is not marked
    /// as unmounted, so that the unmount reports it.
    pub async fn close_incomplete(&self) -> Result<(), StoreError> {
        self.close_as(false).await
    }

    async fn close_as(&self, clean: bool) -> Result<(), StoreError> {
        if self.health.writable().is_ok() && self.health.has_begun() {
            self.discard_at_the_end().await;
        }
        self.health.begin_closing();
        self.wake.notify(usize::MAX);
        // The background ends: callers that wait for it would wait for ever if this fails.
        self.checkpoint.notify_ended();
        self.log.notify_drained();
        if self.options.read_only {
            return Ok(());
        }
        // No discard may be in flight when others get the image.
        drop(self.room.without_discards().await);
        self.mend_nodes().await;
        let mut state = self.checkpoint.lock().await;
        if state.is_closed {
            return Ok(());
        }
        if !self.health.has_begun() {
            // Nothing was written, and marking the image as clean would be false.
            self.health.end_writing("it was closed before it had begun");
            return Ok(());
        }
        let mut result = self.run_checkpoint(&mut state, clean).await;
        if self.log.has_hole() && self.health.writable().is_ok() {
            drop(state);
            let left = self.leave_log().await;
            state = self.checkpoint.lock().await;
            // Somebody else may have closed the store meanwhile.
            if state.is_closed {
                return Ok(());
            }
            left?;
            result = self.run_checkpoint(&mut state, clean).await;
        }
        if result.is_ok() {
            state.is_closed = true;
            self.health.end_writing("it was unmounted");
            self.log.notify_drained();
        }
        result
    }
}
