//! One device operation on an open file: the part that is left of it, and how to handle each
//! partial result.
//!
//! A request owns its buffers and its file from submission to completion, so that no I/O can
//! outlive its memory.

#[cfg(test)]
mod tests;

use crate::file::Others;
use crate::{AlignedBuf, BLOCK_BYTES, Completion, DeviceError, Operation};
use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use smallvec::{SmallVec, smallvec};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// The most pieces that one system call takes.
const MOST_PIECES: usize = libc::UIO_MAXIOV as usize;

/// A file that is open for I/O.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Excludes those who reach the same bytes in another way.
    pub(crate) others: Others,
    pub(crate) direct: bool,
    pub(crate) block_device: bool,
    /// A write with `RWF_DSYNC` ends with a flush of everything that the device holds.
    pub(crate) flushes_with_write: bool,
    /// The file was created by us, and locked while it was empty.
    pub(crate) made: bool,
}

/// An operation in flight.
pub(crate) struct Request {
    file: Arc<OpenFile>,
    offset: u64,
    len_bytes: u64,
    /// Bytes moved so far.
    moved: u64,
    pieces: Pieces,
    work: Work,
}

enum Work {
    Read {
        buf: AlignedBuf,
        done: Completion<AlignedBuf>,
    },
    /// The buffers are only kept alive; the pieces point into them.
    Write {
        _bufs: Vec<Bytes>,
        /// A flush follows the write.
        through: bool,
        done: Completion<()>,
    },
    Flush {
        done: Completion<()>,
    },
    Discard {
        done: Completion<()>,
    },
}

/// The memory still to be filled or written, in order. It points into the buffers of the request's
/// `work`.
struct Pieces {
    /// Several iovecs are on the heap, where the kernel reads them even if the request moves. A
    /// single one is passed in the entry.
    iovecs: SmallVec<[libc::iovec; 1]>,
    first: usize,
}

// SAFETY: the pointers lead into buffers that the request owns and that are Send themselves.
unsafe impl Send for Pieces {}

/// The step after a partial result.
pub(crate) enum Step {
    /// Something is left to do.
    Again(Request),
    /// The operation has ended.
    Finished(Finished),
}

/// An operation that has ended, with its completion.
pub(crate) enum Finished {
    Read(Completion<AlignedBuf>, Result<AlignedBuf, DeviceError>),
    Other(Completion<()>, Result<(), DeviceError>),
}

impl Finished {
    /// Calls the completion.
    pub(crate) fn deliver(self) {
        shielded(|| match self {
            Self::Read(done, result) => done(result),
            Self::Other(done, result) => done(result),
        });
    }
}

/// Calls a completion. A panic in it is reported as an error; the thread has other completions to
/// call, and none of them may be lost.
pub(crate) fn shielded(complete: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(complete)).is_err() {
        tracing::error!("the completion of a device operation panicked");
    }
}

impl Request {
    pub(crate) fn read(
        file: Arc<OpenFile>,
        offset: u64,
        mut buf: AlignedBuf,
        done: Completion<AlignedBuf>,
    ) -> Self {
        let len_bytes = buf.len() as u64;
        let iovec = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        let pieces = Pieces { iovecs: smallvec![iovec], first: 0 };
        Self { file, offset, len_bytes, moved: 0, pieces, work: Work::Read { buf, done } }
    }

    pub(crate) fn write(file: Arc<OpenFile>, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) -> Self {
        let bufs = if file.direct { bounce(bufs) } else { bufs };
        let mut iovecs: SmallVec<[libc::iovec; 1]> = SmallVec::with_capacity(bufs.len());
        let mut len_bytes = 0;
        for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
            len_bytes += buf.len() as u64;
            iovecs.push(libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() });
        }
        let pieces = Pieces { iovecs, first: 0 };
        let work = Work::Write { _bufs: bufs, through: false, done };
        Self { file, offset, len_bytes, moved: 0, pieces, work }
    }

    /// Makes a write end with a flush.
    pub(crate) fn flushed(mut self) -> Self {
        if let Work::Write { through, .. } = &mut self.work {
            *through = true;
        }
        self
    }

    fn write_flags(&self) -> libc::c_int {
        if self.is_through() { libc::RWF_DSYNC } else { 0 }
    }

    pub(crate) fn flush(file: Arc<OpenFile>, done: Completion<()>) -> Self {
        Self { file, offset: 0, len_bytes: 0, moved: 0, pieces: Pieces::none(), work: Work::Flush { done } }
    }

    pub(crate) fn discard(file: Arc<OpenFile>, offset: u64, len_bytes: u64, done: Completion<()>) -> Self {
        Self { file, offset, len_bytes, moved: 0, pieces: Pieces::none(), work: Work::Discard { done } }
    }

    /// True if there is nothing for the kernel to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.len_bytes == 0 && !matches!(self.work, Work::Flush { .. })
    }

    /// True if it is a flush.
    pub(crate) fn is_flush(&self) -> bool {
        matches!(self.work, Work::Flush { .. })
    }

    /// True if it is a write that no flush follows.
    pub(crate) fn is_plain_write(&self) -> bool {
        matches!(self.work, Work::Write { through: false, .. })
    }

    /// True if it is a write that a flush follows.
    pub(crate) fn is_through(&self) -> bool {
        matches!(self.work, Work::Write { through: true, .. })
    }

    /// Discards have no ring opcode (not on every kernel we support) and may take long.
    pub(crate) fn needs_blocking_thread(&self) -> bool {
        matches!(self.work, Work::Discard { .. })
    }

    /// The ring entry for the part that is left.
    ///
    /// The caller keeps the request in memory until the kernel has completed the entry.
    pub(crate) fn entry(&self) -> squeue::Entry {
        let fd = types::Fd(self.fd());
        let at = self.offset + self.moved;
        let pieces = self.pieces.next();
        match (&self.work, pieces) {
            (Work::Read { .. }, [piece]) => {
                opcode::Read::new(fd, piece.iov_base.cast(), entry_len(piece)).offset(at).build()
            }
            (Work::Write { .. }, [piece]) => {
                let write = opcode::Write::new(fd, piece.iov_base.cast(), entry_len(piece));
                write.offset(at).rw_flags(self.write_flags()).build()
            }
            (Work::Read { .. }, _) => {
                opcode::Readv::new(fd, pieces.as_ptr(), pieces.len() as u32).offset(at).build()
            }
            (Work::Write { .. }, _) => {
                let write = opcode::Writev::new(fd, pieces.as_ptr(), pieces.len() as u32);
                write.offset(at).rw_flags(self.write_flags()).build()
            }
            (Work::Flush { .. } | Work::Discard { .. }, _) => {
                opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
            }
        }
    }

    /// Processes one result from the kernel.
    pub(crate) fn advance(mut self, result: io::Result<usize>) -> Step {
        let moved = match result {
            Ok(moved) => moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Step::Again(self),
            Err(error) => return Step::Finished(self.finish(Err(error))),
        };
        if matches!(self.work, Work::Flush { .. } | Work::Discard { .. }) {
            return Step::Finished(self.finish(Ok(())));
        }
        // Direct I/O can continue only at block boundaries; a partial block is moved again.
        let usable = if self.file.direct { moved - moved % BLOCK_BYTES } else { moved };
        self.moved += usable as u64;
        if self.moved >= self.len_bytes {
            return Step::Finished(self.finish(Ok(())));
        }
        if usable == 0 {
            // No progress: the file ends before the device does. Never hand out bytes that were not
            // read.
            let kind = match self.work {
                Work::Read { .. } => io::ErrorKind::UnexpectedEof,
                _ => io::ErrorKind::WriteZero,
            };
            return Step::Finished(self.finish(Err(kind.into())));
        }
        self.pieces.skip(usable);
        Step::Again(self)
    }

    /// Ends the request and returns it with its completion.
    pub(crate) fn finish(self, result: io::Result<()>) -> Finished {
        let (offset, len_bytes) = (self.offset, self.len_bytes);
        let outcome = |operation: Operation| {
            result.map_err(|source| DeviceError::io(operation, offset, len_bytes, source))
        };
        match self.work {
            Work::Read { buf, done } => Finished::Read(done, outcome(Operation::Read).map(|()| buf)),
            Work::Write { done, .. } => Finished::Other(done, outcome(Operation::Write)),
            Work::Flush { done } => Finished::Other(done, outcome(Operation::Flush)),
            Work::Discard { done } => Finished::Other(done, outcome(Operation::Discard)),
        }
    }

    /// Carries the request out on this thread.
    pub(crate) fn run_blocking(mut self) -> Finished {
        if self.is_empty() {
            return self.finish(Ok(()));
        }
        loop {
            let result = self.system_call();
            match self.advance(result) {
                Step::Again(request) => self = request,
                Step::Finished(finished) => return finished,
            }
        }
    }

    fn fd(&self) -> RawFd {
        self.file.file.as_raw_fd()
    }

    fn system_call(&self) -> io::Result<usize> {
        let at = (self.offset + self.moved) as libc::off_t;
        let pieces = self.pieces.next();
        let (start, count) = (pieces.as_ptr(), pieces.len() as libc::c_int);
        let moved = match self.work {
            // SAFETY: the pieces point into the buffer that this request owns, and nobody else has
            // it.
            Work::Read { .. } => unsafe { libc::preadv(self.fd(), start, count, at) },
            // SAFETY: the pieces point into the buffers that this request keeps alive.
            Work::Write { .. } => unsafe { libc::pwritev2(self.fd(), start, count, at, self.write_flags()) },
            // SAFETY: no memory is passed.
            Work::Flush { .. } => unsafe { libc::fdatasync(self.fd()) as isize },
            Work::Discard { .. } => return discard(&self.file, self.offset, self.len_bytes).map(|()| 0),
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }
}

/// The kernel moves at most this much at a time anyway; the rest follows.
fn entry_len(piece: &libc::iovec) -> u32 {
    piece.iov_len.min(1 << 30) as u32
}

impl Pieces {
    fn none() -> Self {
        Self { iovecs: SmallVec::new(), first: 0 }
    }

    fn next(&self) -> &[libc::iovec] {
        let left = &self.iovecs[self.first..];
        &left[..left.len().min(MOST_PIECES)]
    }

    /// Drops `bytes` that were moved from the front.
    fn skip(&mut self, mut bytes: usize) {
        while let Some(piece) = self.iovecs.get_mut(self.first) {
            if bytes < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(bytes);
                piece.iov_len -= bytes;
                return;
            }
            bytes -= piece.iov_len;
            self.first += 1;
        }
    }
}

/// Copies each run of buffers whose address direct I/O would refuse; the others pass unchanged.
fn bounce(bufs: Vec<Bytes>) -> Vec<Bytes> {
    if bufs.iter().all(is_aligned) {
        return bufs;
    }
    let mut bounced: Vec<Bytes> = Vec::with_capacity(bufs.len());
    for run in bufs.chunk_by(|before, after| !is_aligned(before) && !is_aligned(after)) {
        if is_aligned(&run[0]) {
            bounced.extend_from_slice(run);
            continue;
        }
        let mut copy = AlignedBuf::for_read(run.iter().map(Bytes::len).sum());
        let mut filled = 0;
        for buf in run {
            copy[filled..filled + buf.len()].copy_from_slice(buf);
            filled += buf.len();
        }
        bounced.push(copy.into_bytes());
    }
    bounced
}

fn is_aligned(buf: &Bytes) -> bool {
    buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
}

/// Discards a range. If the file or the disk does not support discards this does nothing: it is a
/// hint.
fn discard(file: &OpenFile, offset: u64, len_bytes: u64) -> io::Result<()> {
    let fd = file.file.as_raw_fd();
    let result = if file.block_device {
        const BLKDISCARD: libc::Ioctl = 0x1277;
        let range = [offset, len_bytes];
        // SAFETY: the kernel reads two u64 from the array.
        unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }
    } else {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no memory is passed.
        unsafe { libc::fallocate(fd, mode, offset as libc::off_t, len_bytes as libc::off_t) }
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => Ok(()),
        _ => Err(error),
    }
}
