//! Every kind of damage is mended, and nothing undamaged is touched.

use crate::common::damages::{DAMAGES, open_read_only, take_snapshot};
use crate::common::survey::{Survey, survey, survey_of};
use crate::common::{BadBlock, Inodes, edit_inode, examine, items, plant, rot, sample, single, spawn};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, QuotaLimits, format_device};
use syncline_check::{Condition, FindingKind, Repair, RepairOptions, repair};
use syncline_device::{Device, MemoryDevice, block_on};
use syncline_format::Kind;

fn run(device: Arc<dyn Device>, dry_run: bool) -> Repair {
    let options = RepairOptions { dry_run, accept_loss: true, ..RepairOptions::default() };
    block_on(repair(device, spawn(), &options, &mut |_| {})).unwrap()
}

fn is_data(kind: FindingKind) -> bool {
    matches!(kind, FindingKind::DataDamaged | FindingKind::DataUnreadable | FindingKind::SnapshotDamaged)
}

/// True if everything is mended, except lost file blocks that must keep failing to read.
fn is_mended(done: &Repair) -> bool {
    let left = done.after.as_ref().map(|after| &after.findings);
    let gave_up = done.changes.iter().any(|change| change.text.contains("reading them fails, as before"));
    let only_data = left.is_some_and(|left| left.iter().all(|finding| is_data(finding.kind)));
    done.condition() == Condition::Repaired || gave_up && only_data
}

/// Inodes whose own contents this kind of damage destroys.
fn harmed(kind: FindingKind, inodes: Inodes) -> BTreeSet<u64> {
    BTreeSet::from_iter(match kind {
        FindingKind::ItemMalformed | FindingKind::LogDamaged | FindingKind::ChunkMissing => {
            vec![inodes.small]
        }
        FindingKind::DanglingEntry => vec![inodes.linked],
        FindingKind::ItemWithoutInode | FindingKind::DataDamaged | FindingKind::DataUnreadable => {
            vec![inodes.large]
        }
        _ => vec![],
    })
}

/// Fails unless everything else is unchanged; `moved` allows different paths.
fn compare(before: &Survey, after: &Survey, harmed: &BTreeSet<u64>, moved: bool, what: &str) {
    for (inode, seen) in before.iter().filter(|(inode, _)| !harmed.contains(inode)) {
        let now = after.get(inode).unwrap_or_else(|| panic!("{what}: {} is gone", seen.path.display()));
        assert_eq!(now.contents, seen.contents, "{what}: {}", seen.path.display());
        assert_eq!(
            (&now.target, &now.xattrs),
            (&seen.target, &seen.xattrs),
            "{what}: {}",
            seen.path.display()
        );
        if !moved && !seen.directory {
            assert_eq!((&now.path, now.nlink), (&seen.path, seen.nlink), "{what}");
        }
    }
}

#[test]
fn each_kind_of_damage_is_mended_and_nothing_else_changes() {
    let mut mended = BTreeSet::new();
    for (kind, damage) in DAMAGES {
        let what = kind.name();
        let (device, inodes) = sample();
        let before = survey(&device);
        let other = damage(&device, inodes);
        let target = other.unwrap_or_else(|| device.clone());
        let image = device.image();
        let planned = run(target.clone(), true);
        assert!(device.image() == image, "{what}: a dry run wrote");
        assert!(planned.after.is_none() && planned.dry_run);
        if is_data(*kind) {
            let done = run(target, false);
            assert_eq!(done.condition(), Condition::Damaged, "{what}");
            assert!(done.changes.is_empty() && device.image() == image, "{what}: data was touched");
            mended.insert(*kind);
            continue;
        }
        assert!(planned.changes.iter().any(|change| change.kind == *kind), "{what}: {:#?}", planned.changes);
        let done = run(target.clone(), false);
        assert_eq!(done.changes, planned.changes, "{what}: the dry run said something else");
        let left = &done.after.as_ref().unwrap().findings;
        assert!(is_mended(&done), "{what}: {left:#?}\n{:#?}", done.changes);
        if done.condition() == Condition::Repaired {
            assert_eq!(run(target.clone(), false).condition(), Condition::Clean, "{what}");
        }
        let moved =
            matches!(kind, FindingKind::UnnamedInode | FindingKind::Unreachable | FindingKind::NodeDamaged);
        if *kind != FindingKind::NodeDamaged {
            compare(&before, &survey_of(target), &harmed(*kind, inodes), moved, what);
        }
        mended.insert(*kind);
    }
    assert!(mended.into_iter().eq(FindingKind::ALL.iter().copied()), "a kind was left out");
}

/// A repair that nobody watches: either it mends what follows from the rest, or writes nothing.
#[test]
fn a_repair_that_may_lose_nothing_writes_nothing_where_it_would() {
    let mut refused = BTreeSet::new();
    for (kind, damage) in DAMAGES.iter().filter(|(kind, _)| !is_data(*kind)) {
        let what = kind.name();
        let (device, inodes) = sample();
        let before = survey(&device);
        let target = damage(&device, inodes).unwrap_or_else(|| device.clone());
        let image = device.image();
        let options = RepairOptions { refuse_loss: true, ..RepairOptions::default() };
        let done = block_on(repair(target.clone(), spawn(), &options, &mut |_| {})).unwrap();
        if done.refused.is_some() {
            assert!(done.refused_for_loss && device.image() == image, "{what}: {done:#?}");
            assert_eq!(done.condition(), Condition::Damaged, "{what}");
            refused.insert(*kind);
            continue;
        }
        let moved = matches!(kind, FindingKind::UnnamedInode | FindingKind::Unreachable);
        compare(&before, &survey_of(target), &BTreeSet::new(), moved, what);
    }
    for kind in [FindingKind::DanglingEntry, FindingKind::ItemMalformed, FindingKind::LogDamaged] {
        assert!(refused.contains(&kind), "{}", kind.name());
    }
    for kind in [FindingKind::LinkCount, FindingKind::SpaceMapDamaged, FindingKind::SuperblockDamaged] {
        assert!(!refused.contains(&kind), "{}", kind.name());
    }
}

#[test]
fn what_is_built_anew_leaves_snapshots_as_they_were() {
    let (device, _) = sample();
    take_snapshot(&device);
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("later", "not in the snapshot").unwrap();
    fs.close().unwrap();
    let view = || {
        let fs = Filesystem::open_snapshot_device(device.clone(), "of the sample", ImageOptions::default());
        fs.unwrap()
    };
    let kept = block_on(view().engine().store().walk_nodes()).nodes;
    let nodes = block_on(open_read_only(&device).walk_nodes()).nodes;
    let own = nodes[1..].iter().find(|node| !kept.contains(node)).expect("a leaf was written anew");
    rot(&device, own.start);
    let done = run(device.clone(), false);
    assert!(done.rebuilt);
    assert_eq!(done.condition(), Condition::Repaired, "{:#?}", done.after);
    assert_eq!(view().read("large").unwrap(), vec![1; 300_000]);
    assert!(view().read("later").is_err());
}

#[test]
fn a_sound_image_is_left_alone() {
    let (device, _) = sample();
    let image = device.image();
    let done = run(device.clone(), false);
    assert_eq!(done.condition(), Condition::Clean);
    assert!(done.changes.is_empty() && device.image() == image);
}

#[test]
fn what_lost_its_name_or_its_inode_is_found_in_lost_and_found() {
    for kind in [FindingKind::UnnamedInode, FindingKind::Unreachable, FindingKind::ItemWithoutInode] {
        let (device, inodes) = sample();
        let before = survey(&device);
        DAMAGES.iter().find(|(damaged, _)| *damaged == kind).unwrap().1(&device, inodes);
        assert_eq!(run(device.clone(), false).condition(), Condition::Repaired);
        let after = survey(&device);
        let (number, name) = match kind {
            FindingKind::UnnamedInode => (inodes.second, format!("/lost+found/#{}", inodes.second)),
            // The loop may be cut at either end.
            FindingKind::Unreachable => {
                let cut = [inodes.directory, inodes.below]
                    .into_iter()
                    .find(|inode| after[inode].path.starts_with("/lost+found/"));
                let cut = cut.unwrap();
                (cut, after[&cut].path.to_string_lossy().into_owned())
            }
            _ => (inodes.large, format!("/lost+found/#{}", inodes.large)),
        };
        assert_eq!(after[&number].path.to_string_lossy(), name);
        let (size, bytes) = before[&inodes.large].contents.clone().unwrap();
        let found = after[&inodes.large].contents.clone().unwrap();
        assert_eq!(found.1[..size as usize], bytes, "{}", kind.name());
    }
}

/// Several kinds of damage at once, chosen by seed.
#[test]
fn combinations_of_damage_are_mended() {
    // These lose data, replace the device, can't be mended, or make a snapshot of the damage.
    let never = [
        FindingKind::ForkRecord,
        FindingKind::LogDamaged,
        FindingKind::DataUnreadable,
        FindingKind::DataDamaged,
        FindingKind::SnapshotDamaged,
    ];
    // These work below the filesystem, or let damage planted after them overwrite data.
    let at_last = [
        FindingKind::LogOverlap,
        FindingKind::SuperblockCounter,
        FindingKind::SpaceMapDamaged,
        FindingKind::NodeDamaged,
        FindingKind::SuperblockDamaged,
        FindingKind::BlockUnnamed,
        FindingKind::SnapshotTable,
    ];
    let apart = |kind| never.contains(kind) || at_last.contains(kind);
    let items: Vec<_> = DAMAGES.iter().filter(|(kind, _)| !apart(kind)).collect();
    let last: Vec<_> = DAMAGES.iter().filter(|(kind, _)| at_last.contains(kind)).collect();
    let mut planted_in_all = 0;
    for seed in 0..48 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (device, inodes) = sample();
        let before = survey(&device);
        let count = rng.random_range(2..=5);
        let mut chosen: Vec<_> = items.choose_multiple(&mut rng, count).copied().collect();
        if rng.random_bool(0.5) {
            chosen.extend(last.choose(&mut rng).copied());
        }
        let mut lossy = BTreeSet::new();
        let mut planted = Vec::new();
        for (kind, damage) in chosen {
            // One kind may need something that another has removed, or an image that opens.
            let copy = device.snapshot();
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| damage(&copy, inodes)));
            if panicked.is_err() {
                continue;
            }
            damage(&device, inodes);
            planted.push(kind.name());
            lossy.extend(harmed(*kind, inodes));
            if matches!(kind, FindingKind::NodeDamaged) {
                lossy.extend(before.keys().copied());
            }
        }
        planted_in_all += planted.len();
        let what = format!("seed {seed}: {planted:?}");
        let image = device.image();
        let planned = run(device.clone(), true);
        assert!(device.image() == image, "{what}: a dry run wrote");
        let done = run(device.clone(), false);
        assert_eq!(done.changes, planned.changes, "{what}");
        let left = done.after.as_ref().map(|after| &after.findings);
        assert!(
            done.condition() == Condition::Clean || is_mended(&done),
            "{what}: {left:#?}\n{:#?}",
            done.changes
        );
        compare(&before, &survey(&device), &lossy, true, &what);
    }
    assert!(planted_in_all > 120, "{planted_in_all}: too much of it was left out");
}

/// Whichever leaf is lost, everything outside it survives, names included.
#[test]
fn what_lies_outside_a_lost_leaf_survives() {
    let (device, _) = sample();
    let before = survey(&device);
    let store = open_read_only(&device);
    let leaves = leaves(&store);
    assert!(leaves.len() > 4, "the sample has several leaves");
    for (leaf, lost) in leaves {
        let copy = device.snapshot();
        rot(&copy, leaf);
        let done = run(copy.clone(), false);
        assert!(done.rebuilt);
        let left = done.after.as_ref().unwrap();
        assert!(is_mended(&done), "leaf {leaf}: {:#?}", left.findings);
        // Files with an item in the leaf lose contents; directories lose only names.
        compare(&before, &survey(&copy), &lost, true, &format!("leaf {leaf}"));
        assert!(lost.len() < before.len(), "a leaf does not hold everything");
    }
}

/// A bad sector under a node or under one copy of a superblock is damage like any other.
#[test]
fn what_can_not_be_read_is_worked_around() {
    let (device, inodes) = sample();
    let before = survey(&device);
    let store = open_read_only(&device);
    let leaves = leaves(&store);
    let (leaf, lost) = leaves.iter().find(|(_, lost)| !lost.contains(&inodes.large)).unwrap();
    let bad = BadBlock::new(device.clone(), *leaf);
    let done = run(bad, false);
    assert!(is_mended(&done), "{:#?}", done.after);
    assert!(done.changes.iter().any(|change| change.kind == FindingKind::NodeDamaged));
    compare(&before, &survey(&device), lost, true, "an unreadable leaf");
    let blocks = device.size_bytes() / 4096;
    for block in [16, 32, blocks - 16, blocks - 8] {
        let bad: Arc<dyn Device> = BadBlock::new(device.snapshot(), block);
        let report = examine(bad.clone());
        let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::SuperblockDamaged], "block {block}");
        compare(&survey(&device), &survey_of(bad), &BTreeSet::new(), false, "one copy unreadable");
    }
}

/// Objects with an item in each leaf, by the leaf's address.
fn leaves(store: &syncline_store::Store) -> std::collections::BTreeMap<u64, BTreeSet<u64>> {
    let superblock = store.superblock();
    let tracker = syncline_device::FlushTracker::new(store.device().clone());
    let tree = syncline_tree::Tree::new(tracker, superblock.geometry, 1 << 20);
    let mut leaves = std::collections::BTreeMap::new();
    let mut visit =
        |level: u8,
         pointer: syncline_format::superblock::Pointer,
         node: Result<&syncline_format::node::Node, &syncline_tree::TreeError>| {
            if level == 0 {
                let node = node.unwrap();
                leaves.insert(pointer.addr, (0..node.len()).map(|index| node.key(index).object).collect());
            }
        };
    block_on(tree.walk(superblock.tree, &mut visit));
    leaves
}

#[test]
fn no_superblock_left_is_told_and_changes_nothing() {
    let (device, _) = sample();
    let blocks = device.size_bytes() / 4096;
    for block in [16, 32, blocks - 16, blocks - 8] {
        rot(&device, block);
    }
    let image = device.image();
    let done = run(device.clone(), false);
    assert_eq!(done.condition(), Condition::Damaged);
    assert!(done.changes.is_empty() && device.image() == image);
}

#[test]
fn a_second_repair_finds_nothing_and_writes_nothing() {
    let (device, inodes) = sample();
    DAMAGES.iter().find(|(kind, _)| *kind == FindingKind::LinkCount).unwrap().1(&device, inodes);
    assert_eq!(run(device.clone(), false).condition(), Condition::Repaired);
    let image = device.image();
    assert_eq!(run(device.clone(), false).condition(), Condition::Clean);
    assert!(device.image() == image);
    assert!(examine(device).is_clean());
}

#[test]
fn an_image_that_is_none_is_an_error() {
    assert!(
        block_on(repair(
            MemoryDevice::new(crate::common::SIZE),
            spawn(),
            &RepairOptions::default(),
            &mut |_| {}
        ))
        .is_err()
    );
}

/// The units of xattrs are corrected: for an inode with xattrs in items of their own, for one
/// without, and in an image that does not count them.
#[test]
fn what_attributes_count_for_is_mended() {
    let counts = [single(), single().counted_xattrs(false)];
    for (options, edits) in counts.into_iter().zip([3, 1]) {
        for edit in 0..edits {
            let device = MemoryDevice::new(64 << 20);
            format_device(device.clone(), &options).unwrap();
            let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
            fs.create_dir("tree").unwrap();
            fs.write("tree/file", "contents").unwrap();
            fs.set_xattr("tree/file", "user.long", &[1; 60_000]).unwrap();
            fs.set_xattr("tree/file", "user.middle", &[2; 2_000]).unwrap();
            fs.set_quota("tree", QuotaLimits::default()).unwrap();
            let used = fs.quota("tree").unwrap().used_bytes;
            let ino = |path| fs.metadata(path).unwrap().ino();
            let (tree, file) = (ino("tree"), ino("tree/file"));
            fs.close().unwrap();
            assert!(examine(device.clone()).is_clean());
            let kinds: &[FindingKind] = match edit {
                0 => {
                    edit_inode(&device, file, |inode| inode.xattr_units += 5);
                    &[FindingKind::XattrCount]
                }
                1 => {
                    edit_inode(&device, tree, |inode| inode.blocks += 1);
                    &[FindingKind::BlockCount, FindingKind::QuotaUsage]
                }
                _ => {
                    // The xattr is removed, and its units with it.
                    plant(&device, |store, transaction| {
                        transaction.delete(items(store, file, Kind::Chunk)[1].0)
                    });
                    &[FindingKind::ChunkMissing]
                }
            };
            let found: Vec<_> = examine(device.clone()).findings.iter().map(|finding| finding.kind).collect();
            assert_eq!(found, kinds);
            let done = run(device.clone(), false);
            assert_eq!(done.condition(), Condition::Repaired, "{:#?}", done.after);
            let named = done
                .changes
                .iter()
                .any(|change| change.text == "/tree/file: lost the extended attribute \"user.long\"");
            assert_eq!(named, edit == 2, "who lost something is named: {:#?}", done.changes);
            let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
            let lost = if edit == 2 { (60_000_u64 + 9).div_ceil(512) * 512 } else { 0 };
            assert_eq!(fs.quota("tree").unwrap().used_bytes, used - lost);
            fs.set_xattr("tree/file", "user.long", &[3; 5_000]).unwrap();
            fs.close().unwrap();
            assert!(examine(device).is_clean());
        }
    }
}
