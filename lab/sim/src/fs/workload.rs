//! The workload on the filesystem: several tasks at once on few names, so that they collide.

use super::history::FsHistory;
use crate::lab::World;
use crate::model::{Place, Tree};
use parking_lot::Mutex;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_format::superblock::FEATURE_SNAPSHOTS;
use syncline_fs::types::Ino;
use syncline_fs::{Filesystem, FsError};
use syncline_store::StoreError;
use syncline_sync::asynchronous::RwLock;

/// Runs the tasks to their ends, or to the first failure.
pub(super) async fn work(
    world: World,
    fs: Arc<Filesystem>,
    history: Arc<FsHistory>,
    mix: Mix,
) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed ^ 0xf5);
    let (least, most) = world.load.actions;
    let actions = rng.random_range(least..most);
    // Some lives fill the image, so that every place that can run out of room does.
    let crowded = rng.random_range(0..if world.load.pressure { 3 } else { 10 }) == 0;
    let outcome: Arc<Mutex<(u32, Option<String>)>> = Arc::new(Mutex::new((world.load.tasks, None)));
    let names = Arc::new(RwLock::new(()));
    for index in 0..world.load.tasks {
        let mut rng = ChaCha8Rng::seed_from_u64(rng.random());
        let actions = world.actions(index, actions, &mut rng);
        let mut task = Task {
            rng,
            world: world.clone(),
            fs: fs.clone(),
            history: history.clone(),
            opened: Vec::new(),
            names: names.clone(),
            mix,
            crowded: crowded && index == 0,
        };
        let outcome = outcome.clone();
        world.spawn.spawn(Box::pin(async move {
            let result = task.run(actions).await;
            let mut outcome = outcome.lock();
            outcome.0 -= 1;
            if let Err(error) = result {
                outcome.1.get_or_insert(error);
            }
        }));
    }
    loop {
        world.nap(200).await;
        let mut outcome = outcome.lock();
        if let Some(error) = outcome.1.take() {
            return Err(error);
        }
        if outcome.0 == 0 {
            break;
        }
    }
    match fs.counters().submissions_short {
        0 => history.tree().map(drop),
        short => Err(format!("{short} submissions ended with a logged size that was behind")),
    }
}

/// The kinds of actions that tasks perform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mix {
    /// Names, attributes and data.
    Plain,
    /// Names, attributes and data, and all other features of the filesystem.
    Everything,
    /// Names, attributes and data, with many writes of pages, as databases make them.
    Pages,
}

/// Runs the workload beside one more task, which runs until it is told to stop.
pub(super) async fn work_beside<B: Future<Output = Result<(), String>> + Send + 'static>(
    world: World,
    fs: Arc<Filesystem>,
    history: Arc<FsHistory>,
    mix: Mix,
    beside: impl FnOnce(Arc<AtomicBool>) -> B,
) -> Result<(), String> {
    let stopping = Arc::new(AtomicBool::new(false));
    let outcome = Arc::new(Mutex::new(None));
    {
        let (work, outcome) = (beside(stopping.clone()), outcome.clone());
        world.spawn.spawn(Box::pin(async move {
            let ended = work.await;
            *outcome.lock() = Some(ended);
        }));
    }
    let worked = work(world.clone(), fs, history, mix).await;
    stopping.store(true, Ordering::Release);
    loop {
        if let Some(ended) = outcome.lock().take() {
            return worked.and(ended);
        }
        world.nap(100).await;
    }
}

/// One user of the filesystem.
pub(super) struct Task {
    pub(super) rng: ChaCha8Rng,
    pub(super) world: World,
    pub(super) fs: Arc<Filesystem>,
    pub(super) history: Arc<FsHistory>,
    /// Files it holds open.
    pub(super) opened: Vec<Ino>,
    /// Held for writing by a task that makes a transaction: the files and names in it must not
    /// change before the transaction is recorded. Held for reading by each action that does more
    /// than sync.
    pub(super) names: Arc<RwLock<()>>,
    mix: Mix,
    /// Fills the image before doing anything else.
    crowded: bool,
}

/// The outcome of an action that did not succeed.
pub(super) enum Failure {
    /// An error that a busy filesystem may return.
    Expected,
    /// An error because the device failed.
    Device(FsError),
    /// A violation.
    Wrong(String),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        match error {
            // Another task was faster, or room is scarce on so small an image: these are answers,
            // not failures.
            FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::Invalid(_)
            | FsError::NotPermitted
            | FsError::NoAttribute
            | FsError::Stale
            | FsError::CrossDevice
            | FsError::QuotaExceeded
            | FsError::QuotaNested
            | FsError::NoQuota
            | FsError::Store(StoreError::NoSpace | StoreError::Snapshot(_)) => Self::Expected,
            other => Self::Device(other),
        }
    }
}

pub(super) type Done = Result<(), Failure>;

/// The violation that an operation which makes room found none.
const NO_ROOM: &str = "a removal or a sync found no room";

/// Checks that an operation found room even on a full image: it draws on the reserve, or on room
/// set aside before.
#[track_caller]
pub(super) fn finds_room<T>(answer: Result<T, FsError>) -> Result<T, Failure> {
    match answer {
        Err(FsError::Store(StoreError::NoSpace)) => Err(Failure::Wrong(NO_ROOM.to_owned())),
        Err(FsError::QuotaExceeded) => {
            let place = std::panic::Location::caller();
            Err(Failure::Wrong(format!("what needs no room of its own lacked quota (at {place})")))
        }
        answer => Ok(answer?),
    }
}

impl Task {
    async fn run(&mut self, actions: Vec<u64>) -> Result<(), String> {
        let mut filling = self.crowded;
        for action in actions {
            // A seed of its own for each action: leaving one out does not change the others.
            self.rng = ChaCha8Rng::seed_from_u64(action);
            let done = if filling { self.fill_beside().await } else { self.act().await };
            filling = false;
            match done {
                Ok(()) | Err(Failure::Expected) => {}
                Err(Failure::Device(FsError::Store(StoreError::ReadOnly { .. }))) if self.world.faulty => {
                    break;
                }
                Err(Failure::Device(_)) if self.world.faulty => {}
                Err(Failure::Device(error)) => return Err(format!("an operation failed: {error}")),
                // A snapshot may keep what is removed, so removing makes no room.
                Err(Failure::Wrong(what))
                    if what == NO_ROOM && self.fs.store().has_features(FEATURE_SNAPSHOTS) => {}
                Err(Failure::Wrong(what)) => return Err(what),
            }
        }
        for ino in std::mem::take(&mut self.opened) {
            self.fs.release_file(ino);
        }
        Ok(())
    }

    async fn fill_beside(&mut self) -> Done {
        let names = self.names.clone();
        let _names = names.read().await;
        self.fill().await
    }

    async fn act(&mut self) -> Done {
        if self.mix == Mix::Everything && self.rng.random_range(0..8) == 0 {
            let names = self.names.clone();
            let _names = names.read().await;
            return self.use_feature().await;
        }
        if self.mix == Mix::Pages && self.rng.random_range(0..3) > 0 {
            let names = self.names.clone();
            let _names = names.read().await;
            return self.write_pages().await;
        }
        let action = self.rng.random_range(0..100);
        if action == 99 {
            return self.transaction().await;
        }
        let names = self.names.clone();
        let syncs = matches!(action, 68..88 | 98);
        let _names = if syncs { None } else { Some(names.read().await) };
        match action {
            0..11 => self.create().await,
            11 => self.publish().await,
            12..15 => self.mkdir().await,
            15..17 => self.symlink().await,
            17..34 => self.write().await,
            34..37 => self.allocate().await,
            37..42 => self.truncate().await,
            42..50 => self.rename().await,
            50..54 => self.replace_by_rename().await,
            54..57 => self.link().await,
            57..63 => self.unlink().await,
            63..64 => self.rmdir().await,
            64..68 => self.change_attributes().await,
            68..80 => self.fsync().await,
            80..83 => self.fsync_directory().await,
            83..87 => self.sync_many().await,
            87..88 => self.syncfs().await,
            88..92 => self.read().await,
            92..94 => self.hold_open().await,
            94..97 => self.copy_range().await,
            97 => self.clone_file().await,
            _ => {
                let longest = if self.rng.random_range(0..8) == 0 { 230_000 } else { 6_000 };
                self.world.nap(self.rng.random_range(0..longest)).await;
                Ok(())
            }
        }
    }

    pub(super) fn tree(&self) -> Result<Tree, Failure> {
        self.history.tree().map_err(Failure::Wrong)
    }

    /// A name that may or may not exist.
    pub(super) fn random_place(&mut self) -> Result<Place, Failure> {
        let tree = self.tree()?;
        let parent = *tree.directories().choose(&mut self.rng).expect("there is a root");
        let name = format!("n{}", self.rng.random_range(0..7)).into_bytes();
        Ok(Place { parent, name })
    }

    /// A name that existed a moment ago.
    pub(super) fn existing_place(&mut self) -> Result<Place, Failure> {
        self.tree()?.places().choose(&mut self.rng).cloned().ok_or(Failure::Expected)
    }

    /// A file that had a name a moment ago.
    pub(super) fn random_file(&mut self) -> Result<Ino, Failure> {
        self.tree()?.files().choose(&mut self.rng).copied().ok_or(Failure::Expected)
    }

    /// Records in the history that changes up to `op` were acknowledged.
    pub(super) fn promise(&self, op: u64) {
        self.history.promise(self.world.log.position(), op, None);
    }
}
