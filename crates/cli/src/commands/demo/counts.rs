//! Requests that reached the device.

use std::ops::Sub;

/// Requests to the device since the image was opened.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Cache flushes.
    pub flushes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            flushes: self.flushes - before.flushes,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
        }
    }
}
