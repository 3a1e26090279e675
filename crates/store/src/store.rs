//! The store: the parts of an open image.

use crate::checkpoint::{Checkpoints, tend_checkpoints};
use crate::counters::Counters;
use crate::health::Health;
use crate::layers::Layers;
use crate::log::{Backlog, Log, tend_log};
use crate::room::{Room, tend_discards};
use crate::{CountersSnapshot, OpSeq, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{Device, FlushTracker, Spawn, TrackerCounters};
use syncline_format::superblock::Superblock;
use syncline_format::{Geometry, ObjectId, SharedGeometry};
use syncline_space::SpaceCounters;
use syncline_sync::Event;

/// An open image: memtable, pending log, tree, space and recovery behind one interface.
///
/// Locks are taken in the order `log`, `commit`, `layers`, and none of them is held across an
/// await.
pub struct Store {
    pub(crate) options: StoreOptions,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) tracker: Arc<FlushTracker>,
    /// The sizes given by the newest durable superblock, shared with the tree.
    pub(crate) geometry: Arc<SharedGeometry>,
    pub(crate) room: Arc<Room>,
    pub(crate) layers: Layers,
    pub(crate) log: Log,
    pub(crate) checkpoint: Checkpoints,
    pub(crate) health: Health,
    pub(crate) counters: Counters,
    /// Wakes the background tasks to check whether something is due.
    pub(crate) wake: Event,
}

impl Store {
    /// Sizes of the image, which may grow.
    pub fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    /// Seed of the directory name hash.
    pub fn hash_seed(&self) -> [u8; 16] {
        self.checkpoint.superblock(|newest| newest.hash_seed)
    }

    /// True when every inode of the image knows its names.
    pub fn has_parent_pointers(&self) -> bool {
        self.checkpoint.superblock(Superblock::has_parent_pointers)
    }

    /// The newest durable superblock.
    pub fn superblock(&self) -> Superblock {
        self.checkpoint.superblock(Superblock::clone)
    }

    /// A never-used object id. There are so many that only a damaged image has none left.
    pub fn new_object(&self) -> Result<ObjectId, StoreError> {
        self.log.new_object()
    }

    /// Hands out no object id below this one from now on.
    pub fn keep_numbers_below(&self, end: ObjectId) {
        self.log.keep_numbers_below(end);
    }

    /// The smallest object id that was never handed out.
    pub fn next_object(&self) -> ObjectId {
        self.log.next_object()
    }

    /// Number of objects that exist.
    pub fn objects(&self) -> u64 {
        self.log.objects()
    }

    /// Position of the newest committed transaction.
    pub fn last_op(&self) -> OpSeq {
        OpSeq(self.log.last_op())
    }

    /// Position of the newest committed transaction that changed more than the place of contents: when
    /// it is durable, a crash loses no change made up to now.
    pub fn last_change(&self) -> OpSeq {
        OpSeq(self.log.last_change())
    }

    /// True when everything up to `op` survives any crash.
    pub fn is_durable(&self, op: OpSeq) -> bool {
        self.log.is_durable(op.0)
    }

    /// Why nothing can be changed, if so.
    pub fn read_only_reason(&self) -> Option<Arc<str>> {
        self.health.reason()
    }

    /// Fails when nothing can be changed.
    pub fn writable(&self) -> Result<(), StoreError> {
        self.health.writable()
    }

    /// True for an error whose cause is told elsewhere, once, and which repeating does not mend: the
    /// store was shut down, or its device answers nothing any more for anybody here, since another
    /// host has it.
    pub fn is_end(&self, error: &StoreError) -> bool {
        self.health.is_end(error)
    }

    /// Refuses all changes from now on, for this reason: anything not durable yet is lost when the
    /// process ends. Later syncs and checkpoints, and closing the store, fail.
    pub fn shut_down(&self, reason: &str) {
        self.turn_read_only(reason);
    }

    /// The same, for a caller that tells people the reason: what fails from now on is not logged, and
    /// not tried again.
    pub fn shut_down_untold(&self, reason: &str) {
        self.health.shut_down(reason);
        self.wake_all();
    }

    /// Sets the read-only latch, and wakes those who wait for room that nobody will make any more.
    pub(crate) fn turn_read_only(&self, reason: &str) {
        self.health.turn_read_only(reason);
        self.wake_all();
    }

    /// Starts the background tasks; they end when the store closes or is dropped.
    pub(crate) fn start_background(self: &Arc<Self>, spawn: &Arc<dyn Spawn>) {
        spawn.spawn(Box::pin(tend_log(Arc::downgrade(self), spawn.clone())));
        spawn.spawn(Box::pin(tend_checkpoints(Arc::downgrade(self), spawn.clone())));
        if self.options.discard && self.device().discards() {
            self.room.space().remember_freed();
            spawn.spawn(Box::pin(tend_discards(Arc::downgrade(self))));
        }
    }

    /// Makes the background start a checkpoint.
    pub(crate) fn ask_for_checkpoint(&self) {
        if self.checkpoint.ask() {
            self.wake.notify(usize::MAX);
        }
    }

    fn wake_all(&self) {
        self.checkpoint.notify_ended();
        self.log.notify_drained();
        self.wake.notify(usize::MAX);
    }

    /// True if part of a stream is kept that has not come wholly.
    pub fn keeps_part_of_stream(&self) -> bool {
        self.checkpoint.keeps_part_of_stream()
    }

    /// How much waits for the device.
    #[doc(hidden)]
    pub fn backlog(&self) -> Backlog {
        self.log.backlog()
    }

    /// Exact figures of the allocator.
    pub fn space(&self) -> SpaceCounters {
        self.room.space().counters()
    }

    /// For tests: lets the next `after` allocations pass and fails the `times` allocations that
    /// follow for lack of room. Returns how many were refused since the last call.
    #[doc(hidden)]
    pub fn refuse_allocations(&self, after: u64, times: u64) -> u64 {
        self.room.space().refuse_allocations(after, times)
    }

    /// The counts since the image was opened.
    pub fn counters(&self) -> CountersSnapshot {
        let counters = self.counters.snapshot(self.tracker.counters());
        // The tree reads and verifies metadata, so it counts those errors.
        let tree = self.layers.tree().counters();
        let checksum_errors = counters.checksum_errors + tree.nodes_corrupt;
        let device_reads_failed = counters.device_reads_failed + tree.reads_failed;
        CountersSnapshot { checksum_errors, device_reads_failed, ..counters }
    }

    /// The device's counters since the image was opened.
    pub fn device_counters(&self) -> TrackerCounters {
        self.tracker.counters()
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.tracker.device()
    }
}
