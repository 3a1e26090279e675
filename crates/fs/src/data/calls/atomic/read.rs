//! Reading a file whose atomic write is open, as a program on the mount does: with what was written.

use crate::FsError;
use crate::data::calls::read::{push_zeros, read_leased};
use crate::data::memory::BLOCK;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use bytes::Bytes;
use std::sync::Arc;

/// Reads bytes `offset..offset + len`; `None` if no atomic write is open.
pub(in crate::data) async fn read(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    len: usize,
) -> Result<Option<Vec<Bytes>>, FsError> {
    let _lease = inode.lease.read().await;
    let size = {
        let state = inode.state.lock();
        let Some(atomic) = &state.data.atomic else { return Ok(None) };
        atomic.size.max(state.attr.size)
    };
    let end = offset.saturating_add(len as u64).min(size);
    let (mut pieces, mut at) = (Vec::new(), offset);
    while at < end {
        let block_end = end.min((at / BLOCK + 1) * BLOCK);
        if let Some(piece) = written(inode, at, block_end) {
            pieces.push(piece);
            at = block_end;
            continue;
        }
        // Everything up to the next block of the atomic write, which the lease keeps in place.
        let next = {
            let state = inode.state.lock();
            let blocks = state.data.atomic.as_ref().map(|atomic| &atomic.blocks);
            blocks.and_then(|blocks| blocks.next(at / BLOCK)).map_or(end, |block| end.min(block * BLOCK))
        };
        let before = read_leased(fs, inode, at, (next - at) as usize, None).await?;
        let known: u64 = before.iter().map(|piece| piece.len() as u64).sum();
        pieces.extend(before);
        push_zeros(&mut pieces, next - at - known);
        at = next;
    }
    Ok(Some(pieces))
}

/// The bytes `from..until`, which lie in one block, if they are part of the atomic write.
fn written(inode: &Inode, from: u64, until: u64) -> Option<Bytes> {
    let state = inode.state.lock();
    let start = (from % BLOCK) as usize;
    state.data.atomic.as_ref()?.part(from / BLOCK, start..start + (until - from) as usize)
}
