//! Making a fork independent of its base.

use crate::{ForkError, Forked};
use syncline_device::{BLOCK_BYTES, DeviceExt};
use syncline_format::BlockRun;

/// Blocks that are copied at once.
const COPY_BLOCKS: u64 = 256;

/// Copies the blocks of the base to the fork's own storage, where they have the same addresses, and
/// then makes the fork an image like any other, with the snapshot in its table. The fork was closed
/// cleanly, and nobody else has it. A superblock makes the switch, so a crash leaves the fork or the
/// independent image. `progress` is told how many bytes are there.
pub async fn detach(fork: &Forked, progress: &mut dyn FnMut(u64)) -> Result<(), ForkError> {
    let copied = copy(fork, progress).await;
    if copied.is_err() && fork.own().discards() {
        // Nobody will read them, and their host may be full.
        for run in fork.kept().runs() {
            let _ = fork.own().discard_at(run.offset_bytes(), run.len_bytes()).await;
        }
    }
    copied?;
    Ok(syncline_store::end_fork(fork.own().clone()).await?)
}

/// Copies the blocks of the base, durably.
async fn copy(fork: &Forked, progress: &mut dyn FnMut(u64)) -> Result<(), ForkError> {
    let own = fork.own();
    let mut copied = 0;
    for run in fork.kept().runs() {
        let mut at = run.start;
        while at < run.end() {
            let piece = BlockRun::new(at, COPY_BLOCKS.min(run.end() - at));
            let bytes = fork.base().read_at(piece.offset_bytes(), piece.len_bytes() as usize).await?;
            own.write_at(piece.offset_bytes(), vec![bytes.into_bytes()]).await?;
            at = piece.end();
            copied += piece.blocks * BLOCK_BYTES as u64;
            progress(copied);
        }
    }
    Ok(own.flush_all().await?)
}
