//! Small files are taken along with any fsync (S2 `flush-elide`).
//!
//! A small file lies in its inode item: logging it costs a part of a batch that is written anyway,
//! and no data write. So an fsync that has to write a batch takes along the pending changes of
//! small files. The fsync of such a file that follows finds it covered by the same flush and does
//! nothing. After `echo aaa >f1; echo aaa >f2; fsync f2`, fsync of f1 is free.

use super::start::{self, Submission};
use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::receipt::Submitted;
use syncline_store::{Ablation, ChangeSize};

/// Most files that one fsync takes along: at most 128 KiB of log.
const ALONG_MAX: usize = 64;

/// Submits the pending changes of small files. Nothing is waited for: a file whose `writeback` or
/// lease is held stays behind.
pub(in crate::data) async fn submit_along(fs: &Filesystem) {
    if fs.store.ablates(Ablation::FlushElide) {
        return;
    }
    let inodes = fs.data.small.take(ALONG_MAX);
    let mut held = Vec::with_capacity(inodes.len());
    let mut files = Vec::with_capacity(inodes.len());
    for inode in &inodes {
        let mut state = inode.state.lock();
        state.data.progress.note_small(false);
        let small = state.data.lies_in_item() && state.attr.size <= fs.limits.inline_bytes as u64;
        if !small || state.attr.nlink == 0 || state.is_clean(Aim::Place) {
            continue;
        }
        let (writeback, lease) = (state.data.writeback().try_lock_arc(), inode.lease.try_write());
        if let (Some(writeback), Some(lease)) = (writeback, lease) {
            state.begin_submission();
            held.push((writeback, lease));
            files.push(Submission { inode, blocks: 0..1, aim: Aim::Place });
        }
    }
    if files.is_empty() {
        return;
    }
    let bytes = files.len() as u64 * fs.limits.inline_bytes as u64;
    let _room = fs.store.promise(ChangeSize { items: files.len() as u64, bytes });
    if !fs.store.has_room_to_spare() {
        // Submitted one by one, each in its time, they may still find room.
        return;
    }
    fs.counters.taken_along.add(files.len() as u64);
    if let Err(error) = start::submit(fs, &files, &mut Submitted::default()).await {
        // The files are dirty as before, and their own syncs get the error.
        tracing::debug!(%error, "small files stay behind");
    }
}
