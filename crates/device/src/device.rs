//! The device trait: completion-driven, object-safe, small.

use crate::{AlignedBuf, DeviceError};
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;

/// Called exactly once when an operation ends, on whichever thread saw it end. It must not block.
pub type Completion<T> = Box<dyn FnOnce(Result<T, DeviceError>) + Send>;

/// A block store that takes operations and answers through completions.
///
/// An operation starts when the method is called, not when somebody waits for it, and it runs to its end whatever
/// becomes of the caller. Offsets and lengths are multiples of 4096 bytes and lie inside the device.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4096.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>);

    /// Writes `bufs` one after the other at `offset`. Each buffer is a multiple of 4096 bytes long.
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>);

    /// Makes every write that completed before this call persistent.
    fn flush(&self, done: Completion<()>);

    /// Tells the device that the range holds nothing of use. The contents are undefined afterwards.
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>);
}

/// The same operations as futures, for those who wait for one operation at a time.
pub trait DeviceExt: Device {
    /// Reads `len_bytes` at `offset`.
    fn read_at(&self, offset: u64, len_bytes: usize) -> Pin<Box<dyn Future<Output = Result<AlignedBuf, DeviceError>> + Send>>;
    /// Writes one run of buffers.
    fn write_at(&self, offset: u64, bufs: Vec<Bytes>) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>>;
    /// Flushes.
    fn flush_all(&self) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>>;
}
