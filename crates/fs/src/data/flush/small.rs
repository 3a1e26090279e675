//! The list of dirty files that are small enough to lie in their inode items.

use crate::data::memory::DataState;
use crate::inode::Inode;
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_sync::Mutex;

/// Most files remembered. Beyond that the oldest is forgotten and waits for write-back.
const REMEMBERED_MAX: usize = 1024;

/// Small files that became dirty, oldest first. Some were cleaned or have grown since.
#[derive(Default)]
pub(crate) struct SmallDirty {
    waiting: Mutex<VecDeque<Arc<Inode>>>,
}

impl SmallDirty {
    /// Remembers a file with pending changes, if it is small. The caller holds the lock of its
    /// state, hence `data`.
    pub(crate) fn note(&self, inode: &Arc<Inode>, data: &mut DataState) {
        if data.progress.is_noted_small() || !data.lies_in_item() {
            return;
        }
        data.progress.note_small(true);
        let mut waiting = self.waiting.lock();
        if waiting.len() == REMEMBERED_MAX {
            // The forgotten file stays marked until write-back has cleaned it, so it does not come
            // back before that.
            waiting.pop_front();
        }
        waiting.push_back(inode.clone());
    }

    /// Takes the oldest files, at most `max` of them.
    pub(in crate::data) fn take(&self, max: usize) -> Vec<Arc<Inode>> {
        let mut waiting = self.waiting.lock();
        let count = waiting.len().min(max);
        waiting.drain(..count).collect()
    }
}
