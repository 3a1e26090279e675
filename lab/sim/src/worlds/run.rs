//! Runs a workload on the filesystem and keeps everything needed to judge a crash: the device log,
//! the state of the model after each call, and the promises with the times at which they were
//! given.

use super::accounts::{Accounts, judge_answer};
use super::call::{CALLER, call};
use super::disk::Image;
use super::feature::Feature;
use super::judge::difference;
use super::kept::Turn;
use super::state::State;
use super::step::{Path, Persist, Step, Workload};
use crate::content::page;
use crate::model::RenameKind;
use crate::observe::{observe, times};
use crate::{Event, Latency, RecordingDevice, SimDevice, Simulation, ThroughDevice};
use futures_lite::future::yield_now;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{BLOCK_BYTES, Device, Spawn};
use syncline_fs::types::Ino;
use syncline_fs::{AccessTime, Allocation, Clock, Durability, Filesystem, FsError, Options};
use syncline_store::{Canary, Lab, Store, StoreOptions};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The wait after the last sync: long enough for the marker of an idle log, which is written after
/// 200 ms.
const IDLE: Duration = Duration::from_millis(250);
/// An idle time within a workload: also long enough for the write-back of old data, which is due
/// after 5 s.
const LONG_IDLE: Duration = Duration::from_secs(7);

/// One call that was made.
#[derive(Clone, Debug, Default)]
pub(super) struct Ran {
    /// Newest transaction before and after the call.
    pub(super) ops: (u64, u64),
    /// Files whose data the call carries along: a new name (promise P3), or a copy that shares all
    /// blocks. `written` is the file whose data or size it changed.
    pub(super) carried: Vec<Ino>,
    pub(super) written: Option<Ino>,
    /// Blocks of the written file that the call wrote as a page.
    pub(super) page: Option<Range<u64>>,
    /// It was a truncation.
    pub(super) truncation: bool,
    /// The two files of a copy, whose data it logs.
    pub(super) copied: Vec<Ino>,
    /// Blocks of the written file that were replaced in the call's own transaction, even if they
    /// were dirty.
    pub(super) replaced: Option<Range<u64>>,
    /// The directory whose quota the call set.
    pub(super) quota: Option<Ino>,
}

impl Ran {
    /// True if the call changed this file's data in its own transaction: the data is there exactly
    /// if the transaction is.
    pub(super) fn is_ordered_for(&self, ino: Ino) -> bool {
        let ordered = self.truncation || self.replaced.is_some() || self.carried.contains(&ino);
        self.written == Some(ino) && ordered
    }
}

/// The promise of an acknowledged sync about names and attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Names {
    /// All changes up to the sync are durable.
    All,
    /// Only changes of this file's size or names, and all changes before those, are durable: an
    /// fdatasync.
    Of(Ino),
}

/// A sync: what it promised, and when.
#[derive(Clone, Debug)]
pub(super) struct Sync {
    /// Number of calls done when it began.
    pub(super) steps: usize,
    /// Length of the device log when it was acknowledged.
    pub(super) given: usize,
    /// A sync of class `ordered` is never given in that sense. It promises that its data comes back
    /// if this operation does, the newest when it was answered, and that it is durable so much later.
    pub(super) ordered_by: Option<(u64, Duration)>,
    pub(super) names: Names,
    /// Files whose data it promises.
    pub(super) data: Vec<Ino>,
    /// The parts of these files that were not logged come back all or nothing (promise P6).
    pub(super) atomic: bool,
}

/// A run, as needed for judging.
pub(super) struct Run {
    pub(super) base: Image,
    pub(super) events: Vec<Event>,
    /// States after each call; the first is the state before all calls.
    pub(super) states: Vec<State>,
    pub(super) ran: Vec<Ran>,
    pub(super) syncs: Vec<Sync>,
    /// Length of the device log when each operation of the workload began, and at the end.
    pub(super) began: Vec<usize>,
    /// Number of syncs that had been acknowledged when each operation began.
    pub(super) syncs_before: Vec<usize>,
    /// Idle times with room for write-back: number of calls and of syncs before each.
    pub(super) idles: Vec<(usize, usize)>,
    /// Snapshots that were made or deleted.
    pub(super) turns: Vec<Turn>,
}

/// Small values where the engine has a choice; nothing happens by itself in the virtual
/// milliseconds that a workload takes.
pub(super) fn options(
    clock: Arc<dyn Clock>,
    canary: Option<Canary>,
    epoch: [u8; 16],
) -> (StoreOptions, Options) {
    let store = StoreOptions {
        node_cache_bytes: 1 << 20,
        lab: Lab::breaking(canary),
        epoch: Some(epoch),
        discard: true,
        patience: Duration::ZERO,
        ..StoreOptions::default()
    };
    let fs = Options { clock, access_time: AccessTime::Never, cached_inodes_max: 64, ..Options::default() };
    (store, fs)
}

/// Runs `workload` on `base`, which holds `start`.
pub(super) fn run(
    base: &Image,
    start: &State,
    workload: &Workload,
    seed: u64,
    canary: Option<Canary>,
) -> Result<Run, String> {
    let simulation = Simulation::new(seed);
    let device = SimDevice::new(&simulation, base.device(), Latency::default());
    let log = RecordingDevice::new(device);
    // Every second device offers write-through.
    let device: Arc<dyn Device> =
        if seed.is_multiple_of(2) { ThroughDevice::new(log.clone()) } else { log.clone() };
    let spawn = simulation.spawner();
    let (store_options, options) = options(simulation.clock(), canary, *b"the first epoch.");
    let (workload, start, recorder) = (workload.clone(), start.clone(), log.clone());
    let living = async move {
        let (store, _) = Store::open(device, store_options, spawn.clone())
            .await
            .map_err(|error| format!("the base does not open: {error}"))?;
        let fs = Filesystem::open(store, spawn.clone(), options)
            .await
            .map_err(|error| format!("the base's filesystem does not open: {error}"))?;
        let mut runner = Runner::new(fs, recorder, spawn.clone(), start, 0);
        runner.all(&workload).await?;
        runner.begin();
        spawn.sleep(IDLE).await;
        runner.compare_live().await?;
        match runner.fs.counters().submissions_short {
            0 => Ok::<_, String>(runner),
            short => Err(format!("{short} submissions ended with a logged size that was behind")),
        }
    };
    let runner = simulation
        .run(living)
        .map_err(|_| "stalled: the run does not come to its end".to_owned())?
        .map_err(|what| format!("before any crash: {what}"))?;
    let events = log.events();
    let Runner { states, ran, syncs, began, syncs_before, idles, turns, .. } = runner;
    Ok(Run { base: base.clone(), events, states, ran, syncs, began, syncs_before, idles, turns })
}

/// Copies the filesystem's current times into the model's inodes.
pub(super) async fn stamp(fs: &Arc<Filesystem>, state: &mut State) -> Result<(), String> {
    let inos: Vec<Ino> = state.tree.nodes.keys().copied().collect();
    for ino in inos {
        let attributes = fs.getattr(ino).await.map_err(|error| format!("inode {ino}: {error}"))?;
        let times = times(&attributes);
        if state.tree.nodes[&ino].times != times {
            state.node_mut(ino).times = times;
        }
    }
    Ok(())
}

pub(super) struct Runner {
    fs: Arc<Filesystem>,
    log: Arc<RecordingDevice>,
    states: Vec<State>,
    ran: Vec<Ran>,
    syncs: Vec<Sync>,
    began: Vec<usize>,
    syncs_before: Vec<usize>,
    idles: Vec<(usize, usize)>,
    turns: Vec<Turn>,
    spawn: Arc<dyn Spawn>,
    /// The data of the first call has the tag after this number.
    tags: u64,
}

impl Runner {
    pub(super) fn new(
        fs: Arc<Filesystem>,
        log: Arc<RecordingDevice>,
        spawn: Arc<dyn Spawn>,
        start: State,
        tags: u64,
    ) -> Self {
        Self {
            fs,
            log,
            tags,
            states: vec![start],
            ran: Vec::new(),
            syncs: Vec::new(),
            began: Vec::new(),
            syncs_before: Vec::new(),
            idles: Vec::new(),
            turns: Vec::new(),
            spawn,
        }
    }

    fn begin(&mut self) {
        self.began.push(self.log.position());
        self.syncs_before.push(self.syncs.len());
    }

    /// Runs a workload and compares each answer.
    pub(super) async fn all(&mut self, workload: &Workload) -> Result<(), String> {
        for (op, persist) in &workload.0 {
            self.begin();
            let exists = op.path().is_some_and(|path| self.now().find(path).is_ok());
            for step in op.steps(exists) {
                self.step(step).await?;
            }
            self.persist(persist).await?;
        }
        Ok(())
    }

    pub(super) fn now(&self) -> &State {
        self.states.last().expect("there is a first")
    }

    /// Makes one call on the filesystem and on the model, and compares the answers.
    async fn step(&mut self, step: Step) -> Result<(), String> {
        let (before, reflinked) = (self.fs.store().last_op().0, self.fs.counters().reflinked_bytes);
        let tag = self.tags + self.states.len() as u64;
        let (asked, usage) = (self.log.position(), self.fs.quotas());
        let answer = call(&self.fs, self.now(), &step, tag).await;
        let mut state = self.now().clone();
        let expected = state.apply(&step, answer.as_ref().copied().unwrap_or(0), tag);
        let made = answer.as_ref().copied().unwrap_or(0);
        let answer = answer.map(drop);
        let right = judge_answer(&self.fs, self.now(), &step, &usage, answer, expected)?;
        if right != expected {
            state = self.now().clone();
        }
        let expected = right;
        if answer != expected {
            return Err(format!("{step} answered {answer:?}, not {expected:?}"));
        }
        let ops = (before, self.fs.store().last_op().0);
        let mut ran = Ran { ops, ..Ran::default() };
        if expected.is_ok() {
            self.note(&step, self.fs.counters().reflinked_bytes - reflinked, &mut ran);
            if matches!(step, Step::Publish(..)) {
                // The contents came with the name.
                (ran.written, ran.carried) = (Some(made), vec![made]);
            }
            if let Step::Feature(feature) = &step {
                self.note_feature(feature, asked, &mut ran);
            }
            stamp(&self.fs, &mut state).await?;
        }
        self.states.push(state);
        self.ran.push(ran);
        Ok(())
    }

    /// Notes how the call affects file data; `reflinked` bytes of it were shared. The current state
    /// is the one before the call.
    fn note(&self, step: &Step, reflinked: u64, ran: &mut Ran) {
        match step {
            Step::Rename(from, to, kind) => {
                let source = self.now().find(from).ok();
                let target = self.now().find(to).ok();
                if source != target {
                    ran.carried.extend(source);
                    ran.carried.extend(target.filter(|_| *kind == RenameKind::Exchange));
                }
            }
            Step::Link(from, _) => ran.carried.extend(self.now().find(from).ok()),
            Step::Write(at, offset, len) => {
                (ran.written, ran.page) = (self.now().find(at).ok(), page(*offset, *len as u64));
            }
            Step::Append(at, _) => ran.written = self.now().find(at).ok(),
            Step::Transaction(at, ..) => {
                ran.written = self.now().find(at).ok();
                ran.carried.extend(ran.written);
            }
            Step::Truncate(at, _) => (ran.written, ran.truncation) = (self.now().find(at).ok(), true),
            Step::Allocate(at, what, offset, len) => {
                ran.written = self.now().find(at).ok();
                let size =
                    ran.written.and_then(|ino| self.now().tree.nodes[&ino].data()).map_or(0, <[u8]>::len)
                        as u64;
                // Beyond the end of the file its last block is already zero, and stays as it is.
                let first = if *offset < size { offset / BLOCK } else { offset.div_ceil(BLOCK) };
                ran.replaced = match what {
                    // The size comes with the transaction, unless there is dirty data below it.
                    Allocation::Preallocate { .. } | Allocation::UnshareRange { .. } => Some(0..0),
                    Allocation::CollapseRange | Allocation::InsertRange => None,
                    _ => Some(first..(offset + len).div_ceil(BLOCK)),
                };
                match what {
                    // All dirty data was submitted first.
                    Allocation::CollapseRange | Allocation::InsertRange => ran.carried.extend(ran.written),
                    Allocation::UnshareRange { .. } => ran.copied.extend(ran.written),
                    _ => {}
                }
            }
            Step::Copy(from, to) => {
                let [source, destination] = [from, to].map(|path| self.now().find(path).ok());
                let size = source.and_then(|ino| self.now().tree.nodes[&ino].data()).map_or(0, <[u8]>::len);
                ran.written = destination.filter(|_| size > 0);
                ran.copied.extend([source, destination].into_iter().flatten());
                if size > 0 && reflinked == size as u64 {
                    ran.carried.clone_from(&ran.copied);
                }
            }
            _ => {}
        }
    }

    /// Notes what the feature does beyond changing the state: promises, and snapshots made or
    /// deleted.
    fn note_feature(&mut self, feature: &Feature, asked: usize, ran: &mut Ran) {
        let (name, made) = match feature {
            Feature::Snapshot(name) => (name.clone(), true),
            Feature::DeleteSnapshot(name) => (name.clone(), false),
            Feature::Quota(at, _) => {
                ran.quota = self.now().find(at).ok();
                // Data that counts from now on was submitted first.
                ran.copied.extend(self.now().tree.nodes.keys());
                return;
            }
            Feature::Rewrite(at) => {
                ran.copied.extend(self.now().find(at));
                return;
            }
            _ => return,
        };
        let (calls, given) = (self.ran.len(), self.log.position());
        self.turns.push(Turn { name, made, calls, asked, given });
        // In either case it was a checkpoint; and a snapshot keeps all files that it shows.
        let files = self.now().tree.nodes.iter().filter(|(_, node)| made && node.data().is_some());
        let data = files.map(|(ino, _)| *ino).collect();
        let (names, ordered_by) = (Names::All, None);
        self.syncs.push(Sync { steps: calls, given, ordered_by, names, data, atomic: false });
    }

    /// Handles persistence points that may make things durable but promise nothing. Returns false
    /// for all others.
    async fn unpromised(&mut self, persist: &Persist) -> Result<bool, String> {
        match persist {
            Persist::Idle => {
                self.idles.push((self.ran.len(), self.syncs.len()));
                self.spawn.sleep(LONG_IDLE).await;
                self.require_written_back()?;
                self.keep_promises();
            }
            Persist::CheckpointBegun => {
                let store = self.fs.store().clone();
                // The recovered state shows whether it succeeded.
                self.spawn.spawn(Box::pin(async move { drop(store.checkpoint().await) }));
                yield_now().await;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// After an idle time, nothing is dirty, whatever the time of day does.
    fn require_written_back(&self) -> Result<(), String> {
        match self.fs.counters().dirty_bytes {
            0 => Ok(()),
            dirty => Err(format!("{dirty} bytes are still dirty after an idle time")),
        }
    }

    /// After an idle time, earlier changes that ordered syncs promised are durable.
    fn keep_promises(&mut self) {
        let given = self.log.position();
        let is_due = |sync: &&Sync| sync.ordered_by.is_some_and(|(_, within)| within < LONG_IDLE);
        let kept = self.syncs.iter().filter(is_due);
        let kept: Vec<Sync> =
            kept.map(|sync| Sync { given, ordered_by: None, atomic: false, ..sync.clone() }).collect();
        self.syncs.extend(kept);
    }

    async fn persist(&mut self, persist: &Persist) -> Result<(), String> {
        let steps = self.ran.len();
        if self.unpromised(persist).await? {
            return Ok(());
        }
        let ino = |path: &Path| self.now().find(path).ok();
        let files =
            self.now().tree.nodes.iter().filter(|(_, node)| node.data().is_some()).map(|(ino, _)| *ino);
        let (answer, names, data) = match persist {
            Persist::Nothing | Persist::Idle | Persist::CheckpointBegun => return Ok(()),
            Persist::Fsync(path) => {
                let Some(ino) = ino(path) else { return Ok(()) };
                (self.fs.fsync(ino, false).await, Names::All, vec![ino])
            }
            Persist::Fdatasync(path) => {
                let Some(ino) = ino(path) else { return Ok(()) };
                (self.fs.fsync(ino, true).await, Names::Of(ino), vec![ino])
            }
            Persist::SyncMany(one, other) => {
                let many: Vec<Ino> = [ino(one), ino(other)].into_iter().flatten().collect();
                (self.fs.sync_many(&many, CALLER.uid).await, Names::All, many)
            }
            Persist::Syncfs => {
                let all = files.collect();
                (self.fs.syncfs().await, Names::All, all)
            }
            Persist::Checkpoint => {
                (self.fs.store().checkpoint().await.map_err(FsError::from), Names::All, Vec::new())
            }
        };
        answer.map_err(|error| format!("{persist} failed: {error}"))?;
        let atomic = matches!(persist, Persist::SyncMany(..));
        let ordered_by = match persist {
            Persist::Fsync(_) | Persist::Fdatasync(_) | Persist::SyncMany(..) => self.ordered(&data),
            _ => None,
        };
        let given = if ordered_by.is_some() { usize::MAX } else { self.log.position() };
        self.syncs.push(Sync { steps, given, ordered_by, names, data, atomic });
        Ok(())
    }

    /// The promise of a sync of these files if all of them are of class `ordered`.
    fn ordered(&self, files: &[Ino]) -> Option<(u64, Duration)> {
        let within = files.iter().map(|ino| match self.now().tree.nodes[ino].class {
            Some(Durability::Ordered(seconds)) => Some(Duration::from_secs(seconds.into())),
            _ => None,
        });
        let within = within.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        Some((self.fs.store().last_op().0, within))
    }

    /// Checks that before any crash the filesystem shows exactly the model's state.
    pub(super) async fn compare_live(&self) -> Result<(), String> {
        let found = State::of(observe(&self.fs).await?);
        let differs = difference(&found, self.now(), true).map_or(Ok(()), Err);
        let accounts = Accounts::read(&self.fs, &found).await?;
        let right = differs.and_then(|()| accounts.check(self.now(), None, false));
        right.map_err(|what| format!("at the end of the run, {what}"))
    }
}
