//! The log batch: a header, then records. One batch is written in one go, applies wholly or not at
//! all, and refers to the batch before it.

use crate::{BLOCK_BYTES, BlockAddr, BlockRun, Crc, Epoch, FormatError, Geometry, KEY_BYTES, Key, crc};

/// Magic number at the start of a batch header.
pub const MAGIC: [u8; 8] = *b"SYNCLOG\x01";
/// Length of a batch header; the records follow it.
pub const HEADER_BYTES: usize = 144;
/// Largest payload of a batch; a transaction must fit.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

// Field offsets.
const HEADER_CHECKSUM: usize = 8;
const PAYLOAD_CHECKSUM: usize = 12;
const EPOCH: usize = 16;
const SEQ: usize = 32;
const GENERATION: usize = 40;
const DURABLE_SEQ: usize = 48;
const OP_SEQ: usize = 56;
const ADDR: usize = 64;
const SEGMENT: usize = 72;
const NEXT: usize = 88;
const NEXT_SEGMENT: usize = 96;
const PREV: usize = 112;
const PAYLOAD_BYTES: usize = 116;
const OBJECTS_DELTA: usize = 120;
// Sixteen bytes are reserved.
const _: () = assert!(OBJECTS_DELTA + 8 + 16 == HEADER_BYTES && HEADER_BYTES <= 512);

/// The block in a segment for the second copy of its lead, the batch that leads to the next
/// segment.
///
/// It is far from the first copy, which lies behind all other batches of the segment, because
/// nothing else tells where the log continues.
pub fn lead_copy_addr(segment: BlockRun) -> BlockAddr {
    segment.start
}

/// Address of the first batch in a segment.
pub fn first_batch_addr(segment: BlockRun) -> BlockAddr {
    segment.start + 1
}

/// A batch's header: facts about the batch, and its place in the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// The log epoch it belongs to (rule R3).
    pub epoch: Epoch,
    /// Its number; consecutive over the life of the filesystem.
    pub seq: u64,
    /// Generation of the memtable its transactions went into.
    pub generation: u64,
    /// Highest batch known durable when this one was sealed.
    pub durable_seq: u64,
    /// Sequence of the newest transaction up to and including this batch.
    pub op_seq: u64,
    /// The batch's address.
    pub addr: BlockAddr,
    /// The log segment it lies in.
    pub segment: BlockRun,
    /// Address of the next batch.
    pub next: BlockAddr,
    /// The segment of the next batch.
    pub next_segment: BlockRun,
    /// Header checksum of the batch before.
    pub prev: Crc,
    /// Length of the records in bytes.
    pub payload_bytes: u32,
    /// Checksum of the records.
    pub payload_checksum: Crc,
    /// Change of the number of objects.
    pub objects_delta: i64,
}

impl BatchHeader {
    /// Blocks that a batch with this much payload takes.
    pub fn blocks_for(payload_bytes: usize) -> u64 {
        (HEADER_BYTES + payload_bytes).div_ceil(BLOCK_BYTES) as u64
    }

    /// True when the next batch lies in another segment.
    pub fn leads_on(&self) -> bool {
        self.next_segment != self.segment
    }

    /// The blocks of the batch.
    pub fn run(&self) -> BlockRun {
        BlockRun::new(self.addr, Self::blocks_for(self.payload_bytes as usize))
    }

    /// Writes the header to the front of `out` and returns its checksum, which the next batch
    /// refers to.
    pub fn encode(&self, out: &mut [u8]) -> Crc {
        let header = &mut out[..HEADER_BYTES];
        header.fill(0);
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(PAYLOAD_CHECKSUM, &self.payload_checksum.to_le_bytes());
        put(EPOCH, &self.epoch);
        put(SEQ, &self.seq.to_le_bytes());
        put(GENERATION, &self.generation.to_le_bytes());
        put(DURABLE_SEQ, &self.durable_seq.to_le_bytes());
        put(OP_SEQ, &self.op_seq.to_le_bytes());
        put(ADDR, &self.addr.to_le_bytes());
        put(SEGMENT, &self.segment.start.to_le_bytes());
        put(SEGMENT + 8, &self.segment.blocks.to_le_bytes());
        put(NEXT, &self.next.to_le_bytes());
        put(NEXT_SEGMENT, &self.next_segment.start.to_le_bytes());
        put(NEXT_SEGMENT + 8, &self.next_segment.blocks.to_le_bytes());
        put(PREV, &self.prev.to_le_bytes());
        put(PAYLOAD_BYTES, &self.payload_bytes.to_le_bytes());
        put(OBJECTS_DELTA, &self.objects_delta.to_le_bytes());
        let checksum = crc(&header[PAYLOAD_CHECKSUM..]);
        header[HEADER_CHECKSUM..PAYLOAD_CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }

    /// Reads a header from untrusted bytes; returns the header and its checksum.
    pub fn decode(bytes: &[u8], geometry: Geometry) -> Result<(Self, Crc), FormatError> {
        let structure = "log batch";
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(FormatError::Truncated { structure })?;
        if header[..8] != MAGIC {
            return Err(FormatError::Magic { structure });
        }
        let checksum = crc(&header[PAYLOAD_CHECKSUM..]);
        if u32_at(header, HEADER_CHECKSUM) != checksum {
            return Err(FormatError::Checksum { structure });
        }
        let mut epoch = [0; 16];
        epoch.copy_from_slice(&header[EPOCH..EPOCH + 16]);
        let run_at = |at| BlockRun::new(u64_at(header, at), u64_at(header, at + 8));
        let decoded = Self {
            epoch,
            seq: u64_at(header, SEQ),
            generation: u64_at(header, GENERATION),
            durable_seq: u64_at(header, DURABLE_SEQ),
            op_seq: u64_at(header, OP_SEQ),
            addr: u64_at(header, ADDR),
            segment: run_at(SEGMENT),
            next: u64_at(header, NEXT),
            next_segment: run_at(NEXT_SEGMENT),
            prev: u32_at(header, PREV),
            payload_bytes: u32_at(header, PAYLOAD_BYTES),
            payload_checksum: u32_at(header, PAYLOAD_CHECKSUM),
            objects_delta: u64_at(header, OBJECTS_DELTA) as i64,
        };
        decoded.check(geometry)?;
        Ok((decoded, checksum))
    }

    /// Refuses values that a valid header can't have even if its checksum is right.
    fn check(&self, geometry: Geometry) -> Result<(), FormatError> {
        let field = |field| Err(FormatError::Field { structure: "log batch", field });
        if self.payload_bytes as usize > PAYLOAD_BYTES_MAX {
            return field("length");
        }
        if !geometry.contains(self.segment) || !within(self.segment, self.run()) {
            return field("address");
        }
        if !geometry.contains(self.next_segment) || !within(self.next_segment, BlockRun::new(self.next, 1)) {
            return field("next address");
        }
        if self.seq > u64::MAX / 2 || self.generation > u64::MAX / 2 || self.op_seq > u64::MAX / 2 {
            return field("sequence");
        }
        Ok(())
    }
}

/// True when `outer` contains `inner`; both may come from a device.
fn within(outer: BlockRun, inner: BlockRun) -> bool {
    inner.start >= outer.start && inner.start.checked_add(inner.blocks).is_some_and(|end| end <= outer.end())
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// One record of a batch. Numbers on disk: put 1, delete 2, name 3, free 4, void 5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// An item has this value now.
    Put(Key, &'a [u8]),
    /// An item is gone.
    Delete(Key),
    /// These data blocks belong to the filesystem and must have these checksums (packed
    /// little-endian).
    Name(BlockRun, &'a [u8]),
    /// These blocks are free.
    Free(BlockRun),
    /// A put that a later record of the same batch replaced.
    Void,
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const NAME: u8 = 3;
const FREE: u8 = 4;
const VOID: u8 = 5;
/// Bytes of a put record before its value.
pub const PUT_PREFIX_BYTES: usize = 1 + KEY_BYTES + 4;

/// Appends a put record; the value starts `PUT_PREFIX_BYTES` into the record.
pub fn push_put(out: &mut Vec<u8>, key: Key, value: &[u8]) {
    out.push(PUT);
    out.extend_from_slice(&key.to_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

/// Appends a delete record.
pub fn push_delete(out: &mut Vec<u8>, key: Key) {
    out.push(DELETE);
    out.extend_from_slice(&key.to_bytes());
}

/// Appends a record that names data blocks, with one checksum per block.
pub fn push_name(out: &mut Vec<u8>, start: BlockAddr, checksums: &[Crc]) {
    out.push(NAME);
    out.extend_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&(checksums.len() as u32).to_le_bytes());
    for checksum in checksums {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
}

/// Appends a record that frees blocks.
pub fn push_free(out: &mut Vec<u8>, run: BlockRun) {
    out.push(FREE);
    out.extend_from_slice(&run.start.to_le_bytes());
    out.extend_from_slice(&run.blocks.to_le_bytes());
}

/// Turns the put record at `at` into a void record of the same length.
pub fn void_put(records: &mut [u8], at: usize) {
    debug_assert_eq!(records[at], PUT);
    records[at] = VOID;
}

/// The records of a payload, in order. Ends after the first error.
pub struct Records<'a> {
    rest: &'a [u8],
    geometry: Geometry,
}

impl<'a> Records<'a> {
    /// Reads `payload`, which is untrusted.
    pub fn new(payload: &'a [u8], geometry: Geometry) -> Self {
        Self { rest: payload, geometry }
    }

    /// Bytes not read yet.
    pub fn remaining_bytes(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) =
            self.rest.split_at_checked(len).ok_or(FormatError::Truncated { structure: "log record" })?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn put(&mut self) -> Result<(Key, &'a [u8]), FormatError> {
        let key = Key::from_bytes(&self.number()?);
        let len = u32::from_le_bytes(self.number()?) as usize;
        let value = self.take(len)?;
        if len > self.geometry.max_value_bytes() {
            return Err(FormatError::Field { structure: "log record", field: "value length" });
        }
        Ok((key, value))
    }

    fn run(&self, start: u64, blocks: u64) -> Result<BlockRun, FormatError> {
        let run = BlockRun::new(start, blocks);
        if self.geometry.contains(run) {
            Ok(run)
        } else {
            Err(FormatError::Field { structure: "log record", field: "address" })
        }
    }

    fn record(&mut self) -> Result<Record<'a>, FormatError> {
        let [kind] = self.number()?;
        match kind {
            PUT => self.put().map(|(key, value)| Record::Put(key, value)),
            VOID => self.put().map(|_| Record::Void),
            DELETE => Ok(Record::Delete(Key::from_bytes(&self.number()?))),
            NAME => {
                let start = u64::from_le_bytes(self.number()?);
                let blocks = u32::from_le_bytes(self.number()?);
                let checksums = self.take(blocks as usize * 4)?;
                Ok(Record::Name(self.run(start, u64::from(blocks))?, checksums))
            }
            FREE => {
                let start = u64::from_le_bytes(self.number()?);
                let blocks = u64::from_le_bytes(self.number()?);
                Ok(Record::Free(self.run(start, blocks)?))
            }
            _ => Err(FormatError::Field { structure: "log record", field: "kind" }),
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

/// The checksums packed in a name record.
pub fn unpack_checksums(packed: &[u8]) -> impl Iterator<Item = Crc> + '_ {
    packed.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metadata;

    const GEOMETRY: Geometry = Geometry { total_blocks: 4096, node_bytes: 16384, metadata: Metadata::Dup };

    fn header() -> BatchHeader {
        BatchHeader {
            epoch: [3; 16],
            seq: 9,
            generation: 2,
            durable_seq: 8,
            op_seq: 40,
            addr: 100,
            segment: BlockRun::new(96, 64),
            next: 102,
            next_segment: BlockRun::new(96, 64),
            prev: 1234,
            payload_bytes: 5000,
            payload_checksum: 99,
            objects_delta: -3,
        }
    }

    #[test]
    fn a_header_decodes_to_itself() {
        let mut block = vec![0; BLOCK_BYTES];
        let checksum = header().encode(&mut block);
        assert_eq!(BatchHeader::decode(&block, GEOMETRY), Ok((header(), checksum)));
    }

    #[test]
    fn any_flipped_bit_of_a_header_is_noticed() {
        let mut block = vec![0; BLOCK_BYTES];
        header().encode(&mut block);
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(BatchHeader::decode(&bad, GEOMETRY).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_batch_outside_its_segment_is_refused() {
        let mut block = vec![0; BLOCK_BYTES];
        BatchHeader { addr: 159, ..header() }.encode(&mut block);
        assert!(matches!(BatchHeader::decode(&block, GEOMETRY), Err(FormatError::Field { .. })));
    }

    #[test]
    fn records_decode_to_what_was_pushed() {
        let key = Key { object: 5, kind: 3, offset: 77 };
        let mut payload = Vec::new();
        push_put(&mut payload, key, b"old");
        let at = payload.len();
        push_put(&mut payload, key, b"value");
        push_delete(&mut payload, key);
        push_name(&mut payload, 500, &[7, 8]);
        push_free(&mut payload, BlockRun::new(600, 3));
        void_put(&mut payload, 0);
        assert_eq!(&payload[at + PUT_PREFIX_BYTES..at + PUT_PREFIX_BYTES + 5], b"value");
        let records: Vec<_> = Records::new(&payload, GEOMETRY).map(Result::unwrap).collect();
        let packed = [7, 0, 0, 0, 8, 0, 0, 0];
        let expected = [
            Record::Void,
            Record::Put(key, b"value"),
            Record::Delete(key),
            Record::Name(BlockRun::new(500, 2), &packed),
            Record::Free(BlockRun::new(600, 3)),
        ];
        assert_eq!(records, expected);
        assert_eq!(unpack_checksums(&packed).collect::<Vec<_>>(), [7, 8]);
    }

    #[test]
    fn truncated_and_foreign_records_are_errors_and_end_the_iteration() {
        let mut payload = Vec::new();
        push_put(&mut payload, Key::MIN, b"value");
        for len in 1..payload.len() {
            let results: Vec<_> = Records::new(&payload[..len], GEOMETRY).collect();
            assert_eq!(results.len(), 1);
            assert!(results[0].is_err());
        }
        assert!(Records::new(&[9, 9, 9], GEOMETRY).next().is_some_and(|r| r.is_err()));
    }
}
