//! Pages of space maps that are lost, whether the filesystem's own or those of snapshots, come back where they were.

use crate::common::damages::open_read_only;
use crate::common::survey::{assert_kept, survey};
use crate::common::{examine, leaf_of, rot, spawn};
use std::sync::Arc;
use syncline::device::{DeviceExt, MemoryDevice, block_on};
use syncline::{Filesystem, FormatOptions, ImageOptions, format_device};
use syncline_check::{Condition, Repair, RepairOptions, repair};
use syncline_format::space::{MAGIC, claimed_page};
use syncline_format::{BLOCK_BYTES, BlockAddr};
use syncline_store::Store;

/// Snapshots between which little changes, so that their maps share most pages with each other and with the filesystem's own.
fn sample(size_bytes: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(size_bytes);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
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

/// Blocks that are, or were once, pages of a map; their levels.
fn pages(device: &Arc<MemoryDevice>) -> Vec<(BlockAddr, u8)> {
    let blocks = (1 << 30).min(syncline::device::Device::size_bytes(&**device)) / BLOCK_BYTES as u64;
    let looks = |addr: &BlockAddr| block(device, *addr)[..MAGIC.len()] == MAGIC;
    let level = |addr| claimed_page(&block(device, addr), addr).map(|(id, _)| (addr, id.level));
    (0..blocks).filter(looks).filter_map(level).collect()
}

fn each_page_comes_back(size_bytes: u64, levels: u8) {
    let sound = sample(size_bytes);
    let before = survey(&sound);
    let mut mended = vec![0; usize::from(levels)];
    for (addr, level) in pages(&sound) {
        let rotten = sound.snapshot();
        rot(&rotten, addr);
        if examine(rotten.clone()).is_clean() {
            // Of an earlier map.
            continue;
        }
        let done = mend(&rotten, false);
        assert_eq!(done.condition(), Condition::Repaired, "page {addr}, level {level}: {:?}", done.refused);
        assert_eq!(block(&rotten, addr), block(&sound, addr));
        assert_kept(&before, &survey(&rotten), "a page of a space map");
        Filesystem::open_device(rotten.clone(), ImageOptions::default()).unwrap().close().unwrap();
        mended[usize::from(level)] += 1;
    }
    assert!(mended.iter().all(|&pages| pages >= 3), "{mended:?} pages of each level");
}

#[test]
fn a_map_of_one_page_comes_back() {
    each_page_comes_back(64 << 20, 1);
}

#[test]
fn pages_of_two_levels_come_back() {
    each_page_comes_back(600 << 20, 2);
}

#[test]
fn pages_of_three_levels_come_back() {
    each_page_comes_back(64 << 30, 3);
}

/// What a snapshot keeps is not known if its map and a leaf of its tree are lost.
#[test]
fn a_map_whose_tree_is_torn_does_not_come_back() {
    let device = sample(64 << 20);
    let snapshot = block_on(Store::snapshots(&open_read_only(&device))).remove(0);
    rot(&device, snapshot.space.page.addr);
    rot(&device, leaf_of(&device, snapshot.tree));
    let before = device.image();
    let done = mend(&device, true);
    assert!(done.refused.is_some() && device.image() == before, "{:?}", done.condition());
}
