//! Batches of the log.

use super::from_bytes;
use arbitrary::Arbitrary;
use syncline_format::batch::{
    BatchHeader, HEADER_BYTES, PAYLOAD_BYTES_MAX, PUT_PREFIX_BYTES, Record, Records, push_delete, push_free,
    push_name, push_put, unpack_checksums,
};
use syncline_format::{Geometry, Metadata, crc};

const GEOMETRY: Geometry = Geometry { total_blocks: 4096, node_bytes: 4096, metadata: Metadata::Single };

/// A header, sealed or not, and records.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    sealed: bool,
    header: [u8; HEADER_BYTES],
    records: &'a [u8],
}

/// Decodes a header and records.
///
/// - Neither panics, whatever the bytes.
/// - A decoded header encodes to a header that decodes to the same, with the same checksum if its
///   unused bytes were zero.
/// - The batch, its segment and the place of the next batch lie inside the image, the batch in its
///   segment.
/// - Records are canonical: encoded again they are the bytes that were read (of a replaced record
///   only the length is known).
/// - Values respect the limit, runs are inside the image, and an error ends the reading.
pub fn batch(bytes: &[u8]) {
    let Some(mut input) = from_bytes::<Input<'_>>(bytes) else { return };
    if input.sealed {
        input.header[..8].copy_from_slice(b"SYNCLOG\x01");
        let checksum = crc(&input.header[12..]);
        input.header[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
    header(&input.header);
    records(input.records);
}

fn header(bytes: &[u8; HEADER_BYTES]) {
    assert!(BatchHeader::decode(&bytes[..HEADER_BYTES - 1], GEOMETRY).is_err());
    let Ok((header, checksum)) = BatchHeader::decode(bytes, GEOMETRY) else { return };
    let mut again = [0xff; HEADER_BYTES];
    let new_checksum = header.encode(&mut again);
    assert_eq!(BatchHeader::decode(&again, GEOMETRY), Ok((header, new_checksum)));
    assert_eq!(bytes[12..128], again[12..128]);
    assert_eq!(bytes == &again, checksum == new_checksum);
    assert!(header.payload_bytes as usize <= PAYLOAD_BYTES_MAX);
    assert!(GEOMETRY.contains(header.run()) && GEOMETRY.contains(header.segment));
    assert!(header.run().start >= header.segment.start && header.run().end() <= header.segment.end());
    let next = header.next_segment;
    assert!(GEOMETRY.contains(next) && (next.start..next.end()).contains(&header.next));
}

fn records(bytes: &[u8]) {
    let mut again = Vec::new();
    let mut ended = false;
    for record in Records::new(bytes, GEOMETRY) {
        assert!(!ended, "an error ends the reading");
        match record {
            Ok(Record::Put(key, value)) => {
                assert!(value.len() <= GEOMETRY.max_value_bytes());
                push_put(&mut again, key, value);
            }
            Ok(Record::Delete(key)) => push_delete(&mut again, key),
            Ok(Record::Name(run, packed)) => {
                assert!(GEOMETRY.contains(run) && packed.len() as u64 == run.blocks * 4);
                push_name(&mut again, run.start, &unpack_checksums(packed).collect::<Vec<_>>());
            }
            Ok(Record::Free(run)) => {
                assert!(GEOMETRY.contains(run));
                push_free(&mut again, run);
            }
            Ok(Record::Void) => {
                let at = again.len();
                let len: [u8; 4] = bytes[at + PUT_PREFIX_BYTES - 4..][..4].try_into().expect("four bytes");
                let len = PUT_PREFIX_BYTES + u32::from_le_bytes(len) as usize;
                again.extend_from_slice(&bytes[at..at + len]);
            }
            Err(_) => ended = true,
        }
    }
    assert!(bytes.starts_with(&again), "one record, one encoding");
    assert_eq!(ended, again.len() < bytes.len(), "all bytes are records, or there is an error");
}
