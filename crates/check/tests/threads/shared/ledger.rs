//! What was acknowledged as durable, and when.

use super::world::World;
use parking_lot::Mutex;
use syncline_fs::types::Ino;

/// From a position of the device's record on, these changes, and all before them, survive.
#[derive(Clone)]
pub struct Acknowledged {
    pub position: usize,
    /// Changes of files with an owner, by the index of the file.
    pub files: Vec<(usize, usize)>,
    /// Changes of the directories with an owner; empty if nothing was promised of them.
    pub directories: Vec<usize>,
    /// All that was committed when the sync began; zero if it promised less than that.
    pub op: u64,
}

#[derive(Default)]
pub struct Ledger {
    acknowledged: Mutex<Vec<Acknowledged>>,
}

impl Ledger {
    /// What a sync of these files that is about to begin will promise: all that has returned. An fdatasync promises nothing of
    /// names. Record it when the sync has returned.
    pub fn promise(world: &World, inos: &[Ino], data_only: bool) -> Acknowledged {
        let owned = world.owned.iter().enumerate().filter(|(_, file)| inos.contains(&file.ino));
        let directories = world.directories.iter().filter(|_| !data_only);
        Acknowledged {
            position: usize::MAX,
            files: owned.map(|(index, file)| (index, file.history.returned())).collect(),
            directories: directories.map(|directory| directory.history.returned()).collect(),
            op: if data_only { 0 } else { world.mount.fs.store().last_op().0 },
        }
    }

    /// The sync has returned.
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

    /// The newest change of an owned file that a power cut at `position` must leave.
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

    /// The newest transaction that a power cut at `position` must leave.
    pub fn op(&self, position: usize) -> u64 {
        let acknowledged = self.acknowledged.lock();
        let before = acknowledged.iter().filter(|acknowledged| acknowledged.position <= position);
        before.map(|acknowledged| acknowledged.op).max().unwrap_or(0)
    }

    /// The same of an owned directory.
    pub fn of_directory(&self, index: usize, position: usize) -> usize {
        let acknowledged = self.acknowledged.lock();
        let before = acknowledged.iter().filter(|acknowledged| acknowledged.position <= position);
        before.filter_map(|acknowledged| acknowledged.directories.get(index)).copied().max().unwrap_or(0)
    }
}

/// What one thread changed, in order, and how far it is. The first state is that before all changes.
pub struct History<S> {
    states: Mutex<Vec<S>>,
    returned: std::sync::atomic::AtomicUsize,
}

impl<S: Clone> History<S> {
    pub fn beginning_with(state: S) -> Self {
        Self { states: Mutex::new(vec![state]), returned: 0.into() }
    }

    /// A change begins that leads to this state.
    pub fn begin(&self, state: S) {
        self.states.lock().push(state);
    }

    /// The change that has begun has returned; it led to this state, if more is known now.
    pub fn end(&self, state: Option<S>) {
        let mut states = self.states.lock();
        let last = states.len() - 1;
        if let Some(state) = state {
            states[last] = state;
        }
        self.returned.store(last, std::sync::atomic::Ordering::SeqCst);
    }

    /// The change that has begun was refused: nothing has happened.
    pub fn refuse(&self) {
        let mut states = self.states.lock();
        states.pop();
    }

    /// Number of the newest change that has returned.
    pub fn returned(&self) -> usize {
        self.returned.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// The states from that after change `first` on, up to now.
    pub fn since(&self, first: usize) -> Vec<S> {
        self.states.lock()[first..].to_vec()
    }

    /// The present state, to its owner.
    pub fn present(&self) -> S {
        let states = self.states.lock();
        states[states.len() - 1].clone()
    }
}
