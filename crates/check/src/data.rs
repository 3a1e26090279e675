//! Verifies the checksums of file data and decodes compressed units, with many reads in flight.

use crate::compared::Compared;
use crate::damaged_run::DamagedRun;
use crate::finding::{FindingKind, Report};
use crate::superseded::{are_superseded, readers_of};
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_device::{AlignedBuf, DeviceExt, DeviceFuture};
use syncline_format::items::extent::Extent;
use syncline_format::{BlockRun, Crc, block_checksums};
use syncline_store::Store;

/// Reads in flight; each is at most an extent, 128 KiB.
const READS_IN_FLIGHT: usize = 64;

/// Reads extents in order, with a window of reads in flight.
pub(crate) struct DataReader<'a> {
    store: Arc<Store>,
    compared: &'a mut Compared,
    window: VecDeque<Pending>,
    damaged: DamagedRun,
}

struct Pending {
    read: DeviceFuture<AlignedBuf>,
    object: u64,
    extent: Extent,
}

impl<'a> DataReader<'a> {
    pub(crate) fn new(store: Arc<Store>, compared: &'a mut Compared) -> Self {
        Self { store, compared, window: VecDeque::new(), damaged: DamagedRun::default() }
    }

    /// Starts to verify an extent, which must lie inside the image, as far as it was not found sound
    /// before.
    pub(crate) async fn push(&mut self, object: u64, extent: Extent, report: &mut Report) {
        for part in self.compared.unknown(extent) {
            self.read(object, part, report).await;
        }
    }

    async fn read(&mut self, object: u64, extent: Extent, report: &mut Report) {
        if self.window.len() == READS_IN_FLIGHT {
            self.pop(report).await;
        }
        let run = extent.run();
        let read = self.store.device().read_at(run.offset_bytes(), run.len_bytes() as usize);
        self.window.push_back(Pending { read, object, extent });
    }

    /// Waits for all reads in flight.
    pub(crate) async fn finish(&mut self, report: &mut Report) {
        while !self.window.is_empty() {
            self.pop(report).await;
        }
        self.damaged.end().into_iter().for_each(|finding| report.push(finding));
    }

    async fn pop(&mut self, report: &mut Report) {
        let Some(Pending { read, object, extent }) = self.window.pop_front() else { return };
        let Ok(bytes) = read.await else {
            // One bad sector must not hide the neighbours.
            return self.block_by_block(report, object, &extent).await;
        };
        report.data_blocks += extent.run().blocks;
        let wrong = wrong(&bytes, &extent.checksums);
        if wrong.is_empty() {
            let decoded = extent.packed.as_ref().map(|packed| syncline_codec::unpack(packed, &bytes));
            let Some(Err(error)) = decoded else { return self.compared.sound(&extent) };
            if self.is_superseded(object, &extent, 0).await {
                return;
            }
            let text = format!("blocks from {} on of the file: {error}", extent.file_block);
            report.add(FindingKind::DataDamaged, Some(object), Some(extent.addr), text);
        }
        for (index, checksums) in wrong {
            self.tell_wrong(report, object, (&extent, index), checksums).await;
        }
    }

    async fn block_by_block(&mut self, report: &mut Report, object: u64, extent: &Extent) {
        for (index, &checksum) in (0..).zip(&extent.checksums) {
            let block = BlockRun::new(extent.addr + index, 1);
            match self.store.device().read_at(block.offset_bytes(), block.len_bytes() as usize).await {
                Ok(bytes) => {
                    report.data_blocks += 1;
                    for (_, checksums) in wrong(&bytes, &[checksum]) {
                        self.tell_wrong(report, object, (extent, index), checksums).await;
                    }
                }
                Err(_) if self.is_superseded(object, extent, index).await => {}
                Err(error) => {
                    let text = format!("block {} of the file: {error}", extent.file_block + index);
                    report.add(FindingKind::DataUnreadable, Some(object), Some(block.start), text);
                }
            }
        }
    }

    /// Tells of a block that has another checksum, unless nobody would read it.
    async fn tell_wrong(
        &mut self,
        report: &mut Report,
        object: u64,
        (extent, index): (&Extent, u64),
        (found, expected): (Crc, Crc),
    ) {
        if self.is_superseded(object, extent, index).await {
            return;
        }
        let one = format!(" has checksum {found:08x} instead of {expected:08x}");
        let place = (extent.file_block + index, extent.addr + index);
        let ended = self.damaged.add(object, place, (one, " have other checksums".to_owned()));
        ended.into_iter().for_each(|finding| report.push(finding));
    }

    async fn is_superseded(&self, object: u64, extent: &Extent, index: u64) -> bool {
        are_superseded(&self.store, object, readers_of(extent, index)).await
    }
}

/// The blocks with other checksums: number, and the checksums found and expected.
fn wrong(bytes: &[u8], checksums: &[Crc]) -> Vec<(u64, (Crc, Crc))> {
    let compared = (0..).zip(block_checksums(bytes).zip(checksums.iter().copied()));
    compared.filter(|(_, (found, expected))| found != expected).collect()
}
