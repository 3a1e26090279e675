//! The stream of a whole snapshot: all inodes with their contents, then all names, then all
//! attributes. Three passes over the items, and no list of them.

use super::contents::Contents;
use super::places::Places;
use super::{attributes, decode, make, quotas, xattrs};
use crate::{Record, StreamError, Writer};
use bytes::Bytes;
use std::io::Write;
use syncline_format::items::dirent::Dirent;
use syncline_format::{Key, Kind};
use syncline_fs::types::{Ino, ROOT};
use syncline_fs::{Filesystem, FsError};

/// Items read at a time.
pub(super) const ITEMS_EACH: usize = 1024;

/// Writes the records.
pub(super) async fn send<W: Write>(fs: &Filesystem, writer: &mut Writer<W>) -> Result<(), StreamError> {
    let mut places = Places::default();
    let mut inodes = Items::of(fs, Kind::Inode);
    while let Some((key, value)) = inodes.next().await? {
        let (ino, item) = (key.object, decode(key.object, &value)?);
        if item.nlink == 0 {
            continue;
        }
        if ino != ROOT {
            writer.put(&make(fs, ino, &item).await?)?;
        }
        let contents = Contents { fs, ino, item: &item, ranges: None };
        contents.send(&mut places, writer).await?;
        for (name, value) in xattrs(fs, ino, &item).await? {
            writer.put(&Record::Xattr { ino, name, value })?;
        }
    }
    let mut names = Items::of(fs, Kind::Dirent);
    while let Some((key, value)) = names.next().await? {
        let entry = Dirent::decode(&value).map_err(|detail| FsError::Corrupt { ino: key.object, detail })?;
        writer.put(&Record::Place { ino: entry.ino, dir: key.object, name: entry.name.to_vec() })?;
    }
    quotas(fs, writer).await?;
    let mut inodes = Items::of(fs, Kind::Inode);
    while let Some((key, value)) = inodes.next().await? {
        let item = decode(key.object, &value)?;
        if item.nlink > 0 {
            writer.put(&attributes(key.object, &item))?;
        }
    }
    Ok(())
}

/// All items of a kind, in the order of their keys.
pub(super) struct Items<'a> {
    fs: &'a Filesystem,
    kind: Kind,
    from: Option<Key>,
    read: std::vec::IntoIter<(Key, Bytes)>,
}

impl<'a> Items<'a> {
    pub(super) fn of(fs: &'a Filesystem, kind: Kind) -> Self {
        Self { fs, kind, from: Some(Key::new(ROOT, Kind::Inode, 0)), read: Vec::new().into_iter() }
    }

    pub(super) async fn next(&mut self) -> Result<Option<(Key, Bytes)>, StreamError> {
        loop {
            if let Some((key, value)) = self.read.next() {
                if key.kind == self.kind as u8 {
                    return Ok(Some((key, value)));
                }
                continue;
            }
            let Some(from) = self.from else { return Ok(None) };
            let chunk = self.fs.store().scan(from, Key::MAX, ITEMS_EACH).await?;
            let last: Option<Key> = chunk.items.last().map(|(key, _)| *key);
            self.from = last.filter(|_| !chunk.complete).and_then(|key| self.after(key));
            self.read = chunk.items.into_iter();
        }
    }

    /// Where the next item of the kind can be, if all up to `key` are read.
    fn after(&self, key: Key) -> Option<Key> {
        if key.kind < self.kind as u8 {
            return Some(Key::new(key.object, self.kind, 0));
        }
        let next: Option<Ino> = key.object.checked_add(1);
        match key.kind > self.kind as u8 {
            true => next.map(|object| Key::new(object, self.kind, 0)),
            false => key.next(),
        }
    }
}
