//! Reading a file whose atomic write is open, as a program on the mount does: with what was written.

use super::spill;
use crate::FsError;
use crate::data::calls::read::{Contents, push_zeros, read_leased};
use crate::data::memory::BLOCK;
use crate::data::memory::atomic::Atomic;
use crate::data::memory::spilled::Stored;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::join::join_all;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Reads in flight for one request.
const READS_IN_FLIGHT: usize = 16;

/// A part of a request: bytes `bytes` of the file.
enum Part {
    Memory(Bytes),
    /// On the device, as a part of the atomic write.
    Spilled {
        stored: Stored,
        bytes: Range<u64>,
    },
    /// Not part of the atomic write.
    Before {
        bytes: Range<u64>,
    },
}

/// Reads bytes `offset..offset + len`; `None` if no atomic write is open.
pub(in crate::data) async fn read(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    offset: u64,
    len: usize,
) -> Result<Option<Contents>, FsError> {
    // Keeps the blocks in place that are found.
    let _lease = inode.lease.read().await;
    let parts = {
        let state = inode.state.lock();
        let Some(atomic) = &state.data.atomic else { return Ok(None) };
        let end = offset.saturating_add(len as u64).min(atomic.size.max(state.attr.size));
        parts(atomic, offset, end)
    };
    let reads = parts.into_iter().map(|part| read_part(fs, inode, part)).collect();
    let mut found = Contents::default();
    for part in join_all(reads, READS_IN_FLIGHT).await {
        let part = part?;
        found.pieces.extend(part.pieces);
        found.holes.extend(part.holes);
    }
    Ok(Some(found))
}

fn parts(atomic: &Atomic, offset: u64, end: u64) -> Vec<Part> {
    let (mut parts, mut at) = (Vec::new(), offset);
    while at < end {
        let block = at / BLOCK;
        let block_end = end.min((block + 1) * BLOCK);
        let start = (at % BLOCK) as usize;
        let (part, next) = if let Some(bytes) = atomic.part(block, start..start + (block_end - at) as usize) {
            (Part::Memory(bytes), block_end)
        } else if let Some(stored) = atomic.spilled.stored(block, end.div_ceil(BLOCK)) {
            // None of its blocks is in memory too.
            let next = end.min(stored.numbers.end * BLOCK);
            (Part::Spilled { stored, bytes: at..next }, next)
        } else {
            let next = atomic.next(block).map_or(end, |block| end.min(block * BLOCK));
            (Part::Before { bytes: at..next }, next)
        };
        parts.push(part);
        at = next;
    }
    parts
}

async fn read_part(fs: &Filesystem, inode: &Arc<Inode>, part: Part) -> Result<Contents, FsError> {
    let data = |bytes| Contents { pieces: vec![bytes], holes: Vec::new() };
    match part {
        Part::Memory(bytes) => Ok(data(bytes)),
        Part::Spilled { stored, bytes } => {
            let first = stored.numbers.start * BLOCK;
            let contents = spill::read(fs, inode, &stored).await?;
            Ok(data(contents.slice((bytes.start - first) as usize..(bytes.end - first) as usize)))
        }
        Part::Before { bytes } => {
            let len = bytes.end - bytes.start;
            let mut found = read_leased(fs, inode, bytes.start, len as usize, None).await?;
            let known: u64 = found.pieces.iter().map(|piece| piece.len() as u64).sum();
            push_zeros(&mut found.pieces, len - known);
            Ok(found)
        }
    }
}
