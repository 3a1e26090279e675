//! copy_file_range: shares blocks where it can, and copies the rest through memory.

use super::take_over::Span;
use crate::FsError;
use crate::data::calls::read;
use crate::data::calls::write::{self, Writer};
use crate::data::memory::{BLOCK, unplaced};
use crate::filesystem::Filesystem;
use crate::types::{FileType, Ino};
use syncline_format::items::inode::SIZE_MAX;

/// Most bytes of one call: the caller can be interrupted between two calls.
const CALL_BYTES_MAX: u64 = 1 << 30;
/// Most bytes copied through memory in one call.
const COPIED_BYTES_MAX: u64 = 64 << 20;
/// Bytes copied at a time.
const PIECE_BYTES: u64 = 1 << 20;

impl Filesystem {
    /// Copies at most `len` bytes of a regular file to another file, or elsewhere in the same, and
    /// returns how many: fewer where the source ends, or when there is much to copy. Whole blocks
    /// at offsets that are multiples of 4096 (up to the end of the source, if the destination ends
    /// there too) are shared, other bytes are copied. `kill_privileges` clears setuid and setgid.
    pub async fn copy_range(
        &self,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
        kill_privileges: bool,
    ) -> Result<u64, FsError> {
        let (source, destination) = (self.inode(from.0).await?, self.inode(to.0).await?);
        for inode in [&source, &destination] {
            match inode.file_type {
                FileType::Regular => {}
                FileType::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid("not a regular file")),
            }
        }
        self.store.writable()?;
        self.ease_access().await;
        unplaced::require_whole(&source)?;
        let readable = source.state.lock().attr.size.saturating_sub(from.1);
        let len = len.min(readable).min(CALL_BYTES_MAX);
        if to.1.checked_add(len).is_none_or(|end| end > SIZE_MAX) {
            return Err(FsError::TooLarge);
        }
        if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        let span = Span { from: &source, from_offset: from.1, to: &destination, to_offset: to.1, len };
        let copied = self.copy_span(span, kill_privileges).await?;
        self.touch_access(&source);
        Ok(copied)
    }

    /// If an error follows a copied part, the part is returned, and the next call meets the error.
    async fn copy_span(&self, span: Span<'_>, kill_privileges: bool) -> Result<u64, FsError> {
        let (mut done, mut through_memory) = (0, 0);
        while done < span.len && through_memory < COPIED_BYTES_MAX {
            match self.copy_some(span.after(done), kill_privileges, &mut through_memory).await {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    async fn copy_some(
        &self,
        span: Span<'_>,
        kill_privileges: bool,
        through_memory: &mut u64,
    ) -> Result<u64, FsError> {
        let (from_at, to_at) = (span.from_offset % BLOCK, span.to_offset % BLOCK);
        if (from_at, to_at) == (0, 0) {
            let bytes = span.take_over(self, kill_privileges).await?;
            if bytes > 0 {
                return Ok(bytes);
            }
        }
        // At most to the end of the block if the next one may be shared.
        let most = if from_at == to_at { BLOCK - from_at } else { PIECE_BYTES };
        let wanted = span.len.min(most);
        let pieces = read::read(self, span.from, span.from_offset, wanted as usize).await?;
        let mut bytes = 0;
        for piece in pieces {
            let len = piece.len() as u64;
            let writer = Writer::calling(kill_privileges);
            let at = span.to_offset + bytes;
            match write::write(self, span.to, at, piece, writer).await {
                Ok(()) => {
                    bytes += len;
                    self.counters.copied_bytes.add(len);
                }
                Err(error) if bytes == 0 => return Err(error),
                // The part that was written is returned.
                Err(_) => break,
            }
        }
        *through_memory += bytes;
        Ok(bytes)
    }
}
