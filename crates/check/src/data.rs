//! Verifies the checksums of file data and decodes compressed units, with many reads in flight.

use crate::finding::{FindingKind, Report};
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt, DeviceFuture};
use syncline_format::items::extent::{Extent, Packed};
use syncline_format::{BlockRun, Crc, block_checksums};

/// Reads in flight; each is at most an extent, 128 KiB.
const READS_IN_FLIGHT: usize = 64;

/// Reads extents in order, with a window of reads in flight.
pub(crate) struct DataReader {
    device: Arc<dyn Device>,
    window: VecDeque<Pending>,
}

struct Pending {
    read: DeviceFuture<AlignedBuf>,
    object: u64,
    file_block: u64,
    run: BlockRun,
    checksums: Vec<Crc>,
    packed: Option<Packed>,
}

impl DataReader {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, window: VecDeque::new() }
    }

    /// Starts to verify an extent, which must lie inside the image.
    pub(crate) async fn push(&mut self, object: u64, extent: Extent, report: &mut Report) {
        if self.window.len() == READS_IN_FLIGHT {
            self.pop(report).await;
        }
        let run = extent.run();
        let read = self.device.read_at(run.offset_bytes(), run.len_bytes() as usize);
        let Extent { file_block, checksums, packed, .. } = extent;
        self.window.push_back(Pending { read, object, file_block, run, checksums, packed });
    }

    /// Waits for all reads in flight.
    pub(crate) async fn finish(&mut self, report: &mut Report) {
        while !self.window.is_empty() {
            self.pop(report).await;
        }
    }

    async fn pop(&mut self, report: &mut Report) {
        let Some(Pending { read, object, file_block, run, checksums, packed }) = self.window.pop_front()
        else {
            return;
        };
        match read.await {
            Ok(bytes) => {
                report.data_blocks += run.blocks;
                let right = compare(report, object, file_block, run, block_checksums(&bytes).zip(checksums));
                if let Some(packed) = packed.filter(|_| right)
                    && let Err(error) = syncline_codec::unpack(&packed, &bytes)
                {
                    let text = format!("blocks from {file_block} on of the file: {error}");
                    report.add(FindingKind::DataDamaged, Some(object), Some(run.start), text);
                }
            }
            // One bad sector must not hide the neighbours.
            Err(_) => self.block_by_block(report, object, file_block, run, &checksums).await,
        }
    }

    async fn block_by_block(
        &self,
        report: &mut Report,
        object: u64,
        file_block: u64,
        run: BlockRun,
        checksums: &[Crc],
    ) {
        for (index, &checksum) in (0..run.blocks).zip(checksums) {
            let block = BlockRun::new(run.start + index, 1);
            match self.device.read_at(block.offset_bytes(), block.len_bytes() as usize).await {
                Ok(bytes) => {
                    report.data_blocks += 1;
                    let found = block_checksums(&bytes).zip([checksum]);
                    compare(report, object, file_block + index, block, found);
                }
                Err(error) => {
                    let text = format!("block {} of the file: {error}", file_block + index);
                    report.add(FindingKind::DataUnreadable, Some(object), Some(block.start), text);
                }
            }
        }
    }
}

/// Reports wrong checksums; returns true if there are none.
fn compare(
    report: &mut Report,
    object: u64,
    file_block: u64,
    run: BlockRun,
    checksums: impl Iterator<Item = (Crc, Crc)>,
) -> bool {
    let wrong: Vec<_> = (0_u64..).zip(checksums).filter(|(_, (found, expected))| found != expected).collect();
    // One finding for each run of adjacent blocks, so that a long range of lost data does not fill
    // the report.
    for pieces in wrong.chunk_by(|(index, _), (next, _)| index + 1 == *next) {
        let (index, (found, expected)) = pieces[0];
        let first = file_block + index;
        let text = match pieces.len() as u64 {
            1 => format!("block {first} of the file has checksum {found:08x} instead of {expected:08x}"),
            more => format!("blocks {first} to {} of the file have other checksums", first + more - 1),
        };
        report.add(FindingKind::DataDamaged, Some(object), Some(run.start + index), text);
    }
    wrong.is_empty()
}
