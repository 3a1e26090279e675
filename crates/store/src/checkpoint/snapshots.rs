//! Snapshots: the state that a checkpoint wrote, kept under a name.
//!
//! A checkpoint that makes a snapshot writes, beside its nodes and its space map, a new table with
//! one more entry, and its superblock points to that table. So the snapshot exists from the moment
//! that the superblock does, and a crash leaves it whole or not at all. From then on the allocator
//! keeps the blocks that its space map names. Nothing is copied, and the write and fsync paths do
//! not know of it.
//!
//! A checkpoint whose table lacks the snapshot removes it; blocks that only it kept become reusable
//! when that superblock is durable (rule R2).

use super::CheckpointState;
use super::table::{Table, TableChange};
use crate::{Store, StoreError};
use std::pin::Pin;
use syncline_device::Claim;
use syncline_format::snapshots::SNAPSHOTS_MAX;
use syncline_space::KeptMap;

pub use syncline_format::snapshots::{Hold, RECEIVING, Snapshot};

/// Why a snapshot can't be made, found or removed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// No snapshot has this name.
    #[error("there is no snapshot {name:?}; 'syncline snapshot list' lists the snapshots")]
    NotFound {
        /// The requested name.
        name: String,
    },
    /// The snapshot of which a fork is to be made does not exist any more.
    #[error("the snapshot was deleted meanwhile; 'syncline snapshot list' lists the snapshots")]
    Gone,
    /// A fork that is to be released has no hold.
    #[error("nothing is kept for the fork {path}: it was released already")]
    NotHeld {
        /// Where the fork was made.
        path: String,
    },
    /// A snapshot of this name exists already.
    #[error("there is a snapshot {name:?} already; choose another name, or delete that one first")]
    Exists {
        /// The requested name.
        name: String,
    },
    /// The snapshot is mounted or being read.
    #[error(
        "snapshot {name:?} is in use: if it is mounted, unmount it first; if it is being sent or read, wait for the end of that"
    )]
    InUse {
        /// The requested name.
        name: String,
    },
    /// Forks of the snapshot read its blocks.
    #[error(transparent)]
    Forked(#[from] Box<Forked>),
    /// A fork that is to be released is open.
    #[error("the fork {path} is in use: unmount or close it first")]
    ForkInUse {
        /// Where the fork was made.
        path: String,
    },
    /// The image is a fork, and the snapshot the base of it.
    #[error(
        "snapshot {name:?} is the base of this fork, whose blocks lie in another image; after 'syncline fork --detach' it can be deleted"
    )]
    IsBase {
        /// The requested name.
        name: String,
    },
    /// The name is not valid for a snapshot.
    #[error(
        "{name:?} can't be the name of a snapshot: 1 to 255 bytes of UTF-8 without slashes and control characters, \
         and not {RECEIVING:?}"
    )]
    Name {
        /// The requested name.
        name: String,
    },
    /// The image was resized since, so it can't be rolled back to this snapshot.
    #[error(
        "the image had {then_bytes} bytes when snapshot {name:?} was taken, and has {now_bytes}; give it that size again \
         ('syncline resize') and roll back, or mount the snapshot ('mount --snapshot') and copy from it"
    )]
    OtherSize {
        /// The requested name.
        name: String,
        /// The size of the filesystem then.
        then_bytes: u64,
        /// Its size now.
        now_bytes: u64,
    },
    /// The limit on the number of snapshots is reached.
    #[error("there are {SNAPSHOTS_MAX} snapshots and forks, and no more are possible; delete one first")]
    TooMany,
}

impl SnapshotError {
    /// Why a snapshot, or a hold, is not found.
    pub fn not_found(name: &str) -> Self {
        match Hold::of_name(name) {
            Some(hold) => Self::NotHeld { path: hold.path },
            None => Self::NotFound { name: name.to_owned() },
        }
    }

    /// Why a snapshot, or a hold, can't be deleted or read that somebody has claimed.
    pub fn in_use(name: &str) -> Self {
        match Hold::of_name(name) {
            Some(hold) => Self::ForkInUse { path: hold.path },
            None => Self::InUse { name: name.to_owned() },
        }
    }
}

/// The first few of these places.
fn listed(forks: &[String]) -> String {
    const SHOWN: usize = 3;
    let first = forks.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match forks.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// A snapshot that forks read. Boxed in an error, since each request has room for errors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "snapshot {name:?} is the base of {}: remove these forks with 'syncline fork --remove', or keep them and make them independent with \
     'syncline fork --detach'; 'syncline fork --forget BASE FORK' is for a fork whose file is gone",
    listed(forks)
)]
pub struct Forked {
    /// The name of the snapshot.
    pub name: String,
    /// Where the forks were made.
    pub forks: Vec<String>,
}

/// A snapshot, and the space that would come back if it were deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotUsage {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Blocks that nothing else uses.
    pub exclusive_blocks: u64,
}

/// Commits what a snapshot must show beside what is committed already. Boxed, because hardly any
/// checkpoint does it.
pub type Submit<'a, E> =
    &'a (dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), E>> + Send + 'a>> + Sync + 'a);

/// The snapshots, each with the number of blocks that only it uses.
pub(crate) fn usage(entries: Vec<Snapshot>, exclusive: Vec<u64>) -> Vec<SnapshotUsage> {
    let usage = entries.into_iter().zip(exclusive);
    usage.map(|(snapshot, exclusive_blocks)| SnapshotUsage { snapshot, exclusive_blocks }).collect()
}

impl Store {
    /// Makes a snapshot of everything committed so far. It and all that it contains are durable
    /// when this returns.
    pub async fn create_snapshot(&self, name: &str, created_ns: u64) -> Result<Snapshot, StoreError> {
        self.create_snapshot_with(name, created_ns, &|| Box::pin(async { Ok(()) })).await
    }

    /// Makes a snapshot of one moment (promise P10): of everything committed so far, and of the
    /// changes that `submit` commits. From before that call to the cut no change begins (`standstill`). It is
    /// called again if the device refuses the first attempt.
    pub async fn create_snapshot_with<'a, E: From<StoreError>>(
        &self,
        name: &str,
        created_ns: u64,
        submit: Submit<'a, E>,
    ) -> Result<Snapshot, E> {
        if !Snapshot::is_free_name(name) {
            return Err(StoreError::from(SnapshotError::Name { name: name.to_owned() }).into());
        }
        let mut made = self.try_create_snapshot(name, created_ns, submit).await?;
        if matches!(&made, Err(error @ StoreError::Device(_)) if !self.is_end(error))
            && self.health.writable().is_ok()
        {
            tracing::warn!("a snapshot could not be made, and is tried again elsewhere");
            made = self.try_create_snapshot(name, created_ns, submit).await?;
        }
        match self.unless_log_left(made).await? {
            Some(done) => Ok(done),
            None => Ok(self.try_create_snapshot(name, created_ns, submit).await??),
        }
    }

    /// The outer error is that of `submit`.
    async fn try_create_snapshot<E>(
        &self,
        name: &str,
        created_ns: u64,
        submit: Submit<'_, E>,
    ) -> Result<Result<Snapshot, StoreError>, E> {
        let mut state = self.checkpoint.lock().await;
        if let Err(error) = state.table.require_new(name, None) {
            return Ok(Err(error.into()));
        }
        // During the standstill nobody can wait for a checkpoint to make room.
        if self.has_room_after_checkpoint_only()
            && let Err(error) = self.run_checkpoint(&mut state, false).await
        {
            return Ok(Err(error));
        }
        let created_ns = state.table.free_time(created_ns);
        let mut still = self.stand_still(state);
        submit().await?;
        self.give_way();
        let change = TableChange::Create { name: name.to_owned(), created_ns };
        let made = self.run_checkpoint_with(&mut still.checkpoint, false, Some(change)).await;
        Ok(made.and_then(|()| Ok(still.checkpoint.table.find(name)?.clone())))
    }

    /// Keeps the blocks of a snapshot for a fork, beside the snapshot itself. Returns the new entry of
    /// the table, which is durable.
    pub async fn hold_snapshot(&self, hold: &Hold, created_ns: u64) -> Result<Snapshot, StoreError> {
        match self.unless_log_left(self.try_hold_snapshot(hold, created_ns).await).await? {
            Some(done) => Ok(done),
            None => self.try_hold_snapshot(hold, created_ns).await,
        }
    }

    async fn try_hold_snapshot(&self, hold: &Hold, created_ns: u64) -> Result<Snapshot, StoreError> {
        self.health.writable()?;
        let name = hold.name();
        let mut state = self.checkpoint.lock().await;
        let is_held = |entry: &&Snapshot| entry.id == hold.snapshot && entry.is_visible();
        let of = state.table.entries().iter().find(is_held).cloned().ok_or(SnapshotError::Gone)?;
        state.table.require_new(&name, None)?;
        let change = TableChange::Hold {
            of: Box::new(of),
            name: name.clone(),
            created_ns: state.table.free_time(created_ns),
        };
        self.run_checkpoint_with(&mut state, false, Some(change)).await?;
        Ok(state.table.find(&name)?.clone())
    }

    /// Deletes a snapshot that nobody has open, or releases the hold of this name. Blocks that only it kept are free when this
    /// returns.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), StoreError> {
        match self.unless_log_left(self.try_delete_snapshot(name).await).await? {
            Some(done) => Ok(done),
            None => self.try_delete_snapshot(name).await,
        }
    }

    async fn try_delete_snapshot(&self, name: &str) -> Result<(), StoreError> {
        self.health.writable()?;
        let mut state = self.checkpoint.lock().await;
        let id = state.table.find(name)?.id;
        self.require_deletable(&state.table, name, id)?;
        if state.bases.contains(&id) || !self.device().claim_snapshot(id, Claim::Exclusive)? {
            return Err(SnapshotError::in_use(name).into());
        }
        let result = self.delete_claimed(&mut state, id).await;
        self.device().claim_snapshot(id, Claim::Released)?;
        result
    }

    /// Refuses the base of this fork, and a snapshot that has forks.
    fn require_deletable(&self, table: &Table, name: &str, id: u64) -> Result<(), StoreError> {
        let name = name.to_owned();
        if self.superblock().base == id {
            return Err(SnapshotError::IsBase { name }.into());
        }
        match table.forks_of(id) {
            forks if forks.is_empty() => Ok(()),
            forks => Err(SnapshotError::from(Box::new(Forked { name, forks })).into()),
        }
    }

    async fn delete_claimed(&self, state: &mut CheckpointState, id: u64) -> Result<(), StoreError> {
        let rest = state.table.kept_without(&self.pages(), &self.superblock(), Some(id)).await?;
        self.lab_drop_snapshot(&rest);
        self.run_checkpoint_with(state, false, Some(TableChange::Delete { id, rest })).await
    }

    /// The snapshots, in order of creation, and what is kept of a stream.
    pub async fn snapshots(&self) -> Vec<Snapshot> {
        self.checkpoint.lock().await.table.entries().to_vec()
    }

    /// The snapshots, each with the number of blocks that only it uses. Reads their space maps.
    pub async fn snapshot_usage(&self) -> Result<Vec<SnapshotUsage>, StoreError> {
        let state = self.checkpoint.lock().await;
        let now = self.geometry();
        let entries = state.table.entries();
        let maps: Vec<_> = entries.iter().map(|entry| (entry.geometry(now), entry.space)).collect();
        let exclusive = KeptMap::exclusive(&self.pages(), &maps, &self.room.space().named_map()).await?;
        Ok(usage(entries.to_vec(), exclusive))
    }
}

/// Refuses the name of a hold, and that of a stream's received part: half a snapshot, which can't be
/// mounted, sent or rolled back to.
pub fn require_visible(name: &str) -> Result<(), StoreError> {
    match name == RECEIVING || Hold::of_name(name).is_some() {
        true => Err(SnapshotError::NotFound { name: name.to_owned() }.into()),
        false => Ok(()),
    }
}
