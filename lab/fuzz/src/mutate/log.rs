//! Changes of the log: records, headers, and batches that the program never wrote.

use super::{Number, Plant, fields, plant};
use crate::image::{Image, write};
use arbitrary::Arbitrary;
use syncline_device::MemoryDevice;
use syncline_format::batch::{
    BatchHeader, HEADER_BYTES, PUT_PREFIX_BYTES, Record, Records, push_delete, push_free, push_name,
    push_put, void_put,
};
use syncline_format::{BLOCK_BYTES, BlockRun, Crc, Geometry, crc};

/// Most batches and records that changes may add.
const ADDED_MAX: usize = 64;

/// A record.
#[derive(Arbitrary, Clone, Debug)]
pub enum LogRecord {
    /// Sets an item.
    Put(Plant),
    /// Sets an item of the tree to its value with one field changed.
    PutChanged(u16, u8, Number),
    /// Removes the n-th item of the tree.
    Delete(u16),
    /// Removes the item with the key of this one.
    DeletePlanted(Plant),
    /// Names blocks, with correct or wrong checksums.
    Name(Number, u8, bool),
    /// Frees blocks.
    Free(Number, Number),
    /// A replaced record.
    Void(Plant),
    /// Arbitrary bytes.
    Raw(Vec<u8>),
}

/// A change of the n-th batch.
#[derive(Arbitrary, Clone, Debug)]
pub enum BatchEdit {
    /// Change a field of its header, before the header's checksum is corrected.
    Field(u8, Number),
    /// Change a byte of its records, before their checksum is corrected.
    Byte(u16, u8),
    /// Add a record at the end.
    Push(LogRecord),
    /// Remove the n-th record.
    Remove(u8),
    /// Duplicate the n-th record.
    Double(u8),
    /// Swap two records.
    Swap(u8, u8),
    /// Cut the batch off here.
    Cut(u16),
}

/// A batch being changed.
struct LooseBatch {
    header: BatchHeader,
    records: Vec<Vec<u8>>,
    /// Edits applied to payload and header at the end.
    last: Vec<BatchEdit>,
}

/// The log being changed.
pub struct LogChanger<'a> {
    image: &'a Image,
    batches: Vec<LooseBatch>,
    changed: bool,
}

impl<'a> LogChanger<'a> {
    /// The unchanged log.
    pub fn new(image: &'a Image) -> Self {
        let loose = |batch: &crate::image::Batch| LooseBatch {
            header: batch.header,
            records: split(&batch.payload, image.geometry()),
            last: Vec::new(),
        };
        Self { image, batches: image.batches.iter().map(loose).collect(), changed: false }
    }

    /// Changes the n-th batch, if there is one.
    pub fn edit(&mut self, batch: u8, edit: &BatchEdit) {
        self.changed = true;
        let count = self.batches.len().max(1);
        let Some(batch) = self.batches.get_mut(usize::from(batch) % count) else { return };
        let records = &mut batch.records;
        let pick = |number: u8| usize::from(number) % records.len().max(1);
        match edit {
            BatchEdit::Field(..) | BatchEdit::Byte(..) | BatchEdit::Cut(..) => batch.last.push(edit.clone()),
            BatchEdit::Push(record) => records.push(encode(record, self.image)),
            BatchEdit::Remove(number) => {
                let place = pick(*number);
                if place < records.len() {
                    records.remove(place);
                }
            }
            BatchEdit::Double(number) => records.extend(records.get(pick(*number)).cloned()),
            BatchEdit::Swap(one, other) => {
                let (one, other) = (pick(*one), pick(*other));
                if one.max(other) < records.len() {
                    records.swap(one, other);
                }
            }
        }
    }

    /// Adds a batch at the end of the chain.
    pub fn append(&mut self, records: &[LogRecord], durable: bool, objects_delta: i8) {
        self.changed = true;
        let (start, superblock) = (self.image.superblock.log, &self.image.superblock);
        let last = self.batches.last().map(|batch| batch.header);
        let seq = last.map_or(start.seq, |header| header.seq + 1);
        let header = BatchHeader {
            epoch: superblock.epoch,
            seq,
            generation: superblock.generation + 1,
            durable_seq: if durable { seq } else { seq - 1 },
            op_seq: last.map_or(superblock.op_seq, |header| header.op_seq) + 1,
            addr: last.map_or(start.addr, |header| header.next),
            segment: last.map_or(start.segment, |header| header.next_segment),
            // Set when the batches are laid out.
            next: 0,
            next_segment: last.map_or(start.segment, |header| header.next_segment),
            prev: 0,
            payload_bytes: 0,
            payload_checksum: 0,
            objects_delta: i64::from(objects_delta),
        };
        let records = records.iter().take(ADDED_MAX).map(|record| encode(record, self.image)).collect();
        if self.batches.len() < self.image.batches.len() + ADDED_MAX {
            self.batches.push(LooseBatch { header, records, last: Vec::new() });
        }
    }

    /// Lays the batches out one after the other, corrects their checksums and links, and writes
    /// them.
    pub fn finish(self, device: &MemoryDevice) {
        if !self.changed {
            return;
        }
        let start = self.image.superblock.log;
        let (mut addr, mut prev) = (start.addr, start.prev);
        for mut batch in self.batches {
            let mut payload = batch.records.concat();
            for edit in &batch.last {
                match edit {
                    BatchEdit::Byte(at, value) => fields::change_byte(&mut payload, *at, *value),
                    BatchEdit::Cut(len) => payload.truncate(usize::from(*len)),
                    _ => {}
                }
            }
            let header = &mut batch.header;
            let blocks = BatchHeader::blocks_for(payload.len());
            let leads_on = header.next_segment != header.segment;
            let next = if leads_on { header.next } else { addr + blocks };
            *header = BatchHeader {
                addr,
                next,
                prev,
                payload_bytes: payload.len() as u32,
                payload_checksum: crc(&payload),
                ..*header
            };
            let mut bytes = vec![0; BLOCK_BYTES * blocks as usize];
            bytes[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(&payload);
            prev = encode_header(header, &mut bytes, &batch.last, self.image);
            // Beyond the end of its segment it would overwrite other blocks.
            if addr + blocks <= header.segment.end() {
                write(device, addr, &bytes);
            }
            addr = next;
        }
    }
}

/// Writes the header with its changed fields and a correct checksum, which is returned.
fn encode_header(header: &BatchHeader, bytes: &mut [u8], edits: &[BatchEdit], image: &Image) -> Crc {
    header.encode(bytes);
    for edit in edits {
        if let BatchEdit::Field(field, number) = edit {
            fields::change(&mut bytes[..HEADER_BYTES], &fields::BATCH, *field, *number, image);
        }
    }
    let checksum = crc(&bytes[12..HEADER_BYTES]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// Splits a sound payload into its records.
fn split(payload: &[u8], geometry: Geometry) -> Vec<Vec<u8>> {
    let mut rest = payload;
    let mut records = Vec::new();
    for record in Records::new(payload, geometry) {
        let len = match record.expect("a sound payload") {
            Record::Put(_, value) => PUT_PREFIX_BYTES + value.len(),
            // As long as the put that it replaces; its length field is in the same place.
            Record::Void => {
                let len = rest[PUT_PREFIX_BYTES - 4..PUT_PREFIX_BYTES].try_into().expect("four bytes");
                PUT_PREFIX_BYTES + u32::from_le_bytes(len) as usize
            }
            Record::Delete(_) => PUT_PREFIX_BYTES - 4,
            Record::Name(_, checksums) => 13 + checksums.len(),
            Record::Free(_) => 17,
        };
        let (record, after) = rest.split_at(len);
        records.push(record.to_vec());
        rest = after;
    }
    records
}

fn encode(record: &LogRecord, image: &Image) -> Vec<u8> {
    let mut out = Vec::new();
    let item = |number: u16| {
        let (place, index) = image.items[usize::from(number) % image.items.len()];
        image.nodes[place].what.entry(index)
    };
    match record {
        LogRecord::Put(plant) => {
            let (key, value) = plant.item(image);
            push_put(&mut out, key, &value);
        }
        LogRecord::PutChanged(number, field, value) => {
            let (key, bytes) = item(*number);
            let mut bytes = bytes.to_vec();
            fields::change(&mut bytes, fields::of_item(key.kind), *field, *value, image);
            push_put(&mut out, key, &bytes);
        }
        LogRecord::Delete(number) => push_delete(&mut out, item(*number).0),
        LogRecord::DeletePlanted(plant) => push_delete(&mut out, plant.item(image).0),
        LogRecord::Name(start, blocks, right) => {
            let run = BlockRun::new(start.resolve(0, image), u64::from(blocks % 32) + 1);
            push_name(&mut out, run.start, &plant::checksums(image, run, *right));
        }
        LogRecord::Free(start, blocks) => {
            push_free(&mut out, BlockRun::new(start.resolve(0, image), blocks.resolve(1, image)));
        }
        LogRecord::Void(plant) => {
            let (key, value) = plant.item(image);
            push_put(&mut out, key, &value);
            void_put(&mut out, 0);
        }
        LogRecord::Raw(bytes) => out.extend_from_slice(bytes),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_not_changed_is_laid_out_as_it_was() {
        let mut batches = 0;
        for image in crate::bases::IMAGES.iter() {
            let mut log = LogChanger::new(image);
            log.changed = true;
            let copy = image.device.snapshot();
            log.finish(&copy);
            assert!(copy.image() == image.device.image());
            batches += image.batches.len();
        }
        assert!(batches > 5, "some images have something in their log");
    }
}
