//! Repair: salvage what can be read, decide what is to become of it, and apply that in one of two ways.
//!
//! [`repair`] first runs a check. Then it reads every item that is left ([`Store::open_to_salvage`]), mends each object
//! by itself (`object`), brings names and inodes together (`names`) and so gathers a set of changed items. When only items are
//! wrong, these are transactions like any other and a checkpoint. When the structures that hold them are (nodes, space map,
//! log, a block used twice), tree and space map are built anew in blocks that neither the old image nor any data
//! uses, and one superblock switches over: a crash before it leaves the old image as it was.
//!
//! File data whose checksum does not match is never touched: to read it is an error before and after.

mod apply;
mod names;
mod object;
mod objects;
mod parents;
mod planner;
mod quotas;
mod shared;
mod structure;
mod view;
mod xattrs;

use crate::Progress;
use crate::checker::check;
use crate::error::CheckError;
use crate::finding::{Finding, FindingKind, Report};
use crate::repair::planner::Planner;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline_device::{Device, Spawn};
use syncline_format::items::inode::Time;
use syncline_store::{Store, StoreError};

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
            _ if self.before.is_clean() => Condition::Clean,
            Some(after) if after.is_clean() => Condition::Repaired,
            _ => Condition::Damaged,
        }
    }
}

/// Mends what can be mended of the image on `device`, or with `dry_run` only says what that would be.
///
/// An error means that nothing could be done; the image is then as good as before.
pub async fn repair(
    device: Arc<dyn Device>,
    spawn: Arc<dyn Spawn>,
    dry_run: bool,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<Repair, CheckError> {
    let before = check(device.clone(), spawn.clone(), tell).await?;
    let mut repair =
        Repair { before, changes: Vec::new(), changes_dropped: 0, dry_run, rebuilt: false, after: None };
    if repair.before.findings.iter().all(|finding| is_data(finding.kind))
        && repair.before.findings_dropped == 0
    {
        return Ok(repair);
    }
    let (store, salvaged) = match Store::open_to_salvage(device.clone(), spawn.clone()).await {
        Ok(opened) => opened,
        // No superblock is left: the report says so, and nothing can be done.
        Err(StoreError::Unusable(_)) => return Ok(repair),
        Err(error) => return Err(error.into()),
    };
    let mut planner = Planner::new(store.clone(), now());
    structure::tell(&repair.before, &salvaged, &mut planner);
    objects::pass(&mut planner).await;
    names::resolve(&mut planner).await;
    parents::resolve(&mut planner).await;
    quotas::resolve(&mut planner).await;
    structure::counters(&store, &mut planner);
    repair.rebuilt = structure::is_broken(&repair.before, &salvaged, &planner);
    repair.changes = std::mem::take(&mut planner.changes);
    repair.changes_dropped = planner.changes_dropped;
    if dry_run {
        return Ok(repair);
    }
    if repair.rebuilt {
        apply::rebuild(&device, &spawn, store, salvaged, planner).await?;
    } else {
        drop(store);
        apply::commit(&device, &spawn, planner).await?;
    }
    repair.after = Some(check(device, spawn, tell).await?);
    Ok(repair)
}

/// Damage to file data and to snapshots, which a repair leaves alone.
fn is_data(kind: FindingKind) -> bool {
    matches!(kind, FindingKind::DataDamaged | FindingKind::DataUnreadable | FindingKind::SnapshotDamaged)
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
