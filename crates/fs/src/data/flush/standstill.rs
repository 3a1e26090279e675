//! Submitting everything that is dirty, while no change begins (promise P10).
//!
//! Every write that was answered before the standstill is dirty, in flight or committed by now, and
//! its inode is in the list of dirty ones if it is not committed. A write that is still under way
//! may be in the snapshot or not: nothing that followed it has begun.

use super::background::INODES_AT_ONCE;
use super::many::MANY_BLOCKS_MAX;
use super::start::{self, Submission};
use super::{ended, submit};
use crate::FsError;
use crate::data::extents::pack;
use crate::data::memory::submission::Aim;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::join::join_all;
use crate::receipt::Submitted;
use std::sync::Arc;
use syncline_store::Admission;

/// Commits transactions that name all dirty data, whose writes it starts. The checkpoint that
/// follows waits for these (R1), and no writer has to.
pub(crate) async fn submit_everything(fs: &Filesystem) -> Result<(), FsError> {
    let dirty = fs.data.queue.all_dirty();
    let jobs = dirty.iter().map(|inode| submit_whole(fs, inode)).collect();
    join_all(jobs, INODES_AT_ONCE).await.into_iter().collect()
}

async fn submit_whole(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    if inode.state.lock().is_settled(Aim::Place) {
        return Ok(());
    }
    let writeback = inode.state.lock().data.writeback();
    let _writeback = writeback.lock().await;
    loop {
        submit_once(fs, inode).await?;
        if ended::has_ended(fs, inode) {
            return Ok(());
        }
    }
}

async fn submit_once(fs: &Filesystem, inode: &Arc<Inode>) -> Result<(), FsError> {
    let much = inode.state.lock().data.blocks.dirty() > MANY_BLOCKS_MAX;
    if much || pack::algorithm(inode).is_some() {
        // Most of it is written, and compressed if the file asks for that, before its batch.
        return submit::submit_once(fs, inode, Aim::Place, &mut Submitted::default()).await;
    }
    let _room = fs.store.admit(Admission::Finish).await?;
    let _lease = inode.lease.write().await;
    {
        let mut state = inode.state.lock();
        if state.is_clean(Aim::Place) {
            return Ok(());
        }
        state.begin_submission();
    }
    let whole = [Submission { inode, blocks: 0..u64::MAX, aim: Aim::Place }];
    start::submit(fs, &whole, &mut Submitted::default()).await
}
