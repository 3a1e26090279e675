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
/// An operation starts when the method is called, not when somebody waits for it, and it runs to its end whatever
/// becomes of the caller. Offsets and lengths are multiples of 4096 bytes and lie inside the device; anything else is
/// answered with an error.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4096. It never becomes less.
    fn size_bytes(&self) -> u64;

    /// True when a read returns what the device holds, not what a cache of this host does. Recovery trusts no cache:
    /// where this is false it writes again what it accepts.
    fn reads_bypass_caches(&self) -> bool {
        true
    }

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>);

    /// Writes `bufs` one after the other at `offset`. Each buffer is a multiple of 4096 bytes long.
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>);

    /// Makes every write that completed before this call persistent.
    fn flush(&self, done: Completion<()>);

    /// True when [`write_through`](Self::write_through) is one request rather than two.
    fn writes_through(&self) -> bool {
        false
    }

    /// Writes `bufs` at `offset` and, when that is done, makes it persistent together with every write that completed before
    /// this call. After an error nobody knows which of the two has failed. Only for devices that say that they do it.
    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let source = std::io::ErrorKind::Unsupported.into();
        done(Err(DeviceError::io(Operation::Write, offset, len_bytes, source)));
    }

    /// Hands what this thread has started to the device now, rather than when the thread has done its turn. Worth a system
    /// call where the thread goes on computing while a write could be under way. Only about time: nothing depends on it.
    fn submit(&self) {}

    /// Looks how large the device has become, and makes an image file that is smaller than `size_bytes` so large, allocated and
    /// written with zeros behind what there was; a flush makes that durable. Answers with the size, which [`size_bytes`](Self::size_bytes) is
    /// from then on. It takes as long as the zeros do; operations go on meanwhile.
    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        let present = self.size_bytes();
        done(if size_bytes <= present {
            Ok(present)
        } else {
            Err(DeviceError::out_of_range(Operation::Write, present, size_bytes - present))
        });
    }

    /// Claims snapshot `number` of what is on the device against everybody who has opened the same device; false if others have
    /// it. Lasts until the device is dropped or the claim is replaced. What only one can open has no others.
    fn claim_snapshot(&self, number: u64, claim: Claim) -> Result<bool, DeviceError> {
        let _ = (number, claim);
        Ok(true)
    }

    /// True when [`discard`](Self::discard) is of use. Otherwise it is refused.
    fn discards(&self) -> bool {
        true
    }

    /// Tells the device that the range holds nothing of use. The contents are undefined afterwards.
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>);
}

/// Whether others may have the same at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Others that claim it as shared may.
    Shared,
    /// Nobody else may.
    Exclusive,
    /// It is let go of.
    Released,
}

/// The same operations as futures, for those who wait for one operation at a time. The operation starts at the call;
/// dropping the future forgets the answer and cancels nothing.
pub trait DeviceExt: Device {
    /// Reads `len_bytes` at `offset`.
    fn read_at(&self, offset: u64, len_bytes: usize) -> DeviceFuture<AlignedBuf> {
        self.read_into(offset, len_bytes, None)
    }

    /// The same into `room`, if there is one of this length.
    fn read_into(&self, offset: u64, len_bytes: usize, room: Option<Room>) -> DeviceFuture<AlignedBuf> {
        let (future, done) = operation(Operation::Read);
        if !(len_bytes as u64).is_multiple_of(BLOCK_BYTES as u64) || len_bytes as u64 > self.size_bytes() {
            // Refused before any memory is set aside: the length may come from a damaged image.
            done(Err(DeviceError::out_of_range(Operation::Read, offset, len_bytes as u64)));
        } else {
            let room = room.filter(|room| room.len() == len_bytes);
            self.read(offset, room.map_or_else(|| AlignedBuf::for_read(len_bytes), Room::into_buf), done);
        }
        future
    }

    /// Writes one run of buffers.
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

    /// Makes the device so large, if it can be.
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

/// A device operation that somebody waits for.
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
