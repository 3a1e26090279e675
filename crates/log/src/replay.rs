//! Reading the log back: finds the longest chain of whole batches, and how far it is known to be
//! durable.

use crate::Window;
use crate::search::Search;
use std::sync::Arc;
use syncline_device::{Device, DeviceError, READS_MAX, read_settled};
use syncline_format::batch::{BatchHeader, HEADER_BYTES, Record, Records, lead_copy_addr, unpack_checksums};
use syncline_format::superblock::LogStart;
use syncline_format::{
    BLOCK_BYTES, BlockAddr, BlockRun, Crc, Epoch, FormatError, Geometry, block_checksums, crc,
};

/// Why the log could not be read. A batch that is torn or absent is the end of the log, not an
/// error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplayError {
    /// The device failed. Treating this as the end of the log would lose acknowledged changes.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A batch that had been accepted no longer reads the same.
    #[error("log batch {seq} at block {addr}: {detail}")]
    Corrupt {
        /// The batch's number.
        seq: u64,
        /// The batch's address.
        addr: u64,
        /// The error in the batch.
        detail: FormatError,
    },
}

/// The result of a first pass over the log.
#[derive(Debug)]
pub struct Scan {
    /// The whole batches, in order; their named data is not verified yet.
    pub batches: Vec<BatchHeader>,
    /// Highest batch that any batch calls durable.
    pub durable_seq: u64,
    /// The leads among them that are not whole in their place: their copies were used.
    pub copies_used: Vec<BatchHeader>,
    /// Where the chain ends.
    pub end: LogStart,
    /// A whole batch of this epoch beyond the end that calls a missing batch durable: damage, not a
    /// torn tail.
    pub contradiction: Option<BatchHeader>,
    /// The error of the first unreadable block that the scan can do without ([`Reading::lenient`]).
    pub unreadable: Option<DeviceError>,
}

/// How much of the log is read, and how unreadable blocks are treated.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reading {
    /// The superblock says that the log is empty. Batches may have been added while that superblock
    /// was being written; unreadable blocks behind them are passed over.
    pub clean: bool,
    /// An unreadable block ends the chain, and is passed over in the search. Otherwise it is an
    /// error: ending the log too early would lose acknowledged changes.
    pub lenient: bool,
}

/// Properties of a batch that are not checked: none, except in tests that show that each check
/// matters.
#[derive(Clone, Copy, Default, Debug)]
#[doc(hidden)]
pub struct Believed {
    /// The number and the chain value.
    pub number: bool,
    /// The epoch, and with it everything that can't match then.
    pub epoch: bool,
    /// The checksum of the records.
    pub records: bool,
    /// That the log ends in the segment in which its chain breaks.
    pub segment: bool,
}

impl Scan {
    /// The batches that are damaged although the log could be followed past them, each with a
    /// message. A copy that was used because the power failed while both were being written is not
    /// damage.
    pub fn healed(&self) -> impl Iterator<Item = (&BatchHeader, String)> {
        self.copies_used.iter().filter(|lead| lead.seq <= self.durable_seq).map(|lead| {
            let copy = lead_copy_addr(lead.segment);
            let (seq, addr) = (lead.seq, lead.addr);
            (lead, format!("log batch {seq} at block {addr} is damaged; its copy at block {copy} was used"))
        })
    }
}

/// Follows the chain from `start` as far as headers, payload checksums and links are valid. `clean`
/// is what the superblock says of the log ([`Reading::clean`]).
pub async fn scan(
    device: &Arc<dyn Device>,
    geometry: Geometry,
    epoch: Epoch,
    start: LogStart,
    clean: bool,
) -> Result<Scan, ReplayError> {
    let reading = Reading { clean, lenient: false };
    scan_believing(device, geometry, epoch, start, reading, Believed::default()).await
}

/// Like `scan`, but can leave out checks, for tests.
#[doc(hidden)]
pub async fn scan_believing(
    device: &Arc<dyn Device>,
    geometry: Geometry,
    epoch: Epoch,
    start: LogStart,
    reading: Reading,
    believed: Believed,
) -> Result<Scan, ReplayError> {
    let mut window = Window::new(device.clone());
    let mut scan = Scan {
        batches: Vec::new(),
        durable_seq: start.seq.saturating_sub(1),
        copies_used: Vec::new(),
        end: start,
        contradiction: None,
        unreadable: None,
    };
    loop {
        let next = Next { geometry, epoch, end: scan.end, believed };
        let (header, checksum) = match next.batch_or_copy(&mut window, device, &mut scan.copies_used).await {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(error) if reading.lenient => {
                scan.unreadable = Some(error);
                break;
            }
            Err(error) => return Err(error.into()),
        };
        scan.durable_seq = scan.durable_seq.max(header.durable_seq);
        scan.end =
            LogStart { addr: header.next, seq: header.seq + 1, prev: checksum, segment: header.next_segment };
        scan.batches.push(header);
        // There are no more batches than blocks. Only a test that believes too much gets here, by
        // following a circle.
        if scan.batches.len() as u64 >= geometry.total_blocks {
            break;
        }
    }
    let unreadable = (reading.lenient || reading.clean).then_some(&mut scan.unreadable);
    let mut search = Search::new(geometry, epoch, scan.end, unreadable);
    scan.contradiction = search.find_contradiction(&mut window, !believed.segment).await?;
    Ok(scan)
}

/// The properties that the next batch of the chain must have.
struct Next {
    geometry: Geometry,
    epoch: Epoch,
    end: LogStart,
    believed: Believed,
}

impl Next {
    /// The batch that continues the chain, or else its copy, which is then recorded in
    /// `copies_used`.
    async fn batch_or_copy(
        &self,
        window: &mut Window,
        device: &Arc<dyn Device>,
        copies_used: &mut Vec<BatchHeader>,
    ) -> Result<Option<(BatchHeader, Crc)>, DeviceError> {
        let batch = self.batch(window).await;
        if let Ok(Some(found)) = batch {
            return Ok(Some(found));
        }
        // The copy may also stand in for a batch that can't be read.
        match self.copy(device).await? {
            None => batch,
            copy => {
                copies_used.extend(copy.as_ref().map(|(header, _)| *header));
                Ok(copy)
            }
        }
    }

    /// The batch that continues the chain, if it is there and whole.
    async fn batch(&self, window: &mut Window) -> Result<Option<(BatchHeader, Crc)>, DeviceError> {
        self.settled(window, self.end.addr, self.end.segment.end()).await
    }

    /// The copy of the batch that continues the chain, if that batch is a lead.
    async fn copy(&self, device: &Arc<dyn Device>) -> Result<Option<(BatchHeader, Crc)>, DeviceError> {
        let at = lead_copy_addr(self.end.segment);
        let found = self.settled(&mut Window::new(device.clone()), at, at + 1).await?;
        Ok(found.filter(|(header, _)| header.leads_on() && header.payload_bytes == 0))
    }

    /// The batch at `at`. Its absence is believed only if the device gives the same bytes twice,
    /// because everything beyond the end will be overwritten.
    async fn settled(
        &self,
        window: &mut Window,
        at: BlockAddr,
        limit: BlockAddr,
    ) -> Result<Option<(BatchHeader, Crc)>, DeviceError> {
        for _ in 0..READS_MAX {
            let found = self.look(window, at, limit).await?;
            if found.is_some() || window.read_again().await? {
                return Ok(found);
            }
        }
        Err(window.unsettled())
    }

    /// The batch at `at`, according to a single read.
    async fn look(
        &self,
        window: &mut Window,
        at: BlockAddr,
        limit: BlockAddr,
    ) -> Result<Option<(BatchHeader, Crc)>, DeviceError> {
        let Self { end, believed, .. } = self;
        let block = window.read(BlockRun::new(at, 1), limit).await?;
        let Ok((header, checksum)) = BatchHeader::decode(block, self.geometry) else { return Ok(None) };
        let here = header.addr == end.addr && header.segment == end.segment;
        let linked = header.seq == end.seq && header.prev == end.prev;
        let continues = if header.epoch == self.epoch { linked || believed.number } else { believed.epoch };
        if !here || !continues || at + header.run().blocks > limit {
            return Ok(None);
        }
        let bytes = window.read(BlockRun::new(at, header.run().blocks), limit).await?;
        let whole = believed.records || payload(bytes, &header).is_some();
        Ok(whole.then_some((header, checksum)))
    }
}

/// The records in a batch's bytes, if their checksum is right.
fn payload<'a>(bytes: &'a [u8], header: &BatchHeader) -> Option<&'a [u8]> {
    let payload = bytes.get(HEADER_BYTES..HEADER_BYTES + header.payload_bytes as usize)?;
    (crc(payload) == header.payload_checksum).then_some(payload)
}

/// The records of an accepted batch, read again.
pub async fn payload_of(window: &mut Window, header: &BatchHeader) -> Result<Vec<u8>, ReplayError> {
    if header.payload_bytes == 0 {
        // The batch's block may be unreadable, if its copy was used.
        return Ok(Vec::new());
    }
    let bytes = window.read(header.run(), header.segment.end()).await?;
    let detail = FormatError::Checksum { structure: "log batch" };
    payload(bytes, header).map(<[u8]>::to_vec).ok_or(ReplayError::Corrupt {
        seq: header.seq,
        addr: header.addr,
        detail,
    })
}

/// True when every data block that the batch names matches its checksum.
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
