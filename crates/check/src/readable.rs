//! Whether a read-only mount would have anything to show.

use std::sync::Arc;
use syncline_device::{Device, Spawn};
use syncline_fs::types::ROOT;
use syncline_fs::{Filesystem, Options};
use syncline_store::{Store, StoreOptions, read_snapshots};

/// The part of an image that a read-only mount can show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Readable {
    /// Its root directory can be listed, at least in part.
    Present,
    /// Only the root directory of a snapshot can be listed; this is the newest such snapshot.
    Snapshot(String),
    /// No root directory can be listed.
    Nothing,
}

/// Tries to open the image read-only and, if that fails, its snapshots.
pub async fn what_can_be_read(device: Arc<dyn Device>, spawn: Arc<dyn Spawn>) -> Readable {
    let options = || StoreOptions { read_only: true, ..StoreOptions::default() };
    if let Ok((store, _)) = Store::open(device.clone(), options(), spawn.clone()).await
        && has_root(store, spawn.clone()).await
    {
        return Readable::Present;
    }
    let snapshots = read_snapshots(&device).await.map(|(_, snapshots)| snapshots).unwrap_or_default();
    for snapshot in snapshots.into_iter().rev() {
        let opened = Store::open_snapshot(device.clone(), options(), spawn.clone(), &snapshot.name).await;
        if let Ok((store, _)) = opened
            && has_root(store, spawn.clone()).await
        {
            return Readable::Snapshot(snapshot.name);
        }
    }
    Readable::Nothing
}

async fn has_root(store: Arc<Store>, spawn: Arc<dyn Spawn>) -> bool {
    let shows = match Filesystem::open(store.clone(), spawn, Options::default()).await {
        Ok(fs) => {
            let listed = fs.readdir(ROOT, 0, 1).await.is_ok();
            // Nothing is dirty, so the result does not matter.
            let _ = fs.close().await;
            listed
        }
        Err(_) => false,
    };
    let _ = store.close().await;
    shows
}
