//! The changes acknowledged as durable, and when.

use super::world::World;
use parking_lot::Mutex;
use syncline_fs::types::Ino;

/// From this position of the device's record on, these changes and all before them survive.
#[derive(Clone)]
pub struct Acknowledged {
    pub position: usize,
    /// Changes of files with an owner: index of the file, and number of the change.
    pub files: Vec<(usize, usize)>,
    /// Changes of directories with an owner; empty if nothing was promised of them.
    pub directories: Vec<usize>,
    /// The newest transaction committed when the sync began; zero if it promised less.
    pub op: u64,
}

#[derive(Default)]
pub struct Ledger {
    acknowledged: Mutex<Vec<Acknowledged>>,
}

impl Ledger {
    /// The promise of a sync of these files that is about to begin: everything that has returned.
    /// An fdatasync promises nothing about names. To be recorded when the sync has returned.
    pub fn promise(world: &World, inos: &[Ino], data_only: bool) -> Acknowledged {
        let owned = world.owned.iter().enumerate().filter(|(_, file)| inos.contains(&file.ino));
        let directories = world.directories.iter().filter(|_| !data_only);
        Acknowledged {
            position: usize::MAX,
            files: owned.map(|(index, file)| (index, file.history.returned())).collect(),
            directories: directories.map(|directory| directory.history.returned()).collect(),
            op: if data_only { 0 } else { world.mount.fs.store().last_change().0 },
        }
    }

    /// Records the promise once the sync has returned.
    pub fn record(&self, world: &World, promise: Acknowledged) {
        let mut acknowledged = self.acknowledged.lock();
        acknowledged.push(Acknowledged { position: world.mount.recording.position(), ..promise });
    }

    /// All that was acknowledged.
    pub fn all(&self) -> Vec<Acknowledged> {
        self.acknowledged.lock().clone()
    }

    /// Positions of the record at which something was acknowledged.
    pub fn positions(&self) -> Vec<usize> {
        self.acknowledged.lock().iter().map(|acknowledged| acknowledged.position).collect()
    }

    /// The newest change of an owned file that a power cut at `position` must preserve.
    pub fn of_file(&self, index: usize, position: usize) -> usize {
        let acknowledged = self.acknowledged.lock();
        let before = acknowledged.iter().filter(|acknowledged| acknowledged.position <= position);
        before
            .flat_map(|acknowledged| &acknowledged.files)
            .filter(|(of, _)| *of == index)
            .map(|(_, change)| *change)
            .max()
            .unwrap_or(0)
    }

    /// The newest transaction that a power cut at `position` must preserve.
    pub fn op(&self, position: usize) -> u64 {
        let acknowledged = self.acknowledged.lock();
        let before = acknowledged.iter().filter(|acknowledged| acknowledged.position <= position);
        before.map(|acknowledged| acknowledged.op).max().unwrap_or(0)
    }

    /// The newest change of an owned directory that a power cut at `position` must preserve.
    pub fn of_directory(&self, index: usize, position: usize) -> usize {
        let acknowledged = self.acknowledged.lock();
        let before = acknowledged.iter().filter(|acknowledged| acknowledged.position <= position);
        before.filter_map(|acknowledged| acknowledged.directories.get(index)).copied().max().unwrap_or(0)
    }
}

/// The changes of one thread in order, and its progress. The first state is the one before all
/// changes.
pub struct History<S> {
    states: Mutex<Vec<S>>,
    returned: std::sync::atomic::AtomicUsize,
}

impl<S: Clone> History<S> {
    pub fn beginning_with(state: S) -> Self {
        Self { states: Mutex::new(vec![state]), returned: 0.into() }
    }

    /// Records the start of a change that leads to this state.
    pub fn begin(&self, state: S) {
        self.states.lock().push(state);
    }

    /// Records the return of the current change, with the resulting state if more is known now.
    pub fn end(&self, state: Option<S>) {
        let mut states = self.states.lock();
        let last = states.len() - 1;
        if let Some(state) = state {
            states[last] = state;
        }
        self.returned.store(last, std::sync::atomic::Ordering::SeqCst);
    }

    /// Records that the current change was refused and had no effect.
    pub fn refuse(&self) {
        let mut states = self.states.lock();
        states.pop();
    }

    /// Number of the newest change that has returned.
    pub fn returned(&self) -> usize {
        self.returned.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// The states from after change `first` up to now.
    pub fn since(&self, first: usize) -> Vec<S> {
        self.states.lock()[first..].to_vec()
    }

    /// The current state, for its owner.
    pub fn present(&self) -> S {
        let states = self.states.lock();
        states[states.len() - 1].clone()
    }
}
