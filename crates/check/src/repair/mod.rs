//! Repair: salvage what can be read, decide what is to become of it, do that beside the image, look at the result, and only then
//! touch the image.
//!
//! The rule: what a mount could read before, it reads after, byte for byte; or the repair refuses, names the reason, and has
//! changed nothing.
//!
//! [`repair`] first runs a check. `put_back` puts back inner nodes and pages of space maps that follow from the rest. A pass reads every item that is left ([`Store::open_to_salvage`]), mends each object
//! by itself (`object`), brings names and inodes together (`names`) and so gathers a set of changed items; `apply` writes the tree and
//! the space map that follow from them. All of that goes to an `overlay`, which keeps it from the image. A check of the overlay
//! decides whether another pass is needed, and what is said in the end; `compare` holds it against the image as a mount shows it.
//! `undo` saves what will be replaced, and `switch` writes to the image, the superblocks last.
//!
//! File data whose checksum does not match is never touched: to read it is an error before and after.

mod apply;
mod compare;
mod flaw;
mod losses;
mod lost_names;
mod names;
mod object;
mod objects;
mod overlay;
mod parents;
mod planner;
mod put_back;
mod quotas;
mod rooms;
mod shared;
mod structure;
mod switch;
mod undo;
mod unreadable;
mod view;
mod xattrs;

pub use flaw::Flaw;
pub use undo::take_back;

use crate::Progress;
use crate::blocks::BlockSet;
use crate::checker::check;
use crate::error::CheckError;
use crate::finding::{FINDINGS_MAX, Finding, FindingKind, Report};
use crate::repair::compare::Moved;
use crate::repair::overlay::Overlay;
use crate::repair::planner::Planner;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline_device::{Device, Spawn};
use syncline_format::items::inode::Time;
use syncline_store::{Store, StoreError, read_superblocks};

/// Passes after which a repair gives up: what one brings to light, the next may mend.
const PASSES_MAX: usize = 4;
/// Findings that a refusal shows.
const SHOWN: usize = 3;

/// How a repair is done.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// Only say what would be changed.
    pub dry_run: bool,
    /// Where to save what is replaced, for [`take_back`]. The file must not exist.
    pub undo: Option<PathBuf>,
    /// Go on where a large part of the image has to be given up.
    pub accept_loss: bool,
    /// A rule to break, for tests.
    #[doc(hidden)]
    pub flaw: Option<Flaw>,
}

/// What a repair found, did, and left.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Repair {
    /// What was wrong.
    pub before: Report,
    /// What was changed, or would be: the kind of damage, where, and "what was → what is".
    pub changes: Vec<Finding>,
    /// Changes beyond those kept.
    pub changes_dropped: u64,
    /// Nothing was written.
    pub dry_run: bool,
    /// Tree and space map were built anew.
    pub rebuilt: bool,
    /// Why nothing was changed, if the repair was refused.
    pub refused: Option<String>,
    /// It was refused for what it would give up, which [`RepairOptions::accept_loss`] allows.
    pub refused_for_loss: bool,
    /// What a second check found, if anything was changed.
    pub after: Option<Report>,
}

/// How an image is after a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Nothing was wrong.
    Clean,
    /// What was wrong is mended.
    Repaired,
    /// Something is still wrong.
    Damaged,
}

impl Repair {
    /// How the image is now.
    pub fn condition(&self) -> Condition {
        match &self.after {
            _ if self.before.is_clean() && !self.before.incomplete => Condition::Clean,
            Some(after) if after.is_clean() && !after.incomplete => Condition::Repaired,
            _ => Condition::Damaged,
        }
    }
}

/// Mends what can be mended of the image on `device`, or only says what that would be.
///
/// An error means that nothing could be done: the image reads as it did. Memory: as a check, and 64 MiB of what is written; more
/// than that waits in a temporary file. Where an inner node is lost, about 90 bytes for each node and 16 for each extent may come to that.
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
        Ok(Some(after)) if !options.dry_run => {
            work.write(options).await?;
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

/// Why a repair ends before anything is written.
enum Stopped {
    /// Something would be lost, or stay wrong.
    Refused(String),
    /// A large part would be given up.
    Loss(String),
    /// It could not be done.
    Failed(CheckError),
}

impl<E: Into<CheckError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A repair on its way.
struct Work {
    device: Arc<dyn Device>,
    spawn: Arc<dyn Spawn>,
    overlay: Arc<Overlay>,
    /// What the image needs as it is.
    needed: Option<BlockSet>,
    /// The same, and what each later pass needs of the one before.
    used: Option<BlockSet>,
    moved: Moved,
    /// Blocks of inner nodes and pages of space maps that were put back.
    put_back: BTreeSet<u64>,
    accept_loss: bool,
    flaw: Option<Flaw>,
}

impl Work {
    fn new(device: Arc<dyn Device>, spawn: Arc<dyn Spawn>, options: &RepairOptions) -> Self {
        let overlay = Overlay::new(device.clone());
        let (moved, put_back) = (Moved::new(), BTreeSet::new());
        let flaw = options.flaw;
        let accept_loss = options.accept_loss || flaw.is_some();
        Self { device, spawn, overlay, needed: None, used: None, moved, put_back, accept_loss, flaw }
    }

    fn over(&self) -> Arc<dyn Device> {
        self.overlay.clone()
    }

    /// Mends the overlay until a check has nothing to complain of. What it finds then, or `None` if nothing can be done.
    async fn mend(
        &mut self,
        repair: &mut Repair,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Option<Report>, Stopped> {
        let mut report: Option<Report> = None;
        if self.put_back(repair).await? {
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
                self.write(&RepairOptions::default()).await?;
            }
            if self.flaw.is_some_and(Flaw::skips_verification) {
                return Ok(Some(Report { clean_unmount: true, ..Report::default() }));
            }
            let after = check(self.over(), self.spawn.clone(), tell).await?;
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

    /// Plans, and carries the plan out on the overlay. `found` is what a check says of that, if it is not the image's own. Why it is
    /// not carried out, if that is for what would be given up.
    async fn pass(
        &mut self,
        found: Option<&Report>,
        repair: &mut Repair,
    ) -> Result<Option<String>, StoreError> {
        let (store, salvaged) = Store::open_to_salvage(self.over(), self.spawn.clone()).await?;
        let mut planner = Planner::new(store.clone(), now());
        planner.flaw = self.flaw;
        if self.flaw != Some(Flaw::TableUnguarded) {
            salvaged.table.iter().for_each(|block| {
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
        let anew = structure::is_broken(found, &salvaged, &planner);
        repair.rebuilt |= anew;
        let room = FINDINGS_MAX - repair.changes.len().min(FINDINGS_MAX);
        let more = planner.changes.len().saturating_sub(room) as u64;
        repair.changes.extend(planner.changes.drain(..).take(room));
        repair.changes_dropped += planner.changes_dropped + more;
        if too_much.is_some() {
            return Ok(too_much);
        }
        let so_far = self.used.as_ref().or(self.needed.as_ref());
        let used = apply::build(&store, &salvaged, &mut planner, anew, so_far).await?;
        match self.needed {
            None => self.needed = Some(used),
            Some(_) => self.used = Some(used),
        }
        self.moved.extend(planner.moved);
        Ok(None)
    }

    /// Refuses what would take anything away.
    async fn verify(&self) -> Result<(), Stopped> {
        let geometry = read_superblocks(&self.device).await?.superblock.geometry;
        let superblocks = switch::superblock_blocks(geometry);
        let needed = |block: &u64| self.needed.as_ref().is_some_and(|needed| needed.contains(*block));
        let blocks = self.overlay.blocks();
        let may_be = |block: &u64| superblocks.contains(block) || self.put_back.contains(block);
        if let Some(block) = blocks.iter().find(|block| needed(block) && !may_be(block)) {
            return Err(Stopped::Refused(format!("block {block} would be written over")));
        }
        let compared = compare::compare(&self.device, &self.over(), &self.spawn, &self.moved).await?;
        compared.map_err(Stopped::Refused)?;
        let trial = Overlay::new(self.over());
        compare::mounts(trial, &self.spawn).await.map_err(Stopped::Refused)
    }

    /// Makes the image what the overlay is.
    async fn write(&self, options: &RepairOptions) -> Result<(), CheckError> {
        let slots = read_superblocks(&self.device).await?;
        let superblock = &slots.superblock;
        if let Some(path) = &options.undo {
            undo::save(path, &self.overlay, &self.device, superblock, slots.slot).await?;
        }
        switch::write_out(&self.overlay, &self.device, superblock.geometry, slots.slot, self.flaw).await
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
