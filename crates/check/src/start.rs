//! The starting points of an image: superblocks, space map, log.

use crate::error::CheckError;
use crate::finding::{FindingKind, Report};
use std::sync::Arc;
use syncline_device::{Device, DeviceExt};
use syncline_format::batch::BatchHeader;
use syncline_format::fork::{ForkRecord, RECORD_AT};
use syncline_format::superblock::{COUNTER_MAX, Superblock};
use syncline_format::{BLOCK_BYTES, BlockRun, FormatError, Geometry};
use syncline_log::ReplayError;
use syncline_space::{PageReader, Space, SpaceError};
use syncline_store::{WIPED, read_superblocks};

/// Reads every copy of the superblocks. `None` if all are damaged; the report then says so.
pub(crate) async fn superblock(
    device: &Arc<dyn Device>,
    report: &mut Report,
) -> Result<Option<Superblock>, CheckError> {
    let device_blocks = device.size_bytes() / BLOCK_BYTES as u64;
    let found = read_superblocks(device).await;
    // The device may be larger than its filesystem.
    let end = found.as_ref().map_or(device_blocks, |slots| slots.superblock.geometry.total_blocks);
    let mut damaged = false;
    if device_blocks >= Geometry::MIN_BLOCKS {
        for slot in 0..2 {
            for (copy, addr) in Geometry::superblock_copies_for(end, slot).into_iter().enumerate() {
                damaged |= look_at_copy(device, (slot, copy), addr, report).await;
            }
        }
    }
    for (slot, copy, addr) in found.iter().flat_map(|slots| &slots.wiped) {
        let text = format!("copy {copy} of superblock {slot}: {WIPED}");
        report.block(FindingKind::SuperblockDamaged, *addr, text);
    }
    match found {
        Ok(slots) => Ok(Some(slots.superblock)),
        Err(_) if damaged => Ok(None),
        // No copy is damaged, so it is something else: no image, a truncated one, or a newer
        // format.
        Err(error) => {
            report.findings.clear();
            Err(error.into())
        }
    }
}

/// Returns true if a copy is certainly damaged: it was a superblock and is one no longer.
async fn look_at_copy(
    device: &Arc<dyn Device>,
    (slot, copy): (usize, usize),
    addr: u64,
    report: &mut Report,
) -> bool {
    let (error, beyond_doubt) = match device.read_at(addr * BLOCK_BYTES as u64, BLOCK_BYTES).await {
        // Never written, or reported elsewhere.
        Ok(block) if block.iter().all(|&byte| byte == 0) => return false,
        Ok(block) => match Superblock::decode(&block) {
            Ok(_) | Err(FormatError::Version { .. } | FormatError::Features { .. }) => return false,
            Err(error) => {
                let doubtful = matches!(error, FormatError::Magic { .. });
                (error.to_string(), !doubtful)
            }
        },
        Err(error) => (error.to_string(), false),
    };
    let text = format!("copy {copy} of superblock {slot}: {error}");
    report.block(FindingKind::SuperblockDamaged, addr, text);
    beyond_doubt
}

/// Reports the copies of a fork's record that are damaged.
pub(crate) async fn fork_record(device: &Arc<dyn Device>, superblock: &Superblock, report: &mut Report) {
    for addr in RECORD_AT.into_iter().filter(|_| superblock.is_fork()) {
        let read = device.read_at(BlockRun::new(addr, 1).offset_bytes(), BLOCK_BYTES).await;
        let error = match read {
            Ok(block) => match ForkRecord::decode(&block) {
                Ok(_) => continue,
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        report.block(FindingKind::ForkRecord, addr, error);
    }
}

/// Loads the space map that the superblock points to, without the log; returns false if it is
/// unusable.
pub(crate) async fn space_map(pages: &PageReader, superblock: &Superblock, report: &mut Report) -> bool {
    match Space::load(pages, superblock.geometry, superblock.space).await {
        Ok(space) => {
            let named = space.counters().named;
            if named != superblock.used_blocks {
                let text = format!(
                    "{} blocks in use according to the superblock, {named} according to the space map",
                    superblock.used_blocks
                );
                report.add(FindingKind::SuperblockCounter, None, None, text);
            }
            named == superblock.used_blocks
        }
        Err(error) => {
            let addr = match &error {
                SpaceError::Corrupt { addr, .. } | SpaceError::OwnPageFree { addr, .. } => Some(*addr),
                _ => None,
            };
            report.add(FindingKind::SpaceMapDamaged, None, addr, error.to_string());
            false
        }
    }
}

/// Reports counters of the superblock that leave a mount for writing no room.
pub(crate) fn counters(superblock: &Superblock, report: &mut Report) {
    let (generation, op_seq, seq) = (superblock.generation, superblock.op_seq, superblock.log.seq);
    if generation.max(op_seq).max(seq) > COUNTER_MAX {
        let text = format!("{}, batch {seq}", no_room(generation, op_seq));
        report.add(FindingKind::SuperblockCounter, None, None, text);
    }
}

fn no_room(generation: u64, op_seq: u64) -> String {
    format!("nobody has counted so far: generation {generation}, transaction {op_seq}")
}

/// Facts about the log.
pub(crate) struct LogFacts {
    pub(crate) segments: Vec<BlockRun>,
    /// The log can be replayed.
    pub(crate) sound: bool,
}

/// Follows the log to its end.
pub(crate) async fn log(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    report: &mut Report,
) -> Result<LogFacts, CheckError> {
    let mut segments = vec![superblock.log.segment];
    match syncline_log::scan(device, superblock.geometry, superblock.epoch, superblock.log, superblock.clean)
        .await
    {
        Ok(scan) => {
            for (lead, text) in scan.healed() {
                report.block(FindingKind::LogLead, lead.addr, text);
            }
            if let Some(later) = scan.contradiction {
                let text = format!(
                    "batch {} is missing although batch {} says that batch {} is durable",
                    scan.end.seq, later.seq, later.durable_seq
                );
                report.block(FindingKind::LogDamaged, scan.end.addr, text);
            }
            let impossible = |batch: &&BatchHeader| batch.generation.max(batch.op_seq) > COUNTER_MAX;
            if let Some(batch) = scan.batches.iter().find(impossible) {
                let text = format!("log batch {}: {}", batch.seq, no_room(batch.generation, batch.op_seq));
                report.block(FindingKind::SuperblockCounter, batch.addr, text);
            }
            segments.extend(scan.batches.iter().map(|batch| batch.next_segment));
            segments.dedup();
            Ok(LogFacts { segments, sound: true })
        }
        Err(ReplayError::Corrupt { seq, addr, detail }) => {
            report.block(FindingKind::LogDamaged, addr, format!("batch {seq}: {detail}"));
            Ok(LogFacts { segments, sound: false })
        }
        Err(ReplayError::Device(error)) => {
            report.block(FindingKind::LogDamaged, superblock.log.addr, error.to_string());
            Ok(LogFacts { segments, sound: false })
        }
    }
}
