//! Which changes of a file are not durable, as its inode in memory knows them.

use crate::inode::Inode;
use crate::receipt::Why;
use crate::types::FileType;
use syncline_store::{OpSeq, Store};

/// The changes of an inode that are not durable, and the newest operation that changed it.
pub(in crate::data) fn own(store: &Store, inode: &Inode, data_only: bool) -> (Why, OpSeq) {
    let mut why = Why::default();
    let state = inode.state.lock();
    let data = &state.data;
    if inode.file_type == FileType::Regular {
        why.add_if(data.blocks.unlogged() > 0, Why::DIRTY_DATA);
        why.add_if(data.blocks.in_flight() > 0 || data.is_submitting(), Why::WRITE_BACK);
        why.add_if(data.logged.size() != state.attr.size, Why::SIZE);
        why.add_if(data.logged.mtime() != state.attr.mtime, Why::MTIME);
    }
    let changed = if inode.file_type == FileType::Directory { Why::ENTRIES } else { Why::ATTRIBUTES };
    why.add_if(!data_only && state.access_unlogged, changed);
    let marks = [(data.logged.op(), Why::LOGGED), (state.name_op, Why::NAME), (state.changed_op, changed)];
    for (op, reason) in marks {
        if data_only && reason == changed {
            continue;
        }
        // The mark of an inode that was loaded is the store's newest operation at that time,
        // whichever inode that changed.
        let reason = if op == state.loaded_op { Why::LOADED } else { reason };
        why.add_if(!store.is_durable(op), reason);
    }
    (why, state.newest_op(data_only))
}
