//! Contents of files.

use super::apply::{Fault, Target};
use crate::Unit;
use bytes::Bytes;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Packed};
use syncline_format::items::inode::{SIZE_MAX, compression_of};
use syncline_fs::Allocation;
use syncline_fs::types::{Caller, FileType, Ino, SetAttributes};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The file that was written last. Data in memory is stored as the file's flags say when it is
/// written back, so it must be before they change.
#[derive(Default)]
pub(super) struct Written {
    ino: Ino,
    size: u64,
    compression: Option<Algorithm>,
    /// Where the compressed unit that was written last ends, in bytes of the file.
    unit_end: u64,
    /// All of that unit was sent.
    is_whole: bool,
}

/// The last block that a file can have is longer than the part of it that a call can name.
fn up_to_the_last(offset: u64, length: u64) -> u64 {
    length.min(SIZE_MAX.saturating_sub(offset))
}

impl Target<'_> {
    pub(super) async fn resize(&mut self, ino: Ino, size: u64) -> Result<(), Fault> {
        self.regular(ino).await?;
        let root = Caller { uid: 0, gid: 0 };
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.fs.setattr(root, ino, set).await?;
        if self.written.ino == ino {
            self.written.size = size;
        }
        Ok(())
    }

    pub(super) async fn data(&mut self, ino: Ino, offset: u64, bytes: Bytes) -> Result<(), Fault> {
        self.write(ino, offset, bytes, None).await
    }

    pub(super) async fn packed(&mut self, ino: Ino, offset: u64, unit: Unit) -> Result<(), Fault> {
        let packed = Packed {
            algorithm: unit.algorithm,
            bytes: unit.bytes.len() as u32,
            unit_blocks: unit.unit_blocks.into(),
            skip: unit.skip.into(),
            blocks: unit.blocks.into(),
        };
        let whole = syncline_codec::unpack(&packed, &unit.bytes)
            .map_err(|_| Fault::Impossible("a compressed unit can't be decoded"))?;
        let first = packed.skip as usize * BLOCK_BYTES;
        let bytes = Bytes::from(whole).slice(first..first + packed.blocks as usize * BLOCK_BYTES);
        let size = self.open(ino).await?;
        let is_whole = packed.blocks == packed.unit_blocks;
        // Blocks that follow each other are compressed as one unit, which part of a unit may keep
        // from getting smaller.
        let may_join = offset == self.written.unit_end && !offset.is_multiple_of(EXTENT_BLOCKS_MAX * BLOCK);
        if may_join && is_whole != self.written.is_whole {
            self.fs.settle_contents(ino).await?;
        }
        // Nothing of the last block counts behind the end of the file.
        let length = size.saturating_sub(offset).min(bytes.len() as u64);
        self.write(ino, offset, bytes.slice(..length as usize), Some(unit.algorithm)).await?;
        (self.written.unit_end, self.written.is_whole) =
            (offset.saturating_add(bytes.len() as u64), is_whole);
        Ok(())
    }

    async fn write(
        &mut self,
        ino: Ino,
        offset: u64,
        bytes: Bytes,
        compression: Option<Algorithm>,
    ) -> Result<(), Fault> {
        let size = self.open(ino).await?;
        self.require_within(size, offset, bytes.len() as u64)?;
        if self.written.compression != compression {
            self.fs.settle_contents(ino).await?;
            self.fs.set_compression(ino, compression).await?;
            self.written.compression = compression;
        }
        Ok(self.fs.write(ino, offset, bytes, false).await?)
    }

    pub(super) async fn clone_range(
        &mut self,
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    ) -> Result<(), Fault> {
        let size = self.open(to.0).await?;
        self.require_within(size, to.1, length)?;
        let is_long = length > EXTENT_BLOCKS_MAX * BLOCK;
        if is_long || !from.1.is_multiple_of(BLOCK) || from.1.checked_add(length).is_none() {
            return Err(Fault::Impossible("it clones blocks that can't be cloned"));
        }
        // Not made ready for changes: it may be a file that the stream leaves as it is.
        self.require_number(from.0)?;
        let source = self.fs.getattr(from.0).await?;
        if source.file_type != FileType::Regular {
            return Err(Fault::Impossible("only a regular file has contents"));
        }
        // Nothing is there: the stream means contents that it has not sent.
        if from.1 + length > source.size.next_multiple_of(BLOCK) {
            return Err(Fault::Impossible("it clones what lies behind the end of a file"));
        }
        // The last block is shared as a whole: behind the end of the file are zeros.
        let blocks = length.div_ceil(BLOCK);
        let behind = (from.1 + length, blocks * BLOCK - length);
        if !self.is_zero(from.0, behind.0, behind.1).await? {
            return Err(Fault::Impossible("contents lie behind the end of the file"));
        }
        // A sync, which cloning is for both files, would not compress parts of units.
        self.fs.settle_contents(from.0).await?;
        self.fs.settle_contents(to.0).await?;
        if self.fs.clone_blocks((from.0, from.1 / BLOCK), (to.0, to.1 / BLOCK), blocks).await? {
            return Ok(());
        }
        let mut done = 0;
        while done < length {
            let (from, to) = ((from.0, from.1 + done), (to.0, to.1 + done));
            match self.fs.copy_range(from, to, length - done, false).await? {
                // The source has ended: the rest is zeros.
                0 => return Ok(()),
                copied => done += copied,
            }
        }
        Ok(())
    }

    async fn is_zero(&self, ino: Ino, offset: u64, length: u64) -> Result<bool, Fault> {
        let pieces = self.fs.read(ino, offset, length as usize).await?;
        Ok(pieces.iter().flatten().all(|byte| *byte == 0))
    }

    pub(super) async fn hole(&mut self, ino: Ino, offset: u64, length: u64) -> Result<(), Fault> {
        self.open(ino).await?;
        let length = up_to_the_last(offset, length);
        Ok(self.fs.allocate(ino, Allocation::PunchHole, offset, length, false).await?)
    }

    pub(super) async fn reserve(&mut self, ino: Ino, offset: u64, length: u64) -> Result<(), Fault> {
        self.open(ino).await?;
        // Dirty data would take the room.
        self.fs.settle_contents(ino).await?;
        let what = Allocation::Preallocate { keep_size: true };
        let length = up_to_the_last(offset, length);
        Ok(self.fs.allocate(ino, what, offset, length, false).await?)
    }

    /// Makes a file the one that is written, and returns its size.
    async fn open(&mut self, ino: Ino) -> Result<u64, Fault> {
        if self.written.ino != ino {
            let size = self.regular(ino).await?;
            let compression = self.fs.file_flags(ino).await?.compression;
            self.written = Written { ino, size, compression, ..Written::default() };
        }
        Ok(self.written.size)
    }

    /// The size of a regular file, made ready for changes.
    async fn regular(&self, ino: Ino) -> Result<u64, Fault> {
        self.change(ino).await?;
        let attributes = self.fs.getattr(ino).await?;
        match attributes.file_type {
            FileType::Regular => Ok(attributes.size),
            _ => Err(Fault::Impossible("only a regular file has contents")),
        }
    }

    fn require_within(&self, size: u64, offset: u64, length: u64) -> Result<(), Fault> {
        if !offset.is_multiple_of(BLOCK) {
            return Err(Fault::Impossible("contents begin within a block"));
        }
        match length > 0 && offset.checked_add(length).is_some_and(|end| end <= size) {
            true => Ok(()),
            false => Err(Fault::Impossible("contents lie outside of the file")),
        }
    }

    /// Writes a file back before its flags become these, if they ask for another compression.
    pub(super) async fn settle_before(&mut self, ino: Ino, flags: u32) -> Result<(), Fault> {
        if self.fs.getattr(ino).await?.file_type == FileType::Regular
            && self.fs.file_flags(ino).await?.compression != compression_of(flags)
        {
            self.fs.settle_contents(ino).await?;
        }
        if self.written.ino == ino {
            self.written = Written::default();
        }
        Ok(())
    }
}
