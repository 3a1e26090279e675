//! What a kernel hands over that keeps writes in its cache: contents in whole pages, and the times
//! of writes, which are its own.

use super::atomic::Through;
use super::read;
use super::write::{self, Writer};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::{Attributes, Ino, WrittenTimes};
use bytes::Bytes;
use std::sync::Arc;
use syncline_format::items::inode::FLAG_APPEND;

impl Filesystem {
    /// Writes all of `data` at `offset`, or nothing: what programs wrote or stored some time ago.
    /// Setuid, setgid and capabilities stay, as with `write_mapped`. If it fails, the data is lost,
    /// and the caller has to tell so.
    ///
    /// `end` is asked of an append-only file, with its present size: what lies before its answer must
    /// not change. What lies behind may still be coming, in any order.
    ///
    /// mtime and ctime move to the present, so that new contents never come back from a crash with
    /// old times. [`Filesystem::take_times`] sets them to what they are.
    pub async fn write_kept(
        &self,
        ino: Ino,
        offset: u64,
        data: Bytes,
        end: impl FnOnce(u64) -> u64,
    ) -> Result<(), FsError> {
        let written = self.write_pages(ino, offset, data, end).await;
        if written.is_err() {
            self.counters.writes_lost.add(1);
        }
        written
    }

    async fn write_pages(
        &self,
        ino: Ino,
        offset: u64,
        data: Bytes,
        end: impl FnOnce(u64) -> u64,
    ) -> Result<(), FsError> {
        let inode = self.regular(ino).await?;
        let appends_only = {
            let state = inode.state.lock();
            (state.meta.flags & FLAG_APPEND != 0).then(|| end(state.attr.size).min(state.attr.size))
        };
        let (offset, data) = match appends_only {
            // Few files are such.
            Some(end) => Box::pin(self.behind_the_end(&inode, end, offset, data)).await?,
            None => (offset, data),
        };
        write::write(self, &inode, offset, data, Writer::Keeping, &Through::NOTHING).await
    }

    /// The part of `data` that lies behind the `end` of an append-only file, and where it begins. A
    /// page that was appended to also has what was there, and that must not have changed.
    async fn behind_the_end(
        &self,
        inode: &Arc<Inode>,
        end: u64,
        offset: u64,
        data: Bytes,
    ) -> Result<(u64, Bytes), FsError> {
        let known = end.saturating_sub(offset).min(data.len() as u64) as usize;
        if known == 0 {
            return Ok((offset, data));
        }
        let pieces = read::read(self, inode, offset, known, None).await?;
        if pieces.concat() != data[..known] {
            return Err(FsError::NotPermitted);
        }
        Ok((offset + known as u64, data.slice(known..)))
    }

    /// Sets the times of a regular file to those that its writes had. They are logged as those of
    /// any write are: with data, with the next sync of the file, or when they are as old as dirty
    /// data may become.
    ///
    /// `times` is asked, with the attributes that the file has, when nothing else can change them.
    /// If it has none, they stay.
    pub async fn take_times(
        &self,
        ino: Ino,
        times: impl FnOnce(&Attributes) -> Option<WrittenTimes>,
    ) -> Result<(), FsError> {
        let inode = self.regular(ino).await?;
        let _lease = inode.lease.write().await;
        let attributes = inode.state.lock().attr;
        let Some(times) = times(&attributes) else { return Ok(()) };
        self.store.writable()?;
        let mut state = inode.state.lock();
        let state = &mut *state;
        if state.removing {
            return Err(FsError::Stale);
        }
        let moved = state.attr.ctime != times.ctime;
        (state.attr.mtime, state.attr.ctime) = (times.mtime, times.ctime);
        if state.attr.nlink == 0 {
            // It is logged with its data, if at all.
            return Ok(());
        }
        if !state.is_logged() {
            self.data.queue.note_dirty(self, &inode, &mut state.data);
        } else if moved && !state.access_unlogged {
            // No data will take the new ctime along.
            state.access_unlogged = true;
            self.note_unlogged(&inode);
        }
        Ok(())
    }
}
