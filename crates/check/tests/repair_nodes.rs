//! Lost tree nodes: inner nodes are restored, and the contents lost with leaves do not read as
//! zeros.

use crate::common::survey::{Survey, survey};
use crate::common::{examine, single, spawn};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, format_device};
use syncline_check::{Condition, FindingKind, Repair, RepairOptions, repair};
use syncline_device::{AlignedBuf, Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::node::Node;
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BLOCK_BYTES, Kind};
use syncline_tree::{Tree, TreeError};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn run(device: Arc<dyn Device>, accept_loss: bool) -> Repair {
    let options = RepairOptions { accept_loss, ..RepairOptions::default() };
    block_on(repair(device, spawn(), &options, &mut |_| {})).unwrap()
}

/// The nodes of the tree by address, with their levels.
fn nodes(device: &Arc<MemoryDevice>) -> BTreeMap<u64, Node> {
    let any: Arc<dyn Device> = device.clone();
    nodes_below(device, block_on(syncline_store::read_superblocks(&any)).unwrap().superblock.tree)
}

/// Like `nodes`, for any tree.
fn nodes_below(device: &Arc<MemoryDevice>, root: TreeRoot) -> BTreeMap<u64, Node> {
    let any: Arc<dyn Device> = device.clone();
    let superblock = block_on(syncline_store::read_superblocks(&any)).unwrap().superblock;
    let tree = Tree::new(syncline_device::FlushTracker::new(any), superblock.geometry, 1 << 20);
    let mut nodes = BTreeMap::new();
    let mut visit = |_: u8, pointer: Pointer, node: Result<&Node, &TreeError>| {
        nodes.insert(pointer.addr, node.unwrap().clone());
    };
    block_on(tree.walk(root, &mut visit));
    nodes
}

fn put(device: &Arc<MemoryDevice>, block: u64, bytes: &[u8]) {
    block_on(device.write_at(block * BLOCK, vec![AlignedBuf::copy_from(bytes).into_bytes()])).unwrap();
}

/// Without the root and a leaf below it, nothing proves what the rest is: an empty filesystem
/// results only if the loss is accepted.
#[test]
fn a_large_loss_is_refused_until_it_is_accepted() {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &single()).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    for index in 0..200 {
        fs.write(format!("file {index}"), format!("{index}").repeat(40)).unwrap();
    }
    fs.close().unwrap();
    let nodes = nodes(&device);
    let root = nodes.values().max_by_key(|node| node.level()).unwrap();
    for node in [root, nodes.values().find(|node| node.level() == 0).unwrap()] {
        put(&device, node.addr(), &[0; 16384]);
    }
    let image = device.image();
    let done = run(device.clone(), false);
    assert!(done.refused_for_loss && done.after.is_none());
    let reason = done.refused.as_ref().unwrap();
    assert!(reason.contains("201 of 201 objects"), "{reason}");
    assert_eq!(done.condition(), Condition::Damaged);
    assert!(device.image() == image, "a refusal wrote");
    let done = run(device.clone(), true);
    assert_eq!(done.condition(), Condition::Repaired, "{:?}", done.refused);
}

/// Nested directories, and files with two names.
fn with_names() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &single().node_bytes(4096)).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    for directory in ["a", "a/b", "a/b/c", "d"] {
        fs.create_dir(directory).unwrap();
        (0..80).for_each(|index| fs.write(format!("{directory}/file {index}"), "contents").unwrap());
    }
    (0..5).for_each(|index| fs.hard_link(format!("a/b/file {index}"), format!("d/also {index}")).unwrap());
    fs.close().unwrap();
    device
}

/// The expected path of an inode once the inode items in `lost` are lost: below the innermost
/// directory that is lost completely, if there is one.
fn path_without(before: &Survey, inode: u64, lost: &BTreeSet<u64>) -> PathBuf {
    let path = &before[&inode].path;
    let number = |path: &Path| before.iter().find(|(_, seen)| seen.path == path).map(|(number, _)| *number);
    let gone = path.ancestors().skip(1).find_map(|above| {
        number(above).filter(|number| *number != 1 && lost.contains(number)).map(|number| (above, number))
    });
    match gone {
        None => path.clone(),
        Some((above, number)) => {
            Path::new("/lost+found").join(format!("#{number}")).join(path.strip_prefix(above).unwrap())
        }
    }
}

/// Whichever leaf is lost, an inode that survives keeps its name, thanks to its parent pointers.
#[test]
fn names_that_were_lost_with_a_leaf_come_back() {
    let device = with_names();
    let before = survey(&device);
    let mut put_back = 0;
    for leaf in nodes(&device).into_values().filter(|node| node.level() == 0) {
        let copy = device.snapshot();
        crate::common::rot(&copy, leaf.addr());
        let keys = (0..leaf.len()).map(|index| leaf.key(index));
        let lost: BTreeSet<u64> =
            keys.filter(|key| key.kind == Kind::Inode as u8).map(|key| key.object).collect();
        let done = run(copy.clone(), true);
        assert_eq!(done.condition(), Condition::Repaired, "{:?}", done.refused);
        put_back +=
            done.changes.iter().filter(|change| change.text.contains("put back, as the inode")).count();
        let after = survey(&copy);
        for inode in before.keys().filter(|inode| !lost.contains(inode)) {
            let (was, is) = (&before[inode], &after[inode]);
            let what = format!("leaf {}: {:#?}", leaf.addr(), done.changes);
            // Which of two names the survey has depends on its order.
            if was.directory || was.nlink == 1 {
                let stays = is.path == was.path;
                assert!(stays || is.path == path_without(&before, *inode, &lost), "{what}");
            }
            // A directory loses the subdirectories whose inodes are lost.
            assert!(was.directory || is.nlink == was.nlink, "{what}");
        }
    }
    assert!(put_back > 200, "{put_back} entries were put back");
}

const FILES: usize = 6;

fn name(index: usize) -> String {
    format!("directory/file {index}")
}

fn contents(index: usize) -> Vec<u8> {
    (0..2_000_000_u32).map(|at| (at / 1000) as u8 ^ index as u8 | 1).collect()
}

/// An image with files of many extents, and a sparse one; returns the inode numbers of the former.
fn with_extents() -> (Arc<MemoryDevice>, Vec<u64>) {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &single().node_bytes(4096)).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.create_dir("directory").unwrap();
    (0..FILES).for_each(|index| fs.write(name(index), contents(index)).unwrap());
    let sparse = fs.create_file("sparse").unwrap();
    (0..200).for_each(|piece| sparse.write_all_at(&[4; 5000], (1 << 33) + (piece << 20)).unwrap());
    drop(sparse);
    let numbers = (0..FILES).map(|index| fs.metadata(name(index)).unwrap().ino()).collect();
    fs.close().unwrap();
    (device, numbers)
}

/// Reads a file block by block and counts the failures; all other blocks must be right.
fn failing_blocks(fs: &Filesystem, index: usize, said: &[String]) -> Option<usize> {
    let file = fs.open_file(name(index)).ok()?;
    let (mut errors, mut bytes) = (0, vec![0; BLOCK_BYTES]);
    for (block, right) in (0..).zip(contents(index).chunks(BLOCK_BYTES)) {
        match file.read_at(&mut bytes, block * BLOCK) {
            Ok(count) => assert_eq!(&bytes[..count], right, "{}, block {block}: {said:#?}", name(index)),
            Err(error) => {
                assert_eq!(error.errno(), 5);
                errors += 1;
            }
        }
    }
    Some(errors)
}

/// Whichever leaf is lost, each block reads as before or fails, or the file is in lost+found; and
/// the report has its path.
#[test]
fn what_was_lost_with_a_leaf_does_not_read_as_zeros() {
    let (device, numbers) = with_extents();
    let (mut failing, mut torn) = (0, 0);
    for leaf in nodes(&device).into_values().filter(|node| node.level() == 0) {
        let copy = device.snapshot();
        crate::common::rot(&copy, leaf.addr());
        let done = run(copy.clone(), true);
        assert!(done.after.is_some(), "{:?}", done.refused);
        let said: Vec<String> = done.changes.iter().map(ToString::to_string).collect();
        let says = |what: &str| said.iter().any(|line| line.contains(what));
        // However many extents stand for it, a lost range is one finding.
        let after = &done.after.as_ref().unwrap().findings;
        for number in &numbers {
            let of_file = after.iter().filter(|finding| finding.object == Some(*number)).count();
            assert!(of_file <= 1, "{after:#?}");
        }
        let fs = Filesystem::open_device(copy.clone(), ImageOptions::default()).unwrap();
        for (index, number) in numbers.iter().enumerate() {
            let lost = failing_blocks(&fs, index, &said);
            // With the leaf of the root directory, everything is lost that could name the other
            // contents of that leaf.
            let told = says(&name(index)) || says(&format!("inode {number}")) || says("SL0017");
            assert!(lost == Some(0) || told, "{} is not in {said:#?}", name(index));
            if lost.is_some_and(|lost| lost > 0) {
                failing += 1;
                // Overwriting makes it whole again.
                fs.write(name(index), contents(index)).unwrap();
                assert_eq!(fs.read(name(index)).unwrap(), contents(index));
            }
        }
        let mut bytes = vec![0; 5000];
        match fs.open_file("sparse") {
            Ok(file) => assert!(
                file.read_at(&mut bytes, 1 << 33).is_err() || bytes[..4096] == [4; 4096],
                "sparse: {said:#?}"
            ),
            Err(_) => {
                assert!(says("/sparse") || says("SL0017"), "{said:#?}");
                torn += u32::from(says("lost+found"));
            }
        }
        fs.close().unwrap();
        let left = examine(copy).findings;
        assert!(left.iter().all(|finding| finding.kind == FindingKind::DataDamaged), "{left:#?}");
    }
    assert!(failing > 3 && torn > 0, "{failing} files fail, {torn} are torn");
}
