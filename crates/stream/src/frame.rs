//! Records as bytes: each with its length, number and checksums, the last with one of everything.

use crate::header::{Header, fill};
use crate::record::{PAYLOAD_BYTES_MAX, Record};
use crate::{Position, StreamError};
use bytes::Bytes;
use std::io::{Read, Write};

/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: usize = 24;

/// Writes a stream, or the rest of one.
pub struct Writer<W> {
    output: W,
    records: u64,
    checksum: u32,
    bytes: u64,
    /// The position up to which the receiver has the stream, and the header of the rest.
    awaited: Option<(Position, Vec<u8>)>,
}

impl<W: Write> Writer<W> {
    /// Writes the header. The header of the rest of a stream is written later: when all records that
    /// the receiver has were put, and had the right checksum.
    pub fn new(output: W, header: &Header) -> Result<Self, StreamError> {
        let (whole, bytes) = (header.whole().encode(), header.encode());
        let awaited = header.resumed.map(|position| (position, bytes));
        let is_whole = awaited.is_none();
        let mut writer = Self { output, records: 0, checksum: crc32c::crc32c(&whole), bytes: 0, awaited };
        if is_whole {
            writer.write(&whole)?;
        }
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.output.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes one record, unless the receiver has it.
    pub fn put(&mut self, record: &Record) -> Result<(), StreamError> {
        let payload = record.encode();
        debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a record fits its limit");
        self.records += 1;
        let head = head(record.kind(), &payload, self.records);
        self.checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.checksum, &head), &payload);
        let Some((position, _)) = &self.awaited else {
            self.write(&head)?;
            return self.write(&payload);
        };
        if self.records < position.records {
            return Ok(());
        }
        if self.checksum != position.checksum {
            let what = format!("its first {} records are not those of this one", self.records);
            return Err(StreamError::OtherStream(what));
        }
        match self.awaited.take() {
            Some((_, header)) => self.write(&header),
            None => Ok(()),
        }
    }

    /// Writes the last record, and returns how many bytes were written.
    pub fn end(mut self) -> Result<u64, StreamError> {
        if let Some((position, _)) = &self.awaited {
            let what = format!("{} records of it came, and this one has {}", position.records, self.records);
            return Err(StreamError::OtherStream(what));
        }
        self.put(&Record::End { records: self.records, checksum: self.checksum })?;
        self.output.flush()?;
        Ok(self.bytes)
    }
}

fn head(kind: u8, payload: &[u8], number: u64) -> [u8; RECORD_HEADER_BYTES] {
    let mut head = [0; RECORD_HEADER_BYTES];
    head[0] = kind;
    head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..20].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let sum = crc32c::crc32c(&head[..20]);
    head[20..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Reads a stream, one record at a time.
pub struct Reader<R> {
    input: R,
    records: u64,
    checksum: u32,
    bytes: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn new(mut input: R) -> Result<(Self, Header), StreamError> {
        let (header, bytes) = Header::read(&mut input)?;
        let start = Position { records: 0, checksum: crc32c::crc32c(&bytes) };
        let Position { records, checksum } = header.resumed.unwrap_or(start);
        Ok((Self { input, records, checksum, bytes: 0 }, header))
    }

    /// The number of the record that was read last.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The place behind the record that was read last.
    pub fn position(&self) -> Position {
        Position { records: self.records, checksum: self.checksum }
    }

    /// Bytes of all records that were read.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads up to this place. False if the stream comes by another way to the record before it.
    pub fn pass(&mut self, position: Position) -> Result<bool, StreamError> {
        while self.records < position.records {
            if self.next_record()?.is_none() {
                return Ok(false);
            }
        }
        Ok(self.position() == position)
    }

    /// The next record; `None` behind the last one, when everything was as it was sent and nothing
    /// follows.
    pub fn next_record(&mut self) -> Result<Option<Record>, StreamError> {
        let mut head = [0; RECORD_HEADER_BYTES];
        self.exactly(&mut head)?;
        let number = self.records + 1;
        let damaged = |what| StreamError::Damaged { record: number, what };
        if crc32c::crc32c(&head[..20]).to_le_bytes() != head[20..] {
            return Err(damaged("checksum of the record's header"));
        }
        let field = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
        let length = field(4) as usize;
        if head[8..16] != number.to_le_bytes() {
            return Err(damaged("another record should be here"));
        }
        if head[1..4] != [0; 3] || length > PAYLOAD_BYTES_MAX {
            return Err(damaged("an impossible record"));
        }
        let mut payload = vec![0; length];
        self.exactly(&mut payload)?;
        if crc32c::crc32c(&payload) != field(16) {
            return Err(damaged("checksum of the record"));
        }
        let payload = Bytes::from(payload);
        let record = Record::decode(head[0], &payload, number)?;
        if let Record::End { records, checksum } = record {
            if records != number - 1 || checksum != self.checksum {
                return Err(damaged("checksum of the whole stream"));
            }
            if fill(&mut self.input, &mut [0])? > 0 {
                return Err(damaged("something follows the last record"));
            }
            return Ok(None);
        }
        self.records = number;
        self.checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.checksum, &head), &payload);
        self.bytes += (head.len() + payload.len()) as u64;
        Ok(Some(record))
    }

    fn exactly(&mut self, room: &mut [u8]) -> Result<(), StreamError> {
        match fill(&mut self.input, room)? == room.len() {
            true => Ok(()),
            false => Err(StreamError::Truncated(self.records)),
        }
    }
}
