//! Whether a mount for reading has anything to show.

use std::sync::Arc;
use syncline_device::{Device, Spawn};
use syncline_fs::types::ROOT;
use syncline_fs::{Filesystem, Options};
use syncline_store::{Store, StoreOptions};

/// True when an image can be opened for reading, and its root directory can be listed at least in part.
pub async fn can_be_read(device: Arc<dyn Device>, spawn: Arc<dyn Spawn>) -> bool {
    let options = StoreOptions { read_only: true, ..StoreOptions::default() };
    let Ok((store, _)) = Store::open(device, options, spawn.clone()).await else { return false };
    let shows = match Filesystem::open(store.clone(), spawn, Options::default()).await {
        Ok(fs) => {
            let listed = fs.readdir(ROOT, 0, 1).await.is_ok();
            // Nothing is dirty that could be written back.
            let _ = fs.close().await;
            listed
        }
        Err(_) => false,
    };
    let _ = store.close().await;
    shows
}
