//! Atomic writes of one file, as on F2FS: what is written between a start and a commit becomes
//! durable all at once, or not at all.
//!
//! `write` puts data aside and `read` shows it, `spill` puts on the device what is too much for
//! memory, `commit` names all of it in one transaction. The promise and its cases are in
//! docs/DURABILITY.md ("Atomic writes").

mod commit;
mod read;
mod spill;
mod through;
mod write;

pub(in crate::data) use read::read;
pub use through::Through;
pub(in crate::data) use write::write_leased;

use super::sync;
use super::write::Writer;
use crate::FsError;
use crate::data::memory::atomic::Atomic;
use crate::data::memory::preallocated::with_share;
use crate::filesystem::Filesystem;
use crate::flags::require_changeable;
use crate::inode::Inode;
use crate::types::Ino;
use bytes::Bytes;
use std::sync::Arc;
use syncline_store::OpSeq;
use syncline_sync::atomic::Ordering;

/// True when an atomic write of the file is open.
pub(in crate::data) fn is_open(inode: &Inode) -> bool {
    inode.state.lock().data.atomic.is_some()
}

/// Size of the file as programs see it, if an atomic write is open.
pub(in crate::data) fn size(inode: &Inode) -> Option<u64> {
    let state = inode.state.lock();
    state.data.atomic.as_ref().map(|atomic| atomic.size.max(state.attr.size))
}

/// Refuses a change that can't be kept apart from an open atomic write. The inode's lease is held.
pub(in crate::data) fn require_none(inode: &Inode) -> Result<(), FsError> {
    if is_open(inode) { Err(FsError::AtomicWriteOpen) } else { Ok(()) }
}

/// Refuses to call synced what stands in somebody's open atomic write: stores through a mapping are
/// part of it, whoever made them.
pub(in crate::data) fn require_unmapped(inode: &Inode) -> Result<(), FsError> {
    let mapped = inode.state.lock().data.atomic.as_ref().is_some_and(|atomic| atomic.mapped);
    if mapped { Err(FsError::AtomicWriteOpen) } else { Ok(()) }
}

impl Filesystem {
    /// Begins an atomic write of a regular file by a handle, which is not 0. Nothing that the handle
    /// writes from now on survives a crash before
    /// [`commit_atomic_write`](Self::commit_atomic_write). One that the handle has begun already
    /// goes on; while that of another handle is open, this fails.
    pub async fn start_atomic_write(&self, ino: Ino, handle: u64) -> Result<Through, FsError> {
        let inode = self.regular(ino).await?;
        self.store.writable()?;
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        require_changeable(&inode)?;
        let mut state = inode.state.lock();
        let size = state.attr.size;
        match &state.data.atomic {
            Some(open) if open.handle != handle => Err(FsError::AtomicWriteOpen),
            Some(open) => Ok(Through::begun(open)),
            None => {
                let open = Box::new(Atomic::new(handle, size, &self.store));
                Ok(Through::begun(state.data.atomic.insert(open)))
            }
        }
    }

    /// Makes everything that was written since the start durable at once. If it fails before
    /// anything was logged, the atomic write is still open; otherwise, as after a failed fsync, the
    /// contents are those written and it is unknown whether they are durable. Without a start, it is
    /// an fdatasync.
    pub async fn commit_atomic_write(&self, ino: Ino, handle: u64) -> Result<(), FsError> {
        self.commit_begun(ino, &self.through(ino, handle)).await
    }

    /// The same for the atomic write that `through` is a part of, which may have ended since: it fails
    /// if that was taken back, and has nothing to do with another one that the handle has begun.
    pub async fn commit_begun(&self, ino: Ino, through: &Through) -> Result<(), FsError> {
        let inode = self.regular(ino).await?;
        let open = inode.state.lock().data.atomic.as_deref().map(|open| through.is_part_of(open));
        match open {
            Some(true) => commit::commit(self, &inode, through).await,
            _ if through.was_taken_back() => Err(FsError::AtomicWriteTakenBack),
            Some(false) => Err(FsError::AtomicWriteOpen),
            None => sync::fsync(self, &inode, true).await,
        }
    }

    /// Takes back everything that the handle has written since the start. False if it has no atomic
    /// write open.
    pub async fn abort_atomic_write(&self, ino: Ino, handle: u64) -> Result<bool, FsError> {
        self.abort_begun(ino, &self.through(ino, handle)).await
    }

    /// The same for the atomic write that `through` is a part of. False if that has ended.
    pub async fn abort_begun(&self, ino: Ino, through: &Through) -> Result<bool, FsError> {
        let inode = self.regular(ino).await?;
        let _lease = inode.lease.write().await;
        let mut atomic = {
            let mut state = inode.state.lock();
            let Some(atomic) = state.data.atomic.take_if(|open| through.is_part_of(open)) else {
                return Ok(false);
            };
            atomic.taken.iter().for_each(|range| state.data.preallocated.give_back(&range));
            atomic.taken_back.store(true, Ordering::Release);
            atomic
        };
        // The lease keeps others from writing to preallocated blocks before their room is back.
        let blocks = atomic.taken.blocks();
        let mut room = atomic.reservation.split(blocks);
        room.merge(atomic.spilled.give_back(blocks - room.blocks()));
        room.merge(self.store.reserve_again(with_share(blocks) - room.blocks()));
        self.data.room.put_back(blocks, Some(room));
        self.data.atomic.ended(&atomic);
        self.quotas.move_reserved(atomic.quota, atomic.units, 0);
        self.counters.atomic_aborts.add(1);
        Ok(true)
    }

    /// The handle whose atomic write of this file is open.
    pub fn atomic_writer(&self, ino: Ino) -> Option<u64> {
        let inode = self.inodes.peek(ino)?;
        let state = inode.state.lock();
        state.data.atomic.as_ref().map(|open| open.handle)
    }

    /// The newest operation that changed the file's size or extents, if the file is in memory.
    pub fn data_operation(&self, ino: Ino) -> Option<OpSeq> {
        self.inodes.peek(ino).map(|inode| inode.state.lock().data.data_op)
    }

    /// What a write that comes now through a handle is written through. If the handle has an atomic
    /// write open, the write is a part of that, however long it waits: if that is taken back
    /// meanwhile, so is this part, and the write fails.
    pub fn through(&self, ino: Ino, handle: u64) -> Through {
        match self.inodes.peek(ino) {
            Some(inode) => Through::handle_of(&inode, handle),
            None => Through::handle_only(handle),
        }
    }

    /// Writes as [`write`](Self::write) does, through a handle. If that has an atomic write open,
    /// the data is part of it.
    pub async fn write_through(
        &self,
        ino: Ino,
        through: Through,
        offset: u64,
        data: Bytes,
        kill_privileges: bool,
    ) -> Result<(), FsError> {
        let inode = self.regular(ino).await?;
        let writer = Writer::calling(kill_privileges);
        super::write::write(self, &inode, offset, data, writer, &through).await
    }
}

/// Most bytes of memory that the open atomic writes of all files take: they wait for their programs,
/// so they may not keep the room of data that is written back.
fn bytes_max(fs: &Filesystem) -> u64 {
    fs.options.dirty_bytes_max / 2
}

/// An inode whose atomic write is open.
type Open<'a> = &'a Arc<Inode>;
