//! Features that an image gets when they are first used.

use crate::{Store, StoreError};

impl Store {
    /// True when the image has all of these features.
    pub fn has_features(&self, features: u32) -> bool {
        self.superblock.read().features & features == features
    }

    /// Gives the image features, and returns when a durable superblock says so: only then may anything be logged that a
    /// program without them does not know.
    pub async fn add_features(&self, features: u32) -> Result<(), StoreError> {
        // Whoever holds it is the only one to write superblocks.
        let mut state = self.checkpoint.lock().await;
        let before = self.superblock.read().features;
        if before & features == features {
            return Ok(());
        }
        self.superblock.write().features |= features;
        let result = self.run_checkpoint(&mut state, false).await;
        if result.is_err() {
            self.superblock.write().features = before;
        }
        result
    }
}
