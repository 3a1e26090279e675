//! Reads that something is decided on for good.

use crate::{AlignedBuf, Device, DeviceError, DeviceExt, Operation};
use std::io;
use std::sync::Arc;

/// Reads after which a device that answers differently each time is given up.
pub const READS_MAX: u32 = 4;

/// Reads until `accept` takes the bytes or two reads in a row are the same.
///
/// Recovery ends the log at what does not verify, and what follows is overwritten. Bytes that were read wrong once must not be
/// taken for that end: only what the device says twice is what it holds. The caller looks again at what it gets.
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

/// The device gives other bytes each time it is asked.
pub fn unsettled(offset: u64, len_bytes: u64) -> DeviceError {
    let why = io::Error::other("the device gives other bytes each time it is read");
    DeviceError::io(Operation::Read, offset, len_bytes, why)
}
