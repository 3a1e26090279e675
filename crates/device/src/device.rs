//! The device trait: completion-driven, object-safe, small.

use crate::{AlignedBuf, BLOCK_BYTES, DeviceError, Operation, Room, oneshot};
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Called exactly once when an operation ends, on whichever thread saw it end. It must not block.
pub type Completion<T> = Box<dyn FnOnce(Result<T, DeviceError>) + Send>;

/// A block store that takes operations and answers through completions.
///
/// An operation starts when the method is called, not when its answer is awaited, and runs to its
/// end even if the caller goes away. A [`FileDevice`](crate::FileDevice) on a thread in
/// [`drive`](crate::drive), as all calls of the library are, starts it when the future waits or at
/// [`submit`](Self::submit): a device that blocks the thread until another device has answered calls that first. Offsets and lengths must be multiples of 4096 bytes and lie
/// inside the device; anything else is answered with an error.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4096. It never shrinks.
    fn size_bytes(&self) -> u64;

    /// Bytes of its storage that are not in [`size_bytes`](Self::size_bytes): a header.
    fn overhead_bytes(&self) -> u64 {
        0
    }

    /// True if a read returns what the device holds, not what a cache of this host holds. Recovery
    /// trusts no cache: where this is false it rewrites what it accepts.
    fn reads_bypass_caches(&self) -> bool {
        true
    }

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>);

    /// Writes `bufs` one after the other at `offset`. Each buffer is a multiple of 4096 bytes long.
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>);

    /// Makes every write that completed before this call persistent.
    fn flush(&self, done: Completion<()>);

    /// True if [`write_through`](Self::write_through) is one request rather than two.
    fn writes_through(&self) -> bool {
        false
    }

    /// Writes `bufs` at `offset` and then makes that, and every write that completed before this
    /// call, persistent. After an error it is unknown which of the two failed. Only for devices
    /// that support it.
    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let source = std::io::ErrorKind::Unsupported.into();
        done(Err(DeviceError::io(Operation::Write, offset, len_bytes, source)));
    }

    /// Hands the operations that this thread has started to the device now, rather than at the end
    /// of the thread's turn. It costs a system call, and is worth it if the thread keeps computing
    /// while a write could be in flight. It affects only timing, unless the thread blocks by itself.
    fn submit(&self) {}

    /// Checks how large the device has become, and extends an image file that is smaller than
    /// `size_bytes` to that size, allocated and written with zeros behind its old end; a flush
    /// makes that durable. Answers with the size, which is the new
    /// [`size_bytes`](Self::size_bytes). It takes as long as writing the zeros; other operations
    /// continue meanwhile.
    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        let present = self.size_bytes();
        done(if size_bytes <= present {
            Ok(present)
        } else {
            Err(DeviceError::out_of_range(Operation::Write, present, size_bytes - present))
        });
    }

    /// Claims snapshot `number` of this device against everybody else who has opened the same
    /// device; false if others hold it. The claim lasts until the device is dropped or the claim is
    /// replaced. A device that can be opened only once always grants it.
    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        let _ = (number, claim);
        Ok(true)
    }

    /// True if [`discard`](Self::discard) has an effect. Otherwise it is refused.
    fn discards(&self) -> bool {
        true
    }

    /// Tells the device that the range is unused. Its contents are undefined afterwards.
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>);
}

/// Whether others may hold the same claim at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Others may hold it as shared.
    Shared,
    /// Nobody else may hold it.
    Exclusive,
    /// The claim is released.
    Released,
}

/// The device's operations as futures, for callers that wait for one operation at a time. The
/// operation starts at the call; dropping the future discards the answer and cancels nothing.
pub trait DeviceExt: Device {
    /// Reads `len_bytes` at `offset`.
    fn read_at(&self, offset: u64, len_bytes: usize) -> DeviceFuture<AlignedBuf> {
        self.read_into(offset, len_bytes, None)
    }

    /// Reads `len_bytes` at `offset`, into `room` if one of this length is given.
    fn read_into(&self, offset: u64, len_bytes: usize, room: Option<Room>) -> DeviceFuture<AlignedBuf> {
        let (future, done) = operation(Operation::Read);
        if !(len_bytes as u64).is_multiple_of(BLOCK_BYTES as u64) || len_bytes as u64 > self.size_bytes() {
            // Refused before any memory is allocated: the length may come from a damaged image.
            done(Err(DeviceError::out_of_range(Operation::Read, offset, len_bytes as u64)));
        } else {
            let room = room.filter(|room| room.len() == len_bytes);
            self.read(offset, room.map_or_else(|| AlignedBuf::for_read(len_bytes), Room::into_buf), done);
        }
        future
    }

    /// Writes consecutive buffers at `offset`.
    fn write_at(&self, offset: u64, bufs: Vec<Bytes>) -> DeviceFuture<()> {
        let (future, done) = operation(Operation::Write);
        self.write(offset, bufs, done);
        future
    }

    /// Flushes.
    fn flush_all(&self) -> DeviceFuture<()> {
        let (future, done) = operation(Operation::Flush);
        self.flush(done);
        future
    }

    /// Enlarges the device to this size, if possible.
    fn enlarge_to(&self, size_bytes: u64) -> DeviceFuture<u64> {
        let (future, done) = operation(Operation::Write);
        self.enlarge(size_bytes, done);
        future
    }

    /// Discards a range.
    fn discard_at(&self, offset: u64, len_bytes: u64) -> DeviceFuture<()> {
        let (future, done) = operation(Operation::Discard);
        self.discard(offset, len_bytes, done);
        future
    }
}

impl<D: Device + ?Sized> DeviceExt for D {}

/// A future and the completion that resolves it.
pub(crate) fn operation<T: Send + 'static>(operation: Operation) -> (DeviceFuture<T>, Completion<T>) {
    let (sender, receiver) = oneshot::channel();
    (DeviceFuture { receiver, operation }, Box::new(move |result| sender.send(result)))
}

/// A device operation that is being waited for.
pub struct DeviceFuture<T> {
    receiver: oneshot::Receiver<Result<T, DeviceError>>,
    operation: Operation,
}

impl<T> Future for DeviceFuture<T> {
    type Output = Result<T, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let operation = self.operation;
        Pin::new(&mut self.receiver)
            .poll(context)
            .map(|answer| answer.unwrap_or(Err(DeviceError::Abandoned { operation })))
    }
}

/// Checks that a range is made of whole blocks and lies inside the device.
pub(crate) fn check_range(
    operation: Operation,
    size_bytes: u64,
    offset: u64,
    len_bytes: u64,
) -> Result<(), DeviceError> {
    let block = BLOCK_BYTES as u64;
    let aligned = offset.is_multiple_of(block) && len_bytes.is_multiple_of(block);
    let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes);
    if aligned && inside { Ok(()) } else { Err(DeviceError::out_of_range(operation, offset, len_bytes)) }
}

/// Checks the buffers of a write, and adds up their length.
pub(crate) fn check_write(size_bytes: u64, offset: u64, bufs: &[Bytes]) -> Result<u64, DeviceError> {
    let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
    check_range(Operation::Write, size_bytes, offset, len_bytes)?;
    if bufs.iter().any(|buf| !buf.len().is_multiple_of(BLOCK_BYTES)) {
        return Err(DeviceError::out_of_range(Operation::Write, offset, len_bytes));
    }
    Ok(len_bytes)
}
