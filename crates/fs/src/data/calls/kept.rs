//! What a kernel hands over that keeps writes in its cache: contents in whole pages, and the times
//! of writes, which are its own.

use super::atomic::Through;
use super::read;
use super::write::{self, Writer};
use crate::FsError;
use crate::data::flush::throttle;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::{Attributes, Ino, WrittenTimes};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use syncline_format::items::inode::FLAG_APPEND;
use syncline_store::StoreError;

/// How often and with which pauses a write is tried that would be lost. As long as a device may take
/// to recover that the filesystem has not given up.
const TRIES: usize = 60;
/// The same for one that needs what can't be read. A bad sector stays bad, and whoever waits for the
/// kernel to hand over the file waits with it.
const READ_TRIES: usize = 5;
const PAUSE: Duration = Duration::from_secs(1);

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
        self.write_patiently(&inode, offset, data).await
    }

    /// Writes data that nobody has any more if it is refused: while the device fails, it is tried
    /// again.
    async fn write_patiently(&self, inode: &Arc<Inode>, offset: u64, data: Bytes) -> Result<(), FsError> {
        let (mut tries, mut unread) = (0, 0);
        loop {
            tries += 1;
            let may_pass = tries < TRIES;
            match throttle::wait_for_room(self, data.len() as u64).await {
                // What is dirty of some file can't be written, whatever the reason: that is its loss, and
                // next time it may be another file's turn.
                Err(_) if may_pass => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let written =
                        write::write(self, inode, offset, data.clone(), Writer::Keeping, &Through::NOTHING)
                            .await;
                    match written {
                        // The rest of its block, or the tree.
                        Err(FsError::Store(StoreError::Device(error))) if error.is_of_reading() => {
                            unread += 1;
                            if unread == READ_TRIES {
                                return Err(StoreError::Device(error).into());
                            }
                        }
                        // A checkpoint that was to make room has failed.
                        Err(FsError::Store(StoreError::Device(_))) if may_pass => {}
                        written => return written,
                    }
                }
            }
            self.store.writable()?;
            self.spawn.sleep(PAUSE).await;
        }
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
        let mut unread = 0;
        let pieces = loop {
            match read::read(self, inode, offset, known, None).await {
                Err(FsError::Store(StoreError::Device(_))) if unread + 1 < READ_TRIES => unread += 1,
                pieces => break pieces?,
            }
            self.spawn.sleep(PAUSE).await;
        };
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
