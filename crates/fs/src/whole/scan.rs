//! Scans of key ranges.

use crate::FsError;
use crate::filesystem::Filesystem;
use bytes::Bytes;
use syncline_format::Key;

impl Filesystem {
    /// Calls `each` with every item from `from` to `to`, in order, reading `at_once` of them at a
    /// time.
    pub(crate) async fn each_item(
        &self,
        mut from: Key,
        to: Key,
        at_once: usize,
        mut each: impl FnMut(Key, &Bytes) -> Result<(), FsError> + Send,
    ) -> Result<(), FsError> {
        loop {
            let chunk = self.store.scan(from, to, at_once).await?;
            for (key, value) in &chunk.items {
                each(*key, value)?;
            }
            match chunk.items.last().and_then(|(key, _)| key.next()) {
                Some(next) if !chunk.complete && next <= to => from = next,
                _ => return Ok(()),
            }
        }
    }
}
