//! Reading the log back: the longest chain of whole batches, and how far it is known to be durable.

use crate::Window;
use std::sync::Arc;
use syncline_device::{Device, DeviceError, READS_MAX, read_settled};
use syncline_format::batch::{BatchHeader, HEADER_BYTES, Record, Records, unpack_checksums};
use syncline_format::superblock::LogStart;
use syncline_format::{BLOCK_BYTES, BlockRun, Crc, Epoch, FormatError, Geometry, block_checksums, crc};

/// Why the log could not be read. A batch that is torn or absent is the log's end and no error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplayError {
    /// The device failed. Treating this as the end of the log would lose what was acknowledged.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A batch that had been accepted no longer reads the same.
    #[error("log batch {seq} at block {addr}: {detail}")]
    Corrupt {
        /// The batch's number.
        seq: u64,
        /// Where it lies.
        addr: u64,
        /// What is wrong.
        detail: FormatError,
    },
}

/// What a first pass over the log found.
#[derive(Debug)]
pub struct Scan {
    /// The whole batches, in order; their named data is not verified yet.
    pub batches: Vec<BatchHeader>,
    /// Highest batch that any batch calls durable.
    pub durable_seq: u64,
    /// Where the chain ends.
    pub end: LogStart,
    /// A whole batch of this epoch beyond the end that calls a batch durable which is missing: damage, not a torn tail.
    pub contradiction: Option<BatchHeader>,
}

/// What of a batch is taken on trust: nothing, but for tests that must see that each of these matters.
#[derive(Clone, Copy, Default, Debug)]
#[doc(hidden)]
pub struct Believed {
    /// The number and the chain value.
    pub number: bool,
    /// The epoch, and with it what can't agree then.
    pub epoch: bool,
    /// The checksum of the records.
    pub records: bool,
}

/// Follows the chain from `start` as far as headers, payload checksums and links hold.
pub async fn scan(
    device: &Arc<dyn Device>,
    geometry: Geometry,
    epoch: Epoch,
    start: LogStart,
) -> Result<Scan, ReplayError> {
    scan_believing(device, geometry, epoch, start, Believed::default()).await
}

/// The same, for tests: with some checks left out.
#[doc(hidden)]
pub async fn scan_believing(
    device: &Arc<dyn Device>,
    geometry: Geometry,
    epoch: Epoch,
    start: LogStart,
    believed: Believed,
) -> Result<Scan, ReplayError> {
    let mut window = Window::new(device.clone());
    let mut scan = Scan {
        batches: Vec::new(),
        durable_seq: start.seq.saturating_sub(1),
        end: start,
        contradiction: None,
    };
    while let Some((header, checksum)) = next_batch(&mut window, geometry, epoch, scan.end, believed).await? {
        scan.durable_seq = scan.durable_seq.max(header.durable_seq);
        scan.end =
            LogStart { addr: header.next, seq: header.seq + 1, prev: checksum, segment: header.next_segment };
        scan.batches.push(header);
    }
    scan.contradiction = find_contradiction(&mut window, geometry, epoch, scan.end).await?;
    Ok(scan)
}

/// The batch that continues the chain at `end`, if a whole one is there. That there is none is believed only when the
/// device says so twice: what lies beyond the end is going to be overwritten.
async fn next_batch(
    window: &mut Window,
    geometry: Geometry,
    epoch: Epoch,
    end: LogStart,
    believed: Believed,
) -> Result<Option<(BatchHeader, Crc)>, DeviceError> {
    for _ in 0..READS_MAX {
        let found = batch_at(window, geometry, epoch, end, believed).await?;
        if found.is_some() || window.read_again().await? {
            return Ok(found);
        }
    }
    Err(window.unsettled())
}

/// The batch that continues the chain at `end`, as far as this reading tells.
async fn batch_at(
    window: &mut Window,
    geometry: Geometry,
    epoch: Epoch,
    end: LogStart,
    believed: Believed,
) -> Result<Option<(BatchHeader, Crc)>, DeviceError> {
    let limit = end.segment.end();
    let block = window.read(BlockRun::new(end.addr, 1), limit).await?;
    let Ok((header, checksum)) = BatchHeader::decode(block, geometry) else { return Ok(None) };
    let here = header.addr == end.addr && header.segment == end.segment;
    let linked = header.seq == end.seq && header.prev == end.prev;
    let continues = if header.epoch == epoch { linked || believed.number } else { believed.epoch };
    if !here || !continues {
        return Ok(None);
    }
    let bytes = window.read(header.run(), limit).await?;
    let whole = believed.records || payload(bytes, &header).is_some();
    Ok(whole.then_some((header, checksum)))
}

/// The records of a batch's bytes if their checksum holds.
fn payload<'a>(bytes: &'a [u8], header: &BatchHeader) -> Option<&'a [u8]> {
    let payload = bytes.get(HEADER_BYTES..HEADER_BYTES + header.payload_bytes as usize)?;
    (crc(payload) == header.payload_checksum).then_some(payload)
}

/// Looks through the rest of the segment for a batch that proves the chain to have been longer and durable.
async fn find_contradiction(
    window: &mut Window,
    geometry: Geometry,
    epoch: Epoch,
    end: LogStart,
) -> Result<Option<BatchHeader>, DeviceError> {
    let limit = end.segment.end();
    for addr in end.addr..limit {
        let block = window.read(BlockRun::new(addr, 1), limit).await?;
        if let Ok((header, _)) = BatchHeader::decode(block, geometry)
            && header.epoch == epoch
            && header.addr == addr
            && header.seq > end.seq
            && header.durable_seq >= end.seq
        {
            return Ok(Some(header));
        }
    }
    Ok(None)
}

/// The records of an accepted batch, read again.
pub async fn payload_of(window: &mut Window, header: &BatchHeader) -> Result<Vec<u8>, ReplayError> {
    let bytes = window.read(header.run(), header.segment.end()).await?;
    let detail = FormatError::Checksum { structure: "log batch" };
    payload(bytes, header).map(<[u8]>::to_vec).ok_or(ReplayError::Corrupt {
        seq: header.seq,
        addr: header.addr,
        detail,
    })
}

/// True when every data block that the batch names has the checksum it says.
pub async fn verify_named(
    device: &Arc<dyn Device>,
    geometry: Geometry,
    header: &BatchHeader,
    payload: &[u8],
) -> Result<bool, ReplayError> {
    for record in Records::new(payload, geometry) {
        let record =
            record.map_err(|detail| ReplayError::Corrupt { seq: header.seq, addr: header.addr, detail })?;
        let Record::Name(run, packed) = record else { continue };
        if !run_matches(device, run, packed).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compares the blocks of one run with their packed checksums, a megabyte at a time.
async fn run_matches(device: &Arc<dyn Device>, run: BlockRun, packed: &[u8]) -> Result<bool, DeviceError> {
    const PIECE_BLOCKS: usize = (1 << 20) / BLOCK_BYTES;
    let mut at = run.offset_bytes();
    for piece in packed.chunks(PIECE_BLOCKS * 4) {
        let len_bytes = piece.len() / 4 * BLOCK_BYTES;
        let matches = |bytes: &[u8]| block_checksums(bytes).eq(unpack_checksums(piece));
        let bytes = read_settled(device, at, len_bytes, matches).await?;
        if !matches(&bytes) {
            return Ok(false);
        }
        at += len_bytes as u64;
    }
    Ok(true)
}
