//! Judges what was read from a file that many threads write.

use super::records::{RECORD_BYTES, Record, Value, is_cut, parse};
use super::world::World;
use syncline_device::block_on;
use syncline_fs::types::Ino;

/// The way a file is written, which its inode number decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Records; truncated anywhere.
    Ragged,
    /// Whole sectors.
    Sectors,
    /// Whole blocks, also copied to the same place in other files of this class.
    Shared,
    /// Whole blocks, which may move.
    Shifted,
    /// Records, copied from anywhere to anywhere.
    Anything,
}

impl Class {
    pub fn of(ino: Ino) -> Self {
        [Self::Ragged, Self::Sectors, Self::Shared, Self::Shifted, Self::Anything][(ino % 5) as usize]
    }

    /// The size that writes are multiples of.
    pub fn unit(self) -> u64 {
        match self {
            Self::Ragged | Self::Anything => RECORD_BYTES,
            Self::Sectors => 512,
            Self::Shared | Self::Shifted => 4096,
        }
    }

    /// True if this record may be at this place in this file.
    fn may_hold(self, ino: Ino, place: u64, record: Record) -> bool {
        match self {
            Self::Ragged | Self::Sectors => record.value.ino == ino && record.place == place,
            Self::Shared => Self::of(record.value.ino) == self && record.place == place,
            Self::Shifted => Self::of(record.value.ino) == self,
            Self::Anything => true,
        }
    }
}

/// Reads a range in one call.
pub fn read(world: &World, ino: Ino, offset: u64, len: u64) -> Vec<u8> {
    world.must(block_on(world.mount.fs.read(ino, offset, len as usize))).concat()
}

/// The values of records read from a file in which all records are at their own places.
pub fn values_of(ino: Ino, first: u64, bytes: &[u8]) -> Result<Vec<Value>, String> {
    let records = (first..).zip(bytes.chunks(RECORD_BYTES as usize));
    let value = |(place, bytes): (u64, &[u8])| match (bytes.len() == RECORD_BYTES as usize)
        .then(|| parse(bytes))
    {
        Some(Some(record)) if record.value == Value::default() || record.place == place => Ok(record.value),
        other => Err(format!("file {ino}, record {place}: {other:?}, {bytes:x?}")),
    };
    records.map(value).collect()
}

/// Fails unless the data read from `offset` on, a multiple of the unit, was written there.
pub fn require_written(ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), String> {
    let class = Class::of(ino);
    for (unit, bytes) in bytes.chunks(class.unit() as usize).enumerate() {
        let at = offset + unit as u64 * class.unit();
        let mut first = None;
        for (place, piece) in (at / RECORD_BYTES..).zip(bytes.chunks(RECORD_BYTES as usize)) {
            let mut whole = piece.to_vec();
            whole.resize(RECORD_BYTES as usize, 0);
            let Some(record) = parse(&whole) else {
                if class == Class::Ragged && is_cut(&whole, ino, place) {
                    continue;
                }
                return Err(format!("file {ino} ({class:?}), record {place}: garbage {piece:x?}"));
            };
            let is_zero = record.value == Value::default();
            if !is_zero && !class.may_hold(ino, place, record) {
                return Err(format!("file {ino} ({class:?}), record {place} is of another: {record:?}"));
            }
            let (start, start_place) = *first.get_or_insert((record.value, record.place));
            let follows = is_zero || record.place == start_place + (place - at / RECORD_BYTES);
            if class.unit() > RECORD_BYTES && (record.value != start || !follows) {
                return Err(format!(
                    "file {ino} ({class:?}), unit at {at} is torn: {start:?} and {record:?}"
                ));
            }
        }
    }
    Ok(())
}
