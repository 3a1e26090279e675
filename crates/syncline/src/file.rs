//! Open files.

use crate::error::{Error, Result};
use crate::filesystem::Shared;
use crate::walk::Reference;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use syncline_device::{AlignedBuf, drive};
use syncline_fs::Receipt;
use syncline_fs::types::Ino;

/// Most bytes of one operation; longer reads and writes are short, which callers must expect
/// anyway.
const OPERATION_BYTES_MAX: usize = 4 << 20;
/// Writes of at least this size are copied to an aligned buffer, so that the engine need not copy
/// them again.
const ALIGN_FROM_BYTES: usize = 4096;

/// An open file. Several threads may use it at once, in an `Arc` or by reference. They share the
/// position; positioned calls ([`File::read_at`], [`File::write_all_at`]) do not move it.
///
/// An unlinked file stays readable and writable until its last handle is dropped.
///
/// ```
/// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
/// let journal = fs.create_file("/journal")?;
/// std::thread::scope(|scope| {
///     for slot in 0..4 {
///         let journal = &journal;
///         scope.spawn(move || {
///             journal.write_all_at(&[slot; 512], u64::from(slot) * 512)?;
///             journal.sync_data() // those that wait at the same time share a flush
///         });
///     }
/// });
/// assert_eq!(journal.metadata()?.len(), 2048);
/// # std::io::Result::Ok(())
/// ```
pub struct File {
    shared: Arc<Shared>,
    reference: Reference,
    access: Access,
    position: Mutex<u64>,
}

/// The kinds of access that a file was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
}

impl Access {
    /// True if the contents may be changed.
    pub(crate) fn writes(self) -> bool {
        self.write || self.append
    }
}

impl File {
    /// Opens the inode of `reference`.
    pub(crate) async fn new(shared: &Arc<Shared>, reference: Reference, access: Access) -> Result<Self> {
        shared.engine.open_file(reference.ino()).await?;
        Ok(Self::opened(reference, shared, access))
    }

    /// A file that the engine already counts as open.
    pub(crate) fn opened(reference: Reference, shared: &Arc<Shared>, access: Access) -> Self {
        Self { shared: shared.clone(), reference, access, position: Mutex::new(0) }
    }

    pub(crate) fn ino(&self) -> Ino {
        self.reference.ino()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The file's inode number; an error if it belongs to another filesystem.
    pub(crate) fn inode_in(&self, shared: &Arc<Shared>) -> Result<Ino> {
        if Arc::ptr_eq(&self.shared, shared) { Ok(self.ino()) } else { Err(Error::CrossDevice) }
    }

    /// Returns once the file's contents and attributes, and every earlier change of names or
    /// attributes by any caller, would survive a crash.
    pub fn sync_all(&self) -> Result<()> {
        Ok(drive(self.shared.engine.fsync(self.ino(), false))?)
    }

    /// Returns once the file's contents would survive a crash.
    pub fn sync_data(&self) -> Result<()> {
        Ok(drive(self.shared.engine.fsync(self.ino(), true))?)
    }

    /// The receipt of the newest sync of this file, while it is kept.
    pub fn last_receipt(&self) -> Option<Receipt> {
        self.shared.engine.recent_receipts(1, Some(self.ino())).pop()
    }

    /// Reads at `offset` without moving the position; returns 0 at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if !self.access.read {
            return Err(Error::WrongAccess("reading"));
        }
        let len = buffer.len().min(OPERATION_BYTES_MAX);
        let pieces = self.shared.call(self.shared.engine.read(self.ino(), offset, len))?;
        let mut read = 0;
        for piece in pieces {
            buffer[read..read + piece.len()].copy_from_slice(&piece);
            read += piece.len();
        }
        Ok(read)
    }

    /// Writes at `offset` without moving the position. May write fewer bytes than given, as when the
    /// filesystem is nearly full, but at least one if there are any.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.require_write()?;
        let data = &data[..data.len().min(OPERATION_BYTES_MAX)];
        let engine = &self.shared.engine;
        let (data, kill_privileges) = (owned(data), self.shared.kill_privileges());
        self.shared.call(async {
            let written = engine.write_what_fits(self.ino(), offset, data, kill_privileges).await?;
            self.shared.settle(self.ino()).await?;
            Ok(written)
        })
    }

    /// Writes all of `data` at `offset`.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            let written = self.write_at(data, offset)?;
            data = &data[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Reads until `buffer` is full; an error of kind `UnexpectedEof` if the file ends first.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    buffer = &mut buffer[read..];
                    offset += read as u64;
                }
            }
        }
        Ok(())
    }

    /// The whole contents, without moving the position.
    pub(crate) fn contents(&self) -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        // A sparse file may be larger than all memory; trying to fill that would end the process.
        let bytes = self.metadata()?.len();
        let reserved = usize::try_from(bytes).map(|bytes| contents.try_reserve_exact(bytes));
        if !matches!(reserved, Ok(Ok(()))) {
            return Err(Error::Memory { bytes });
        }
        // One call, so that it sees no transaction in part.
        self.shared.call(async {
            loop {
                let pieces =
                    self.shared.engine.read(self.ino(), contents.len() as u64, OPERATION_BYTES_MAX).await?;
                if pieces.is_empty() {
                    return Ok(contents);
                }
                pieces.iter().for_each(|piece| contents.extend_from_slice(piece));
            }
        })
    }

    /// The first offset at or after `offset` that holds data; ENXIO if there is none.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        Ok(self.shared.call(self.shared.engine.seek_data(self.ino(), offset))?)
    }

    /// The first offset at or after `offset` that holds no data; at the latest the end of the file.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        Ok(self.shared.call(self.shared.engine.seek_hole(self.ino(), offset))?)
    }

    pub(crate) fn require_write(&self) -> Result<()> {
        if self.access.writes() { Ok(()) } else { Err(Error::WrongAccess("writing")) }
    }

    fn append(&self, data: &[u8], position: &mut u64) -> Result<usize> {
        let data = &data[..data.len().min(OPERATION_BYTES_MAX)];
        let (owned, kill_privileges) = (owned(data), self.shared.kill_privileges());
        let offset = self.shared.call(async {
            let offset = self.shared.engine.append(self.ino(), owned, kill_privileges).await?;
            self.shared.settle(self.ino()).await.map(|()| offset)
        })?;
        *position = offset + data.len() as u64;
        Ok(data.len())
    }
}

/// A copy of `data`, because the engine keeps written data until it is durable.
pub(crate) fn owned(data: &[u8]) -> Bytes {
    if data.len() >= ALIGN_FROM_BYTES {
        AlignedBuf::copy_from(data).into_bytes().slice(..data.len())
    } else {
        Bytes::copy_from_slice(data)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.shared.engine.release_file(self.ino());
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("ino", &self.ino()).field("access", &self.access).finish_non_exhaustive()
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let read = self.read_at(buffer, *position)?;
        *position += read as u64;
        Ok(read)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        if self.access.append {
            return Ok(self.append(data, &mut position)?);
        }
        let written = self.write_at(data, *position)?;
        *position += written as u64;
        Ok(written)
    }

    /// Does nothing: writes are not buffered here. [`File::sync_all`] makes them durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(distance) => position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.metadata()?.len().checked_add_signed(distance),
        };
        *position = target
            .filter(|&target| i64::try_from(target).is_ok())
            .ok_or(Error::Invalid("a position before the start or past all sizes"))?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(buffer)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&mut &*self).seek(to)
    }
}
