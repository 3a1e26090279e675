//! The contents of a file as records: data as it lies, clones, holes, preallocations.

use super::held::Held;
use super::kinds::Kinds;
use super::places::Places;
use crate::record::{DATA_BYTES_MAX, Unit};
use crate::{Record, StreamError, Writer};
use bytes::Bytes;
use std::io::Write;
use syncline_format::items::extent::Extent;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::preallocation::Preallocation;
use syncline_format::{BLOCK_BYTES, Kind};
use syncline_fs::types::{FileType, Ino};
use syncline_fs::{Filesystem, FsError};

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// File blocks from the first up to the second.
pub(super) type Range = (u64, u64);

/// The part of a file that is to be sent.
pub(super) struct Contents<'a> {
    pub fs: &'a Filesystem,
    pub ino: Ino,
    pub item: &'a InodeItem<'a>,
    /// The file blocks to send, in order; all of a file that the receiver has just made.
    pub ranges: Option<&'a [Range]>,
}

impl Contents<'_> {
    /// Writes the records. The receiver has given a file that it had before its size already.
    pub(super) async fn send<W: Write>(
        &self,
        places: &mut Places,
        writer: &mut Writer<W>,
    ) -> Result<(), StreamError> {
        if super::file_type(self.ino, self.item)? != FileType::Regular {
            return Ok(());
        }
        let ino = self.ino;
        match self.ranges {
            None => writer.put(&Record::Resize { ino, size: self.item.size })?,
            Some(ranges) => {
                for (first, end) in ranges {
                    let (offset, length) = (first * BLOCK, (end - first) * BLOCK);
                    writer.put(&Record::Hole { ino, offset, length })?;
                }
            }
        }
        let held = Held::by(self.fs, ino, self.item).await?;
        let mut extents = Kinds::from(self.fs, ino, Kind::Extent, 0);
        while let Some((block, value)) = extents.next().await? {
            let extent = Extent::decode(block, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
            for (first, end) in self.wanted(extent.file_block, extent.end()) {
                for (first, end) in held.parts(first, end) {
                    let Some(slice) = extent.slice(first, end) else { continue };
                    self.send_extent(&slice, places, writer).await?;
                }
            }
        }
        for block in held.logged() {
            for (first, _) in self.wanted(*block, block + 1) {
                self.send_logged(first, writer).await?;
            }
        }
        if let Some(data) = self.item.data
            && !data.is_empty()
            && !self.wanted(0, 1).is_empty()
        {
            writer.put(&Record::Data { ino, offset: 0, bytes: Bytes::copy_from_slice(data) })?;
        }
        self.send_reserved(writer).await
    }

    /// The parts of a range of blocks that are to be sent.
    fn wanted(&self, first: u64, end: u64) -> Vec<Range> {
        let Some(ranges) = self.ranges else { return vec![(first, end)] };
        let from = ranges.partition_point(|range| range.1 <= first);
        let common = ranges[from..].iter().map(|range| (range.0.max(first), range.1.min(end)));
        common.take_while(|(first, end)| first < end).collect()
    }

    async fn send_reserved<W: Write>(&self, writer: &mut Writer<W>) -> Result<(), StreamError> {
        let ino = self.ino;
        let mut reserved = Kinds::from(self.fs, ino, Kind::Preallocation, 0);
        while let Some((block, value)) = reserved.next().await? {
            let run =
                Preallocation::decode(block, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
            for (first, end) in self.wanted(run.file_block, run.end()) {
                let (offset, length) = (first * BLOCK, (end - first) * BLOCK);
                writer.put(&Record::Reserve { ino, offset, length })?;
            }
        }
        Ok(())
    }

    async fn send_logged<W: Write>(&self, block: u64, writer: &mut Writer<W>) -> Result<(), StreamError> {
        let pieces = self.fs.read(self.ino, block * BLOCK, BLOCK_BYTES).await?;
        let bytes: Bytes = pieces.concat().into();
        if bytes.is_empty() {
            return Ok(());
        }
        writer.put(&Record::Data { ino: self.ino, offset: block * BLOCK, bytes })
    }

    async fn send_extent<W: Write>(
        &self,
        extent: &Extent,
        places: &mut Places,
        writer: &mut Writer<W>,
    ) -> Result<(), StreamError> {
        let ino = self.ino;
        for part in places.take(ino, extent) {
            let offset = part.first * BLOCK;
            // Nothing of the last block counts behind the end of the file.
            let length = self.item.size.min(part.end * BLOCK) - offset;
            if let Some((from, block)) = part.same {
                let from_offset = block * BLOCK;
                writer.put(&Record::Clone { ino, offset, length, from, from_offset })?;
                continue;
            }
            let Some(slice) = extent.slice(part.first, part.end) else { continue };
            let mut bytes = self.fs.store().read_data(ino, slice.run(), &slice.checksums).await?;
            let Some(packed) = slice.packed else {
                bytes.truncate(length as usize);
                for (index, piece) in bytes.chunks(DATA_BYTES_MAX).enumerate() {
                    let offset = offset + (index * DATA_BYTES_MAX) as u64;
                    writer.put(&Record::Data { ino, offset, bytes: bytes.slice_ref(piece) })?;
                }
                continue;
            };
            bytes.truncate(packed.bytes as usize);
            let unit = Unit {
                algorithm: packed.algorithm,
                unit_blocks: packed.unit_blocks as u8,
                skip: packed.skip as u8,
                blocks: packed.blocks as u8,
                bytes,
            };
            writer.put(&Record::Packed { ino, offset, unit })?;
        }
        Ok(())
    }
}
