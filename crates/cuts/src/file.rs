//! Recording files; FORMAT.md describes the layout. A file is untrusted: no value in it is
//! used as an index or size unchecked.

use crate::CutsError;
use crate::recording::{Info, Mark, Recording};
use bytes::Bytes;
use foldhash::HashMap;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use serde::{Deserialize, Serialize};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use syncline_device::{AlignedBuf, BLOCK_BYTES, DeviceExt, MemoryDevice, block_on};
use syncline_format::crc;
use syncline_powercut::Event;

/// Version of the file format.
pub const FILE_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"SYNCREC\0";
const HEADER_BYTES: usize = 24;
/// Most distinct blocks that a file may hold: 8 GiB.
const BLOCKS_MAX: u32 = 1 << 21;
/// Most bytes of the description that precedes the blocks.
const CONTENTS_BYTES_MAX: u64 = 1 << 30;
/// Largest device, in bytes.
const DEVICE_BYTES_MAX: u64 = 1 << 48;

/// Everything but the contents of blocks, which are referred to by their index in the list of
/// distinct blocks.
#[derive(Serialize, Deserialize)]
struct Contents {
    info: Info,
    base: Vec<(u64, u32)>,
    events: Vec<StoredEvent>,
    marks: Vec<Mark>,
    blocks: u32,
}

#[derive(Serialize, Deserialize)]
enum StoredEvent {
    Write { block: u64, contents: Vec<u32> },
    WriteEnded { id: usize, ok: bool },
    WriteDropped { id: usize },
    Flush,
    FlushEnded { id: usize, ok: bool },
    Discard { offset: u64, len_bytes: u64 },
}

/// Distinct blocks, in the order of first use.
#[derive(Default)]
struct Blocks {
    list: Vec<Bytes>,
    numbers: HashMap<Bytes, u32>,
}

impl Blocks {
    fn number(&mut self, block: Bytes) -> u32 {
        *self.numbers.entry(block).or_insert_with_key(|block| {
            self.list.push(block.clone());
            self.list.len() as u32 - 1
        })
    }
}

/// Writes a recording, completely or not at all.
pub fn write(recording: &Recording, path: &Path) -> Result<(), CutsError> {
    let failed = |error: io::Error| CutsError::file(path, error);
    let mut blocks = Blocks::default();
    let contents = contents(recording, &mut blocks)?;
    let contents = postcard::to_allocvec(&contents).map_err(|error| failed(io::Error::other(error)))?;
    let mut encoder = FrameEncoder::new(Vec::new());
    let packed = (|| {
        encoder.write_all(&(contents.len() as u64).to_le_bytes())?;
        encoder.write_all(&contents)?;
        blocks.list.iter().try_for_each(|block| encoder.write_all(block))?;
        encoder.finish().map_err(io::Error::other)
    })()
    .map_err(failed)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The permissions of any new file.
    let permissions = Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().prefix(".crashlab-").permissions(permissions).tempfile_in(folder);
    let mut file = file.map_err(failed)?;
    file.write_all(&header(&packed)).and_then(|()| file.write_all(&packed)).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

fn header(packed: &[u8]) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(FILE_VERSION.to_le_bytes());
    header.extend(crc(packed).to_le_bytes());
    header.extend((packed.len() as u64).to_le_bytes());
    header
}

fn contents(recording: &Recording, blocks: &mut Blocks) -> Result<Contents, CutsError> {
    let mut base = Vec::with_capacity(recording.base_blocks.len());
    for &addr in &recording.base_blocks {
        let bytes = block_on(recording.base.read_at(addr * BLOCK_BYTES as u64, BLOCK_BYTES))?;
        base.push((addr, blocks.number(bytes.into_bytes())));
    }
    let events = recording.events.iter().map(|event| stored(event, blocks)).collect();
    let (info, marks) = (recording.info.clone(), recording.marks.clone());
    Ok(Contents { info, base, events, marks, blocks: blocks.list.len() as u32 })
}

fn stored(event: &Event, blocks: &mut Blocks) -> StoredEvent {
    match event {
        Event::Write { offset, bufs } => {
            let pieces = bufs.iter().flat_map(|buf| {
                (0..buf.len()).step_by(BLOCK_BYTES).map(move |at| buf.slice(at..at + BLOCK_BYTES))
            });
            let contents = pieces.map(|block| blocks.number(block)).collect();
            StoredEvent::Write { block: offset / BLOCK_BYTES as u64, contents }
        }
        Event::WriteEnded { id, ok } => StoredEvent::WriteEnded { id: *id, ok: *ok },
        Event::WriteDropped { id } => StoredEvent::WriteDropped { id: *id },
        Event::Flush => StoredEvent::Flush,
        Event::FlushEnded { id, ok } => StoredEvent::FlushEnded { id: *id, ok: *ok },
        Event::Discard { offset, len_bytes } => {
            StoredEvent::Discard { offset: *offset, len_bytes: *len_bytes }
        }
    }
}

/// Reads a recording.
pub fn read(path: &Path) -> Result<Recording, CutsError> {
    let mut file = File::open(path).map_err(|error| CutsError::file(path, error))?;
    let packed = packed(&mut file, path)?;
    let damaged = |detail: &str| CutsError::damaged(path, detail);
    let mut decoder = FrameDecoder::new(&packed[..]);
    let contents = unpack(&mut decoder).map_err(|error| damaged(&error.to_string()))?;
    let Contents { info, base, events, marks, blocks } = contents;
    let blocks = unpack_blocks(&mut decoder, blocks).map_err(|error| damaged(&error.to_string()))?;
    let read = Unpacked { blocks, size_bytes: info.size_bytes };
    let events = read.events(events).ok_or_else(|| damaged("an event is impossible"))?;
    check(&info, &marks, events.len()).map_err(damaged)?;
    let device = MemoryDevice::new(info.size_bytes);
    let mut base_blocks = Vec::with_capacity(base.len());
    for (addr, number) in base {
        let block = read.block(number).filter(|_| addr < info.size_bytes / BLOCK_BYTES as u64);
        let block = block.ok_or_else(|| damaged("a block of the image at the start is impossible"))?;
        block_on(device.write_at(addr * BLOCK_BYTES as u64, vec![block]))?;
        base_blocks.push(addr);
    }
    Ok(Recording { info, base: device, base_blocks, events, marks })
}

/// The compressed part, verified against the header.
fn packed(file: &mut File, path: &Path) -> Result<Vec<u8>, CutsError> {
    let failed = |error: io::Error| CutsError::file(path, error);
    let mut header = Vec::new();
    file.take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(failed)?;
    if !header.starts_with(&MAGIC) {
        return Err(CutsError::NotARecording { path: path.to_owned() });
    }
    let truncated = || CutsError::damaged(path, "it is truncated");
    let number = |at: usize| header.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
    let found = number(8).map(|bytes| u32::from_le_bytes(*bytes)).ok_or_else(truncated)?;
    if found != FILE_VERSION {
        return Err(CutsError::Version { path: path.to_owned(), found, supported: FILE_VERSION });
    }
    let checksum = number(12).map(|bytes| u32::from_le_bytes(*bytes)).ok_or_else(truncated)?;
    let len = header.get(16..24).and_then(|bytes| bytes.first_chunk()).ok_or_else(truncated)?;
    let mut packed = Vec::new();
    file.read_to_end(&mut packed).map_err(failed)?;
    if (packed.len() as u64) < u64::from_le_bytes(*len) {
        return Err(truncated());
    }
    if packed.len() as u64 > u64::from_le_bytes(*len) || crc(&packed) != checksum {
        return Err(CutsError::damaged(path, "its checksum does not match"));
    }
    Ok(packed)
}

fn unpack(decoder: &mut impl Read) -> io::Result<Contents> {
    let mut len = [0; 8];
    decoder.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > CONTENTS_BYTES_MAX {
        return Err(io::Error::other("its description is too long"));
    }
    // The buffer grows with the bytes really there, whatever the file claims.
    let mut contents = Vec::new();
    decoder.take(len).read_to_end(&mut contents)?;
    postcard::from_bytes(&contents).map_err(io::Error::other)
}

fn unpack_blocks(decoder: &mut impl Read, count: u32) -> io::Result<Vec<Bytes>> {
    if count > BLOCKS_MAX {
        return Err(io::Error::other("it has too many blocks"));
    }
    (0..count)
        .map(|_| {
            let mut block = AlignedBuf::for_read(BLOCK_BYTES);
            decoder.read_exact(&mut block)?;
            Ok(block.into_bytes())
        })
        .collect()
}

fn check(info: &Info, marks: &[Mark], events: usize) -> Result<(), &'static str> {
    let block = BLOCK_BYTES as u64;
    if !info.size_bytes.is_multiple_of(block) || info.size_bytes > DEVICE_BYTES_MAX {
        return Err("the size of the device is impossible");
    }
    if info.begin > info.end || info.end > events {
        return Err("its beginning or end is impossible");
    }
    let ordered = marks.is_sorted_by_key(|mark| mark.position);
    if !ordered || marks.last().is_some_and(|mark| mark.position > events) {
        return Err("a mark is impossible");
    }
    Ok(())
}

/// The data from which events are rebuilt.
struct Unpacked {
    blocks: Vec<Bytes>,
    size_bytes: u64,
}

impl Unpacked {
    fn block(&self, number: u32) -> Option<Bytes> {
        self.blocks.get(number as usize).cloned()
    }

    fn events(&self, stored: Vec<StoredEvent>) -> Option<Vec<Event>> {
        let mut events: Vec<Event> = Vec::with_capacity(stored.len());
        for event in stored {
            let write = |id: usize| matches!(events.get(id), Some(Event::Write { .. }));
            let flush = |id: usize| matches!(events.get(id), Some(Event::Flush));
            let event = match event {
                StoredEvent::Write { block, contents } => self.write(block, &contents)?,
                StoredEvent::WriteEnded { id, ok } if write(id) => Event::WriteEnded { id, ok },
                StoredEvent::WriteDropped { id } if write(id) => Event::WriteDropped { id },
                StoredEvent::FlushEnded { id, ok } if flush(id) => Event::FlushEnded { id, ok },
                StoredEvent::Flush => Event::Flush,
                StoredEvent::Discard { offset, len_bytes } => {
                    let aligned = (offset | len_bytes).is_multiple_of(BLOCK_BYTES as u64);
                    let end = offset.checked_add(len_bytes).filter(|end| *end <= self.size_bytes);
                    end.filter(|_| aligned)?;
                    Event::Discard { offset, len_bytes }
                }
                _ => return None,
            };
            events.push(event);
        }
        Some(events)
    }

    fn write(&self, block: u64, contents: &[u32]) -> Option<Event> {
        let offset = block.checked_mul(BLOCK_BYTES as u64)?;
        let len_bytes = contents.len() as u64 * BLOCK_BYTES as u64;
        offset.checked_add(len_bytes).filter(|end| *end <= self.size_bytes)?;
        let bufs = contents.iter().map(|number| self.block(*number)).collect::<Option<Vec<_>>>()?;
        Some(Event::Write { offset, bufs })
    }
}
