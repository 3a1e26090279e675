//! Atomic writes of one file: what is written between a start and a commit becomes durable all at
//! once, or not at all.
//!
//! `write` puts data aside and `read` shows it, `spill` puts on the device what is too much for
//! memory, `commit` names all of it in one transaction. The promise and its cases are in
//! PROOF.md ("Atomic writes").

mod commit;
mod read;
mod spill;
mod write;

pub(in crate::data) use read::read;
pub(in crate::data) use write::write_leased;

use super::write::Writer;
use crate::FsError;
use crate::attributes::flags::require_changeable;
use crate::data::memory::atomic::{Atomic, AtomicWrite};
use crate::data::memory::preallocated::with_share;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use syncline_store::OpSeq;

/// True when an atomic write of the file is open.
pub(in crate::data) fn is_open(inode: &Inode) -> bool {
    inode.state.lock().data.atomic.is_some()
}

/// Refuses a write that is not a part of the open atomic write, if there is one, and one that is a
/// part of another, which has ended while it waited. The inode's lease is held.
pub(in crate::data) fn require_part(inode: &Inode, part_of: Option<AtomicWrite>) -> Result<(), FsError> {
    let open = open(inode);
    match part_of {
        _ if part_of == open => Ok(()),
        Some(_) => Err(FsError::AtomicWriteEnded),
        None => Err(FsError::AtomicWriteOpen),
    }
}

fn open(inode: &Inode) -> Option<AtomicWrite> {
    inode.state.lock().data.atomic.as_ref().map(|atomic| atomic.is)
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

/// True unless an open atomic write of the file has put so much onto the device that its commit would be
/// too large if these blocks below it were shared. Counts them as shared. The inode's lease is held.
pub(in crate::data) fn may_share(fs: &Filesystem, inode: &Inode, blocks: &Range<u64>) -> bool {
    let mut state = inode.state.lock();
    let max = fs.options.atomic_extents_max;
    state.data.atomic.as_mut().is_none_or(|atomic| atomic.spilled.share(blocks, max))
}

impl Filesystem {
    /// Begins an atomic write of a regular file. Nothing that is written as a part of it survives a
    /// crash before [`commit_atomic_write`](Self::commit_atomic_write), and nobody else writes to the
    /// file before it has ended. A file has one at a time.
    pub async fn start_atomic_write(&self, ino: Ino) -> Result<AtomicWrite, FsError> {
        let inode = self.regular(ino).await?;
        self.store.writable()?;
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        require_changeable(&inode)?;
        require_none(&inode)?;
        let mut state = inode.state.lock();
        let atomic = Atomic::new(self.data.atomic.begin(ino), state.attr.size, &self.store);
        Ok(state.data.atomic.insert(Box::new(atomic)).is)
    }

    /// The atomic write of a file that is open.
    pub fn atomic_write_of(&self, ino: Ino) -> Option<AtomicWrite> {
        open(&*self.inodes.peek(ino)?)
    }

    /// Writes as [`write`](Self::write) does, as a part of an atomic write.
    pub async fn write_atomically(
        &self,
        part_of: AtomicWrite,
        offset: u64,
        data: Bytes,
        kill_privileges: bool,
    ) -> Result<(), FsError> {
        let inode = self.regular(part_of.ino()).await?;
        let writer = Writer::calling(kill_privileges);
        super::write::write(self, &inode, offset, data, writer, Some(part_of)).await
    }

    /// Makes everything that was written since the start durable at once. If it fails before
    /// anything was logged, the atomic write is still open; otherwise, as after a failed fsync, the
    /// contents are those written and it is unknown whether they are durable.
    pub async fn commit_atomic_write(&self, write: AtomicWrite) -> Result<(), FsError> {
        let inode = self.regular(write.ino()).await?;
        commit::commit(self, &inode, write).await
    }

    /// Takes back everything that was written since the start. False if it has ended.
    pub async fn abort_atomic_write(&self, write: AtomicWrite) -> Result<bool, FsError> {
        let inode = self.regular(write.ino()).await?;
        let _lease = inode.lease.write().await;
        let mut atomic = {
            let mut state = inode.state.lock();
            let Some(atomic) = state.data.atomic.take_if(|open| open.is == write) else { return Ok(false) };
            atomic.taken.iter().for_each(|range| state.data.preallocated.give_back(&range));
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

    /// The newest operation that changed the file's size or extents, if the file is in memory.
    pub fn data_operation(&self, ino: Ino) -> Option<OpSeq> {
        self.inodes.peek(ino).map(|inode| inode.state.lock().data.logged.op())
    }
}

/// Most bytes of memory that the open atomic writes of all files take: they wait for their programs,
/// so they may not keep the room of data that is written back.
fn bytes_max(fs: &Filesystem) -> u64 {
    fs.options.dirty_bytes_max / 2
}

/// An inode whose atomic write is open.
type Open<'a> = &'a Arc<Inode>;
