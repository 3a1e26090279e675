//! The hold of a fork in its base: whose it is, and a new one.

use super::{beside, failed, whole};
use crate::{How, Image};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use syncline_device::{DeviceError, block_on};
use syncline_fork::{Base, ForkError};
use syncline_store::{Hold, Snapshot, read_snapshots};

/// The hold that a fork leaves in its base when it is removed or independent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftHold {
    /// Its name.
    pub name: String,
    /// Where another fork may be that uses it: this one is a copy, and the hold stays.
    pub other: Option<String>,
}

impl Image {
    /// The hold that this fork, which is no longer needed, leaves in its base; `None` if it has none.
    pub fn left_hold(&self) -> Result<Option<LeftHold>, DeviceError> {
        let Some(behind) = &self.behind else { return Ok(None) };
        let Some(name) = behind.forked.hold() else { return Ok(None) };
        let present = whole(&behind.name)?;
        let other = Hold::of_name(name).and_then(|hold| Self::other_fork_of(&hold, &present));
        Ok(Some(LeftHold { name: name.to_owned(), other }))
    }

    /// The path of another fork that may use this hold, beside the fork at `present`: one of the two is a copy.
    /// The hold has a single path, so a fork that was moved and then copied is not found.
    pub fn other_fork_of(hold: &Hold, present: &Path) -> Option<String> {
        if hold.is_at(present) {
            return None;
        }
        // Without the whole path nobody can look.
        let may_be_there = hold.place().is_none_or(|place| Self::may_be_fork(place, hold.fork_id));
        may_be_there.then(|| hold.path.clone())
    }

    /// True if the fork with this id is at this place, or if the place can't be read.
    pub fn may_be_fork(name: &Path, fork_id: u128) -> bool {
        if !name.try_exists().unwrap_or(true) {
            return false;
        }
        let opened = Self::open_alone(name, &beside(&How::default()));
        let record =
            opened.map_err(ForkError::from).and_then(|own| block_on(syncline_fork::record_of(&own.device)));
        record.map_or(true, |record| record.is_some_and(|record| record.fork_id == fork_id))
    }

    /// Makes a new hold for the fork `name` in its base, and records that the base is at `base`: after the fork
    /// or the base was moved, after the fork was copied, or after it was released by mistake. `base` must have
    /// the snapshot, and must not need this fork itself. `place` and `release` are as for
    /// [`make_fork`](Self::make_fork). The former hold is released unless another fork may use it, whose place
    /// is returned.
    pub fn rebase_fork<E: From<DeviceError>>(
        name: &Path,
        base: &Path,
        how: &How,
        place: impl FnOnce(&Hold) -> Result<(), E>,
        release: impl Fn(&Hold),
    ) -> Result<Option<String>, E> {
        let about = |error| failed(name, error);
        let own = Self::open_alone(name, how)?;
        let record = block_on(syncline_fork::record_of(&own.device)).map_err(about)?.ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is no fork, and has no base");
            DeviceError::Open { path: name.display().to_string(), source: Arc::new(source) }
        })?;
        let (path, base) = (whole(name)?, whole(base)?);
        let cycle = || failed(name, ForkError::Cycle { base: base.clone() });
        if is_same_file(&base, &path) {
            return Err(cycle().into());
        }
        let opened = Self::open(&base, &beside(how))?;
        if opened.bases().any(|behind| is_same_file(behind, &path)) {
            return Err(cycle().into());
        }
        opened.require_depth(&base)?;
        opened.require_lasting(&base)?;
        let (_, entries) = block_on(read_snapshots(&opened.device())).map_err(|error| about(error.into()))?;
        drop(opened);
        let same = |entry: &&Snapshot| (entry.tree, entry.space) == (record.tree, record.space);
        let snapshot = entries.iter().filter(same).find(|entry| entry.is_visible());
        let snapshot = snapshot.ok_or_else(|| about(ForkError::NoSnapshot { base: base.clone() }))?;
        let hold = Hold::new(snapshot.id, rand::random(), &path);
        place(&hold).inspect_err(|_| release(&hold))?;
        let recorded = (|| {
            let image = Self::open(&base, &beside(how))?;
            let claimed = block_on(Base::claim(image.device(), &hold.name())).map_err(about)?;
            let (last, record) = (record.sequence, claimed.record(0, &base));
            block_on(syncline_fork::replace_record(&own.device, last, record)).map_err(about)
        })();
        if let Err(error) = recorded {
            // A copy that was written before the failure may name it.
            let now = block_on(syncline_fork::record_of(&own.device));
            if matches!(now, Ok(Some(now)) if now.fork_id != hold.fork_id) {
                release(&hold);
            }
            return Err(error.into());
        }
        let former = entries.iter().filter(same).filter(|entry| entry.id == record.hold);
        let former = former.filter_map(Snapshot::hold).find(|hold| hold.fork_id == record.fork_id);
        let other = former.as_ref().and_then(|former| Self::other_fork_of(former, &path));
        if let (Some(former), None) = (former, &other) {
            release(&former);
        }
        Ok(other)
    }
}

/// True for two names of one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    one == other || file(one).is_some_and(|one| file(other) == Some(one))
}
