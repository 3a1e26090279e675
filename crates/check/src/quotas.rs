//! Compares each quota with the sum over the inodes of its tree.

use crate::finding::{FindingKind, Report};
use crate::object::DIRECTORY;
use std::collections::BTreeMap;
use syncline_format::Key;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::quota::Quota;

/// Quotas by number, with counted usage. An inode may carry a number without a quota; that means
/// nothing.
#[derive(Default)]
pub(crate) struct Quotas(BTreeMap<u64, Counted>);

/// A quota and the usage that was counted.
pub(crate) struct Counted {
    pub(crate) told: Quota,
    units: u64,
    inodes: u64,
    has_root: bool,
}

impl Quotas {
    /// Takes an item of object 0; returns false if it can't be a quota. All quotas come before the
    /// inodes.
    pub(crate) fn item(&mut self, key: Key, value: &[u8]) -> bool {
        let Ok(told) = Quota::decode(value) else { return false };
        let counted = Counted { told, units: 0, inodes: 0, has_root: false };
        key.offset > 0 && self.0.insert(key.offset, counted).is_none()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts an inode in the quota that its item names.
    pub(crate) fn inode(&mut self, number: u64, item: &InodeItem<'_>) {
        if let Some(counted) = self.0.get_mut(&item.quota) {
            counted.units = counted.units.saturating_add(item.blocks);
            counted.inodes += 1;
            counted.has_root |= number == counted.told.root && (item.mode >> 12) as u8 == DIRECTORY;
        }
    }

    /// All quotas, by number.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &Counted)> {
        self.0.iter().map(|(&number, counted)| (number, counted))
    }

    /// Reports quotas that differ from the counts.
    pub(crate) fn compare(&self, report: &mut Report) {
        for (_, counted) in self.all() {
            let told = counted.told;
            match counted.right() {
                None => {
                    let text = "the directory that a quota is of does not exist, or does not count in it";
                    report.object(FindingKind::QuotaRoot, told.root, text);
                }
                Some(right) if right != told => {
                    report.object(FindingKind::QuotaUsage, told.root, told_and_found(told, right));
                }
                Some(_) => {}
            }
        }
    }
}

impl Counted {
    /// The quota with correct usage; `None` if the quota should not exist.
    pub(crate) fn right(&self) -> Option<Quota> {
        self.has_root.then_some(Quota { used_units: self.units, used_inodes: self.inodes, ..self.told })
    }
}

fn told_and_found(told: Quota, found: Quota) -> String {
    format!(
        "the quota says {} units of 512 bytes and {} inodes, there are {} and {}",
        told.used_units, told.used_inodes, found.used_units, found.used_inodes
    )
}
