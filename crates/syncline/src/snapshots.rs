//! Snapshots of a whole image.

use crate::error::Result;
use crate::filesystem::{Filesystem, background};
use crate::options::ImageOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline_device::{Device, OpenOptions, block_on};
use syncline_fs::Change;
use syncline_image::{How, Image};
use syncline_store::{SnapshotUsage, Store, StoreError, StoreOptions, require_visible};

/// A snapshot of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The name.
    pub name: String,
    /// Time of creation.
    pub created: SystemTime,
    /// Bytes that the snapshot uses, most of them shared with the current state or other snapshots.
    pub used_bytes: u64,
    /// Bytes that only this snapshot uses, which deleting it frees.
    pub exclusive_bytes: u64,
}

impl From<SnapshotUsage> for Snapshot {
    fn from(usage: SnapshotUsage) -> Self {
        const BLOCK: u64 = syncline_device::BLOCK_BYTES as u64;
        Self {
            created: UNIX_EPOCH + Duration::from_nanos(usage.snapshot.created_ns),
            used_bytes: usage.snapshot.used_blocks * BLOCK,
            exclusive_bytes: usage.exclusive_blocks * BLOCK,
            name: usage.snapshot.name,
        }
    }
}

impl Filesystem {
    /// Makes a snapshot. This takes the same time whatever the size of the image. Everything
    /// written before this call is in it, and it is durable when this returns.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        block_on(self.engine().create_snapshot(name))?;
        Ok(())
    }

    /// Deletes a snapshot that is not open. The space that only it used is free when this returns.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        Ok(block_on(self.engine().delete_snapshot(name))?)
    }

    /// The snapshots of an image file or block device, which may be open or mounted, as of its last
    /// checkpoint.
    pub fn snapshots_of(path: impl AsRef<Path>) -> Result<Vec<Snapshot>> {
        let options = OpenOptions { beside_writer: true, ..OpenOptions::default() };
        let device = Image::open(path, &How::new(options))?.device();
        let usage = block_on(syncline_store::snapshot_usage(&device))?;
        Ok(usage.into_iter().filter(|usage| usage.snapshot.is_visible()).map(Snapshot::from).collect())
    }

    /// The snapshots, in the order of creation. Reads their space maps.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        Ok(block_on(self.engine().snapshots())?.into_iter().map(Snapshot::from).collect())
    }

    /// Opens a snapshot of an image file or block device, read-only. The image itself may be open
    /// or mounted for writing at the same time, by this process or another; the snapshot can't be
    /// deleted while it is open.
    pub fn open_snapshot(path: impl AsRef<Path>, name: &str, options: ImageOptions) -> Result<Self> {
        let device = OpenOptions { beside_writer: true, ..options.device() };
        Self::open_snapshot_device(Image::open(path, &How::new(device))?.device(), name, options)
    }

    /// Opens a snapshot like [`open_snapshot`](Self::open_snapshot), on a device of any kind.
    pub fn open_snapshot_device(device: Arc<dyn Device>, name: &str, options: ImageOptions) -> Result<Self> {
        require_visible(name)?;
        Self::open_with(options, async |store_options, spawn| {
            let (store, _) = Store::open_snapshot(device, store_options, spawn, name).await?;
            Ok::<_, StoreError>((store, Default::default()))
        })
    }

    /// Fails if [`Self::roll_back`] would refuse: if the snapshot does not exist or has another
    /// size. Changes nothing.
    pub fn require_rollback(path: impl AsRef<Path>, name: &str) -> Result<()> {
        require_visible(name)?;
        let options = OpenOptions { beside_writer: true, ..OpenOptions::default() };
        let device = Image::open(path, &How::new(options))?.device();
        Ok(block_on(syncline_store::require_rollback(&device, name))?)
    }

    /// Returns the image to the state of the snapshot. All later changes are lost, and all
    /// snapshots stay. The image must not be open.
    pub fn roll_back(path: impl AsRef<Path>, name: &str) -> Result<()> {
        require_visible(name)?;
        let device = Image::open(path, &How::default())?.device();
        let background = background()?;
        let rolled_back = block_on(async {
            // Opening recovers the image after a crash, so that there is no log left to lose.
            // Damage in the present state does not matter: recovery reads only the parts of the
            // tree that the log changes.
            let (store, _) = Store::open(device.clone(), StoreOptions::default(), background.clone()).await?;
            store.close().await?;
            syncline_store::roll_back(device, name).await
        });
        Ok(rolled_back.map(drop)?)
    }

    /// The changes since `before`, an older snapshot of the same image, in the order of the paths.
    /// Both must be open read-only. Takes time in proportion to the changes; needs parent pointers.
    pub fn changes_since(&self, before: &Filesystem) -> Result<Vec<Change>> {
        Ok(block_on(self.engine().changes_since(before.engine()))?)
    }
}
