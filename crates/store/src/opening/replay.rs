//! Replay: applies the batches of the log to memory, and writes nothing.

use super::recovery::SEGMENT_IN_USE;
use crate::checkpoint::ReadSlots;
use crate::layers::Memtable;
use crate::{Canary, RecoveryReport, StoreError, StoreOptions};
use bytes::Bytes;
use std::sync::Arc;
use syncline_device::{DeviceError, FlushTracker};
use syncline_format::batch::{BatchHeader, Record, Records};
use syncline_format::superblock::{COUNTER_MAX, LogStart, Superblock};
use syncline_format::{BlockRun, FormatError, Geometry, Key, OBJECTS_END};
use syncline_log::{ReplayError, Scan, Window, payload_of, verify_named};
use syncline_space::Space;

/// The state that replay builds.
pub(crate) struct Replayed {
    pub(crate) memtable: Memtable,
    pub(crate) objects: u64,
    pub(crate) next_object: u64,
    pub(crate) op_seq: u64,
    pub(crate) generation: u64,
    pub(crate) end: LogStart,
    pub(crate) segments: Vec<BlockRun>,
    /// Accepted batches, and the data that they name, that may have been read from a cache and not
    /// be on the device.
    pub(crate) unsure: Vec<BlockRun>,
    /// Nothing will be written: records that contradict the space map or the counters are left out.
    pub(crate) lenient: bool,
}

/// Applies the batches that count, oldest first.
pub(crate) async fn replay(
    tracker: &Arc<FlushTracker>,
    slots: &ReadSlots,
    space: &Arc<Space>,
    options: &StoreOptions,
    found: Scan,
    report: &mut RecoveryReport,
) -> Result<Replayed, StoreError> {
    let (device, geometry) = (tracker.device(), slots.superblock.geometry);
    let mut replayed = Replayed { lenient: options.read_only, ..Replayed::before(slots, &found) };
    for segment in &replayed.segments {
        if !space.reserve_segment(*segment) && !options.read_only {
            // Recovery frees these segments when it ends, and would free anything else that lies
            // there.
            return Err(StoreError::Corrupt { addr: segment.start, detail: SEGMENT_IN_USE });
        }
    }
    let mut window = Window::new(device.clone());
    let whole = found.batches.len() as u64;
    for header in &found.batches {
        let payload = payload_of(&mut window, header).await?;
        let doubtful = header.seq > found.durable_seq;
        if doubtful && !options.lab.breaks(Canary::SkipDataVerification) {
            report.verified_batches += 1;
            let there = match verify_named(device, geometry, header, &payload).await {
                Err(ReplayError::Device(error)) if options.read_only || options.accept_damaged_log => {
                    let cut = unreadable_data(header, &error);
                    report.notes.push(cut.clone());
                    report.cut = Some(cut);
                    report.incomplete = true;
                    break;
                }
                verified => verified?,
            };
            if !there {
                report.discarded_batches = whole - report.batches;
                break;
            }
        }
        if doubtful && !options.read_only && !device.reads_bypass_caches() {
            replayed.unsure.extend(blocks_of(geometry, header, &payload));
        }
        apply(&mut replayed, space, geometry, header, &payload, report)?;
    }
    Ok(replayed)
}

impl Replayed {
    /// The state that the superblock gives, without a log.
    pub(crate) fn nothing(superblock: &Superblock) -> Self {
        Self {
            memtable: Memtable::default(),
            objects: superblock.objects,
            next_object: superblock.next_object,
            op_seq: superblock.op_seq,
            generation: superblock.generation + 1,
            end: superblock.log,
            segments: Vec::new(),
            unsure: Vec::new(),
            lenient: true,
        }
    }

    /// True if there is a number that nobody has counted up to. Writing on would end where decoders
    /// refuse the next one, and the image would be lost.
    pub(crate) fn has_no_room(&self) -> bool {
        self.generation.max(self.end.seq).max(self.op_seq) > COUNTER_MAX
    }

    /// The state that the superblock gives, and the extent of the log's chain.
    pub(crate) fn before(slots: &ReadSlots, found: &Scan) -> Self {
        let superblock = &slots.superblock;
        let newest = found.batches.iter().map(|batch| batch.generation).max().unwrap_or(0);
        Self {
            memtable: Memtable::default(),
            objects: superblock.objects,
            next_object: superblock.next_object,
            op_seq: superblock.op_seq,
            // Greater than any value seen, in batches that count or not.
            generation: newest.max(slots.generation_seen).max(superblock.generation) + 2,
            end: found.end,
            segments: segments(superblock, found),
            unsure: Vec::new(),
            lenient: false,
        }
    }
}

/// The message for a batch that does not count, with all that follow, because its data can't be
/// read rather than because it is wrong.
pub(crate) fn unreadable_data(header: &BatchHeader, error: &DeviceError) -> String {
    format!("the data of log batch {} at block {} can't be read: {error}", header.seq, header.addr)
}

/// The blocks of a batch and of the data that it names.
fn blocks_of<'a>(
    geometry: Geometry,
    header: &BatchHeader,
    payload: &'a [u8],
) -> impl Iterator<Item = BlockRun> + use<'a> {
    let named = Records::new(payload, geometry).filter_map(|record| match record {
        Ok(Record::Name(run, _)) => Some(run),
        _ => None,
    });
    named.chain([header.run()])
}

/// Every segment that the log reaches, including the one that its newest batch announces.
fn segments(superblock: &Superblock, found: &Scan) -> Vec<BlockRun> {
    let mut segments = vec![superblock.log.segment];
    for batch in &found.batches {
        if segments.last() != Some(&batch.next_segment) {
            segments.push(batch.next_segment);
        }
    }
    segments
}

/// Applies one batch to memory.
pub(crate) fn apply(
    replayed: &mut Replayed,
    space: &Space,
    geometry: Geometry,
    header: &BatchHeader,
    payload: &[u8],
    report: &mut RecoveryReport,
) -> Result<(), StoreError> {
    for record in Records::new(payload, geometry) {
        let record = record.map_err(|detail| StoreError::Corrupt { addr: header.addr, detail })?;
        report.records += 1;
        match record {
            Record::Put(Key { object, .. }, _) | Record::Delete(Key { object, .. })
                if object >= OBJECTS_END =>
            {
                // The following superblock could not hold such a number, and the image would be
                // lost.
                let detail = FormatError::Field { structure: "log record", field: "object number" };
                if !replayed.lenient {
                    return Err(StoreError::Corrupt { addr: header.addr, detail });
                }
                report.ignored.items += 1;
                report.incomplete = true;
                report.ignored.object.get_or_insert(object);
            }
            Record::Put(key, value) => {
                replayed.next_object = replayed.next_object.max(key.object.saturating_add(1));
                replayed.memtable.apply(key, Some(Bytes::copy_from_slice(value)));
            }
            Record::Delete(key) => {
                replayed.next_object = replayed.next_object.max(key.object.saturating_add(1));
                replayed.memtable.apply(key, None);
            }
            Record::Name(run, _) if space.name_replayed(run) => {}
            Record::Name(run, _) if replayed.lenient => {
                report.ignored.names += 1;
                report.ignored.block.get_or_insert(run.start);
            }
            Record::Name(..) => {
                // Continuing would allocate these blocks twice: to this batch, and later to others.
                let detail = FormatError::Field { structure: "log record", field: "name of a block in use" };
                return Err(StoreError::Corrupt { addr: header.addr, detail });
            }
            Record::Free(run) => space.unname(run, replayed.generation),
            Record::Void => {}
        }
    }
    report.batches += 1;
    report.log_bytes += header.run().len_bytes();
    replayed.objects = replayed.objects.saturating_add_signed(header.objects_delta);
    replayed.op_seq = replayed.op_seq.max(header.op_seq);
    Ok(())
}
