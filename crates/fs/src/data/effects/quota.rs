//! The usage of the tree that a file counts in: reserved units become used ones.

use super::{Commit, Effect, FileChange};
use crate::FsError;
use crate::data::memory::charge::ChargeBefore;
use crate::inode::InodeState;
use crate::inode::quotas::Delta;

/// The file's usage before the change.
#[derive(Default)]
pub(super) struct Quota {
    units: u64,
    charge: Option<ChargeBefore>,
}

impl Effect for Quota {
    fn look(&mut self, file: &InodeState) {
        self.units = file.logged_units();
    }

    fn put(
        &mut self,
        change: &FileChange<'_>,
        file: &mut InodeState,
        commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        let inline_max = commit.fs.limits.inline_bytes as u64;
        let charge = file.data.recharge(file.attr.size, inline_max, &change.extents.cleared);
        if file.meta.quota != 0 {
            commit.usage.push(Delta {
                number: file.meta.quota,
                units: file.logged_units() as i64 - self.units as i64,
                reserved: file.data.charged_since(&charge),
                ..Delta::default()
            });
        }
        self.charge = Some(charge);
        Ok(())
    }

    fn undo(&mut self, file: &mut InodeState) {
        if let Some(before) = self.charge.take() {
            file.data.restore_charge(before);
        }
    }
}
