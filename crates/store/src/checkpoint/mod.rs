//! The checkpoint: it merges a frozen memtable into the tree and writes a superblock. Snapshots are
//! roots that checkpoints keep. Others ask for a checkpoint, and for the newest superblock.

mod bracket;
mod due;
mod features;
mod grow;
mod run;
mod slots;
mod snapshots;
mod standstill;
mod table;

pub use bracket::{Bracket, Quiet};
pub use slots::{ReadSlots, WIPED, read_superblocks};
pub use snapshots::{
    Forked, Hold, RECEIVING, Snapshot, SnapshotError, SnapshotUsage, Submit, require_visible,
};

pub(crate) use due::tend_checkpoints;
pub(crate) use grow::check_growth;
pub(crate) use slots::{GENERATION_OF_MKFS, write_slot};
pub(crate) use snapshots::usage;
pub(crate) use table::{Adopted, NewTable, Replaced, Table, TableChange};

use bracket::HeldOff;
use standstill::Gate;
use syncline_format::Epoch;
use syncline_format::superblock::Superblock;
use syncline_sync::asynchronous::MutexGuard;
use syncline_sync::atomic::{AtomicBool, Ordering};
use syncline_sync::{Event, EventListener, RwLock};

/// The checkpoints of an open store, and the superblock of the newest one.
pub(crate) struct Checkpoints {
    state: syncline_sync::asynchronous::Mutex<CheckpointState>,
    /// The superblock that recovery found or the newest checkpoint wrote.
    superblock: RwLock<Superblock>,
    /// A limit was reached that requires a checkpoint.
    due: AtomicBool,
    /// Notified when a checkpoint ends, successful or not.
    ended: Event,
    /// The table of snapshots has part of a stream.
    part_of_stream: AtomicBool,
    /// Held while the image is being enlarged.
    growing: syncline_sync::asynchronous::Mutex<()>,
    held_off: HeldOff,
    /// Closed during a standstill.
    gate: Gate,
}

/// State that one checkpoint passes to the next; its lock allows only one checkpoint at a time.
pub(crate) struct CheckpointState {
    /// The slot of the newest durable superblock.
    slot: usize,
    epoch: Epoch,
    /// The table of snapshots.
    table: Table,
    /// Snapshots that branches of this store began with. (Claims keep only others away.)
    bases: Vec<u64>,
    /// A checkpoint of this epoch is durable, so the state that recovery started from is gone.
    is_open: bool,
    /// The last checkpoint is durable.
    is_closed: bool,
}

impl Checkpoints {
    /// The checkpoints that follow `superblock`, whose log has this epoch.
    pub(crate) fn new(superblock: Superblock, epoch: Epoch) -> Self {
        let state = CheckpointState {
            slot: 0,
            epoch,
            table: Table::default(),
            bases: Vec::new(),
            is_open: false,
            is_closed: false,
        };
        Self {
            state: syncline_sync::asynchronous::Mutex::new(state),
            superblock: RwLock::new(superblock),
            due: AtomicBool::new(false),
            ended: Event::new(),
            part_of_stream: AtomicBool::new(false),
            growing: Default::default(),
            held_off: HeldOff::default(),
            gate: Gate::default(),
        }
    }

    /// Notes the slot that the superblock was read from, and its table of snapshots.
    pub(crate) async fn follow(&self, slot: usize, table: Table) {
        let mut state = self.state.lock().await;
        (state.slot, state.table) = (slot, table);
        self.note_table(&state.table);
    }

    /// Waits until no checkpoint is running, and keeps others away.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, CheckpointState> {
        self.state.lock().await
    }

    /// Like `lock`; `None` if a checkpoint is running.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, CheckpointState>> {
        self.state.try_lock()
    }

    /// Calls `look` with the newest superblock, under its lock. `look` must take no lock: this one is the last
    /// in the lock order.
    pub(crate) fn superblock<T>(&self, look: impl FnOnce(&Superblock) -> T) -> T {
        look(&self.superblock.read())
    }

    /// Notes that a checkpoint is due; true if that is news.
    pub(crate) fn ask(&self) -> bool {
        !self.due.swap(true, Ordering::AcqRel)
    }

    /// Completes when a checkpoint ends, successful or not.
    pub(crate) fn listen_ended(&self) -> EventListener {
        self.ended.listen()
    }

    /// Wakes those who wait for the end of a checkpoint.
    pub(crate) fn notify_ended(&self) {
        self.ended.notify(usize::MAX);
    }

    /// True if part of a stream is kept that has not come wholly.
    pub(crate) fn keeps_part_of_stream(&self) -> bool {
        self.part_of_stream.load(Ordering::Acquire)
    }

    /// Remembers what a table has that people ask for.
    fn note_table(&self, table: &Table) {
        let is_there = table.entries().iter().any(Snapshot::is_receiving);
        self.part_of_stream.store(is_there, Ordering::Release);
    }
}

impl CheckpointState {
    /// True once the last checkpoint is written: another process may write to the image.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The table of snapshots.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Keeps a snapshot for a branch that begins with it.
    pub(crate) fn add_base(&mut self, id: u64) {
        self.bases.push(id);
    }

    /// Ends that for one branch; true if another one still needs the snapshot.
    pub(crate) fn drop_base(&mut self, id: u64) -> bool {
        if let Some(at) = self.bases.iter().position(|base| *base == id) {
            self.bases.swap_remove(at);
        }
        self.bases.contains(&id)
    }
}
