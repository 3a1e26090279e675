//! Blocks that tell who wrote them and when, and streams of them.

use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::{BLOCK_BYTES, Device, DeviceError, DeviceExt, block_on};

const MAGIC: &[u8; 8] = b"record\r\n";
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The block with which `writer` says that it wrote this sequence number. Every 512 bytes of it say
/// so.
pub fn record(writer: u64, sequence: u64) -> Bytes {
    let mut sector = [0; 512];
    sector[..8].copy_from_slice(MAGIC);
    sector[8..16].copy_from_slice(&writer.to_le_bytes());
    sector[16..24].copy_from_slice(&sequence.to_le_bytes());
    for (index, byte) in (24u64..).zip(&mut sector[24..]) {
        *byte = (sequence.wrapping_mul(31).wrapping_add(index) ^ writer) as u8;
    }
    Bytes::from(sector.repeat(BLOCK_BYTES / 512))
}

/// The writer of a block and its sequence number; `None` if the block was never written. A block with
/// anything else fails the test.
#[track_caller]
pub fn read_record(block: &[u8]) -> Option<(u64, u64)> {
    if block.iter().all(|&byte| byte == 0) {
        return None;
    }
    let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let (writer, sequence) = (number(8), number(16));
    assert!(block == &record(writer, sequence)[..], "a block is no record, or a torn one");
    Some((writer, sequence))
}

/// All blocks of a device.
pub fn all_blocks(device: &dyn Device) -> Range<u64> {
    0..device.size_bytes() / BLOCK
}

/// All records of a device.
#[track_caller]
pub fn read_all(device: &dyn Device) -> Vec<Option<(u64, u64)>> {
    read_records(device, all_blocks(device))
}

/// The records in these blocks.
#[track_caller]
pub fn read_records(device: &dyn Device, blocks: Range<u64>) -> Vec<Option<(u64, u64)>> {
    let mut records = Vec::new();
    let mut at = blocks.start;
    while at < blocks.end {
        let count = (blocks.end - at).min(256);
        let bytes = block_on(device.read_at(at * BLOCK, count as usize * BLOCK_BYTES)).expect("read");
        records.extend(bytes.chunks(BLOCK_BYTES).map(read_record));
        at += count;
    }
    records
}

/// How a stream of records went.
#[derive(Debug)]
pub struct Stream {
    /// The records below this one are durable: a flush after them was acknowledged.
    pub acknowledged: u64,
    /// The first error.
    pub error: Option<DeviceError>,
}

/// Writes record after record, each to the block of its number from the first of these blocks on,
/// `depth` of them in flight, and flushes every few; until the blocks are full, an error comes or it
/// is told to stop. Tells what is acknowledged.
pub fn write_records(
    device: &dyn Device,
    writer: u64,
    blocks: Range<u64>,
    depth: usize,
    stop: &AtomicBool,
    mut tell: impl FnMut(u64),
) -> Stream {
    let capacity = blocks.end - blocks.start;
    let mut in_flight = VecDeque::new();
    let (mut next, mut completed, mut acknowledged) = (0, 0, 0);
    let mut error = None;
    while error.is_none() && !(stop.load(Ordering::Relaxed) && in_flight.is_empty()) {
        while in_flight.len() < depth && next < capacity && !stop.load(Ordering::Relaxed) {
            in_flight.push_back(device.write_at((blocks.start + next) * BLOCK, vec![record(writer, next)]));
            next += 1;
        }
        let Some(oldest) = in_flight.pop_front() else { break };
        let mut ended = block_on(oldest).map(|()| completed += 1);
        if ended.is_ok() && (completed - acknowledged >= 16 || in_flight.is_empty()) {
            ended = block_on(device.flush_all()).map(|()| {
                acknowledged = completed;
                tell(acknowledged);
            });
        }
        error = ended.err();
    }
    for rest in in_flight {
        let _ = block_on(rest);
    }
    Stream { acknowledged, error }
}

/// Asserts that each record that was acknowledged is there.
#[track_caller]
pub fn check_acknowledged(records: &[Option<(u64, u64)>], writer: u64, acknowledged: u64) {
    for (sequence, found) in (0..acknowledged).zip(records) {
        assert_eq!(*found, Some((writer, sequence)), "an acknowledged record is lost ({acknowledged} were)");
    }
}
