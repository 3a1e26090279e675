//! Sealing: turning the pending log into a batch with its position in the chain.

use crate::Pending;
use bytes::Bytes;
use smallvec::SmallVec;
use syncline_device::AlignedBuf;
use syncline_format::batch::{
    BatchHeader, HEADER_BYTES, PAYLOAD_BYTES_MAX, first_batch_addr, lead_copy_addr,
};
use syncline_format::superblock::LogStart;
use syncline_format::{BLOCK_BYTES, BlockAddr, BlockRun, Epoch, crc};

/// The circumstances of sealing, as recorded in the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Generation of the memtable the transactions went into.
    pub generation: u64,
    /// Highest batch known durable.
    pub durable_seq: u64,
    /// Newest transaction included.
    pub op_seq: u64,
}

/// A batch ready to be written. Its bytes never change again (rules R5, R7).
#[derive(Clone, Debug)]
pub struct SealedBatch {
    /// The batch's number.
    pub seq: u64,
    /// The blocks it is written to.
    pub run: BlockRun,
    /// The bytes to write.
    pub bytes: Bytes,
    /// The block for a second copy of the same bytes, if this is a lead: a batch of one block that
    /// leads to another segment.
    pub copy: Option<BlockAddr>,
    /// Newest transaction up to this batch, as recorded in it.
    pub op_seq: u64,
}

/// The end of the log: the position of the next batch, and the link that the batch must carry.
pub struct Chain {
    epoch: Epoch,
    segment_blocks: u64,
    end: LogStart,
    /// Newest transaction in the batches so far.
    op_seq: u64,
    /// Leads are written twice, and a segment always has room for a batch that calls others
    /// durable.
    copies: bool,
}

/// The required size of a new segment, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentSize {
    /// The smallest size that holds the batch.
    pub least: u64,
    /// The largest size that is wanted.
    pub most: u64,
}

impl Chain {
    /// A chain that begins at `start`, after transaction `op_seq`, with segments of
    /// `segment_blocks`.
    pub fn new(epoch: Epoch, segment_blocks: u64, start: LogStart, op_seq: u64) -> Self {
        debug_assert!(start.addr > lead_copy_addr(start.segment), "no room for the copy of what leads on");
        Self { epoch, segment_blocks, end: start, op_seq, copies: true }
    }

    /// For tests: leads are written only once, and no room is kept for a marker, so the last batch
    /// of a segment may stay the last.
    #[doc(hidden)]
    pub fn bare(self) -> Self {
        Self { copies: false, ..self }
    }

    /// The position of the next batch.
    pub fn end(&self) -> LogStart {
        self.end
    }

    /// Number of the newest batch sealed.
    pub fn newest_seq(&self) -> u64 {
        self.end.seq - 1
    }

    /// The size of a new segment needed to seal this much, or `None` if it fits the current one.
    ///
    /// Behind a batch with records a segment keeps two blocks: one for an empty batch that calls it
    /// durable, and one for the lead, the empty batch that leads to the next segment. The lead is
    /// needed because batch n announces where n + 1 will be before anyone knows how long that one
    /// is. The segment's first block is for the copy of the lead.
    pub fn segment_wanted(&self, payload_bytes: usize) -> Option<SegmentSize> {
        let blocks = BatchHeader::blocks_for(payload_bytes);
        let behind = if payload_bytes == 0 || !self.copies { 1 } else { 2 };
        let fits = self.end.addr + blocks + behind <= self.end.segment.end();
        let least = 1 + blocks + 2;
        (!fits).then(|| SegmentSize { least, most: self.segment_blocks.max(least) })
    }

    /// Seals `pending`. With a new `segment` (see [`Chain::segment_wanted`]), an empty batch that
    /// leads there goes first.
    pub fn seal(
        &mut self,
        pending: &Pending,
        stamp: Stamp,
        segment: Option<BlockRun>,
    ) -> SmallVec<[SealedBatch; 2]> {
        debug_assert!(pending.payload_bytes() <= PAYLOAD_BYTES_MAX);
        let mut sealed = SmallVec::new();
        if let Some(segment) = segment {
            // It holds no transaction yet: a crash may leave it without the batch after it.
            let before = Stamp { op_seq: self.op_seq, ..stamp };
            let copy = self.copies.then(|| lead_copy_addr(self.end.segment));
            let lead = self.batch(&Pending::default(), before, first_batch_addr(segment), segment);
            sealed.push(SealedBatch { copy, ..lead });
        }
        let next = self.end.addr + BatchHeader::blocks_for(pending.payload_bytes());
        sealed.push(self.batch(pending, stamp, next, self.end.segment));
        sealed
    }

    /// Encodes one batch at the end of the chain and moves the end past it.
    fn batch(&mut self, pending: &Pending, stamp: Stamp, next: u64, next_segment: BlockRun) -> SealedBatch {
        let records = pending.buffer();
        let mut block = AlignedBuf::zeroed(records.len().next_multiple_of(BLOCK_BYTES));
        block[HEADER_BYTES..records.len()].copy_from_slice(&records[HEADER_BYTES..]);
        let header = BatchHeader {
            epoch: self.epoch,
            seq: self.end.seq,
            generation: stamp.generation,
            durable_seq: stamp.durable_seq,
            op_seq: stamp.op_seq,
            addr: self.end.addr,
            segment: self.end.segment,
            next,
            next_segment,
            prev: self.end.prev,
            payload_bytes: (records.len() - HEADER_BYTES) as u32,
            payload_checksum: crc(&records[HEADER_BYTES..]),
            objects_delta: pending.objects_delta(),
        };
        let prev = header.encode(&mut block);
        self.end = LogStart { addr: next, seq: header.seq + 1, prev, segment: next_segment };
        self.op_seq = header.op_seq;
        SealedBatch {
            seq: header.seq,
            run: header.run(),
            bytes: block.into_bytes(),
            copy: None,
            op_seq: header.op_seq,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Window, payload_of, scan, verify_named};
    use std::sync::Arc;
    use syncline_device::{Device, DeviceExt, MemoryDevice, block_on};
    use syncline_format::{Geometry, Key, Metadata, block_checksums};

    const GEOMETRY: Geometry = Geometry { total_blocks: 4096, node_bytes: 16384, metadata: Metadata::Dup };
    const EPOCH: Epoch = [5; 16];

    fn start() -> LogStart {
        LogStart::first_in(BlockRun::new(100, 6), 1, 0)
    }

    /// Seals one batch for each length, with items of that total length; segments follow one
    /// another from block 200.
    fn sealed(lengths: &[usize]) -> Vec<SealedBatch> {
        let mut chain = Chain::new(EPOCH, 4, start(), 0);
        let mut free = 200;
        let mut batches = Vec::new();
        for (index, len) in lengths.iter().enumerate() {
            let mut pending = Pending::default();
            for piece in 0..len.div_ceil(1000) {
                pending.put(Key { object: index as u64, kind: 1, offset: piece as u64 }, &[7; 1000]);
            }
            let segment =
                chain.segment_wanted(pending.payload_bytes()).map(|SegmentSize { most: blocks, .. }| {
                    free += blocks;
                    BlockRun::new(free - blocks, blocks)
                });
            let durable_seq = chain.newest_seq().saturating_sub(1);
            let stamp = Stamp { generation: 1, durable_seq, op_seq: index as u64 };
            batches.extend(chain.seal(&pending, stamp, segment));
        }
        batches
    }

    fn written(batches: &[SealedBatch]) -> Arc<dyn Device> {
        let device: Arc<dyn Device> = MemoryDevice::new(GEOMETRY.total_blocks * 4096);
        for batch in batches {
            for addr in [batch.run.start].into_iter().chain(batch.copy) {
                block_on(device.write_at(addr * 4096, vec![batch.bytes.clone()])).unwrap();
            }
        }
        device
    }

    #[test]
    fn a_chain_over_several_segments_reads_back_whole() {
        let batches = sealed(&[1000, 3000, 1000, 30_000, 1000]);
        let device = written(&batches);
        let found = block_on(scan(&device, GEOMETRY, EPOCH, start(), false)).unwrap();
        assert_eq!(found.batches.len(), batches.len());
        assert!(batches.len() > 5, "at least one batch leads to a new segment");
        assert!(found.contradiction.is_none());
        let mut window = Window::new(device.clone());
        for header in &found.batches {
            block_on(payload_of(&mut window, header)).unwrap();
        }
    }

    #[test]
    fn a_batch_that_only_leads_to_a_segment_speaks_for_no_transaction() {
        let device = written(&sealed(&[100, 100, 30_000]));
        let found = block_on(scan(&device, GEOMETRY, EPOCH, start(), false)).unwrap();
        let ops: Vec<(u32, u64)> =
            found.batches.iter().map(|batch| (batch.payload_bytes.min(1), batch.op_seq)).collect();
        assert_eq!(ops, [(1, 0), (1, 1), (0, 1), (1, 2)]);
    }

    #[test]
    fn the_first_damaged_batch_ends_the_log() {
        let batches = sealed(&[100, 100, 100]);
        let device = written(&batches[..2]);
        let found = block_on(scan(&device, GEOMETRY, EPOCH, start(), false)).unwrap();
        assert_eq!(found.batches.len(), 2);
        assert_eq!(found.end.seq, 3);
    }

    #[test]
    fn a_batch_that_calls_a_missing_one_durable_is_a_contradiction() {
        let batches = sealed(&[100, 100, 100]);
        let device = written(&[batches[0].clone(), batches[2].clone()]);
        // Batch 3 says that batch 1 is durable, so batch 2 alone may be missing.
        let found = block_on(scan(&device, GEOMETRY, EPOCH, start(), false)).unwrap();
        assert_eq!((found.batches.len(), found.contradiction), (1, None));
        let device = written(&batches[2..]);
        let found = block_on(scan(&device, GEOMETRY, EPOCH, start(), false)).unwrap();
        assert_eq!(found.contradiction.map(|header| header.seq), Some(3));
    }

    #[test]
    fn batches_of_another_epoch_do_not_count() {
        let device = written(&sealed(&[100]));
        let found = block_on(scan(&device, GEOMETRY, [6; 16], start(), false)).unwrap();
        assert!(found.batches.is_empty());
    }

    #[test]
    fn named_data_is_compared_with_its_checksums() {
        let device = written(&[]);
        let data = AlignedBuf::copy_from(&[9; 8192]);
        let mut pending = Pending::default();
        pending.name(500, &block_checksums(&data).collect::<Vec<_>>());
        let mut chain = Chain::new(EPOCH, 4, start(), 0);
        let stamp = Stamp { generation: 1, durable_seq: 0, op_seq: 1 };
        let batch = chain.seal(&pending, stamp, None).remove(0);
        block_on(device.write_at(batch.run.offset_bytes(), vec![batch.bytes])).unwrap();
        let found = block_on(scan(&device, GEOMETRY, EPOCH, start(), false)).unwrap();
        let payload = block_on(payload_of(&mut Window::new(device.clone()), &found.batches[0])).unwrap();
        let verify = || block_on(verify_named(&device, GEOMETRY, &found.batches[0], &payload)).unwrap();
        assert!(!verify(), "the data is not there yet");
        block_on(device.write_at(500 * 4096, vec![data.into_bytes()])).unwrap();
        assert!(verify());
    }
}
