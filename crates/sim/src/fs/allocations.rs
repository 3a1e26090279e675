//! fallocate in all its forms.

use super::tracked::tracked;
use super::tree::Change;
use super::workload::{Done, Failure, Task};
use rand::Rng;
use syncline_device::BLOCK_BYTES;
use syncline_fs::Allocation;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Task {
    /// Changes how a part of a file is allocated.
    pub(super) async fn allocate(&mut self) -> Done {
        let ino = self.random_file()?;
        let _claim = self.claim(ino).await?;
        let size = self.history.with_file(ino, |file| file.size());
        let (mut offset, len) = self.random_range_of(size);
        let mut len = len as u64;
        if self.rng.random() {
            (offset, len) = (offset / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
        }
        let what = match self.rng.random_range(0..4) {
            0 => Allocation::ZeroRange { keep_size: false },
            1 => Allocation::ZeroRange { keep_size: true },
            _ => Allocation::PunchHole,
        };
        let fs = self.fs.clone();
        let allocating = async move { fs.allocate(ino, what, offset, len, false).await };
        let (answer, did) = tracked(&self.fs, allocating).await;
        tracing::trace!(ino, ?what, offset, len, ?answer, "allocate");
        answer?;
        let Some(op) = did.committed.last().copied() else {
            return Err(Failure::Wrong(format!("{what:?} said that it was done and committed nothing")));
        };
        let end = offset + len;
        let new_size = if what == (Allocation::ZeroRange { keep_size: false }) { end } else { 0 };
        let time = self.history.tick();
        self.history.with_file(ino, |file| file.cleared(time, op, offset..end, new_size));
        self.history.changed(op, Change::Truncate);
        Ok(())
    }
}
