//! The beginning of a stream: whose snapshot it is, and which snapshot it starts from.

use crate::fields::{Fields, put_name};
use crate::{Position, StreamError};
use std::io::Read;
use syncline_store::Snapshot;

/// The first bytes of every stream.
pub const MAGIC: [u8; 8] = *b"SYNCSEND";
/// The version that this program writes and reads.
pub const VERSION: u32 = 1;
/// Bytes before the part whose length varies.
const FIXED_BYTES: usize = 24;
/// The most bytes that the rest of a header takes.
const REST_BYTES_MAX: usize = 1024;
/// Inode numbers are below this.
pub(crate) const NUMBERS_END: u64 = 1 << 56;
/// A target gives its own inodes greater numbers than those of streams that end below this. So its
/// numbers never come near [`NUMBERS_END`], whatever streams claim.
pub(crate) const NUMBERS_FOLLOWED_END: u64 = 1 << 55;
/// The stream is the rest of one: the header says after which record it goes on.
const FEATURE_RESUMED: u64 = 1;
/// Features of the stream that this program knows.
const FEATURES_KNOWN: u64 = FEATURE_RESUMED;

/// A snapshot, by the facts that stay the same when it is received elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// When it was made, in nanoseconds since 1970. By this a target knows it again: a received
    /// snapshot keeps it.
    pub created_ns: u64,
    /// Its number in the image from which it is sent; for people.
    pub id: u64,
    /// Its name there.
    pub name: String,
}

impl From<&Snapshot> for Origin {
    fn from(snapshot: &Snapshot) -> Self {
        Self { created_ns: snapshot.created_ns, id: snapshot.id, name: snapshot.name.clone() }
    }
}

/// The header of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The UUID of the filesystem that the snapshot was sent from.
    pub uuid: [u8; 16],
    /// Feature bits of its superblock, of which some are needed where the snapshot is received.
    pub filesystem_features: u32,
    /// Greater than every inode number in the snapshot, and in the one that it starts from.
    pub next_object: u64,
    /// Objects in the snapshot.
    pub objects: u64,
    /// Bytes that the snapshot uses in the image from which it is sent. A hint at the room that a
    /// stream without parent needs.
    pub used_bytes: u64,
    /// The snapshot.
    pub snapshot: Origin,
    /// The snapshot that the target must have, of an incremental stream.
    pub parent: Option<Origin>,
    /// The position up to which the receiver has the stream, if this is the rest of it.
    pub resumed: Option<Position>,
}

impl Header {
    /// The header of the whole stream, of which this one may be the rest.
    pub fn whole(&self) -> Self {
        Self { resumed: None, ..self.clone() }
    }

    /// The header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        rest.extend_from_slice(&self.uuid);
        rest.extend_from_slice(&self.filesystem_features.to_le_bytes());
        rest.extend_from_slice(&u32::from(self.parent.is_some()).to_le_bytes());
        for field in [self.next_object, self.objects, self.used_bytes] {
            rest.extend_from_slice(&field.to_le_bytes());
        }
        for origin in [Some(&self.snapshot), self.parent.as_ref()].into_iter().flatten() {
            rest.extend_from_slice(&origin.created_ns.to_le_bytes());
            rest.extend_from_slice(&origin.id.to_le_bytes());
            put_name(&mut rest, origin.name.as_bytes());
        }
        let mut features = 0;
        if let Some(position) = self.resumed {
            features |= FEATURE_RESUMED;
            rest.extend_from_slice(&position.records.to_le_bytes());
            rest.extend_from_slice(&position.checksum.to_le_bytes());
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(rest.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&features.to_le_bytes());
        bytes.extend_from_slice(&rest);
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header, and returns it with its bytes.
    pub fn read(input: &mut impl Read) -> Result<(Self, Vec<u8>), StreamError> {
        let mut bytes = vec![0; FIXED_BYTES];
        match fill(input, &mut bytes[..MAGIC.len()])? {
            0 => return Err(StreamError::Nothing),
            read if read < MAGIC.len() || bytes[..8] != MAGIC => return Err(StreamError::NotAStream),
            _ => {}
        }
        exactly(input, &mut bytes[8..])?;
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let (version, length) = (number(8), number(12) as usize);
        let features = u64::from(number(16)) | u64::from(number(20)) << 32;
        if length > REST_BYTES_MAX {
            return Err(damaged("length"));
        }
        bytes.resize(FIXED_BYTES + length + 4, 0);
        exactly(input, &mut bytes[FIXED_BYTES..])?;
        let (covered, sum) = bytes.split_at(FIXED_BYTES + length);
        if crc32c::crc32c(covered).to_le_bytes() != sum {
            return Err(damaged("checksum of the header"));
        }
        if version != VERSION {
            return Err(StreamError::Unknown(format!("is of version {version}")));
        }
        if features & !FEATURES_KNOWN != 0 {
            return Err(StreamError::Unknown(format!("needs features {features:#x}")));
        }
        let header = Self::decode(&covered[FIXED_BYTES..], features)?;
        Ok((header, bytes))
    }

    fn decode(rest: &[u8], features: u64) -> Result<Self, StreamError> {
        let mut fields = Fields::new(rest, 0);
        let uuid = fields.array()?;
        let filesystem_features = fields.u32()?;
        let has_parent = match fields.u32()? {
            0 => false,
            1 => true,
            _ => return Err(damaged("parent")),
        };
        let (next_object, objects, used_bytes) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let mut origin = || -> Result<Origin, StreamError> {
            let (created_ns, id) = (fields.u64()?, fields.u64()?);
            let name = String::from_utf8(fields.name()?).map_err(|_| damaged("name of a snapshot"))?;
            if !Snapshot::is_name(&name) {
                return Err(damaged("name of a snapshot"));
            }
            Ok(Origin { created_ns, id, name })
        };
        let snapshot = origin()?;
        let parent = has_parent.then(origin).transpose()?;
        let resumed = match features & FEATURE_RESUMED {
            0 => None,
            _ => Some(Position { records: fields.u64()?, checksum: fields.u32()? }),
        };
        fields.end()?;
        // Another record follows, under the next number.
        if resumed.is_some_and(|position| [0, u64::MAX].contains(&position.records)) {
            return Err(damaged("where the stream goes on"));
        }
        if next_object == 0 || next_object > NUMBERS_END {
            return Err(damaged("inode numbers"));
        }
        Ok(Self { uuid, filesystem_features, next_object, objects, used_bytes, snapshot, parent, resumed })
    }
}

fn damaged(what: &'static str) -> StreamError {
    StreamError::Damaged { record: 0, what }
}

fn exactly(input: &mut impl Read, room: &mut [u8]) -> Result<(), StreamError> {
    if fill(input, room)? == room.len() { Ok(()) } else { Err(StreamError::Truncated(0)) }
}

/// Reads until `room` is full or the input ends.
pub(crate) fn fill(input: &mut impl Read, room: &mut [u8]) -> Result<usize, StreamError> {
    let mut done = 0;
    while done < room.len() {
        match input.read(&mut room[done..]) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_from_what_is_no_stream() {
        assert!(matches!(Header::read(&mut &b""[..]), Err(StreamError::Nothing)));
        for bytes in [&b"x"[..], b"no stream at all"] {
            assert!(matches!(Header::read(&mut &bytes[..]), Err(StreamError::NotAStream)));
        }
    }
}
