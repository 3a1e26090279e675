//! The enumeration of workloads: each operation with each persistence point that concerns it, alone
//! and in pairs.

use super::feature::Feature;
use super::step::{Op, Path, Persist, Step, Workload};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// All operations, in printed form. The names refer to the base image (`base.rs`): A/foo (inline in
/// its inode), A/bar, B/bar, foo and the empty directory C exist; B/foo, bar, D and A/D do not.
const OPERATIONS: &[&str] = &[
    "create B/foo",
    "create bar",
    "mkdir D",
    "mkdir A/D",
    "write B/foo 0 300",
    "write B/foo 0 13000",
    "write bar 5000 3000",
    "write A/foo 50 30",
    "write A/foo 0 9000",
    "write A/bar 4000 200",
    "write A/bar 2000 8192",
    "write A/bar 20000 100",
    "write foo 0 4096",
    "write A/bar 0 8192",
    "write B/bar 0 16384",
    "transaction A/foo 30 200",
    "transaction A/bar 4000 9000",
    "append A/foo 60",
    "append A/foo 3000",
    "append A/bar 100",
    "append A/bar 9000",
    "append B/bar 3192",
    "truncate A/bar 0",
    "truncate A/bar 5000",
    "truncate A/bar 4096",
    "truncate A/bar 20000",
    "truncate A/foo 10",
    "truncate A/foo 6000",
    "truncate B/bar 1000",
    "link A/foo B/foo",
    "link A/bar bar",
    "publish B/foo 300",
    "publish bar 9000",
    "publish A/bar 300",
    "symlink bar 20",
    "symlink A/D 3000",
    "unlink A/foo",
    "unlink A/bar",
    "unlink foo",
    "rmdir C",
    "rmdir A",
    "rename A/foo B/foo",
    "rename A/foo B/bar",
    "rename A/bar A/foo",
    "rename foo bar",
    "rename B C",
    "rename C A/D",
    "rename A B/D",
    "rename-noreplace A/foo B/foo",
    "rename-noreplace A/foo B/bar",
    "exchange A/foo B/bar",
    "exchange A/bar A/foo",
    "exchange A C",
    "exchange foo C",
    "replace A/foo 500",
    "replace A/bar 9000",
    "setxattr A/foo user.other 20",
    "setxattr A/bar user.other 5000",
    "setxattr A user.small 20",
    "removexattr A/foo user.small",
    "removexattr A/bar user.large",
    "chmod A/bar 600",
    "chmod A 700",
    "copy A/bar B/foo",
    "copy A/bar B/bar",
    "copy A/bar A/foo",
    "copy foo A/bar",
    "copy A/foo A/bar",
    "copy B/bar A/bar",
    "punch A/foo 10 40",
    "punch A/bar 4096 4096",
    "punch A/bar 1000 8000",
    "punch B/bar 5000 1000000",
    "zero A/foo 20 3000",
    "zero A/bar 3000 20000",
    "zero-inside B/bar 100 9000",
    "preallocate A/foo 0 9000",
    "preallocate A/bar 8192 20000",
    "preallocate-beyond B/bar 0 40000",
    "collapse A/bar 4096 4096",
    "insert A/bar 4096 8192",
    "insert A/foo 0 4096",
    "unshare A/bar 0 8192",
    "snapshot one",
    "delete-snapshot one",
    "compress A zstd",
    "pack A/bar zstd 0 40000",
    "pack B/foo lz4 0 9000",
    "class A/bar ordered:3",
    "class A ordered:60",
    "class A fsync",
    "order A/bar 4000 200",
    "order B/foo 0 9000",
    "rewrite A/bar",
    "defragment A/bar",
    "quota A 24576 4",
    "quota B 8192 2",
    "unquota A",
    "acl A/bar",
];

/// All workloads of up to two operations.
pub struct Enumeration {
    /// One operation, one persistence point.
    pub one: Vec<Workload>,
    /// Two of each.
    pub two: Vec<Workload>,
}

impl Default for Enumeration {
    fn default() -> Self {
        let ops = operations();
        let singles: Vec<(Op, Persist)> = ops
            .iter()
            .flat_map(|op| persistence(op).into_iter().map(move |persist| (op.clone(), persist)))
            .collect();
        let mut two = Vec::new();
        for first in &singles {
            for second in &singles {
                two.push(Workload(vec![first.clone(), second.clone()]));
            }
            if first.1 == Persist::Nothing {
                // The second operation runs while a checkpoint is in progress.
                two.extend(singles.iter().map(|second| {
                    Workload(vec![(first.0.clone(), Persist::CheckpointBegun), second.clone()])
                }));
                two.extend(first_synced_after_second(&first.0, &ops));
            }
        }
        let one = std::iter::once(Workload::default())
            .chain(singles.into_iter().map(|single| Workload(vec![single])))
            .collect();
        Self { one, two }
    }
}

/// Pairs in which the second operation is followed by a sync that concerns only the first.
fn first_synced_after_second(first: &Op, ops: &[Op]) -> Vec<Workload> {
    let mut workloads = Vec::new();
    for second in ops {
        let known = persistence(second);
        for persist in persistence(first).into_iter().filter(|persist| !known.contains(persist)) {
            let pair = [(first.clone(), Persist::Nothing), (second.clone(), persist)];
            workloads.push(Workload(pair.to_vec()));
        }
    }
    workloads
}

/// `count` workloads of three operations.
pub fn three_operations(seed: u64, count: usize) -> Vec<Workload> {
    let (mut rng, ops) = (ChaCha8Rng::seed_from_u64(seed), operations());
    let mut workload = || {
        let chosen: Vec<Op> = (0..3).map(|_| ops.choose(&mut rng).expect("there are some").clone()).collect();
        let points: Vec<Vec<Persist>> = chosen.iter().map(persistence).collect();
        let pairs = chosen.into_iter().enumerate().map(|(index, op)| {
            // Sometimes the sync concerns an earlier operation.
            let of = if rng.random_range(0..4) == 0 { rng.random_range(0..=index) } else { index };
            let chance = if index < 2 { rng.random_range(0..12) } else { 12 };
            let persist = match chance {
                0..4 => Persist::Nothing,
                4 => Persist::CheckpointBegun,
                _ => points[of].choose(&mut rng).expect("there are some").clone(),
            };
            (op, persist)
        });
        Workload(pairs.collect())
    };
    (0..count).map(|_| workload()).collect()
}

fn operations() -> Vec<Op> {
    let parse = |text: &&str| {
        let workload: Workload = format!("{text}; -").parse().expect("a test reads them all");
        workload.0.into_iter().next().expect("it has one operation").0
    };
    OPERATIONS.iter().map(parse).collect()
}

/// The persistence points that concern an operation: none; a sync of each file it touches and of
/// each directory with one of its names; a sync of the file together with one that it does not
/// touch; everything; time that passes.
fn persistence(op: &Op) -> Vec<Persist> {
    let (files, directories) = touched(op);
    let mut points = vec![Persist::Nothing];
    for file in &files {
        points.push(Persist::Fsync(file.clone()));
        points.push(Persist::Fdatasync(file.clone()));
    }
    points.extend(directories.iter().cloned().map(Persist::Fsync));
    if let Some(file) = files.last() {
        let beside = if *file == Path::new("B/bar") { "foo" } else { "B/bar" };
        points.push(Persist::SyncMany(file.clone(), Path::new(beside)));
    }
    points.extend([Persist::Syncfs, Persist::Checkpoint, Persist::Idle]);
    points
}

/// Files and directories that an operation touches, by their names afterwards.
fn touched(op: &Op) -> (Vec<Path>, Vec<Path>) {
    let below = |path: &Path| (vec![path.clone()], vec![path.parent()]);
    let (files, mut directories) = match op {
        Op::Put(path, ..) | Op::ReplaceByRename(path, _) | Op::Pack(path, ..) | Op::Order(path, ..) => {
            below(path)
        }
        Op::Copy(from, to) => (vec![from.clone(), to.clone()], vec![to.parent()]),
        Op::One(step) => match step {
            Step::Create(path) | Step::Publish(path, _) => below(path),
            Step::Mkdir(path) => (Vec::new(), vec![path.clone(), path.parent()]),
            Step::Symlink(path, _) | Step::Unlink(path) | Step::Rmdir(path) => {
                (Vec::new(), vec![path.parent()])
            }
            Step::Link(_, to) => below(to),
            Step::Rename(from, to, _) => (vec![to.clone()], vec![from.parent(), to.parent()]),
            Step::Write(path, ..)
            | Step::Transaction(path, ..)
            | Step::Append(path, _)
            | Step::Truncate(path, _)
            | Step::Allocate(path, ..) => (vec![path.clone()], Vec::new()),
            Step::Copy(from, to) => (vec![from.clone(), to.clone()], Vec::new()),
            Step::SetXattr(path, ..) | Step::RemoveXattr(path, _) | Step::Chmod(path, _) => {
                (vec![path.clone()], Vec::new())
            }
            Step::Feature(Feature::Quota(path, _) | Feature::Unquota(path)) => {
                (Vec::new(), vec![path.clone()])
            }
            Step::Feature(feature) => (feature.path().into_iter().cloned().collect(), Vec::new()),
        },
    };
    directories.dedup();
    (files, directories)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_workload_can_be_read_back_and_none_comes_twice() {
        let all = Enumeration::default();
        let mut texts = BTreeSet::new();
        for workload in all.one.iter().chain(&all.two).chain(&three_operations(1, 1000)) {
            assert_eq!(&workload.to_string().parse::<Workload>().unwrap(), workload);
        }
        for workload in all.one.iter().chain(&all.two) {
            assert!(texts.insert(workload.to_string()), "{workload}");
        }
        assert_eq!(operations().len(), OPERATIONS.len());
        assert!(all.two.len() > 100_000, "{}", all.two.len());
    }

    #[test]
    fn an_operation_is_followed_by_every_sync_that_concerns_it() {
        let rename =
            Op::One(Step::Rename(Path::new("A/foo"), Path::new("B/foo"), crate::model::RenameKind::Replace));
        let texts: Vec<String> = persistence(&rename).iter().map(Persist::to_string).collect();
        let expected = [
            "-",
            "fsync B/foo",
            "fdatasync B/foo",
            "fsync A",
            "fsync B",
            "fsync2 B/foo B/bar",
            "syncfs",
            "checkpoint",
            "idle",
        ];
        assert_eq!(texts, expected);
    }
}
