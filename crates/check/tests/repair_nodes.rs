//! Lost tree nodes: inner nodes are restored, and the contents lost with leaves do not read as
//! zeros.

use crate::common::survey::{Survey, survey};
use crate::common::{BadBlock, examine, plant, spawn};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::{Filesystem, FormatOptions, ImageOptions, format_device};
use syncline_check::{Condition, FindingKind, Repair, RepairOptions, repair};
use syncline_device::{AlignedBuf, Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::items::extent::Extent;
use syncline_format::node::{Node, NodeBuilder};
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BLOCK_BYTES, Key, Kind, crc};
use syncline_store::{Store, StoreOptions};
use syncline_tree::{Tree, TreeError};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn run(device: Arc<dyn Device>, accept_loss: bool) -> Repair {
    let options = RepairOptions { accept_loss, ..RepairOptions::default() };
    block_on(repair(device, spawn(), &options, &mut |_| {})).unwrap()
}

/// A tree of three levels, and a snapshot of an older one that shares most of it.
fn sample(node_bytes: u32) -> Arc<MemoryDevice> {
    sample_of(node_bytes, 1500)
}

fn sample_of(node_bytes: u32, files: u32) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &FormatOptions::new().node_bytes(node_bytes)).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    for index in 0..files {
        fs.write(format!("file {index:04}"), format!("{index}").repeat(40)).unwrap();
    }
    fs.write("large", vec![1; 4_000_000]).unwrap();
    fs.create_snapshot("then").unwrap();
    fs.write("later", "not in the snapshot").unwrap();
    fs.close().unwrap();
    device
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

fn get(device: &Arc<MemoryDevice>, block: u64, blocks: u64) -> Vec<u8> {
    block_on(device.read_at(block * BLOCK, (blocks * BLOCK) as usize)).unwrap().to_vec()
}

fn then(device: &Arc<MemoryDevice>) -> Vec<u8> {
    let fs = Filesystem::open_snapshot_device(device.clone(), "then", ImageOptions::default()).unwrap();
    fs.read("file 0700").unwrap()
}

fn assert_same(before: &Survey, device: &Arc<MemoryDevice>, what: &str) {
    let after = survey(device);
    assert_eq!(after.len(), before.len(), "{what}");
    for (inode, seen) in before {
        assert_eq!(after[inode].contents, seen.contents, "{what}: {}", seen.path.display());
        assert_eq!(after[inode].path, seen.path, "{what}");
    }
}

/// One bit, one block, the whole node, or an unreadable sector: with an inner node nothing is lost.
#[test]
fn what_lies_below_a_lost_inner_node_is_found_again() {
    for node_bytes in [4096, 16384] {
        let device = sample(node_bytes);
        let (before, image) = (survey(&device), device.image());
        let inner: Vec<Node> = nodes(&device).into_values().filter(|node| node.level() > 0).collect();
        assert!(inner.iter().any(|node| node.level() > 1) || node_bytes > 4096, "there are three levels");
        for node in &inner {
            let (addr, blocks) = (node.addr(), u64::from(node_bytes) / BLOCK);
            for harm in
                ["a bit of the header", "a bit of a pointer", "its last block", "all of it", "unreadable"]
            {
                let copy = device.snapshot();
                let mut bytes = get(&copy, addr, blocks);
                match harm {
                    "a bit of the header" => bytes[25] ^= 1,
                    "a bit of a pointer" => bytes[node.used_bytes() - 3] ^= 16,
                    "its last block" => bytes[(blocks as usize - 1) * BLOCK_BYTES..].fill(7),
                    "all of it" => bytes.fill(0),
                    _ => {}
                }
                put(&copy, addr, &bytes);
                let target: Arc<dyn Device> = match harm {
                    "unreadable" => BadBlock::new(copy.clone(), addr),
                    _ => copy.clone(),
                };
                let what = format!("nodes of {node_bytes}, level {}, {harm}", node.level());
                let done = run(target, false);
                assert_eq!(
                    done.condition(),
                    Condition::Repaired,
                    "{what}: {:?} {:#?}",
                    done.refused,
                    done.changes
                );
                if harm != "unreadable" {
                    assert!(copy.image() == image, "{what}: it is not what it was");
                }
                assert_same(&before, &copy, &what);
                assert_eq!(then(&copy), "700".repeat(40).into_bytes(), "{what}");
            }
        }
    }
}

/// All inner nodes but the root, and the space map, so that all blocks are searched.
#[test]
fn several_lost_inner_nodes_come_back() {
    let device = sample(4096);
    let before = survey(&device);
    let lost: Vec<u64> =
        nodes(&device).into_values().filter(|node| node.level() == 1).map(|node| node.addr()).collect();
    assert!(lost.len() > 1);
    for map_too in [false, true] {
        let copy = device.snapshot();
        lost.iter().for_each(|addr| put(&copy, *addr, &[0; BLOCK_BYTES]));
        if map_too {
            let page = block_on(syncline_store::read_superblocks(&(copy.clone() as Arc<dyn Device>)));
            crate::common::rot(&copy, page.unwrap().superblock.space.page.addr);
        }
        let done = run(copy.clone(), false);
        assert_eq!(done.condition(), Condition::Repaired, "{:?}", done.refused);
        assert_same(&before, &copy, "all nodes of level 1");
    }
}

/// A node is not restored if a file also uses its place.
#[test]
fn a_node_is_not_put_back_over_data() {
    let device = sample(4096);
    let node = nodes(&device).into_values().filter(|node| node.level() == 1).last().unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let ino = fs.metadata("file 0003").unwrap().ino();
    fs.close().unwrap();
    let node_of = |addr: u64| nodes(&device).contains_key(&addr);
    // Planting the extent rewrites the nodes above it, but not the last node of that level.
    let data = [9; BLOCK_BYTES];
    plant(&device, |_, transaction| {
        let extent = Extent::plain(0, node.addr(), vec![crc(&data)]);
        transaction.put(Key::new(ino, Kind::Extent, 0), extent.encode());
    });
    assert!(node_of(node.addr()), "the node is still in use");
    put(&device, node.addr(), &data);
    let image = device.image();
    let done = run(device.clone(), false);
    assert!(done.refused.is_some(), "{:#?}", done.changes);
    assert!(device.image() == image);
}

/// Old nodes that only a snapshot still has sort between those of the tree, and later nodes sort
/// between those of the snapshot. Neither prevents the other's inner nodes from being restored.
#[test]
fn nodes_of_other_versions_are_not_taken_for_children() {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &FormatOptions::new().node_bytes(4096)).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let name = |index: u32| format!("file {index:04}");
    let write = |range: std::ops::Range<u32>, text: &str| {
        range.for_each(|index| fs.write(name(index), format!("{index}{text}").repeat(40)).unwrap());
    };
    write(0..3000, "");
    fs.create_snapshot("then").unwrap();
    // Whole leaves are removed, others take their place, and others change.
    (900..1600).for_each(|index| fs.remove_file(name(index)).unwrap());
    write(3000..3100, "");
    write(500..510, "changed");
    fs.close().unwrap();
    let (before, image) = (survey(&device), device.image());
    let any: Arc<dyn Device> = device.clone();
    let (_, snapshots) = block_on(syncline_store::read_snapshots(&any)).unwrap();
    let own = nodes(&device);
    let mut inner = own.clone();
    inner.extend(nodes_below(&device, snapshots[0].tree));
    inner.retain(|_, node| node.level() > 0);
    let only_snapshots = inner.keys().filter(|addr| !own.contains_key(addr)).count();
    assert!(only_snapshots > 1 && inner.len() > only_snapshots + 1, "{only_snapshots} of {}", inner.len());
    for node in inner.values() {
        let copy = device.snapshot();
        put(&copy, node.addr(), &[0; BLOCK_BYTES]);
        let done = run(copy.clone(), false);
        let what = format!("level {}, own: {}", node.level(), own.contains_key(&node.addr()));
        assert_eq!(done.condition(), Condition::Repaired, "{what}: {:?} {:#?}", done.refused, done.changes);
        assert!(copy.image() == image, "{what}: it is not what it was");
        assert_same(&before, &copy, &what);
    }
}

/// A node is also not restored over data of a snapshot, which its mount could read before.
#[test]
fn a_node_is_not_put_back_over_data_of_a_snapshot() {
    let device = sample_of(4096, 4000);
    // Below it is nothing that the directory needs or that is planted.
    let mut inner: Vec<Node> = nodes(&device).into_values().filter(|node| node.level() == 1).collect();
    inner.sort_by_key(Node::first_key);
    let node = inner.swap_remove(inner.len() / 2);
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let ino = fs.metadata("large").unwrap().ino();
    fs.close().unwrap();
    let data = [9; BLOCK_BYTES];
    let key = Key::new(ino, Kind::Extent, 0);
    let mut sound = None;
    plant(&device, |store, transaction| {
        sound = block_on(store.get(key)).unwrap();
        transaction.put(key, Extent::plain(0, node.addr(), vec![crc(&data)]).encode());
    });
    let (store, _) = block_on(Store::open(device.clone(), StoreOptions::default(), spawn())).unwrap();
    block_on(store.create_snapshot("crossed", 1)).unwrap();
    block_on(store.close()).unwrap();
    plant(&device, |_, transaction| match sound {
        Some(value) => transaction.put(key, value),
        None => transaction.delete(key),
    });
    assert!(nodes(&device).contains_key(&node.addr()), "the node is still in use");
    put(&device, node.addr(), &data);
    let shown = || {
        let fs =
            Filesystem::open_snapshot_device(device.clone(), "crossed", ImageOptions::default()).unwrap();
        let file = fs.open_file("large").unwrap();
        let mut bytes = vec![0; 16];
        file.read_at(&mut bytes, 0).map(|count| bytes[..count].to_vec()).map_err(|error| error.errno())
    };
    assert_eq!(shown(), Ok(vec![9; 16]));
    let image = device.image();
    let done = run(device.clone(), false);
    assert_eq!(shown(), Ok(vec![9; 16]), "what the snapshot showed is gone: {:#?}", done.changes);
    assert!(done.refused.is_some(), "{:#?}", done.changes);
    assert!(device.image() == image);
}

/// File contents are data even if they look like nodes: here, modified leaves of this very tree at
/// their own addresses.
#[test]
fn data_that_looks_like_a_node_is_none() {
    let device = sample(4096);
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("planted", vec![3; 400_000]).unwrap();
    let ino = fs.metadata("planted").unwrap().ino();
    fs.close().unwrap();
    let nodes_before = nodes(&device);
    let victim = nodes_before.values().find(|node| node.level() == 0 && node.len() > 3).unwrap().clone();
    plant_nodes(&device, ino, &victim);
    assert!(examine(device.clone()).is_clean());
    let before = survey(&device);
    let root = nodes(&device).into_values().max_by_key(|node| node.level()).unwrap();
    put(&device, root.addr(), &[0; BLOCK_BYTES]);
    let done = run(device.clone(), false);
    assert_eq!(done.condition(), Condition::Repaired, "{:?}", done.refused);
    assert_same(&before, &device, "planted leaves");
}

/// Turns all data of a file into leaves with the first key of `like` and the newest generation.
fn plant_nodes(device: &Arc<MemoryDevice>, ino: u64, like: &Node) {
    plant(device, |store, transaction| {
        for mut extent in crate::common::extents(store, ino) {
            let addr = extent.addr;
            for (block, checksum) in (addr..).zip(&mut extent.checksums) {
                let mut node = NodeBuilder::new(4096, 0);
                node.push(like.key(0), like.value(0));
                node.push(like.key(1), &[0xff; 9]);
                let mut bytes = vec![0; BLOCK_BYTES];
                *checksum = node.encode(&mut bytes, block, store.superblock().generation);
                assert_eq!(*checksum, crc(&bytes));
                put(device, block, &bytes);
            }
            transaction.put(Key::new(ino, Kind::Extent, extent.file_block), Extent::encode(&extent));
        }
    });
}

/// Without the root and a leaf below it, nothing proves what the rest is: an empty filesystem
/// results only if the loss is accepted.
#[test]
fn a_large_loss_is_refused_until_it_is_accepted() {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
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
    format_device(device.clone(), &FormatOptions::new().node_bytes(4096)).unwrap();
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
    format_device(device.clone(), &FormatOptions::new().node_bytes(4096)).unwrap();
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
