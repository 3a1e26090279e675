//! Verifies that everything a mount could read before a repair reads the same after it, byte for
//! byte.
//!
//! Both images are compared item by item. An object whose items are all the same reads the same:
//! the code that reads them is the same, and a repair changes no block that the old image needs
//! (checked separately), except damaged copies of metadata. An object with any different item is read
//! through the filesystem, before and after: attributes, flags, xattrs, symlink target, contents, names.
//! Only data that could be read before counts; where reading failed before, anything may follow.
//!
//! Memory: a few hundred items of each image, and the filesystems' caches.

use crate::error::CheckError;
use bytes::Bytes;
use siphasher::sip::SipHasher24;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use syncline_device::{Device, Spawn};
use syncline_format::items::extent::Extent;
use syncline_format::items::unplaced::PIECES;
use syncline_format::{BLOCK_BYTES, Key, Kind};
use syncline_fs::types::{Attributes, FileType, Ino};
use syncline_fs::{AccessTime, Filesystem, Options};
use syncline_store::{Snapshot, Store, StoreOptions, read_snapshots};

/// Items read at a time.
const ITEMS_EACH: usize = 512;
/// Directory entries read at a time.
const ENTRIES_EACH: usize = 256;
/// Blocks of a file read at a time.
const BLOCKS_EACH: u64 = 32;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Names that the plan leads elsewhere: directory, hash of the name, inode.
pub(crate) type Moved = HashSet<(u64, u64, u64)>;

/// A description of the first thing that would read differently.
pub(crate) type Difference = String;

/// An image as seen through a mount.
struct Shown {
    store: Arc<Store>,
    fs: Option<Arc<Filesystem>>,
}

fn store_options() -> StoreOptions {
    StoreOptions { read_only: true, node_cache_bytes: 16 << 20, ..StoreOptions::default() }
}

fn options() -> Options {
    Options {
        cached_inodes_max: 1024,
        access_time: AccessTime::Never,
        receipts_max: 0,
        dirty_bytes_max: 16 << 20,
        writeback_start_bytes: 1 << 20,
        ..Options::default()
    }
}

impl Shown {
    /// The image before the repair: as a read-only mount shows it or, if it can't be mounted, as
    /// far as it can be read.
    async fn before(device: Arc<dyn Device>, spawn: Arc<dyn Spawn>) -> Result<Self, CheckError> {
        let opened = Store::open(device.clone(), store_options(), spawn.clone()).await;
        let store = match opened {
            Ok((store, _)) => store,
            Err(_) => Store::open_to_salvage(device, spawn.clone()).await?.0,
        };
        let fs = Filesystem::open(store.clone(), spawn, options()).await.ok();
        Ok(Self { store, fs })
    }

    /// The image after the repair, which must mount.
    async fn after(device: Arc<dyn Device>, spawn: Arc<dyn Spawn>) -> Result<Self, Difference> {
        let unusable =
            |error: &dyn std::fmt::Display| format!("the repaired image can't be mounted: {error}");
        let opened = Store::open(device, store_options(), spawn.clone()).await;
        let (store, _) = opened.map_err(|error| unusable(&error))?;
        let fs = Filesystem::open(store.clone(), spawn, options()).await.map_err(|error| unusable(&error))?;
        Ok(Self { store, fs: Some(fs) })
    }

    async fn close(self) {
        if let Some(fs) = self.fs {
            // Nothing is dirty, so the result does not matter.
            let _ = fs.close().await;
        }
        let _ = self.store.close().await;
    }
}

/// Compares the image below with the repaired one over it. An inner `Err` says what would be lost.
pub(crate) async fn compare(
    (before, after): (&Arc<dyn Device>, &Arc<dyn Device>),
    spawn: &Arc<dyn Spawn>,
    moved: &Moved,
    given_up: &[Snapshot],
) -> Result<Result<(), Difference>, CheckError> {
    if let Err(difference) = snapshots(before, after, given_up).await {
        return Ok(Err(difference));
    }
    let was = Shown::before(before.clone(), spawn.clone()).await?;
    let is = match Shown::after(after.clone(), spawn.clone()).await {
        Ok(is) => is,
        Err(difference) => {
            was.close().await;
            return Ok(Err(difference));
        }
    };
    let result = match (&was.fs, &is.fs) {
        (Some(was), Some(is)) => {
            let hasher = SipHasher24::new_with_key(&was.store().hash_seed());
            Comparison { was: was.clone(), is: is.clone(), hasher, moved }.run().await
        }
        // Nothing could be read through a mount before.
        _ => Ok(()),
    };
    was.close().await;
    is.close().await;
    Ok(result)
}

/// Checks that the image also mounts for writing. `device` is discarded afterwards.
pub(crate) async fn mounts(device: Arc<dyn Device>, spawn: &Arc<dyn Spawn>) -> Result<(), Difference> {
    let refused = |error: &dyn std::fmt::Display| format!("the repaired image can't be mounted: {error}");
    let opened = Store::open(device, StoreOptions::default(), spawn.clone()).await;
    let (store, _) = opened.map_err(|error| refused(&error))?;
    let fs = Filesystem::open(store.clone(), spawn.clone(), options()).await;
    let closed = match fs {
        Ok(fs) => fs.close().await.map_err(|error| refused(&error)),
        Err(error) => Err(refused(&error)),
    };
    let checkpointed = store.close().await.map_err(|error| refused(&error));
    closed.and(checkpointed)
}

/// Checks that all snapshots still exist, except for those given up. Another check shows that
/// nothing wrote to their blocks.
async fn snapshots(
    before: &Arc<dyn Device>,
    after: &Arc<dyn Device>,
    given_up: &[Snapshot],
) -> Result<(), Difference> {
    let Ok((_, was)) = read_snapshots(before).await else { return Ok(()) };
    let is = read_snapshots(after).await.map(|(_, entries)| entries).unwrap_or_default();
    match was.iter().find(|snapshot| !is.contains(snapshot) && !given_up.contains(snapshot)) {
        Some(lost) => Err(format!("snapshot {:?} would be gone", lost.name)),
        None => Ok(()),
    }
}

/// The items of an image, in order; unreadable ones are skipped.
struct Items<'a> {
    store: &'a Store,
    from: Option<Key>,
    ready: VecDeque<(Key, Bytes)>,
}

impl<'a> Items<'a> {
    fn new(store: &'a Store) -> Self {
        Self { store, from: Some(Key::MIN), ready: VecDeque::new() }
    }

    /// Returns the next item without taking it.
    async fn peek(&mut self) -> Option<(Key, Bytes)> {
        while self.ready.is_empty() {
            let from = self.from?;
            let chunk = self.store.scan_readable(from, Key::MAX, ITEMS_EACH, &mut |_| {}).await;
            self.from = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
            self.ready = chunk.items.into();
        }
        self.ready.front().cloned()
    }

    fn pass(&mut self) {
        self.ready.pop_front();
    }
}

struct Comparison<'a> {
    was: Arc<Filesystem>,
    is: Arc<Filesystem>,
    hasher: SipHasher24,
    moved: &'a Moved,
}

impl Comparison<'_> {
    /// Walks all items and compares the objects that differ.
    async fn run(&self) -> Result<(), Difference> {
        let (mut was, mut is) = (Items::new(self.was.store()), Items::new(self.is.store()));
        let mut open: Option<(u64, bool)> = None;
        loop {
            let (one, other) = (was.peek().await, is.peek().await);
            let keys = [&one, &other].into_iter().flatten().map(|(key, _)| *key);
            let Some(least) = keys.min() else { break };
            if open.is_none_or(|(object, _)| object != least.object) {
                self.end(open).await?;
                open = Some((least.object, false));
            }
            let same = one == other;
            open = open.map(|(object, differs)| (object, differs || !same));
            if one.is_some_and(|(key, _)| key == least) {
                was.pass();
            }
            if other.is_some_and(|(key, _)| key == least) {
                is.pass();
            }
        }
        self.end(open).await
    }

    async fn end(&self, object: Option<(u64, bool)>) -> Result<(), Difference> {
        match object {
            // Object 0 has marks, counts and sums, which no program can read.
            Some((ino, true)) if ino != 0 => self.object(ino).await,
            _ => Ok(()),
        }
    }

    async fn object(&self, ino: Ino) -> Result<(), Difference> {
        let lost = |what: &str| format!("{what} of inode {ino} would not read as before");
        let Ok(was) = self.was.getattr(ino).await else { return Ok(()) };
        let target = match was.file_type {
            FileType::Symlink => self.was.readlink(ino).await.ok(),
            _ => None,
        };
        if was.file_type == FileType::Symlink && target.is_none() {
            // A symlink without its target is useless and may be removed.
            return Ok(());
        }
        let is = self.is.getattr(ino).await.map_err(|error| format!("inode {ino} would be lost: {error}"))?;
        if visible(&was) != visible(&is) {
            return Err(lost("the attributes"));
        }
        let flags = (self.was.file_flags(ino).await.ok(), self.is.file_flags(ino).await.ok());
        if flags.0.is_some() && flags.0 != flags.1 {
            return Err(lost("the flags"));
        }
        self.xattrs(ino).await?;
        match was.file_type {
            FileType::Symlink => {
                let same = self.is.readlink(ino).await.is_ok_and(|now| Some(now) == target);
                if same { Ok(()) } else { Err(lost("the target")) }
            }
            FileType::Directory => self.names(ino).await,
            FileType::Regular => self.contents(ino, was.size).await,
            _ => Ok(()),
        }
    }

    async fn xattrs(&self, ino: Ino) -> Result<(), Difference> {
        let Ok(listing) = self.was.listxattr(ino).await else { return Ok(()) };
        for name in listing.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let Ok(was) = self.was.getxattr(ino, name).await else { continue };
            if self.is.getxattr(ino, name).await.ok() != Some(was) {
                let name = String::from_utf8_lossy(name);
                return Err(format!(
                    "the extended attribute {name:?} of inode {ino} would not read as before"
                ));
            }
        }
        Ok(())
    }

    /// Checks that every name leads to the same inode, except the names that the plan moves.
    async fn names(&self, ino: Ino) -> Result<(), Difference> {
        let mut after = 0;
        while let Ok(entries) = self.was.readdir(ino, after, ENTRIES_EACH).await {
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            for entry in entries.iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
                let Ok(was) = self.was.lookup(ino, &entry.name).await else { continue };
                self.was.forget(was.ino, 1);
                let is = self.is.lookup(ino, &entry.name).await;
                if let Ok(is) = &is {
                    self.is.forget(is.ino, 1);
                }
                let moved = (ino, self.hasher.hash(&entry.name), was.ino);
                // The check of the whole result has already verified that every remaining inode has
                // a name.
                let told = self.moved.contains(&moved) && self.is.getattr(was.ino).await.is_ok();
                let same = is.is_ok_and(|is| is.ino == was.ino);
                if !same && !told && !self.may_go(was.ino).await {
                    let name = String::from_utf8_lossy(&entry.name);
                    return Err(format!("the name {name:?} in directory {ino} would not lead where it did"));
                }
            }
        }
        Ok(())
    }

    /// True for an inode that may be removed with its names: a symlink whose target can't be read.
    async fn may_go(&self, ino: Ino) -> bool {
        let Ok(was) = self.was.getattr(ino).await else { return true };
        was.file_type == FileType::Symlink && self.was.readlink(ino).await.is_err()
    }

    /// Compares every block for which the file has an item, before or after, and its first and last
    /// block.
    async fn contents(&self, ino: Ino, size: u64) -> Result<(), Difference> {
        let end = size.div_ceil(BLOCK);
        self.range(ino, 0..end.min(1), size).await?;
        self.range(ino, end.saturating_sub(1)..end, size).await?;
        for kind in [Kind::Extent, Kind::Unplaced] {
            for (fs, other) in [(&self.was, None), (&self.is, Some(&self.was))] {
                self.items(ino, kind, fs, other, size).await?;
            }
        }
        Ok(())
    }

    /// Compares the blocks that items of one kind cover. Items that `other` also has were already
    /// compared.
    async fn items(
        &self,
        ino: Ino,
        kind: Kind,
        fs: &Filesystem,
        other: Option<&Arc<Filesystem>>,
        size: u64,
    ) -> Result<(), Difference> {
        let (mut from, to) = (Some(Key::new(ino, kind, 0)), Key::new(ino, kind, u64::MAX));
        while let Some(start) = from {
            let chunk = fs.store().scan_readable(start, to, ITEMS_EACH, &mut |_| {}).await;
            from = chunk.items.last().and_then(|(key, _)| key.next()).filter(|_| !chunk.complete);
            for (key, value) in &chunk.items {
                if let Some(other) = other
                    && other.store().get(*key).await.is_ok_and(|found| found.as_ref() == Some(value))
                {
                    continue;
                }
                let blocks = match kind {
                    Kind::Unplaced => key.offset / PIECES..key.offset / PIECES + 1,
                    _ => match Extent::decode(key.offset, value) {
                        Ok(extent) => extent.file_block..extent.end(),
                        Err(_) => continue,
                    },
                };
                self.range(ino, blocks, size).await?;
            }
        }
        Ok(())
    }

    /// Compares blocks of a file; if they can't be read together, each is read separately.
    async fn range(&self, ino: Ino, blocks: std::ops::Range<u64>, size: u64) -> Result<(), Difference> {
        let end = blocks.end.min(size.div_ceil(BLOCK));
        let mut at = blocks.start;
        while at < end {
            let next = end.min(at + BLOCKS_EACH);
            match read(&self.was, ino, at..next, size).await {
                Some(was) => self.same(ino, at..next, size, &was).await?,
                None => {
                    for block in at..next {
                        if let Some(was) = read(&self.was, ino, block..block + 1, size).await {
                            self.same(ino, block..block + 1, size, &was).await?;
                        }
                    }
                }
            }
            at = next;
        }
        Ok(())
    }

    async fn same(
        &self,
        ino: Ino,
        blocks: std::ops::Range<u64>,
        size: u64,
        was: &[u8],
    ) -> Result<(), Difference> {
        let first = blocks.start;
        match read(&self.is, ino, blocks, size).await {
            Some(is) if is == was => Ok(()),
            _ => Err(format!("what inode {ino} holds from block {first} on would not read as before")),
        }
    }
}

/// Bytes of a file; `None` when they can't be read.
async fn read(fs: &Filesystem, ino: Ino, blocks: std::ops::Range<u64>, size: u64) -> Option<Vec<u8>> {
    let (from, to) = (blocks.start * BLOCK, (blocks.end * BLOCK).min(size));
    let pieces = fs.read(ino, from, to.saturating_sub(from) as usize).await.ok()?;
    Some(pieces.concat())
}

/// The attributes that a repair never changes: without the recomputed counts and the size of a
/// symlink.
fn visible(attributes: &Attributes) -> Attributes {
    let size = match attributes.file_type {
        FileType::Regular => attributes.size,
        _ => 0,
    };
    Attributes { nlink: 0, blocks: 0, size, ..*attributes }
}
