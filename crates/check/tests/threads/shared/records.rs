//! Contents that identify themselves: records of 32 bytes with the file, the place in it and the
//! write that made them.

use syncline_fs::types::Ino;

pub const RECORD_BYTES: u64 = 32;

/// The file and the write in a record; zeros where nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub struct Value {
    pub ino: Ino,
    pub write: u64,
}

/// A record that was read, with the place it was written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub value: Value,
    pub place: u64,
}

fn mixed(ino: Ino, place: u64, write: u64) -> u64 {
    let mixed = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.rotate_left(23) ^ write.rotate_left(41);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
}

/// The bytes of a record.
pub fn bytes_of(Record { value, place }: Record) -> [u8; RECORD_BYTES as usize] {
    let mut bytes = [0; RECORD_BYTES as usize];
    if value != Value::default() {
        let words = [value.ino, place, value.write, mixed(value.ino, place, value.write)];
        for (at, word) in words.into_iter().enumerate() {
            bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// The contents of `len` bytes at `offset` of a file, as made by one write.
pub fn contents(value: Value, offset: u64, len: u64) -> Vec<u8> {
    let places = offset / RECORD_BYTES..(offset + len) / RECORD_BYTES;
    places.flat_map(|place| bytes_of(Record { value, place })).collect()
}

/// Parses a whole record; `None` if it is not one.
pub fn parse(bytes: &[u8]) -> Option<Record> {
    let word = |at: usize| bytes[at * 8..][..8].try_into().ok().map(u64::from_le_bytes);
    let record = Record { value: Value { ino: word(0)?, write: word(2)? }, place: word(1)? };
    (bytes_of(record) == bytes).then_some(record)
}

/// True for the start of a record for this file and place, followed by zeros: the file was
/// truncated there and grew again.
pub fn is_cut(bytes: &[u8], ino: Ino, place: u64) -> bool {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let head = [ino.to_le_bytes(), place.to_le_bytes()].concat();
    let known = end.min(head.len());
    bytes[..known] == head[..known]
}

#[test]
fn a_record_that_is_changed_or_moved_is_none() {
    let value = Value { ino: 20, write: 7 };
    let bytes = contents(value, 64, 64);
    assert_eq!(parse(&bytes[..32]), Some(Record { value, place: 2 }));
    assert_eq!(parse(&bytes[32..]), Some(Record { value, place: 3 }));
    let zeros = Record { value: Value::default(), place: 0 };
    assert_eq!(parse(&[0; 32]), Some(zeros));
    assert_eq!(parse(&bytes[8..40]), None);
    let mut cut = bytes[..32].to_vec();
    cut[20..].fill(0);
    assert!(parse(&cut).is_none() && is_cut(&cut, 20, 2) && !is_cut(&cut, 21, 2) && !is_cut(&cut, 20, 3));
}
