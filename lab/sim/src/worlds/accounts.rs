//! The quotas of a filesystem, compared with a recount, and whether a tree has room for a call.

use super::feature::Feature;
use super::state::State;
use super::step::{Path, Step};
use libc::EDQUOT;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_device::BLOCK_BYTES;
use syncline_fs::types::Ino;
use syncline_fs::{Filesystem, QuotaUsage};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The unit of block counts in stat.
const UNIT_BYTES: u64 = 512;
/// Most bytes of data in an inode item, for any node size.
pub(super) const INLINE_BYTES_MAX: usize = 2048;

/// Quotas by their directories, and the units that each inode uses.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Accounts {
    quotas: BTreeMap<Ino, QuotaUsage>,
    units: BTreeMap<Ino, u64>,
}

impl Accounts {
    /// Reads the accounts of a filesystem that shows `state`.
    pub(super) async fn read(fs: &Arc<Filesystem>, state: &State) -> Result<Self, String> {
        let quotas: BTreeMap<_, _> = fs.quotas().into_iter().map(|usage| (usage.root, usage)).collect();
        let mut units = BTreeMap::new();
        let inos = state.tree.nodes.keys().filter(|_| !quotas.is_empty());
        for ino in inos {
            let attributes = fs.getattr(*ino).await.map_err(|error| format!("inode {ino}: {error}"))?;
            units.insert(*ino, attributes.blocks);
        }
        Ok(Self { quotas, units })
    }

    /// Compares them with the model's quotas. `setting` is the directory whose quota was being set
    /// when the power failed. With `settled`, nothing waits to be written or removed, so the usage
    /// must equal a recount.
    pub(super) fn check(&self, expected: &State, setting: Option<Ino>, settled: bool) -> Result<(), String> {
        for (root, usage) in &self.quotas {
            if usage.being_set {
                if setting == Some(*root) {
                    continue;
                }
                return Err(format!("the quota of inode {root} is being set, and nobody did"));
            }
            let limits = expected.quotas.get(root);
            if limits != Some(&usage.limits) {
                return Err(format!("inode {root} has a quota with {:?}, not {limits:?}", usage.limits));
            }
            let members: Vec<_> =
                expected.members.iter().filter(|(_, tree)| *tree == root).map(|(ino, _)| *ino).collect();
            let units: u64 = members.iter().filter_map(|ino| self.units.get(ino)).sum();
            let (inodes, bytes) = (members.len() as u64, units * UNIT_BYTES);
            let exact = (usage.used_inodes, usage.used_bytes) == (inodes, bytes);
            if !exact && settled {
                return Err(format!(
                    "the quota of inode {root} says {} bytes and {} inodes; a count finds {bytes} and {inodes}",
                    usage.used_bytes, usage.used_inodes
                ));
            }
            if usage.used_inodes < inodes {
                return Err(format!("the quota of inode {root} has lost inodes: {usage:?}, not {inodes}"));
            }
        }
        let missing = expected.quotas.keys().find(|root| !self.quotas.contains_key(*root));
        missing.map_or(Ok(()), |root| Err(format!("inode {root} has lost its quota")))
    }
}

/// Checks that the quotas allowed the call, and returns the correct answer. `before` are the quotas
/// before the call. Apart from refusals because of bytes, its answer was already compared with the
/// model.
pub(super) fn judge_answer(
    fs: &Arc<Filesystem>,
    state: &State,
    step: &Step,
    before: &[QuotaUsage],
    answer: Result<(), i32>,
    expected: Result<(), i32>,
) -> Result<Result<(), i32>, String> {
    let taken = |usage: &QuotaUsage| usage.used_bytes + usage.reserved_bytes;
    if answer == Err(EDQUOT) && expected.is_ok() {
        let lacks = before.iter().any(|usage| {
            let limit = usage.limits.bytes;
            limit > 0 && taken(usage) + bytes_at_most(state, step, usage.root) > limit
        });
        return if lacks {
            Ok(answer)
        } else {
            Err(format!("{step} was refused, and there is room: {before:?}"))
        };
    }
    for usage in fs.quotas().iter().filter(|usage| usage.limits.bytes > 0 && !usage.being_set) {
        let earlier = before.iter().find(|earlier| earlier.root == usage.root).map_or(u64::MAX, taken);
        if answer.is_ok() && taken(usage) > usage.limits.bytes.max(earlier) {
            return Err(format!("{step} took more than it may: {usage:?}, {earlier} bytes before"));
        }
    }
    Ok(expected)
}

/// Most bytes that a call can add to a tree's usage: one block for each block that it touches,
/// unless that block certainly exists.
fn bytes_at_most(state: &State, step: &Step, root: Ino) -> u64 {
    let (at, range) = match step {
        Step::Publish(_, len) => return (*len as u64).div_ceil(BLOCK) * BLOCK,
        Step::Write(at, offset, len) | Step::Transaction(at, offset, len) => {
            (at, *offset..offset + *len as u64)
        }
        Step::Append(at, len) => {
            let size = size_of(state, at);
            (at, size..size + *len as u64)
        }
        Step::Truncate(at, size) => (at, 0..*size.min(&1)),
        Step::Allocate(at, _, offset, len) => (at, *offset..offset + len),
        Step::Copy(from, to) => (to, 0..size_of(state, from)),
        Step::Feature(Feature::Rewrite(at)) => (at, 0..size_of(state, at)),
        Step::SetXattr(at, name, len) => {
            let counts = state.find(at).is_ok_and(|ino| state.members.get(&ino) == Some(&root));
            let units = ((name.name().len() + len) as u64).div_ceil(UNIT_BYTES);
            return if counts { units * UNIT_BYTES } else { 0 };
        }
        _ => return 0,
    };
    let Ok(ino) = state.find(at) else { return 0 };
    if state.members.get(&ino) != Some(&root) {
        return 0;
    }
    let node = &state.tree.nodes[&ino];
    let data = node.data().unwrap_or(&[]);
    let there = |block: &u64| {
        let start = (*block as usize * BLOCK_BYTES).min(data.len());
        let end = (start + BLOCK_BYTES).min(data.len());
        // A small file is inline in its inode, and a write to part of a compressed unit takes
        // blocks in addition to the unit.
        let placed = data.len() > INLINE_BYTES_MAX && !state.may_be_compressed(ino);
        placed && data[start..end].iter().any(|byte| *byte != 0)
    };
    let mut blocks: BTreeSet<u64> = (range.start / BLOCK..range.end.div_ceil(BLOCK)).collect();
    if data.len() <= INLINE_BYTES_MAX {
        // Data moves out of the inode into a block.
        blocks.insert(0);
    }
    blocks.iter().filter(|block| !there(block)).count() as u64 * BLOCK
}

fn size_of(state: &State, at: &Path) -> u64 {
    let node = state.find(at).ok().map(|ino| &state.tree.nodes[&ino]);
    node.and_then(|node| node.data()).map_or(0, <[u8]>::len) as u64
}

#[cfg(test)]
impl Accounts {
    /// The accounts of a filesystem that matches the model, with eight units for each inode.
    pub(super) fn counted(state: &State) -> Self {
        let units: BTreeMap<Ino, u64> = state.tree.nodes.keys().map(|ino| (*ino, 8)).collect();
        let quotas = state.quotas.iter().map(|(root, limits)| {
            let count = state.members.values().filter(|tree| *tree == root).count() as u64;
            let usage = QuotaUsage {
                root: *root,
                being_set: false,
                limits: *limits,
                used_bytes: count * 8 * UNIT_BYTES,
                reserved_bytes: 0,
                used_inodes: count,
            };
            (*root, usage)
        });
        Self { quotas: quotas.collect(), units }
    }

    pub(super) fn each(&mut self, change: impl Fn(&mut QuotaUsage)) {
        self.quotas.values_mut().for_each(change);
    }
}
