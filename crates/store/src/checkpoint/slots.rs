//! Superblock slots: two slots, written in turn, each with two copies far apart.
//!
//! The second copy of a slot is durable before the first is written, so a power cut leaves each
//! slot a whole copy: of its previous or of its new contents. If a slot has none, the device has
//! lost what it held.

use crate::{RecoveryReport, StoreError, StoreOptions};
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceError, FlushTracker, read_settled};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockAddr, FormatError, Geometry};

/// The description of a copy that is zeros although it was written.
pub const WIPED: &str = "zeros, and it was written once";

/// Superblocks up to this generation go to slots that were never written, one to each slot.
pub(crate) const GENERATION_OF_MKFS: u64 = 2;

/// The contents of a device's superblock slots.
#[derive(Debug)]
pub struct ReadSlots {
    /// The newest superblock.
    pub superblock: Superblock,
    /// Its slot.
    pub slot: usize,
    /// The greatest generation in any copy.
    pub generation_seen: u64,
    /// Damaged copies: slot, copy, what is wrong. A slot that was never written counts as absent,
    /// not as damaged.
    pub damaged: Vec<(usize, usize, FormatError)>,
    /// Copies that are zeros although they were written once: slot, copy, block.
    pub wiped: Vec<(usize, usize, BlockAddr)>,
    /// A slot that was written once but has no whole copy.
    lost: Option<usize>,
    /// Copies that could not be read or were never written: their block, and the contents of a
    /// whole copy of the same slot, if there is one.
    incomplete: Vec<(BlockAddr, Option<Superblock>)>,
    /// Blocks of copies of this filesystem that do not count: left from another size.
    strays: Vec<BlockAddr>,
}

/// Reads all copies and picks the newest superblock.
///
/// The second copies lie at the end of the filesystem, which may lie before the end of a device
/// that was enlarged, or may just be growing. So they are looked for both where the first copies
/// say the filesystem ends and at the end of the device.
pub async fn read_superblocks(device: &Arc<dyn Device>) -> Result<ReadSlots, StoreError> {
    let device_blocks = device.size_bytes() / BLOCK_BYTES as u64;
    if device_blocks < Geometry::MIN_BLOCKS {
        return Err(unusable(
            "the image is smaller than the smallest filesystem (16 MiB): it is truncated, or no Syncline image",
        ));
    }
    let mut copies = Copies { device_blocks, ..Copies::default() };
    for slot in 0..2 {
        copies.look(device, slot, None).await?;
    }
    for slot in 0..2 {
        for total in copies.ends(slot) {
            // A filesystem on this device can't end beyond it.
            if total <= device_blocks {
                copies.look(device, slot, Some(total)).await?;
            }
        }
    }
    copies.damaged.sort_by_key(|(slot, copy, _)| (*slot, *copy));
    let Some((slot, superblock)) = copies.best.take() else {
        return Err(copies.error.take().map_or_else(|| no_superblock(&copies.damaged), StoreError::from));
    };
    if superblock.geometry.total_blocks > device_blocks {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64 + device.overhead_bytes();
        let (want, have) = (bytes(superblock.geometry.total_blocks), bytes(device_blocks));
        return Err(unusable(&format!(
            "the image is truncated: the filesystem has {want} bytes, the device only {have}; restore the image to its full length: \
             'truncate -s {want}' does it for a file, with zeros where something is missing, and 'syncline check' tells what"
        )));
    }
    let (wiped, unwritten) = (copies.wiped(&superblock), copies.unwritten(superblock.geometry));
    let Copies { generation_seen, damaged, good, unreadable, mut strays, second, .. } = copies;
    // After an interrupted shrink the other slot still gives the larger size. Once no slot does, a
    // search at the device's end would find these copies.
    let present = superblock.geometry.total_blocks;
    strays.extend(second.into_iter().filter_map(|(end, addr)| (end > present).then_some(addr)));
    let lost = (0..2).find(|slot| good[*slot].is_none() && superblock.generation > GENERATION_OF_MKFS);
    let mut incomplete = Vec::new();
    let (unreadable, outside): (Vec<_>, Vec<_>) =
        unreadable.into_iter().partition(|(_, _, end)| end.is_none_or(|end| end <= present));
    strays.extend(outside.into_iter().map(|(_, addr, _)| addr));
    for (slot, addr) in unreadable.into_iter().map(|(slot, addr, _)| (slot, addr)).chain(unwritten) {
        // For a slot without a whole copy both copies are written, the second first: on its own it
        // can't be mistaken for the remains of both.
        if good[slot].is_none() {
            let [first, second] = superblock.geometry.superblock_copies(slot);
            incomplete.extend([second, first].map(|addr| (addr, None)));
        }
        incomplete.push((addr, good[slot].clone()));
    }
    Ok(ReadSlots { superblock, slot, generation_seen, damaged, wiped, lost, incomplete, strays })
}

impl ReadSlots {
    /// Why the newest superblock may be lost, if so: no power cut leaves a slot without a whole
    /// copy, and mkfs writes both slots.
    pub fn loss(&self) -> Option<String> {
        let slot = self.lost?;
        let generation = self.superblock.generation;
        Some(format!(
            "nothing is left of superblock {slot}: if it was the newer one, what was done since generation {generation} is missing, a \
             snapshot or a rollback perhaps"
        ))
    }

    /// Refuses to continue from the older superblock, unless that is accepted; reports damaged
    /// copies.
    pub(crate) fn refuse_loss(
        &self,
        options: &StoreOptions,
        report: &mut RecoveryReport,
    ) -> Result<(), StoreError> {
        let next = match options.read_only {
            true => "a mount for writing rewrites it",
            false => "the next checkpoints rewrite it",
        };
        let damaged = self.damaged.iter().map(|(slot, copy, error)| (slot, copy, error.to_string()));
        let wiped = self.wiped.iter().map(|(slot, copy, _)| (slot, copy, WIPED.to_owned()));
        let told = damaged.chain(wiped);
        report.notes.extend(
            told.map(|(slot, copy, what)| format!("copy {copy} of superblock {slot}: {what}; {next}")),
        );
        let Some(loss) = self.loss() else { return Ok(()) };
        if options.read_only || options.accept_damaged_log {
            report.notes.push(loss);
            report.incomplete = true;
            return Ok(());
        }
        let next = "mount read-only (-o ro) to rescue files, or with -o accept-damaged-log to go on without the rest";
        Err(StoreError::Damaged(format!("{loss}; {next}").into()))
    }

    /// Rewrites copies that could not be read or were never written with the contents of their
    /// slot's other copy, durably, before any other write relies on the superblock that was read.
    ///
    /// An unreadable copy may hold a superblock that was being written when the power failed, newer
    /// than the one that recovery continues from. If it became readable later it would count, and
    /// lead to blocks that have been reused since. If the slot has no other copy, it gets the
    /// superblock that recovery continues from, as if that had been written twice. Copies of
    /// another size and copies behind the end are zeroed, since they could count once the first
    /// copies are damaged.
    pub(crate) async fn settle(&self, tracker: &Arc<FlushTracker>) -> Result<(), StoreError> {
        let before = self.superblock.generation.saturating_sub(1);
        for (addr, other) in &self.incomplete {
            let block = match other {
                Some(other) => other.encode(),
                None => Superblock { generation: before, ..self.superblock.clone() }.encode(),
            };
            let block = AlignedBuf::copy_from(&block).into_bytes();
            tracker.write(addr * BLOCK_BYTES as u64, vec![block]).wait().await.map_err(|error| {
                unusable(&format!(
                    "a copy of a superblock can be neither read nor written ({error}); mount read-only (-o ro) to save the files, \
                     and replace the device"
                ))
            })?;
            tracker.flush_now().await?;
        }
        let zeros = AlignedBuf::zeroed(BLOCK_BYTES).into_bytes();
        for addr in &self.strays {
            // Strays count only if first copies are lost, and lie outside the filesystem: no reason
            // to refuse the image.
            if let Err(error) = tracker.write(addr * BLOCK_BYTES as u64, vec![zeros.clone()]).wait().await {
                tracing::warn!("a remnant of a superblock of another size stays: {error}");
            }
            tracker.flush_now().await?;
        }
        Ok(())
    }
}

/// The copies read so far.
#[derive(Default)]
struct Copies {
    device_blocks: u64,
    /// The whole first copies, by slot.
    first: [Option<Superblock>; 2],
    /// The newest whole copy of each slot.
    good: [Option<Superblock>; 2],
    /// Unreadable copies: slot, block, and the end of the filesystem that a second copy there
    /// belongs to.
    unreadable: Vec<(usize, BlockAddr, Option<u64>)>,
    /// The error of an unreadable copy.
    error: Option<DeviceError>,
    /// Blocks of zeros at places of copies.
    zeros: Vec<BlockAddr>,
    /// Copies that do not count.
    strays: Vec<BlockAddr>,
    /// Second copies that count: the end of the filesystem that they belong to, and their blocks.
    second: Vec<(u64, BlockAddr)>,
    best: Option<(usize, Superblock)>,
    generation_seen: u64,
    damaged: Vec<(usize, usize, FormatError)>,
}

impl Copies {
    /// Possible ends of the filesystem for the second copy of this slot. A second copy written for
    /// a new size may exist before its first copy gives that size.
    fn ends(&self, slot: usize) -> Vec<u64> {
        let told = [slot, 1 - slot].into_iter().filter_map(|slot| self.first[slot].as_ref());
        let mut ends: Vec<u64> = told.map(|superblock| superblock.geometry.total_blocks).collect();
        ends.push(self.device_blocks);
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// False if there are whole first copies but none says that the filesystem ends at `end`:
    /// anything may lie there.
    fn is_certain(&self, end: Option<u64>) -> bool {
        let mut told =
            self.first.iter().flatten().map(|superblock| superblock.geometry.total_blocks).peekable();
        end.is_none() || told.peek().is_none() || told.any(|total| Some(total) == end)
    }

    /// Whether to continue from a superblock found where no whole first copy says that the
    /// filesystem ends. That is so if its own first copy was being written when the power failed,
    /// or has rotted since, and it follows the contents of the other slot. Anything else is left
    /// from a time when the filesystem was larger (before it shrank or an older image was copied
    /// over it), or from a growth that did not end: then a second copy of this slot, at the place
    /// that a first copy gives, already follows the other slot.
    fn follows(&self, superblock: &Superblock, slot: usize) -> bool {
        let other = self.first[1 - slot].as_ref();
        let is_newer = |one: &Superblock| other.is_none_or(|other| other.generation < one.generation);
        self.first[slot].is_none() && is_newer(superblock) && !self.good[slot].as_ref().is_some_and(is_newer)
    }

    /// Whether a superblock found there belongs to this filesystem.
    fn belongs(&self, superblock: &Superblock, end: Option<u64>) -> bool {
        // Neither field ever changes.
        let name = |superblock: &Superblock| (superblock.hash_seed, superblock.created_ns);
        let Some(end) = end else { return true };
        let stranger = self.first.iter().flatten().any(|first| name(first) != name(superblock));
        superblock.geometry.total_blocks == end && !stranger
    }

    /// Copies that are zeros, in slots whose other copy is whole and gives the filesystem's present
    /// size.
    fn unwritten(&self, present: Geometry) -> Vec<(usize, BlockAddr)> {
        let copies = |slot: usize| present.superblock_copies(slot).map(|addr| (slot, addr));
        let of_size =
            |(slot, _): &(usize, _)| self.good[*slot].as_ref().is_some_and(|it| it.geometry == present);
        let copies = [0, 1].into_iter().flat_map(copies).filter(of_size);
        copies.filter(|(_, addr)| self.zeros.contains(addr)).collect()
    }

    /// Copies that are zeros although they were written. Places that were never written exist only
    /// at a new end, until both slots have been written there.
    fn wiped(&self, newest: &Superblock) -> Vec<(usize, usize, BlockAddr)> {
        if newest.generation <= GENERATION_OF_MKFS {
            return Vec::new();
        }
        let copies = (0..2).flat_map(|slot| {
            let [first, second] = newest.geometry.superblock_copies(slot);
            [(slot, 0, first), (slot, 1, second)]
        });
        let was_written = |slot: usize, copy: usize| {
            let own = self.good[slot].as_ref();
            copy == 0 || own.is_none_or(|own| own.geometry == newest.geometry)
        };
        copies.filter(|(slot, copy, addr)| self.zeros.contains(addr) && was_written(*slot, *copy)).collect()
    }

    /// Reads the first copy of a slot, or the second copy in a filesystem that ends at `end`.
    async fn look(
        &mut self,
        device: &Arc<dyn Device>,
        slot: usize,
        end: Option<u64>,
    ) -> Result<(), StoreError> {
        let copy = usize::from(end.is_some());
        let addr = Geometry::superblock_copies_for(end.unwrap_or(self.device_blocks), slot)[copy];
        let certain = self.is_certain(end);
        let whole = |block: &[u8]| Superblock::decode(block).is_ok();
        let found = match read_settled(device, addr * BLOCK_BYTES as u64, BLOCK_BYTES, whole).await {
            Ok(block) if block.iter().all(|byte| *byte == 0) => {
                self.zeros.push(addr);
                return Ok(());
            }
            Ok(block) => Superblock::decode(&block),
            // A slot counts as durable only when both copies are, so the good copy is enough.
            Err(error) => {
                tracing::warn!("copy {copy} of superblock {slot}: {error}; the other one has to do");
                if certain {
                    self.unreadable.push((slot, addr, end));
                    self.error = Some(error);
                }
                return Ok(());
            }
        };
        match found {
            Ok(superblock)
                if !certain && self.belongs(&superblock, end) && !self.follows(&superblock, slot) =>
            {
                self.strays.push(addr);
                // If it can't be zeroed, it is at least older than everything written from now on.
                self.generation_seen = self.generation_seen.max(superblock.generation);
            }
            Ok(superblock) if self.belongs(&superblock, end) => {
                let newer = |good: &Superblock| good.generation < superblock.generation;
                if self.good[slot].as_ref().is_none_or(newer) {
                    self.good[slot] = Some(superblock.clone());
                }
                self.generation_seen = self.generation_seen.max(superblock.generation);
                match end {
                    None => self.first[slot] = Some(superblock.clone()),
                    Some(end) => self.second.push((end, addr)),
                }
                if self.best.as_ref().is_none_or(|(_, best)| superblock.generation > best.generation) {
                    self.best = Some((slot, superblock));
                }
            }
            // Never use an older slot instead: anything that it does not know of would be lost.
            Err(error @ FormatError::Features { .. }) if certain => return Err(unusable(&error.to_string())),
            Err(error) if certain => self.damaged.push((slot, copy, error)),
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }
}

fn unusable(text: &str) -> StoreError {
    StoreError::Unusable(text.into())
}

/// Picks the most helpful explanation of why no copy could be used.
fn no_superblock(damaged: &[(usize, usize, FormatError)]) -> StoreError {
    let errors = || damaged.iter().map(|(_, _, error)| error);
    if let Some(version) = errors().find(|error| matches!(error, FormatError::Version { .. })) {
        return unusable(&version.to_string());
    }
    if errors().any(|error| !matches!(error, FormatError::Magic { .. })) {
        return unusable("every superblock is damaged: restore the image from a backup");
    }
    unusable(
        "not a Syncline image: no superblock found; check the name: if it was one, restore it from a backup, and 'syncline mkfs' \
         makes a new one",
    )
}

/// Writes both copies of a slot, one after the other, each durably. The second comes first, since a
/// slot that is written for the first time at a new end has no second copy there that could be
/// torn.
///
/// The slot must not hold the newest durable superblock, and everything that the superblock refers
/// to must already be durable. A superblock that could not be read back is refused: a hostile image
/// may have driven a number past its limit, and two such superblocks would make the image
/// unreadable.
pub(crate) async fn write_slot(
    tracker: &Arc<FlushTracker>,
    slot: usize,
    superblock: &Superblock,
) -> Result<(), StoreError> {
    let block = AlignedBuf::copy_from(&superblock.encode()).into_bytes();
    let copies = superblock.geometry.superblock_copies(slot);
    Superblock::decode(&block).map_err(|detail| StoreError::Corrupt { addr: copies[0], detail })?;
    for addr in [copies[1], copies[0]] {
        let ticket = tracker.write(addr * BLOCK_BYTES as u64, vec![block.clone()]).wait().await?;
        tracker.make_durable(ticket).await?;
    }
    Ok(())
}
