//! The filesystem's methods for file data.

use super::read::Contents;
use super::write::{self, Writer};
use super::{read, seek, sync};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::{FileType, Ino};
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::Room;
use syncline_format::items::inode::compression_of;

impl Filesystem {
    /// Reads at most `len` bytes from `offset`, in pieces; short at the end of the file.
    pub async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        Ok(self.read_into(ino, offset, len, None).await?.pieces)
    }

    /// Reads at most `len` bytes from `offset`, and tells the holes among them. If all of it comes from the device and `offset` is
    /// a multiple of 4096, uncompressed data is read into `room`, as far as that reaches: each byte
    /// at the same distance from the beginning of `room` as from `offset`.
    pub async fn read_into(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        room: Option<Room>,
    ) -> Result<Contents, FsError> {
        let inode = self.regular(ino).await?;
        self.ease_access().await;
        let contents = read::contents(self, &inode, offset, len, room).await?;
        self.touch_access(&inode);
        Ok(contents)
    }

    /// Writes all of `data` at `offset`, or nothing. `kill_privileges` clears setuid and setgid.
    /// Data that lies at a multiple of 4096 in memory and in the file is kept without a copy.
    pub async fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: Bytes,
        kill_privileges: bool,
    ) -> Result<(), FsError> {
        let inode = self.regular(ino).await?;
        write::write(self, &inode, offset, data, Writer::calling(kill_privileges)).await
    }

    /// Writes as much of `data` at `offset` as there is room for, and returns how many bytes that is. It
    /// fails where [`write`](Self::write) does if nothing fits, and if `data` is a page: 4 KiB to 64 KiB,
    /// a power of two, at a multiple of that.
    pub async fn write_what_fits(
        &self,
        ino: Ino,
        offset: u64,
        data: Bytes,
        kill_privileges: bool,
    ) -> Result<usize, FsError> {
        let inode = self.regular(ino).await?;
        let writer = Writer::calling(kill_privileges);
        write::write_what_fits(self, &inode, offset, data, writer).await
    }

    /// Writes data that was stored through a mapping of the file and arrives only now. The file
    /// keeps its privileges (setuid, setgid, capabilities), by whichever user the data was stored.
    pub async fn write_mapped(&self, ino: Ino, offset: u64, data: Bytes) -> Result<(), FsError> {
        let inode = self.regular(ino).await?;
        let written = write::write(self, &inode, offset, data, Writer::Mapping).await;
        if let Err(error) = &written {
            // The program that stored it has long moved on, and the kernel forgets that the page is
            // dirty: the next fsync reports the error.
            tracing::warn!("inode {ino}: a store through a mapping at byte {offset} is lost: {error}");
            inode.state.lock().data.failures.add(error.clone());
        }
        written
    }

    /// Writes all of `data` at the end of the file, or nothing, and returns its offset.
    pub async fn append(&self, ino: Ino, data: Bytes, kill_privileges: bool) -> Result<u64, FsError> {
        let inode = self.regular(ino).await?;
        write::append(self, &inode, data, Writer::calling(kill_privileges)).await
    }

    /// Returns once the file's data, and everything that was committed anywhere before, survives
    /// any crash (P1). With `data_only`, returns once the file's data, size and name survive. Takes
    /// directories too.
    pub async fn fsync(&self, ino: Ino, data_only: bool) -> Result<(), FsError> {
        let inode = self.inode(ino).await?;
        sync::fsync(self, &inode, data_only).await
    }

    /// fsync of several files with one batch and one flush. Their changes that were not logged
    /// before come back all or nothing after a crash (P6). More than 64 MiB of dirty data in all is
    /// refused with `TooLarge`, before any effect. `uid` is the caller: earlier write-back failures
    /// are returned to any caller, but count as reported only if that is root or the file's owner.
    pub async fn sync_many(&self, inos: &[Ino], uid: u32) -> Result<(), FsError> {
        sync::sync_many(self, &self.inodes(inos).await?, uid).await
    }

    /// Orders without making durable: if anything that is written, created or changed anywhere
    /// after this call returned survives a crash, then so does everything that was written to these
    /// files before the call. Waits for no flush.
    pub async fn barrier(&self, inos: &[Ino]) -> Result<(), FsError> {
        sync::barrier(self, &self.inodes(inos).await?).await
    }

    async fn inodes(&self, inos: &[Ino]) -> Result<Vec<Arc<Inode>>, FsError> {
        let mut inodes = Vec::with_capacity(inos.len());
        for &ino in inos {
            inodes.push(self.inode(ino).await?);
        }
        Ok(inodes)
    }

    /// Writes back everything and makes a checkpoint.
    pub async fn syncfs(&self) -> Result<(), FsError> {
        sync::syncfs(self).await
    }

    /// Writes back everything that is dirty, without making it durable.
    pub(crate) async fn write_back(&self) -> Result<(), FsError> {
        sync::write_back(self).await
    }

    /// First offset at or after `offset` that holds data; `NoSuchAddress` if none does.
    pub async fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64, FsError> {
        let inode = self.regular(ino).await?;
        seek::data(self, &inode, offset).await
    }

    /// First offset at or after `offset` that holds no data; the end of the file counts as a hole.
    pub async fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64, FsError> {
        let inode = self.regular(ino).await?;
        seek::hole(self, &inode, offset).await
    }

    /// True when a file has dirty data that may be compressed, so that its number of blocks is not
    /// known yet.
    pub fn may_shrink(&self, ino: Ino) -> bool {
        let waits = |inode: Arc<Inode>| {
            let state = inode.state.lock();
            compression_of(state.meta.flags).is_some() && state.data.has_dirty()
        };
        self.inodes.peek(ino).is_some_and(waits)
    }

    /// The inode `ino`, which must be a regular file.
    pub(in crate::data) async fn regular(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        let inode = self.inode(ino).await?;
        match inode.file_type {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }
}
