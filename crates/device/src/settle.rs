//! Reads whose result can't be revised later.

use crate::{AlignedBuf, Device, DeviceError, DeviceExt, Operation};
use std::io;
use std::sync::Arc;

/// After this many reads, a device that answers differently each time is given up.
pub const READS_MAX: u32 = 4;

/// Reads until `accept` takes the bytes or two reads in a row are the same.
///
/// Recovery ends the log at the first batch that does not verify, and what follows is overwritten.
/// A single misread must not be taken for that end: only what the device returns twice counts as
/// its contents. The caller verifies the returned bytes again.
pub async fn read_settled(
    device: &Arc<dyn Device>,
    offset: u64,
    len_bytes: usize,
    accept: impl Fn(&[u8]) -> bool,
) -> Result<AlignedBuf, DeviceError> {
    let mut before: Option<AlignedBuf> = None;
    for _ in 0..READS_MAX {
        let bytes = device.read_at(offset, len_bytes).await?;
        if accept(&bytes) || before.is_some_and(|before| before[..] == bytes[..]) {
            return Ok(bytes);
        }
        before = Some(bytes);
    }
    Err(unsettled(offset, len_bytes as u64))
}

/// The error for a device that returns different bytes on each read.
pub fn unsettled(offset: u64, len_bytes: u64) -> DeviceError {
    let why = io::Error::other("the device gives other bytes each time it is read");
    DeviceError::io(Operation::Read, offset, len_bytes, why)
}
