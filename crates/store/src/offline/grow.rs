//! Making a filesystem larger that is not in use.

use crate::checkpoint::{check_growth, read_superblocks};
use crate::{RecoveryReport, Store, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{Device, Spawn};

impl Store {
    /// Opens an image as [`open`](Self::open) does, and makes its filesystem `total_blocks` large,
    /// durably. The device already has that many blocks; anything on it behind the filesystem's old
    /// end is lost.
    pub async fn grow(
        device: Arc<dyn Device>,
        options: StoreOptions,
        spawn: Arc<dyn Spawn>,
        total_blocks: u64,
    ) -> Result<(Arc<Self>, RecoveryReport), StoreError> {
        if options.read_only {
            let text = "an image that is opened for reading does not grow";
            return Err(StoreError::Unusable(text.into()));
        }
        let present = read_superblocks(&device).await?.superblock.geometry;
        // Check before anything is written.
        check_growth(device.size_bytes(), present, total_blocks)?;
        let (store, report) = Self::open(device, options, spawn).await?;
        store.enlarge_to(total_blocks).await?;
        Ok((store, report))
    }
}
