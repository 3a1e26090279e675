//! fallocate in all its forms.

use super::tracked::{Did, tracked_each};
use super::workload::{Done, Failure, Task, finds_room};
use crate::block_of;
use crate::model::Change;
use rand::Rng;
use syncline_device::BLOCK_BYTES;
use syncline_fs::Allocation;
use syncline_fs::types::Ino;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Task {
    /// Changes the allocation of a part of a file.
    pub(super) async fn allocate(&mut self) -> Done {
        let ino = self.random_file()?;
        let claim = self.claim(ino).await?;
        let size = self.history.with_file(ino, |file| file.size());
        let (mut offset, len) = self.random_range_of(size);
        let mut len = len as u64;
        if self.rng.random() {
            (offset, len) = (offset / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
        }
        let what = match self.rng.random_range(0..7) {
            4 => Allocation::Preallocate { keep_size: true },
            5 | 6 => Allocation::Preallocate { keep_size: false },
            0 => Allocation::ZeroRange { keep_size: false },
            1 => Allocation::ZeroRange { keep_size: true },
            _ => Allocation::PunchHole,
        };
        let past_end = matches!(what, Allocation::Preallocate { .. }) && self.rng.random();
        if past_end {
            offset = size.next_multiple_of(BLOCK);
        }
        let end = offset + len;
        let (cleared, new_size) = match what {
            Allocation::Preallocate { keep_size } => (0..0, if keep_size { 0 } else { end }),
            Allocation::ZeroRange { keep_size } => (offset..end, if keep_size { 0 } else { end }),
            Allocation::PunchHole => (offset..end, 0),
            Allocation::CollapseRange | Allocation::InsertRange | Allocation::UnshareRange { .. } => {
                unreachable!("not among those above")
            }
        };
        let (fs, history, range) = (self.fs.clone(), self.history.clone(), cleared.clone());
        let allocating = async move { fs.allocate(ino, what, offset, len, false).await };
        // A large range takes several transactions, and other tasks run in between.
        let mut begun = range.is_empty();
        let each = move |did: &Did| {
            if let (false, Some(op)) = (begun, did.committed.first()) {
                let time = history.tick();
                history.with_file(ino, |file| file.clearing(time, *op, &range, new_size));
                begun = true;
            }
        };
        let (answer, did) = tracked_each(&self.fs, allocating, each).await;
        tracing::trace!(ino, ?what, offset, len, ?answer, "allocate");
        if answer.is_err() && !did.committed.is_empty() {
            // How much was done is unknown to the model, so the file is not used again in this
            // life.
            claim.keep();
        }
        answer?;
        let Some(op) = did.committed.last().copied() else {
            return Err(Failure::Wrong(format!("{what:?} said that it was done and committed nothing")));
        };
        let time = self.history.tick();
        self.history.with_file(ino, |file| file.cleared(time, op, &cleared, new_size));
        self.history.changed(op, Change::Truncate);
        if past_end { self.write_to_room(ino, offset, len).await } else { Ok(()) }
    }

    /// Writes into preallocated room; this must succeed however full the image is.
    async fn write_to_room(&mut self, ino: Ino, offset: u64, len: u64) -> Done {
        let tag = self.history.new_tag();
        let data: Vec<u8> = (0..).flat_map(|block| block_of(tag, block)).take(len as usize).collect();
        let payload = syncline_device::AlignedBuf::copy_from(&data).into_bytes().slice(..data.len());
        let answer = self.fs.write(ino, offset, payload, false).await;
        tracing::trace!(ino, offset, len, ?answer, "write to room");
        finds_room(answer)?;
        let time = self.history.tick();
        self.history.with_file(ino, |file| file.write(time, offset, &data));
        Ok(())
    }
}
