//! Lost pages of space maps, of the filesystem or of snapshots, are restored in place.

use crate::common::damages::open_read_only;
use crate::common::{edit_inode, edit_superblock, leaf_of, rot, single, spawn};
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, format_device};
use syncline_check::{FindingKind, Repair, RepairOptions, repair};
use syncline_device::{AlignedBuf, Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::snapshots::{decode_block, encode_block};
use syncline_format::space::{decode_bitmap, encode_bitmap};
use syncline_format::superblock::Pointer;
use syncline_format::{BLOCK_BYTES, BlockAddr, Metadata};
use syncline_store::{Store, read_superblocks};

/// Snapshots with few changes between them, so that their maps share most pages with each other and
/// with the filesystem.
fn sample(size_bytes: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(size_bytes);
    format_device(device.clone(), &single()).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    for index in 0..200 {
        fs.write(format!("file {index:03}"), format!("{index}").repeat(2000)).unwrap();
    }
    for round in 0..3 {
        fs.write("large", vec![round; 4_000_000]).unwrap();
        fs.create_snapshot(&format!("then {round}")).unwrap();
    }
    fs.write("later", "not in a snapshot").unwrap();
    fs.close().unwrap();
    device
}

fn mend(device: &Arc<MemoryDevice>, accept_loss: bool) -> Repair {
    let options = RepairOptions { accept_loss, ..RepairOptions::default() };
    block_on(repair(device.clone(), spawn(), &options, &mut |_| {})).unwrap()
}

fn block(device: &Arc<MemoryDevice>, addr: BlockAddr) -> Vec<u8> {
    block_on(device.read_at(addr * BLOCK_BYTES as u64, BLOCK_BYTES)).unwrap().to_vec()
}

/// A map with correct checksums that does not name what its snapshot uses: a repair must not write
/// there.
#[test]
fn what_a_snapshot_uses_is_not_written_over_whatever_its_map_says() {
    const FILES: usize = 6000;
    let (device, inodes) = crate::common::sample();
    let contents = |index: usize, then: &str| format!("{index}{then}").into_bytes();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    for then in ["", "!"] {
        for index in 0..FILES {
            fs.write(format!("directory/file {index}"), contents(index, then)).unwrap();
        }
        if then.is_empty() {
            fs.create_snapshot("kept").unwrap();
        }
    }
    fs.close().unwrap();
    edit_inode(&device, inodes.linked, |inode| inode.nlink = 3);
    let any: Arc<dyn Device> = device.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let (geometry, table) = (superblock.geometry, superblock.snapshots);
    let bitmap = |page: Pointer| decode_bitmap(&block(&device, page.addr), geometry, 0, page).unwrap().0;
    let put = |addr: BlockAddr, bytes: AlignedBuf| {
        block_on(device.write_at(addr * BLOCK_BYTES as u64, vec![bytes.into_bytes()])).unwrap();
    };
    let (mut entries, next) = decode_block(&block(&device, table.addr), geometry, table).unwrap();
    let page = entries[0].space.page;
    let mut words = bitmap(page);
    let present = bitmap(superblock.space.page);
    words.iter_mut().zip(present.iter()).for_each(|(word, present)| *word &= present);
    words[page.addr as usize / 64] |= 1 << (page.addr % 64);
    let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
    let made = encode_bitmap(&mut bytes, 0, page.addr, &words);
    put(page.addr, bytes);
    (entries[0].space.page, entries[0].used_blocks) = (made.page, made.used.into());
    let mut bytes = AlignedBuf::zeroed(BLOCK_BYTES);
    let pointer = encode_block(&mut bytes, table.addr, next, &entries, Metadata::Single);
    put(table.addr, bytes);
    edit_superblock(&device, |superblock| {
        superblock.snapshots = pointer;
        superblock.used_blocks += 1;
    });
    let before = device.image();
    let done = mend(&device, false);
    if done.refused.is_some() {
        assert!(device.image() == before, "it was refused, and something was written");
    }
    let fs = Filesystem::open_snapshot_device(device.clone(), "kept", ImageOptions::default()).unwrap();
    for index in 0..FILES {
        assert_eq!(fs.read(format!("directory/file {index}")).unwrap(), contents(index, ""));
    }
}

/// If a snapshot's map and a leaf of its tree are lost, the blocks it keeps are unknown: it can only be
/// given up.
#[test]
fn a_map_whose_tree_is_torn_does_not_come_back() {
    let device = sample(64 << 20);
    let snapshot = block_on(Store::snapshots(&open_read_only(&device))).remove(0);
    rot(&device, snapshot.space.page.addr);
    rot(&device, leaf_of(&device, snapshot.tree));
    let before = device.image();
    let refused = mend(&device, false);
    assert!(refused.refused_for_loss && device.image() == before, "{:?}", refused.condition());
    let done = mend(&device, true);
    // The other snapshots share the leaf.
    let after = done.after.expect("it was given up");
    assert!(after.findings.iter().all(|finding| finding.kind == FindingKind::SnapshotDamaged), "{after:#?}");
    Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap().close().unwrap();
    let left = block_on(Store::snapshots(&open_read_only(&device)));
    assert!(left.len() == 2 && !left.contains(&snapshot), "{left:?}");
}
