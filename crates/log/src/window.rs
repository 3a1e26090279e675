//! Reading a log in order: one large read serves many small batches.

use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceError, DeviceExt, unsettled};
use syncline_format::{BLOCK_BYTES, BlockRun};

/// Blocks read ahead at first (64 KiB, since most logs are short), and at most (1 MiB).
const AHEAD_BLOCKS_FIRST: u64 = 16;
const AHEAD_BLOCKS_MAX: u64 = 256;

/// A view of a device through the piece read last; the pieces grow as the log turns out to be long.
pub struct Window {
    device: Arc<dyn Device>,
    run: BlockRun,
    ahead_blocks: u64,
    bytes: Option<AlignedBuf>,
}

impl Window {
    /// A window that has read nothing yet.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, run: BlockRun::new(0, 0), ahead_blocks: AHEAD_BLOCKS_FIRST, bytes: None }
    }

    /// The bytes of `run`. If they are not in memory, reads on from there up to `limit`
    /// (exclusive).
    pub async fn read(&mut self, run: BlockRun, limit: u64) -> Result<&[u8], DeviceError> {
        if self.bytes.is_none() || run.start < self.run.start || run.end() > self.run.end() {
            let ahead = limit.saturating_sub(run.start).min(self.ahead_blocks);
            self.ahead_blocks = (2 * self.ahead_blocks).min(AHEAD_BLOCKS_MAX);
            self.run = BlockRun::new(run.start, run.blocks.max(ahead));
            self.bytes = None;
            let mut bytes = self.device.read_at(self.run.offset_bytes(), self.run.len_bytes() as usize).await;
            if bytes.is_err() && self.run.blocks > run.blocks {
                // The failing block may be one that nobody needs.
                (self.run, self.ahead_blocks) = (run, 1);
                bytes = self.device.read_at(run.offset_bytes(), run.len_bytes() as usize).await;
            }
            self.bytes = Some(bytes?);
        }
        let from = (run.start - self.run.start) as usize * BLOCK_BYTES;
        let bytes = self.bytes.as_ref().expect("just read, or at hand");
        Ok(&bytes[from..from + run.len_bytes() as usize])
    }

    /// Reads the current piece again; true if the device gives the same bytes.
    pub async fn read_again(&mut self) -> Result<bool, DeviceError> {
        let before = self.bytes.take();
        let bytes = self.device.read_at(self.run.offset_bytes(), self.run.len_bytes() as usize).await?;
        let same = before.is_none_or(|before| before[..] == bytes[..]);
        self.bytes = Some(bytes);
        Ok(same)
    }

    /// The error for a device that never gives the same bytes twice.
    pub fn unsettled(&self) -> DeviceError {
        unsettled(self.run.offset_bytes(), self.run.len_bytes())
    }
}
