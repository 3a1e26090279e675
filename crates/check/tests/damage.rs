//! Every kind of damage is planted and found.

mod common;

use common::{
    BadBlock, Inodes, edit_inode, edit_superblock, examine, expect, extents, items, plant, rot, sample, spawn,
};
use siphasher::sip::SipHasher24;
use std::sync::Arc;
use syncline::device::{Device, MemoryDevice, block_on};
use syncline::{Filesystem, ImageOptions};
use syncline_check::{FindingKind, Report};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::Extent;
use syncline_format::items::xattr::ChunkRef;
use syncline_format::items::{HASH_MAX, hash_offsets};
use syncline_format::superblock::LogStart;
use syncline_format::{BlockRun, Key, Kind};
use syncline_store::{Store, StoreOptions, read_superblocks};

const ROOT: u64 = 1;
const DIRECTORY: u8 = 0o04;

/// Where the entry of a name belongs.
fn place(store: &Store, name: &str) -> u64 {
    let hash = SipHasher24::new_with_key(&store.hash_seed()).hash(name.as_bytes());
    hash_offsets(hash % (HASH_MAX + 1)).0
}

fn entry(directory: u64, store: &Store, name: &str, ino: u64, file_type: u8) -> (Key, Vec<u8>) {
    let key = Key::new(directory, Kind::Dirent, place(store, name));
    (key, Dirent { ino, file_type, name: name.as_bytes() }.encode())
}

fn open_read_only(device: &Arc<MemoryDevice>) -> Arc<Store> {
    let options = StoreOptions { read_only: true, ..StoreOptions::default() };
    block_on(Store::open(device.clone(), options, spawn())).unwrap().0
}

/// Plants damage of one kind; the device to check is the same unless another is returned.
type Damage = fn(&Arc<MemoryDevice>, Inodes) -> Option<Arc<dyn Device>>;

const DAMAGES: &[(FindingKind, Damage)] = &[
    (FindingKind::SuperblockDamaged, |device, _| {
        rot(device, 16);
        None
    }),
    (FindingKind::SuperblockCounter, |device, _| {
        edit_superblock(device, |superblock| superblock.used_blocks += 1);
        None
    }),
    (FindingKind::LogDamaged, |device, _| {
        // Five acknowledged batches, of which the second rots.
        let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
        for index in 0..5 {
            fs.write("small", format!("{index}")).unwrap();
            fs.open_file("small").unwrap().sync_all().unwrap();
        }
        let crashed = device.snapshot();
        let any: Arc<dyn Device> = crashed.clone();
        let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
        let scan = syncline_log::scan(&any, superblock.geometry, superblock.epoch, superblock.log);
        let batches = block_on(scan).unwrap().batches;
        assert!(batches.len() >= 5);
        rot(&crashed, batches[1].addr);
        Some(crashed)
    }),
    (FindingKind::NodeDamaged, |device, _| {
        let nodes = block_on(open_read_only(device).walk_nodes()).nodes;
        rot(device, nodes[nodes.len() / 2].start);
        None
    }),
    (FindingKind::SpaceMapDamaged, |device, _| {
        rot(device, open_read_only(device).space_pages()[0].start);
        None
    }),
    (FindingKind::ItemMalformed, |device, inodes| {
        plant(device, |_, transaction| transaction.put(Key::new(inodes.small, Kind::Inode, 0), vec![1; 50]));
        None
    }),
    (FindingKind::LinkCount, |device, inodes| {
        edit_inode(device, inodes.linked, |inode| inode.nlink = 3);
        None
    }),
    (FindingKind::DanglingEntry, |device, inodes| {
        plant(device, |_, transaction| transaction.delete(Key::new(inodes.linked, Kind::Inode, 0)));
        None
    }),
    (FindingKind::EntryType, |device, inodes| {
        plant(device, |store, transaction| {
            let (key, value) = entry(ROOT, store, "small", inodes.small, DIRECTORY);
            transaction.put(key, value);
        });
        None
    }),
    (FindingKind::UnnamedInode, |device, _| {
        plant(device, |store, transaction| {
            transaction.delete(Key::new(ROOT, Kind::Dirent, place(store, "second")));
        });
        None
    }),
    (FindingKind::DirectoryParent, |device, inodes| {
        edit_inode(device, inodes.below, |inode| inode.parent = ROOT);
        None
    }),
    (FindingKind::DirectoryNames, |device, inodes| {
        plant(device, |store, transaction| {
            let (key, value) = entry(ROOT, store, "second name", inodes.below, DIRECTORY);
            transaction.put(key, value);
        });
        None
    }),
    (FindingKind::Unreachable, |device, inodes| {
        // The directory moves into the one below it.
        plant(device, |store, transaction| {
            transaction.delete(Key::new(ROOT, Kind::Dirent, place(store, "directory")));
            let (key, value) = entry(inodes.below, store, "directory", inodes.directory, DIRECTORY);
            transaction.put(key, value);
        });
        edit_inode(device, inodes.directory, |inode| inode.parent = inodes.below);
        None
    }),
    (FindingKind::DirectorySize, |device, inodes| {
        edit_inode(device, inodes.directory, |inode| inode.size += 1);
        None
    }),
    (FindingKind::NameHash, |device, _| {
        plant(device, |store, transaction| {
            let key = Key::new(ROOT, Kind::Dirent, place(store, "small"));
            let value = block_on(store.get(key)).unwrap().unwrap();
            transaction.delete(key);
            transaction.put(Key { offset: key.offset ^ (1 << 40), ..key }, value);
        });
        None
    }),
    (FindingKind::DuplicateName, |device, _| {
        plant(device, |store, transaction| {
            let key = Key::new(ROOT, Kind::Dirent, place(store, "small"));
            let value = block_on(store.get(key)).unwrap().unwrap();
            transaction.put(Key { offset: key.offset + 1, ..key }, value);
        });
        None
    }),
    (FindingKind::RootMissing, |device, _| {
        plant(device, |_, transaction| transaction.delete(Key::new(ROOT, Kind::Inode, 0)));
        None
    }),
    (FindingKind::OrphanMark, |device, inodes| {
        plant(device, |_, transaction| transaction.put(Key::new(0, Kind::Orphan, inodes.small), vec![]));
        None
    }),
    (FindingKind::ItemWithoutInode, |device, inodes| {
        plant(device, |_, transaction| transaction.delete(Key::new(inodes.large, Kind::Inode, 0)));
        None
    }),
    (FindingKind::ExtentOverlap, |device, inodes| {
        plant(device, |store, transaction| {
            let extent = &extents(store, inodes.large)[0];
            let middle = extent.slice(extent.file_block + 1, extent.end()).unwrap();
            transaction.put(Key::new(inodes.large, Kind::Extent, middle.file_block), middle.encode());
        });
        None
    }),
    (FindingKind::ExtentOutside, |device, inodes| {
        plant(device, |_, transaction| {
            let extent = Extent { file_block: 1000, addr: 3, checksums: vec![0] };
            transaction.put(Key::new(inodes.large, Kind::Extent, 1000), extent.encode());
        });
        None
    }),
    (FindingKind::BlockCount, |device, inodes| {
        edit_inode(device, inodes.large, |inode| inode.blocks += 8);
        None
    }),
    (FindingKind::DataDamaged, |device, inodes| {
        let addr = extents(&open_read_only(device), inodes.large)[0].addr;
        rot(device, addr + 2);
        None
    }),
    (FindingKind::DataUnreadable, |device, inodes| {
        let block = extents(&open_read_only(device), inodes.large)[0].addr + 1;
        Some(Arc::new(BadBlock { device: device.clone(), block }))
    }),
    (FindingKind::BlockUsedTwice, |device, inodes| {
        plant(device, |store, transaction| {
            let extent = &extents(store, inodes.large)[0];
            let shared = Extent { file_block: 320, ..extent.clone() };
            transaction.put(Key::new(inodes.second, Kind::Extent, 320), shared.encode());
        });
        None
    }),
    (FindingKind::BlockLeaked, |device, _| {
        plant(device, |store, transaction| {
            let mut reservation = block_on(store.reserve(4)).unwrap();
            let run = store.allocate(&mut reservation, 4, None).unwrap();
            let write = store.write_data(run, vec![vec![0; run.len_bytes() as usize].into()]);
            transaction.name_data(&write, run);
        });
        None
    }),
    (FindingKind::BlockUnnamed, |device, inodes| {
        plant(device, |store, transaction| transaction.free(extents(store, inodes.large)[0].run()));
        None
    }),
    (FindingKind::XattrCount, |device, inodes| {
        edit_inode(device, inodes.small, |inode| inode.xattr_items += 1);
        None
    }),
    (FindingKind::ChunkMissing, |device, inodes| {
        plant(device, |store, transaction| {
            let chunks = items(store, inodes.small, Kind::Chunk);
            transaction.delete(chunks[chunks.len() / 2].0);
        });
        None
    }),
    (FindingKind::ChunkUnowned, |device, inodes| {
        plant(device, |_, transaction| {
            let chunks = ChunkRef { id: 77, len_bytes: 0 };
            transaction.put(Key::new(inodes.long_link, Kind::Chunk, chunks.offset(0)), vec![1]);
        });
        None
    }),
    (FindingKind::ObjectCount, |device, _| {
        plant(device, |_, transaction| transaction.count_objects(1));
        None
    }),
    (FindingKind::ObjectNumber, |device, _| {
        plant(device, |_, transaction| transaction.put(Key::new(1_000_000, Kind::Chunk, 0), vec![1]));
        None
    }),
    (FindingKind::InodeContradiction, |device, inodes| {
        edit_inode(device, inodes.small, |inode| inode.flags |= 0x8000);
        None
    }),
    (FindingKind::LogOverlap, |device, inodes| {
        let addr = extents(&open_read_only(device), inodes.large)[0].addr;
        edit_superblock(device, |superblock| {
            let segment = BlockRun::new(addr, 16);
            superblock.log = LogStart { addr, segment, ..superblock.log };
        });
        None
    }),
];

fn damaged(kind: FindingKind) -> Report {
    let (_, damage) = DAMAGES.iter().find(|(damaged, _)| *damaged == kind).unwrap();
    let (device, inodes) = sample();
    let other = damage(&device, inodes);
    examine(other.unwrap_or(device))
}

#[test]
fn each_kind_of_damage_is_found() {
    for (kind, _) in DAMAGES {
        let report = damaged(*kind);
        expect(&report, *kind);
        for finding in &report.findings {
            assert!(finding.to_string().starts_with(finding.kind.id()));
        }
    }
}

#[test]
fn no_kind_goes_without_a_test() {
    let planted: Vec<_> = DAMAGES.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(planted, FindingKind::ALL);
}

/// These change one thing, and one thing is found.
#[test]
fn simple_damage_gives_one_finding() {
    for kind in [
        FindingKind::SuperblockDamaged,
        FindingKind::SuperblockCounter,
        FindingKind::LogDamaged,
        FindingKind::LinkCount,
        FindingKind::DirectoryParent,
        FindingKind::DirectorySize,
        FindingKind::BlockCount,
        FindingKind::DataDamaged,
        FindingKind::DataUnreadable,
        FindingKind::BlockLeaked,
        FindingKind::BlockUnnamed,
        FindingKind::ChunkMissing,
        FindingKind::ChunkUnowned,
        FindingKind::ObjectCount,
        FindingKind::InodeContradiction,
    ] {
        let findings = damaged(kind).findings;
        let kinds: Vec<_> = findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [kind], "{findings:#?}");
    }
}

#[test]
fn findings_name_the_place_and_become_json() {
    let (device, inodes) = sample();
    let addr = extents(&open_read_only(&device), inodes.large)[0].addr + 2;
    rot(&device, addr);
    let report = examine(device);
    let finding = &report.findings[0];
    assert_eq!((finding.object, finding.block), (Some(inodes.large), Some(addr)));
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["findings"][0]["id"], "SL0023");
    assert_eq!(json["findings"][0]["name"], "data-damaged");
    assert_eq!(json["findings"][0]["block"], addr);
}

#[test]
fn a_bad_node_hides_no_sound_file() {
    let (device, _) = sample();
    let nodes = block_on(open_read_only(&device).walk_nodes()).nodes;
    assert!(nodes.len() > 4, "the sample has several leaves");
    let whole = examine(device.snapshot()).inodes;
    for node in &nodes[1..] {
        let copy = device.snapshot();
        rot(&copy, node.start);
        let report = examine(copy);
        expect(&report, FindingKind::NodeDamaged);
        assert!(report.incomplete);
        assert!(report.inodes > 0 && report.inodes < whole, "{} of {whole}", report.inodes);
        assert!(
            report.findings.iter().all(|finding| finding.kind == FindingKind::NodeDamaged),
            "{:#?}",
            report.findings
        );
    }
}

#[test]
fn all_superblocks_lost_is_a_finding_and_no_image_is_an_error() {
    let (device, _) = sample();
    let blocks = device.size_bytes() / 4096;
    for block in [16, 32, blocks - 16, blocks - 8] {
        rot(&device, block);
    }
    let report = examine(device);
    assert_eq!(report.of(FindingKind::SuperblockDamaged).count(), 4);
    let foreign = MemoryDevice::new(common::SIZE);
    assert!(block_on(syncline_check::check(foreign, spawn(), &mut |_| {})).is_err());
}

/// Whatever is in an image, a check ends and does not panic.
#[test]
fn rot_anywhere_is_survived() {
    let (device, _) = sample();
    let store = open_read_only(&device);
    let mut blocks: Vec<u64> = vec![16, 32];
    blocks.extend(store.space_pages().iter().map(|run| run.start));
    blocks.extend(block_on(store.walk_nodes()).nodes.iter().map(|run| run.start));
    for block in blocks {
        for zeroed in [false, true] {
            let copy = device.snapshot();
            if zeroed {
                block_on(syncline::device::DeviceExt::write_at(
                    &*copy,
                    block * 4096,
                    vec![vec![0; 4096].into()],
                ))
                .unwrap();
            } else {
                rot(&copy, block);
            }
            // A copy of a superblock that is all zeros was never written, for all that can be told.
            assert!(!examine(copy).is_clean() || (zeroed && block <= 32), "block {block}");
        }
    }
}
