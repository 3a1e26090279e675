//! A file of an image, shared by all connections of the process.
//!
//! Changes of a database are kept in memory until a sync commits them as one transaction of the
//! library: that takes one flush, and a crash leaves all of them or none. Where they outgrow memory,
//! they go to a copy of the file that has no name, shares the file's blocks, and takes its name at
//! the commit.
//!
//! A write-ahead log, and what a checkpoint brings from it to the database, is written as on any
//! filesystem: the log has checksums of its own.
//!
//! SQLite undoes a commit that failed by writing the old pages. If the library has refused the
//! commit, the changes are forgotten at once, and the old pages are recognized as what the file has
//! already: an undo on a full image needs no room.

use crate::cache::{BLOCK_BYTES, Block, Cache};
use crate::changes::{Changes, pieces};
use crate::failure::{Failure, Result, code};
use crate::locks::Locks;
use crate::options::CHANGES_BYTES_MAX;
use crate::shared_memory::SharedMemory;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use syncline::{Error, File, Filesystem, Transaction};

const BYTES: u64 = BLOCK_BYTES as u64;
/// Neighbours are passed to the library in pieces of this size.
const RUN_BYTES_MAX: usize = 64 << 10;
/// Blocks read at once, where blocks are read one after the other.
const AHEAD_BLOCKS_MAX: u64 = 64;

/// The filesystem and the cache, which all files of an image share.
pub(crate) struct Core {
    pub(crate) fs: Filesystem,
    pub(crate) cache: Cache,
}

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A database: what is written between two syncs belongs together.
    Database,
    /// A write-ahead log or a rollback journal in the image.
    Log,
}

pub(crate) struct SharedFile {
    core: Arc<Core>,
    path: String,
    kind: Kind,
    /// Memory for the changes of a transaction.
    changes_bytes_max: u64,
    /// Connections that have the write-ahead log of this database open.
    log_users: AtomicUsize,
    /// That log was written since a checkpoint last made it durable.
    log_written: AtomicBool,
    pub(crate) locks: Mutex<Locks>,
    pub(crate) shared_memory: Mutex<SharedMemory>,
    contents: RwLock<Contents>,
    /// Where reading ahead goes on, and how many blocks that was the last time.
    ahead: Mutex<(u64, u64)>,
}

struct Contents {
    base: Base,
    changes: Changes,
    /// The committed size.
    committed_bytes: u64,
    /// The super-journal whose removal commits the changes.
    held: Option<String>,
    /// A commit was refused, and its changes are forgotten.
    refused: bool,
}

/// What lies under the changes.
struct Base {
    file: Arc<File>,
    /// The file's number in the cache.
    id: u64,
    /// The copy without a name that has a part of the changes. It is not cached.
    copy: Option<File>,
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl SharedFile {
    pub(crate) fn new(
        core: &Arc<Core>,
        path: &str,
        kind: Kind,
        file: File,
        changes_bytes_max: u64,
    ) -> Result<Self> {
        let size = file.metadata().map_err(Failure::of(code::IOERR_FSTAT))?.len();
        let contents = Contents {
            base: Base { file: Arc::new(file), id: next_id(), copy: None },
            changes: Changes::none(size),
            committed_bytes: size,
            held: None,
            refused: false,
        };
        Ok(Self {
            core: core.clone(),
            path: path.to_owned(),
            kind,
            changes_bytes_max,
            log_users: AtomicUsize::new(0),
            log_written: AtomicBool::new(false),
            locks: Mutex::default(),
            shared_memory: Mutex::default(),
            contents: RwLock::new(contents),
            ahead: Mutex::default(),
        })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn is_log(&self) -> bool {
        self.kind == Kind::Log
    }

    /// The open file of the library.
    pub(crate) fn file(&self) -> Arc<File> {
        self.contents.read().base.file.clone()
    }

    /// Calls `set` for the file, and for the copy that takes its name at the next commit.
    pub(crate) fn set(&self, set: impl Fn(&File) -> Result<()>) -> Result<()> {
        let contents = self.contents.read();
        set(&contents.base.file)?;
        contents.base.copy.as_ref().map_or(Ok(()), set)
    }

    pub(crate) fn size(&self) -> u64 {
        self.contents.read().changes.size()
    }

    /// Reads, and returns the number of bytes: less than asked for at the end of the file.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_of(&self.contents.read(), buffer, offset)
    }

    fn read_of(&self, contents: &Contents, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let there = contents.changes.size().saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut read = 0;
        while read < there {
            let at = offset + read as u64;
            let within = (at % BYTES) as usize;
            let len = (BLOCK_BYTES - within).min(there - read);
            let block = self.block(&contents.base, &contents.changes, at / BYTES)?;
            buffer[read..read + len].copy_from_slice(&block[within..within + len]);
            read += len;
        }
        Ok(read)
    }

    /// A block as it is with the changes.
    fn block(&self, base: &Base, changes: &Changes, block: u64) -> Result<Block> {
        if let Some(block) = changes.get(block) {
            return Ok(block.clone());
        }
        if !changes.is_based(block) {
            return Ok(vec![0; BLOCK_BYTES].into());
        }
        if let Some(copy) = &base.copy {
            let mut bytes = vec![0; BLOCK_BYTES];
            fill(copy, &mut bytes, block * BYTES)?;
            return Ok(bytes.into());
        }
        match self.core.cache.get(base.id, block) {
            Some(block) => Ok(block),
            None => self.load(base, block),
        }
    }

    /// Reads a block from the library, and the ones behind it if blocks are read in this order.
    fn load(&self, base: &Base, block: u64) -> Result<Block> {
        let blocks = {
            let mut ahead = self.ahead.lock();
            let blocks = if ahead.0 == block { (ahead.1 * 2).clamp(1, AHEAD_BLOCKS_MAX) } else { 1 };
            *ahead = (block + blocks, blocks);
            blocks
        };
        let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
        let read = fill(&base.file, &mut bytes, block * BYTES)?;
        let mut first = None;
        for (index, bytes) in
            bytes.chunks_exact(BLOCK_BYTES).take(read.div_ceil(BLOCK_BYTES).max(1)).enumerate()
        {
            let contents: Block = bytes.into();
            first.get_or_insert_with(|| contents.clone());
            self.core.cache.put(base.id, block + index as u64, contents);
        }
        first.ok_or_else(|| Failure::new(code::IOERR_READ, "nothing to read"))
    }

    /// Writes to the file: a part of a transaction, pages that a checkpoint brings from the log, or a log itself.
    pub(crate) fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut contents = self.contents.write();
        if self.is_direct(&contents) {
            return self.write_through(&mut contents, data, offset);
        }
        if contents.refused && self.has_already(&contents, data, offset)? {
            return Ok(());
        }
        contents.held = None;
        let Contents { base, changes, .. } = &mut *contents;
        changes.write(data, offset, |changes, block| self.block(base, changes, block))?;
        if contents.changes.bytes() >= self.changes_bytes_max {
            self.spill(&mut contents).map_err(|failure| {
                contents.refuse();
                failure.in_transaction()
            })?;
        }
        Ok(())
    }

    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        let mut contents = self.contents.write();
        if size == contents.changes.size() {
            return Ok(());
        }
        if self.is_direct(&contents) {
            return self.set_size_through(&mut contents, size);
        }
        contents.held = None;
        let Contents { base, changes, .. } = &mut *contents;
        changes.set_size(size, |changes, block| self.block(base, changes, block))
    }

    /// True for writes that need no transaction: those to a log, and the pages of a checkpoint, which the log has too.
    fn is_direct(&self, contents: &Contents) -> bool {
        self.kind == Kind::Log || (self.has_log() && contents.is_clean())
    }

    /// Counts a connection that opens the write-ahead log of this database.
    pub(crate) fn log_opened(&self) {
        self.log_users.fetch_add(1, Ordering::AcqRel);
    }

    /// True if a connection has the write-ahead log of this database open: then only checkpoints write to it.
    pub(crate) fn has_log(&self) -> bool {
        self.log_users.load(Ordering::Acquire) > 0
    }

    /// Notes that the log was written.
    pub(crate) fn note_log_written(&self) {
        self.log_written.store(true, Ordering::Release);
    }

    /// True if the log was written since the last such call.
    pub(crate) fn take_log_written(&self) -> bool {
        self.log_written.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn log_closed(&self) {
        self.log_users.fetch_sub(1, Ordering::AcqRel);
    }

    fn write_through(&self, contents: &mut Contents, data: &[u8], offset: u64) -> Result<()> {
        let (cache, base) = (&self.core.cache, &contents.base);
        if let Err(error) = base.file.write_all_at(data, offset) {
            pieces(data, offset).for_each(|(block, ..)| cache.remove(base.id, block));
            return Err(Failure::of(code::IOERR_WRITE)(error));
        }
        let size = contents.changes.size();
        for (block, within, piece) in pieces(data, offset) {
            if piece.len() == BLOCK_BYTES {
                cache.put(base.id, block, piece.into());
                continue;
            }
            let old = match cache.get(base.id, block) {
                Some(old) => old.to_vec(),
                None if block * BYTES >= size => vec![0; BLOCK_BYTES],
                None => continue,
            };
            let mut bytes = old;
            bytes[within..within + piece.len()].copy_from_slice(piece);
            cache.put(base.id, block, bytes.into());
        }
        contents.grow(size.max(offset + data.len() as u64));
        Ok(())
    }

    fn set_size_through(&self, contents: &mut Contents, size: u64) -> Result<()> {
        contents.base.file.set_len(size).map_err(Failure::of(code::IOERR_TRUNCATE))?;
        self.uncache(contents, size);
        contents.grow(size);
        Ok(())
    }

    /// Takes what lies behind `size` out of the cache.
    fn uncache(&self, contents: &Contents, size: u64) {
        for block in size / BYTES..contents.committed_bytes.div_ceil(BYTES) {
            self.core.cache.remove(contents.base.id, block);
        }
    }

    /// True if a write changes nothing.
    fn has_already(&self, contents: &Contents, data: &[u8], offset: u64) -> Result<bool> {
        let mut there = vec![0; data.len()];
        Ok(self.read_of(contents, &mut there, offset)? == data.len() && there == data)
    }

    /// Makes the changes durable, all or none; with a super-journal, its removal does that.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut contents = self.contents.write();
        if contents.held.is_some() {
            return Ok(());
        }
        if !contents.is_clean() {
            return self.commit(&mut contents);
        }
        contents.refused = false;
        // Readers go on meanwhile. The library knows whether a flush is needed, or already under way.
        let file = contents.base.file.clone();
        drop(contents);
        file.sync_data().map_err(Failure::of(code::IOERR_FSYNC))
    }

    /// A transaction has written all it has. It is committed now, since with `synchronous=OFF` no sync
    /// follows; with a super-journal, its removal does that.
    pub(crate) fn complete(&self, super_journal: Option<&str>) -> Result<()> {
        let mut contents = self.contents.write();
        if contents.is_clean() {
            return Ok(());
        }
        contents.held = super_journal.map(str::to_owned);
        if contents.held.is_some() { Ok(()) } else { self.commit(&mut contents) }
    }

    /// Forgets the changes of a transaction that can't be committed.
    pub(crate) fn refuse(&self) {
        self.contents.write().refuse();
    }

    fn commit(&self, contents: &mut Contents) -> Result<()> {
        let mut transaction = self.core.fs.transaction();
        let committed = self.add_to(&mut transaction, contents).and_then(|()| commit(transaction));
        self.end(contents, &committed);
        committed.map_err(|refusal| refusal.failure)
    }

    /// Adds the changes to a transaction of the library.
    fn add_to(
        &self,
        transaction: &mut Transaction,
        contents: &mut Contents,
    ) -> std::result::Result<(), Refusal> {
        if contents.base.copy.is_some() {
            self.spill(contents)?;
            let size = contents.changes.size();
            if let Some(copy) = &contents.base.copy {
                copy.set_len(size).map_err(Failure::of(code::IOERR_FSYNC))?;
                transaction.link(copy, &self.path).map_err(Failure::of(code::IOERR_FSYNC))?;
            }
            return Ok(());
        }
        let changes = &contents.changes;
        let mut size = contents.committed_bytes;
        if let Some(cut) = changes.cut() {
            transaction.set_len(&self.path, cut);
            size = cut;
        }
        let mut runs = changes.runs(RUN_BYTES_MAX);
        while let Some((offset, bytes)) = runs.next() {
            transaction.write_at(&self.path, bytes, offset);
            size = size.max(offset + bytes.len() as u64);
        }
        if size != changes.size() {
            transaction.set_len(&self.path, changes.size());
        }
        Ok(())
    }

    /// Notes how a commit ended.
    fn end(&self, contents: &mut Contents, committed: &std::result::Result<(), Refusal>) {
        let applied = committed.as_ref().map_or_else(|refusal| refusal.applied, |()| true);
        if !applied {
            return contents.refuse();
        }
        let size = contents.changes.size();
        if let Some(copy) = contents.base.copy.take() {
            contents.base.file = Arc::new(copy);
            contents.base.id = next_id();
            contents.changes.take();
        } else {
            if let Some(cut) = contents.changes.cut() {
                self.uncache(contents, cut);
            }
            for (block, bytes) in contents.changes.take() {
                self.core.cache.put(contents.base.id, block, bytes);
            }
        }
        contents.committed_bytes = size;
        contents.held = None;
        contents.refused = false;
    }

    /// Moves the changes from memory to the copy without a name.
    fn spill(&self, contents: &mut Contents) -> Result<()> {
        if contents.base.copy.is_none() {
            contents.base.copy = Some(self.make_copy(&contents.base.file)?);
        }
        let Some(copy) = &contents.base.copy else { return Ok(()) };
        if let Some(cut) = contents.changes.cut() {
            copy.set_len(cut).map_err(Failure::of(code::IOERR_WRITE))?;
        }
        let mut runs = contents.changes.runs(RUN_BYTES_MAX);
        while let Some((offset, bytes)) = runs.next() {
            copy.write_all_at(bytes, offset).map_err(Failure::of(code::IOERR_WRITE))?;
        }
        copy.set_len(contents.changes.size()).map_err(Failure::of(code::IOERR_WRITE))?;
        contents.changes.take();
        Ok(())
    }

    fn make_copy(&self, file: &File) -> Result<File> {
        let copy = || {
            let copy = self.core.fs.create_unnamed("/")?;
            let metadata = file.metadata()?;
            copy.set_owner(Some(metadata.uid()), Some(metadata.gid()))?;
            copy.set_permissions(metadata.permissions())?;
            for name in file.xattrs()? {
                if let Some(value) = file.xattr(&name)? {
                    copy.set_xattr(&name, &value)?;
                }
            }
            file.copy_range_to(0, &copy, 0, u64::MAX)?;
            copy.set_len(metadata.len())?;
            Ok(copy)
        };
        let copy = copy().map_err(Failure::of(code::IOERR_WRITE))?;
        crate::image::hand_down(&self.core.fs, file, &copy)?;
        Ok(copy)
    }
}

/// Why a commit failed.
struct Refusal {
    failure: Failure,
    /// The changes are made all the same, but may not be durable.
    applied: bool,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, applied: false }
    }
}

fn commit(transaction: Transaction) -> std::result::Result<(), Refusal> {
    transaction.commit().map_err(|error| {
        let applied = matches!(error, Error::NotDurable(_));
        Refusal { failure: Failure::of(code::IOERR_FSYNC)(error), applied }
    })
}

/// Commits the changes of all those of the files that wait for the removal of this super-journal, as
/// one transaction.
pub(crate) fn commit_together(core: &Core, files: &[Arc<SharedFile>], super_journal: &str) -> Result<()> {
    let waits = |contents: &Contents| contents.held.as_deref() == Some(super_journal);
    let mut held: Vec<(&SharedFile, RwLockWriteGuard<'_, Contents>)> = files
        .iter()
        .map(|file| (&**file, file.contents.write()))
        .filter(|(_, contents)| waits(contents))
        .collect();
    if held.is_empty() {
        return Ok(());
    }
    let mut transaction = core.fs.transaction();
    let mut added = Ok(());
    let mut bytes = 0;
    for (file, contents) in &mut held {
        bytes += contents.changes.bytes();
        // All changes together have to fit into one transaction of the library.
        if added.is_ok() && bytes > CHANGES_BYTES_MAX && contents.base.copy.is_none() {
            bytes -= contents.changes.bytes();
            added = file.spill(contents).map_err(Refusal::from);
        }
        added = added.and_then(|()| file.add_to(&mut transaction, contents));
    }
    let committed = added.and_then(|()| commit(transaction));
    for (file, contents) in &mut held {
        file.end(contents, &committed);
    }
    committed.map_err(|refusal| refusal.failure)
}

impl Contents {
    fn is_clean(&self) -> bool {
        self.base.copy.is_none() && self.changes.are_none()
    }

    /// The library has a file of this size now.
    fn grow(&mut self, size: u64) {
        self.changes = Changes::none(size);
        self.committed_bytes = size;
    }

    /// Forgets the changes of a transaction that can't be committed.
    fn refuse(&mut self) {
        self.refused = !self.is_clean();
        self.base.copy = None;
        self.changes = Changes::none(self.committed_bytes);
        self.held = None;
    }
}

/// Reads until `buffer` is full or the file ends; returns the number of bytes.
pub(crate) fn fill(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(error) => return Err(Failure::of(code::IOERR_READ)(error)),
        }
    }
    Ok(read)
}
