//! Listing directories.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::names::directory::decode_entry;
use crate::types::{Attributes, DirectoryEntry, FileType, Ino, Timestamp};
use std::sync::Arc;
use syncline_format::{Key, Kind};
use syncline_store::Canary;

/// Cookies 1 and 2 are "." and ".."; the cookie of an entry is its offset plus this.
const COOKIE_BASE: u64 = 3;
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;
/// Most entries read at a time, whatever the caller asks for.
const ENTRIES_MAX: usize = 4096;

impl Filesystem {
    /// At most `max_entries` entries that follow `after_cookie` (0: from the start), including "."
    /// and ".."; empty at the end. A cookie stays valid while the directory changes: it stands for
    /// a position, not for an entry.
    pub async fn readdir(
        &self,
        ino: Ino,
        after_cookie: u64,
        max_entries: usize,
    ) -> Result<Vec<DirectoryEntry>, FsError> {
        let dir = self.directory(ino).await?;
        self.ease_access().await;
        let _lease = dir.lease.read().await;
        self.touch_access(&dir);
        self.list(&dir, after_cookie, max_entries).await
    }

    /// Like `readdir`, with attributes. Counts a kernel reference for each entry but
    /// "." and "..". An entry whose inode can't be read has attributes with inode number 0 and no
    /// reference, so that one bad inode does not hide its neighbours.
    pub async fn readdir_plus(
        &self,
        ino: Ino,
        after_cookie: u64,
        max_entries: usize,
    ) -> Result<Vec<(DirectoryEntry, Attributes)>, FsError> {
        let dir = self.directory(ino).await?;
        self.ease_access().await;
        // Under the lease no name goes away, so every inode is referenced before it could be
        // removed.
        let _lease = dir.lease.read().await;
        self.touch_access(&dir);
        let entries = self.list(&dir, after_cookie, max_entries).await?;
        let mut listing = Vec::with_capacity(entries.len());
        for entry in entries {
            let attributes = match self.inode(entry.ino).await {
                Ok(inode) => inode.state.lock().attributes(),
                Err(error) => {
                    tracing::error!(ino = entry.ino, directory = ino, %error, "an entry's inode can't be read");
                    unreadable(entry.file_type)
                }
            };
            if attributes.ino != 0 && entry.cookie >= COOKIE_BASE {
                self.references.add(entry.ino);
            }
            listing.push((entry, attributes));
        }
        Ok(listing)
    }

    /// The entries after a cookie. The caller holds the directory's lease.
    async fn list(
        &self,
        dir: &Arc<Inode>,
        after_cookie: u64,
        max_entries: usize,
    ) -> Result<Vec<DirectoryEntry>, FsError> {
        let (parent, removed, empty) = {
            let state = dir.state.lock();
            (state.meta.parent, state.attr.nlink == 0, state.attr.size == 0)
        };
        let mut entries = Vec::new();
        let max_entries = max_entries.min(ENTRIES_MAX);
        for (cookie, name, ino) in [(COOKIE_SELF, &b"."[..], dir.ino), (COOKIE_PARENT, b"..", parent)] {
            if after_cookie < cookie && entries.len() < max_entries && !removed {
                let name = name.to_vec();
                entries.push(DirectoryEntry { name, ino, file_type: FileType::Directory, cookie });
            }
        }
        if empty {
            // Avoids a walk over what may be a million entries just removed.
            return Ok(entries);
        }
        // The offset of cookie c is c - COOKIE_BASE; the following entries start one later.
        let from = after_cookie.saturating_sub(COOKIE_BASE - 1);
        let mut from = Key::new(dir.ino, Kind::Dirent, from);
        let to = Key::new(dir.ino, Kind::Dirent, u64::MAX);
        while entries.len() < max_entries {
            let chunk = self.store.scan(from, to, max_entries - entries.len()).await?;
            for (key, value) in &chunk.items {
                let (entry, name) = decode_entry(*key, value)?;
                let cookie = entry
                    .offset
                    .checked_add(COOKIE_BASE)
                    .filter(|&cookie| i64::try_from(cookie).is_ok())
                    .ok_or(FsError::corrupt(dir.ino, "directory entry", "offset"))?;
                let (ino, file_type) = (entry.ino, entry.file_type);
                entries.push(DirectoryEntry { name: name.to_vec(), ino, file_type, cookie });
            }
            match chunk.items.last().and_then(|(key, _)| key.next()) {
                Some(next) if !chunk.complete && next <= to => from = next,
                _ => break,
            }
        }
        if self.store.breaks(Canary::StaleListing) {
            let newest = entries.iter().map(|entry| entry.ino).max();
            entries.retain(|entry| entry.cookie < COOKIE_BASE || Some(entry.ino) != newest);
        }
        Ok(entries)
    }
}

/// Placeholder for attributes that can't be read.
fn unreadable(file_type: FileType) -> Attributes {
    let never = Timestamp::default();
    Attributes {
        ino: 0,
        file_type,
        permissions: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
    }
}
