//! Repair: salvages everything that can be read, plans, carries the plan out beside the image,
//! verifies the result, and only then touches the image.
//!
//! The rule: everything that a mount could read before reads the same after, byte for byte; or the
//! repair refuses, names the reason, and has changed nothing.
//!
//! [`repair`] first runs a check. `copies` mends copies of nodes and pages whose other copy is
//! sound. A pass reads every remaining item ([`Store::open_to_salvage`]),
//! mends each object by itself (`object`) and reconciles names with inodes (`names`). That yields a
//! set of changed items; `apply` writes the tree and the space map that follow from them. All these
//! writes go to an `overlay`, which keeps them from the image. A check of the overlay decides
//! whether another pass is needed and becomes the final report; `compare` compares the overlay with
//! the image as a mount shows it. `switch` writes to the image, the superblocks last.
//!
//! File data whose checksum does not match is never touched: reading it is an error before and
//! after.

mod apply;
mod compare;
mod copies;
mod flaw;
mod losses;
mod lost_names;
mod names;
mod object;
mod objects;
pub(crate) mod overlay;
mod parents;
mod planner;
mod quotas;
mod rooms;
mod shared;
mod structure;
mod switch;
mod unreadable;
mod view;
mod xattrs;

pub use flaw::Flaw;

use crate::Progress;
use crate::blocks::BlockSet;
use crate::checker::check;
use crate::error::CheckError;
use crate::finding::{FINDINGS_MAX, Finding, FindingKind, Report};
use crate::repair::compare::Moved;
use crate::repair::overlay::Overlay;
use crate::repair::planner::Planner;
use crate::start;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline_device::{Device, DeviceError, Spawn};
use syncline_format::BlockAddr;
use syncline_format::items::inode::Time;
use syncline_store::{Snapshot, Store, StoreError, read_superblocks};

/// Passes after which a repair gives up. One pass may bring to light damage that the next one
/// mends.
const PASSES_MAX: usize = 4;
/// Findings listed in a refusal.
const SHOWN: usize = 3;

/// Options of a repair.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// Only report the changes that a repair would make.
    pub dry_run: bool,
    /// Continue even if a large part of the image has to be given up.
    pub accept_loss: bool,
    /// Refuse if anything at all has to be given up or removed, however little: for a repair that
    /// nobody watches.
    pub refuse_loss: bool,
    /// A rule to break, for tests.
    #[doc(hidden)]
    pub flaw: Option<Flaw>,
}

/// The outcome of a repair.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Repair {
    /// The check before the repair.
    pub before: Report,
    /// The changes made, or to be made: kind of damage, location, and "before → after".
    pub changes: Vec<Finding>,
    /// Changes dropped because the list was full.
    pub changes_dropped: u64,
    /// Nothing was written.
    pub dry_run: bool,
    /// The tree and the space map were rebuilt.
    pub rebuilt: bool,
    /// Why nothing was changed, if the repair was refused.
    pub refused: Option<String>,
    /// It was refused because of its losses, which [`RepairOptions::accept_loss`] allows.
    pub refused_for_loss: bool,
    /// The check after the repair, if anything was changed.
    pub after: Option<Report>,
}

/// State of the image after a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Nothing was wrong.
    Clean,
    /// The damage was mended.
    Repaired,
    /// Something is still wrong.
    Damaged,
}

impl Repair {
    /// The state of the image now.
    pub fn condition(&self) -> Condition {
        match &self.after {
            _ if self.before.is_clean() && !self.before.incomplete => Condition::Clean,
            Some(after) if after.is_clean() && !after.incomplete => Condition::Repaired,
            _ => Condition::Damaged,
        }
    }
}

/// Repairs as much as possible of the image on `device`, or only reports the changes.
///
/// An error means that nothing could be done and the image reads as before. Memory: that of a
/// check, plus 64 MiB of written blocks; further blocks go to a temporary file.
pub async fn repair(
    device: Arc<dyn Device>,
    spawn: Arc<dyn Spawn>,
    options: &RepairOptions,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<Repair, CheckError> {
    let before = check(device.clone(), spawn.clone(), tell).await?;
    let mut repair = Repair {
        before,
        changes: Vec::new(),
        changes_dropped: 0,
        dry_run: options.dry_run,
        rebuilt: false,
        refused: None,
        refused_for_loss: false,
        after: None,
    };
    if !repair.before.needs_mending() && repair.before.of(FindingKind::SnapshotDamaged).next().is_none() {
        return Ok(repair);
    }
    let mut work = Work::new(device, spawn, options);
    match work.mend(&mut repair, tell).await {
        Ok(Some(mut after)) if !options.dry_run => {
            let failed = work.write().await?;
            if !failed.is_empty() {
                repair
                    .changes
                    .retain(|change| !change.block.is_some_and(|block| failed.contains_key(&block)));
                after = check(work.device.clone(), work.spawn.clone(), tell).await?;
                after.copies_stay(&failed);
            }
            // That check read the changes before they were written. A superblock is written where it
            // was, and may be no more readable there than before.
            if after.of(FindingKind::SuperblockDamaged).next().is_none() {
                start::superblock(&work.device, &mut after).await?;
            }
            repair.after = Some(after);
        }
        Ok(_) => {}
        Err(Stopped::Refused(reason)) => repair.refused = Some(reason),
        Err(Stopped::Loss(reason)) => {
            repair.refused = Some(reason);
            repair.refused_for_loss = true;
        }
        Err(Stopped::Failed(error)) => return Err(error),
    }
    Ok(repair)
}

/// Reasons for a repair to end before anything is written.
enum Stopped {
    /// Something would be lost, or stay wrong.
    Refused(String),
    /// A large part of the image would be given up.
    Loss(String),
    /// The repair could not be carried out.
    Failed(CheckError),
}

impl<E: Into<CheckError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A repair in progress.
struct Work {
    device: Arc<dyn Device>,
    spawn: Arc<dyn Spawn>,
    overlay: Arc<Overlay>,
    /// Blocks that the image needs unchanged.
    needed: Option<BlockSet>,
    /// `needed`, plus the blocks that each later pass needs of the pass before.
    used: Option<BlockSet>,
    moved: Moved,
    /// Snapshots that nobody can keep.
    given_up: Vec<Snapshot>,
    /// Blocks of copies of metadata that were mended, each with the first block of its copy.
    mended: BTreeMap<BlockAddr, BlockAddr>,
    accept_loss: bool,
    refuse_loss: bool,
    flaw: Option<Flaw>,
}

impl Work {
    fn new(device: Arc<dyn Device>, spawn: Arc<dyn Spawn>, options: &RepairOptions) -> Self {
        let overlay = Overlay::new(device.clone());
        let (moved, mended) = (Moved::new(), BTreeMap::new());
        let flaw = options.flaw;
        let accept_loss = options.accept_loss || flaw.is_some();
        let refuse_loss = options.refuse_loss;
        Self {
            device,
            spawn,
            overlay,
            needed: None,
            used: None,
            moved,
            given_up: Vec::new(),
            mended,
            accept_loss,
            refuse_loss,
            flaw,
        }
    }

    fn over(&self) -> Arc<dyn Device> {
        self.overlay.clone()
    }

    /// Mends the overlay until a check finds nothing left to mend. Returns that check's report, or
    /// `None` if nothing can be done.
    async fn mend(
        &mut self,
        repair: &mut Repair,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Option<Report>, Stopped> {
        let mut report: Option<Report> = None;
        let used_twice = |report: &Report| report.of(FindingKind::BlockUsedTwice).next().is_some();
        if self.mend_copies(used_twice(&repair.before), repair).await? {
            let after = check(self.over(), self.spawn.clone(), tell).await?;
            if !after.needs_mending() {
                self.verify().await?;
                return Ok(Some(after));
            }
            report = Some(after);
        } else if !repair.before.needs_mending() {
            return Ok(None);
        }
        for number in 0..PASSES_MAX {
            match self.pass(report.as_ref(), repair).await {
                Ok(None) => {}
                Ok(Some(reason)) => return Err(Stopped::Loss(reason)),
                // No superblock is left: the report says so, and nothing can be done.
                Err(StoreError::Unusable(_)) if number == 0 => return Ok(None),
                Err(StoreError::Device(error)) => return Err(error.into()),
                Err(error) => return Err(Stopped::Refused(format!("the repair can't be done: {error}"))),
            }
            if self.flaw == Some(Flaw::WriteAsItGoes) {
                self.write().await?;
            }
            if self.flaw.is_some_and(Flaw::skips_verification) {
                return Ok(Some(Report { clean_unmount: true, ..Report::default() }));
            }
            let mut after = check(self.over(), self.spawn.clone(), tell).await?;
            let copies = after.of(FindingKind::CopyDamaged).next().is_some();
            if copies && self.mend_copies(used_twice(&after), repair).await? {
                after = check(self.over(), self.spawn.clone(), tell).await?;
            }
            if !after.needs_mending() {
                self.verify().await?;
                return Ok(Some(after));
            }
            report = Some(after);
        }
        let left = report.map(|report| report.findings).unwrap_or_default();
        let shown: Vec<_> = left
            .iter()
            .filter(|finding| !finding.kind.is_left_alone())
            .take(SHOWN)
            .map(Finding::to_string)
            .collect();
        Err(Stopped::Refused(format!("something would still be wrong afterwards: {}", shown.join("; "))))
    }

    /// Plans, and carries the plan out on the overlay. `found` is the report of a check of the
    /// overlay, if it is not the image's own. Returns the reason if the plan was not carried out
    /// because of its losses.
    async fn pass(
        &mut self,
        found: Option<&Report>,
        repair: &mut Repair,
    ) -> Result<Option<String>, StoreError> {
        let (store, salvaged) = Store::open_to_salvage(self.over(), self.spawn.clone()).await?;
        let mut planner = Planner::new(store.clone(), now());
        planner.flaw = self.flaw;
        if self.flaw != Some(Flaw::TableUnguarded) {
            salvaged.table().iter().for_each(|block| {
                planner.fixed.add(*block);
            });
        }
        let found = found.unwrap_or(&repair.before);
        structure::tell(found, &salvaged, &mut planner);
        objects::pass(&mut planner).await;
        names::resolve(&mut planner).await;
        parents::resolve(&mut planner).await;
        if self.flaw != Some(Flaw::QuotasLater) || self.needed.is_some() {
            quotas::resolve(&mut planner).await;
        }
        losses::tell(&mut planner).await;
        structure::counters(&store, &mut planner);
        let too_much = losses::too_much(found, &store, &salvaged, &planner).filter(|_| !self.accept_loss);
        let any = || self.refuse_loss.then(|| losses::any(&planner)).flatten();
        let too_much = too_much.or_else(any);
        let anew = structure::is_broken(found, &salvaged, &planner);
        repair.rebuilt |= anew;
        let room = FINDINGS_MAX - repair.changes.len().min(FINDINGS_MAX);
        let more = planner.changes.len().saturating_sub(room) as u64;
        repair.changes.extend(planner.changes.drain(..).take(room));
        repair.changes_dropped += planner.changes_dropped + more;
        if too_much.is_some() {
            return Ok(too_much);
        }
        self.given_up.extend(salvaged.given_up().iter().cloned());
        let so_far = self.used.as_ref().or(self.needed.as_ref());
        let used = apply::build(&store, &salvaged, &mut planner, anew, so_far).await?;
        match self.needed {
            None => self.needed = Some(used),
            Some(_) => self.used = Some(used),
        }
        self.moved.extend(planner.moved);
        Ok(None)
    }

    /// Refuses if the result would lose anything.
    async fn verify(&self) -> Result<(), Stopped> {
        let geometry = read_superblocks(&self.device).await?.superblock.geometry;
        let superblocks = switch::superblock_blocks(geometry);
        let needed = |block: &u64| self.needed.as_ref().is_some_and(|needed| needed.contains(*block));
        let blocks = self.overlay.blocks();
        let may_be = |block: &u64| superblocks.contains(block) || self.mended.contains_key(block);
        if let Some(block) = blocks.iter().find(|block| needed(block) && !may_be(block)) {
            return Err(Stopped::Refused(format!("block {block} would be written over")));
        }
        let compared =
            compare::compare((&self.device, &self.over()), &self.spawn, &self.moved, &self.given_up).await?;
        compared.map_err(Stopped::Refused)?;
        let trial = Overlay::new(self.over());
        compare::mounts(trial, &self.spawn).await.map_err(Stopped::Refused)
    }

    /// Writes the overlay to the image. Returns the mended copies that the device did not take.
    async fn write(&self) -> Result<BTreeMap<BlockAddr, DeviceError>, CheckError> {
        let slots = read_superblocks(&self.device).await?;
        let geometry = slots.superblock.geometry;
        let failed = switch::copies(&self.overlay, &self.device, &self.mended).await?;
        let others = |block: &BlockAddr| !self.mended.contains_key(block);
        switch::write_out(&self.overlay, &self.device, (geometry, slots.slot), others, self.flaw).await?;
        Ok(failed)
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
