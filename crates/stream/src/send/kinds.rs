//! The items of one kind of one file.

use crate::StreamError;
use bytes::Bytes;
use syncline_format::{Key, Kind};
use syncline_fs::Filesystem;
use syncline_fs::types::Ino;

/// Items read at a time.
const ITEMS_EACH: usize = 256;

/// Offsets of keys, and values, in order.
pub(super) struct Kinds<'a> {
    fs: &'a Filesystem,
    from: Option<Key>,
    to: Key,
    read: std::vec::IntoIter<(Key, Bytes)>,
}

impl<'a> Kinds<'a> {
    /// The items of this inode and kind, from this offset on.
    pub fn from(fs: &'a Filesystem, ino: Ino, kind: Kind, offset: u64) -> Self {
        let key = |offset| Key::new(ino, kind, offset);
        Self { fs, from: Some(key(offset)), to: key(u64::MAX), read: Vec::new().into_iter() }
    }

    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StreamError> {
        loop {
            if let Some((key, value)) = self.read.next() {
                return Ok(Some((key.offset, value)));
            }
            let Some(from) = self.from else { return Ok(None) };
            let chunk = self.fs.store().scan(from, self.to, ITEMS_EACH).await?;
            let last = chunk.items.last().map(|(key, _)| *key);
            self.from = last.filter(|_| !chunk.complete).and_then(Key::next);
            self.read = chunk.items.into_iter();
        }
    }
}
