//! The single actions: each calls the filesystem and records the answer in the history.

use super::has_access_times;
use super::history::{Accessed, FsHistory};
use super::tracked::{Did, tracked, tracked_each};
use super::workload::{Done, Failure, Task, finds_room};
use crate::block_of;
use crate::content::contents_of;
use crate::model::{Body, Change, Node, Place};
use bytes::Bytes;
use rand::Rng;
use rand::seq::IndexedRandom;
use std::future::Future;
use std::sync::Arc;
use syncline_fs::types::{Attributes, Caller, FileType, Ino, RenameFlags, SetAttributes, XattrMode};
use syncline_fs::{Durability, Filesystem, FsError};

pub(super) const CALLER: Caller = Caller { uid: 1000, gid: 100 };
/// Most directories: few, so that tasks collide.
const DIRECTORIES_MAX: usize = 6;

/// An open file whose data only the holder changes, so that the order of changes is known.
pub(super) struct Claim {
    fs: Arc<Filesystem>,
    history: Arc<FsHistory>,
    ino: Ino,
    opened: bool,
    /// The claim lasts for the rest of this life.
    kept: bool,
}

impl Claim {
    /// The file.
    pub(super) fn ino(&self) -> Ino {
        self.ino
    }

    /// Keeps the claim for the rest of this life.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.opened {
            self.fs.release_file(self.ino);
        }
        if !self.kept {
            self.history.release(self.ino);
        }
    }
}

impl Task {
    /// Runs an operation and returns its answer with the newest transaction it committed.
    pub(super) async fn tracked<T>(
        &self,
        operation: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Result<(T, Option<u64>), Failure> {
        let (answer, did) = tracked(&self.fs, operation).await;
        Ok((answer?, did.committed.last().copied()))
    }

    /// Like `tracked`, for an operation that must have committed something.
    pub(super) async fn changed<T>(
        &self,
        operation: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Result<(T, u64), Failure> {
        let begun = self.history.now();
        let (answer, op) = self.tracked(operation).await?;
        match op {
            Some(op) => {
                self.history.begun(op, begun);
                Ok((answer, op))
            }
            None => {
                Err(Failure::Wrong("an operation said that it was done and committed nothing".to_owned()))
            }
        }
    }

    /// Like `changed`, for an operation that must find room even on a full image.
    async fn changed_with_room<T>(
        &self,
        operation: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Result<(T, u64), Failure> {
        let begun = self.history.now();
        let (answer, did) = tracked(&self.fs, operation).await;
        let answer = finds_room(answer)?;
        let op = did.committed.last().copied();
        op.iter().for_each(|op| self.history.begun(*op, begun));
        op.map(|op| (answer, op)).ok_or_else(|| Failure::Wrong("a removal committed nothing".to_owned()))
    }

    /// Writes a new file until there is no room.
    pub(super) async fn fill(&mut self) -> Done {
        let at = Place { parent: syncline_fs::types::ROOT, name: b"fill".to_vec() };
        let (fs, place) = (self.fs.clone(), at.clone());
        let creating =
            async move { fs.mknod(CALLER, place.parent, &place.name, FileType::Regular, 0o600, 0).await };
        let (attributes, op) = self.changed(creating).await?;
        self.created(at, &attributes, Body::File(()), op);
        let _claim = self.claim(attributes.ino).await?;
        loop {
            let size = self.history.with_file(attributes.ino, |file| file.size());
            self.write_claimed_at(attributes.ino, size, 700_000).await?;
        }
    }

    fn created(&mut self, at: Place, attributes: &Attributes, body: Body, op: u64) {
        let node = Node::new(body, attributes.permissions);
        self.history.changed(op, Change::Create { at, ino: attributes.ino, node });
        // The kernel would keep it in its cache for a while.
        if self.rng.random_range(0..4) > 0 {
            self.fs.forget(attributes.ino, 1);
        }
    }

    pub(super) async fn create(&mut self) -> Done {
        let at = self.random_place()?;
        let (fs, place) = (self.fs.clone(), at.clone());
        let creating =
            async move { fs.mknod(CALLER, place.parent, &place.name, FileType::Regular, 0o644, 0).await };
        let (attributes, op) = self.changed(creating).await?;
        self.created(at, &attributes, Body::File(()), op);
        if self.rng.random() { self.write_to(attributes.ino).await } else { Ok(()) }
    }

    /// Makes a file appear complete, as programs do: creates it without a name, writes it, then
    /// links it. Or drops it instead.
    pub(super) async fn publish(&mut self) -> Done {
        let at = self.random_place()?;
        let linkable = self.rng.random_range(0..8) > 0;
        let made = self.fs.tmpfile(CALLER, at.parent, 0o600, linkable).await?;
        let published = self.publish_as(at, &made).await;
        self.fs.release_file(made.ino);
        self.fs.forget(made.ino, 1);
        published
    }

    async fn publish_as(&mut self, at: Place, made: &Attributes) -> Done {
        let ino = made.ino;
        // Inherited from the directory at creation; no other task knows the file yet.
        let compression = self.fs.file_flags(ino).await?.compression;
        let class = self.fs.durability(ino).await?.0;
        self.write_to(ino).await?;
        if self.rng.random_range(0..3) == 0 {
            self.fsync_file(ino).await?;
        }
        let started = self.history.now();
        let (fs, place) = (self.fs.clone(), at.clone());
        let linking = async move { fs.link(ino, place.parent, &place.name).await };
        let (_, op) = self.changed(linking).await?;
        let node = Node { compression, class, ..Node::new(Body::File(()), made.permissions) };
        self.history.changed(op, Change::Publish { at, ino, node, started });
        self.fs.forget(ino, 1);
        Ok(())
    }

    pub(super) async fn mkdir(&mut self) -> Done {
        if self.tree()?.directories().len() >= DIRECTORIES_MAX {
            return Ok(());
        }
        let at = self.random_place()?;
        let (fs, place) = (self.fs.clone(), at.clone());
        let making = async move { fs.mkdir(CALLER, place.parent, &place.name, 0o755).await };
        let (attributes, op) = self.changed(making).await?;
        self.created(at, &attributes, Body::Directory(Default::default()), op);
        Ok(())
    }

    pub(super) async fn symlink(&mut self) -> Done {
        let at = self.random_place()?;
        let len = if self.rng.random() { 20 } else { self.rng.random_range(1..4000) };
        let target = vec![b't'; len];
        let (fs, place, to) = (self.fs.clone(), at.clone(), target.clone());
        let making = async move { fs.symlink(CALLER, place.parent, &place.name, &to).await };
        let (attributes, op) = self.changed(making).await?;
        self.created(at, &attributes, Body::Symlink(target), op);
        Ok(())
    }

    pub(super) async fn link(&mut self) -> Done {
        let (ino, at) = (self.random_file()?, self.random_place()?);
        let (fs, place, started) = (self.fs.clone(), at.clone(), self.history.now());
        let linking = async move { fs.link(ino, place.parent, &place.name).await };
        let (_, op) = self.changed(linking).await?;
        self.history.changed(op, Change::Link { ino, at, started });
        self.fs.forget(ino, 1);
        Ok(())
    }

    pub(super) async fn unlink(&mut self) -> Done {
        let at = self.existing_place()?;
        let (fs, place) = (self.fs.clone(), at.clone());
        let removing = async move { fs.unlink(place.parent, &place.name).await };
        let ((), op) = self.changed_with_room(removing).await?;
        self.history.changed(op, Change::Remove { at });
        Ok(())
    }

    pub(super) async fn rmdir(&mut self) -> Done {
        let at = self.existing_place()?;
        let (fs, place) = (self.fs.clone(), at.clone());
        let removing = async move { fs.rmdir(place.parent, &place.name).await };
        let ((), op) = self.changed_with_room(removing).await?;
        self.history.changed(op, Change::Remove { at });
        Ok(())
    }

    pub(super) async fn rename(&mut self) -> Done {
        let from = self.existing_place()?;
        let to = if self.rng.random() { self.existing_place()? } else { self.random_place()? };
        let exchange = self.rng.random_range(0..6) == 0;
        self.rename_to(from, to, exchange).await
    }

    async fn rename_to(&mut self, from: Place, to: Place, exchange: bool) -> Done {
        let started = self.history.now();
        let (fs, one, other) = (self.fs.clone(), from.clone(), to.clone());
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        let renaming =
            async move { fs.rename(one.parent, &one.name, other.parent, &other.name, flags).await };
        let (answer, did) = tracked(&self.fs, renaming).await;
        answer?;
        // Both names are of one inode: nothing happened, though its data may have been submitted.
        if let Some(op) = did.committed.last().filter(|_| did.renamed > 0) {
            self.history.begun(*op, started);
            self.history.changed(*op, Change::Rename { from, to, exchange, started });
        }
        Ok(())
    }

    /// Replaces a file, as programs do: writes another and renames it over the first, with or
    /// without an fsync.
    pub(super) async fn replace_by_rename(&mut self) -> Done {
        let to = self.existing_place()?;
        let from = Place { parent: to.parent, name: format!("tmp{}", self.history.new_tag()).into_bytes() };
        let (fs, place) = (self.fs.clone(), from.clone());
        let creating =
            async move { fs.mknod(CALLER, place.parent, &place.name, FileType::Regular, 0o600, 0).await };
        let (attributes, op) = self.changed(creating).await?;
        self.created(from.clone(), &attributes, Body::File(()), op);
        self.write_to(attributes.ino).await?;
        if self.rng.random_range(0..3) == 0 {
            self.fsync_file(attributes.ino).await?;
        }
        self.rename_to(from, to, false).await
    }

    pub(super) async fn change_attributes(&mut self) -> Done {
        let tree = self.tree()?;
        let inos: Vec<Ino> = tree.nodes.keys().copied().collect();
        let ino = *inos.choose(&mut self.rng).expect("there is a root");
        let fs = self.fs.clone();
        let name = format!("user.x{}", self.rng.random_range(0..4)).into_bytes();
        match self.rng.random_range(0..4) {
            0 => {
                let permissions = self.rng.random_range(0..0o777);
                let set = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
                let (_, op) = self.changed(async move { fs.setattr(CALLER, ino, set).await }).await?;
                self.history.changed(op, Change::Permissions { ino, permissions });
            }
            1 => {
                let gone = name.clone();
                let ((), op) = self.changed(async move { fs.removexattr(ino, &gone).await }).await?;
                self.history.changed(op, Change::RemoveXattr { ino, name });
            }
            _ => {
                let len = if self.rng.random() { 30 } else { self.rng.random_range(0..5000) };
                let value: Vec<u8> =
                    block_of(self.history.new_tag(), 0).into_iter().cycle().take(len).collect();
                let (key, new) = (name.clone(), value.clone());
                let setting = async move { fs.setxattr(ino, &key, &new, XattrMode::Set).await };
                let ((), op) = self.changed(setting).await?;
                self.history.changed(op, Change::SetXattr { ino, name, value });
            }
        }
        Ok(())
    }

    pub(super) async fn write(&mut self) -> Done {
        let ino = match self.opened.choose(&mut self.rng) {
            Some(ino) if self.rng.random_range(0..4) == 0 => *ino,
            _ => self.random_file()?,
        };
        self.write_to(ino).await
    }

    /// Opens a file and claims its data.
    pub(super) async fn claim(&self, ino: Ino) -> Result<Claim, Failure> {
        if !self.history.claim(ino) {
            return Err(Failure::Expected);
        }
        let mut claim =
            Claim { fs: self.fs.clone(), history: self.history.clone(), ino, opened: false, kept: false };
        self.fs.open_file(ino).await?;
        claim.opened = true;
        Ok(claim)
    }

    async fn write_to(&mut self, ino: Ino) -> Done {
        let _claim = self.claim(ino).await?;
        self.write_claimed(ino).await
    }

    /// Writes a few pages of a file, of one size or of another, that are there, lie apart or follow its
    /// end.
    pub(super) async fn write_pages(&mut self) -> Done {
        let ino = self.random_file()?;
        let _claim = self.claim(ino).await?;
        for _ in 0..self.rng.random_range(1..5) {
            let size = self.history.with_file(ino, |file| file.size());
            let len = 8192_u64 << self.rng.random_range(0..4);
            let last = size.div_ceil(len).min(400_000 / len);
            let beyond = u64::from(self.rng.random_range(0..4) == 0);
            let page = self.rng.random_range(0..=last + beyond);
            let data = contents_of(self.history.new_tag(), len as usize);
            self.write_contents(ino, Some(page * len), data).await?;
        }
        Ok(())
    }

    async fn write_claimed(&mut self, ino: Ino) -> Done {
        let size = self.history.with_file(ino, |file| file.size());
        let (offset, len) = self.random_range_of(size);
        self.write_claimed_at(ino, offset, len).await
    }

    async fn write_claimed_at(&mut self, ino: Ino, offset: u64, len: usize) -> Done {
        let tag = self.history.new_tag();
        let data = contents_of(tag, len);
        let append = self.rng.random_range(0..4) == 0;
        self.write_contents(ino, (!append).then_some(offset), data).await
    }

    /// Writes at an offset or, without one, at the end.
    pub(super) async fn write_contents(&self, ino: Ino, offset: Option<u64>, data: Vec<u8>) -> Done {
        let len = data.len();
        // Always aligned, so that runs are repeatable: the filesystem copies an unaligned payload,
        // and memory addresses are random.
        let payload: Bytes = syncline_device::AlignedBuf::copy_from(&data).into_bytes().slice(..len);
        let begun = self.history.now();
        let written = match offset {
            None => self.fs.append(ino, payload, false).await.map(|offset| (offset, len)),
            // On a full filesystem it writes a part.
            Some(offset) => {
                let written = self.fs.write_what_fits(ino, offset, payload, false).await;
                written.map(|fits| (offset, fits))
            }
        };
        tracing::trace!(ino, offset, len, ?written, "write");
        let (offset, fits) = written?;
        let time = self.history.tick();
        self.history.with_file(ino, |file| file.write_begun(begun, time, offset, &data[..fits]));
        Ok(())
    }

    /// A range that may be small or large, aligned or not, inside, across or beyond the end.
    pub(super) fn random_range_of(&mut self, size: u64) -> (u64, usize) {
        let rng = &mut self.rng;
        let offset = match rng.random_range(0..6) {
            0 => 0,
            1 | 2 => size,
            3 => rng.random_range(0..=size),
            4 => rng.random_range(0..=size) / 4096 * 4096,
            _ => rng.random_range(0..size + 20_000),
        };
        let len = match rng.random_range(0..8) {
            0..3 => rng.random_range(1..300),
            3 => 4096,
            4 => 4096 * rng.random_range(1..8),
            5 => rng.random_range(1..60_000),
            6 => rng.random_range(1..200_000),
            _ => rng.random_range(1..9000),
        };
        (offset.min(600_000), len)
    }

    pub(super) async fn truncate(&mut self) -> Done {
        let ino = self.random_file()?;
        let _claim = self.claim(ino).await?;
        let size = self.history.with_file(ino, |file| file.size());
        let (new_size, _) = self.random_range_of(size);
        let set = SetAttributes { size: Some(new_size), ..SetAttributes::default() };
        let (fs, history) = (self.fs.clone(), self.history.clone());
        let setting = async move { fs.setattr(CALLER, ino, set).await };
        // The first transaction truncates. A file with many extents needs more of them, and other
        // tasks run in between. Before a file grows, extents that an earlier truncation left behind
        // its end are removed.
        let mut noted = new_size >= size;
        let each = move |did: &Did| {
            if let (false, Some(op)) = (noted, did.committed.first()) {
                history.truncated(ino, *op, new_size);
                noted = true;
            }
        };
        let (answer, did) = tracked_each(&self.fs, setting, each).await;
        tracing::trace!(ino, new_size, error = ?answer.as_ref().err(), "truncate");
        answer?;
        let Some(op) = did.committed.last() else {
            return Err(Failure::Wrong(
                "a truncation said that it was done and committed nothing".to_owned(),
            ));
        };
        if new_size >= size {
            self.history.truncated(ino, *op, new_size);
        }
        Ok(())
    }

    pub(super) async fn fsync(&mut self) -> Done {
        let ino = self.random_file()?;
        self.fsync_file(ino).await
    }

    async fn fsync_file(&mut self, ino: Ino) -> Done {
        let data_only = self.rng.random_range(0..3) == 0;
        let (started, everything) = (self.history.now(), self.fs.store().last_change().0);
        let before = self.is_ordered(ino).await?;
        let accessed = self.look_at_access(ino).await?;
        let is_roomy = self.is_roomy();
        finds_room(self.fs.fsync(ino, data_only).await)?;
        // Another task may have changed the class meanwhile.
        if before || self.is_ordered(ino).await? {
            self.ordered(ino, started);
            return Ok(());
        }
        let position = self.world.log.position();
        self.history.promise(position, everything, data_only.then_some(ino));
        self.history.with_file(ino, |file| file.synced(position, started));
        if let Some(accessed) = accessed.filter(|_| !data_only && is_roomy && self.is_roomy()) {
            self.history.note_access(Accessed { durable_at: Some(position), ..accessed });
        }
        Ok(())
    }

    /// The access time of a file, in a life that has them.
    async fn look_at_access(&self, ino: Ino) -> Result<Option<Accessed>, Failure> {
        if !has_access_times(&self.world) {
            return Ok(None);
        }
        let time = self.fs.getattr(ino).await?.atime;
        Ok(Some(Accessed { durable_at: None, ino, seen: self.history.tick(), time }))
    }

    /// True if there is enough room for access times to be logged. Otherwise they wait, so that changes that
    /// free room find some.
    fn is_roomy(&self) -> bool {
        let store = self.fs.store();
        store.available_blocks() > store.geometry().total_blocks / 3
    }

    /// True if a sync of all of them waits for no flush.
    async fn are_ordered(&self, inos: &[Ino]) -> Result<bool, Failure> {
        for ino in inos {
            if !self.is_ordered(*ino).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) async fn is_ordered(&self, ino: Ino) -> Result<bool, Failure> {
        Ok(matches!(self.fs.durability(ino).await?.1, Durability::Ordered(_)))
    }

    /// Promise P1b: if a later change survives a crash, the data up to `started` survives with it.
    fn ordered(&self, ino: Ino, started: u64) {
        let newest = self.fs.store().last_op().0;
        self.history.with_file(ino, |file| file.carried_by(newest, started));
    }

    pub(super) async fn fsync_directory(&mut self) -> Done {
        let at = self.existing_place()?;
        let everything = self.fs.store().last_change().0;
        let before = self.is_ordered(at.parent).await?;
        finds_room(self.fs.fsync(at.parent, false).await)?;
        if !before && !self.is_ordered(at.parent).await? {
            self.promise(everything);
        }
        Ok(())
    }

    pub(super) async fn sync_many(&mut self) -> Done {
        let files = self.tree()?.files();
        let count = self.rng.random_range(1..5);
        let inos: Vec<Ino> = files.choose_multiple(&mut self.rng, count).copied().collect();
        let (started, everything) = (self.history.now(), self.fs.store().last_change().0);
        let (fs, many) = (self.fs.clone(), inos.clone());
        let before = self.are_ordered(&inos).await?;
        let (answer, did) = tracked(&self.fs, async move { fs.sync_many(&many, 0).await }).await;
        answer?;
        // With access times, the last transaction may be that of one.
        let op = did.committed.last().copied().filter(|_| !has_access_times(&self.world));
        let ordered = before || self.are_ordered(&inos).await?;
        let position = self.world.log.position();
        if !ordered {
            self.history.promise(position, everything, None);
        }
        for ino in inos {
            if ordered {
                self.ordered(ino, started);
            }
            self.history.with_file(ino, |file| {
                if !ordered {
                    file.synced(position, started);
                }
                // All or nothing (promise P6).
                op.iter().for_each(|op| file.carried_by(*op, started));
            });
        }
        Ok(())
    }

    pub(super) async fn syncfs(&mut self) -> Done {
        let (started, everything) = (self.history.now(), self.fs.store().last_op().0);
        finds_room(self.fs.syncfs().await)?;
        let position = self.world.log.position();
        self.history.promise(position, everything, None);
        self.history.all_synced(position, started);
        Ok(())
    }

    /// Reads some data back and compares it, unless another task is changing it.
    pub(super) async fn read(&mut self) -> Done {
        let ino = self.random_file()?;
        let _claim = self.claim(ino).await?;
        let size = self.history.with_file(ino, |file| file.size());
        let (offset, len) = self.random_range_of(size);
        let expected = self.history.with_file(ino, |file| file.read(offset, len));
        let before = self.look_at_access(ino).await?;
        let found = self.fs.read(ino, offset, len).await?.concat();
        let after = self.look_at_access(ino).await?;
        [before, after].into_iter().flatten().for_each(|accessed| self.history.note_access(accessed));
        if found == expected {
            return Ok(());
        }
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        let zeros = found.iter().filter(|byte| **byte == 0).count();
        Err(Failure::Wrong(format!(
            "file {ino} of {size} bytes does not read as it was written, {len} bytes at {offset}: {} bytes with {zeros} zeros, not {}; the first that differs is {differs:?}",
            found.len(),
            expected.len()
        )))
    }

    /// Keeps a file open, so that it outlives its last name, or closes one.
    pub(super) async fn hold_open(&mut self) -> Done {
        if self.opened.len() > 2 {
            self.fs.release_file(self.opened.remove(0));
        }
        let ino = self.random_file()?;
        self.fs.open_file(ino).await?;
        self.opened.push(ino);
        Ok(())
    }
}
