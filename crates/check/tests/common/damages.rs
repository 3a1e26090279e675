//! Each kind of damage, planted in a sample image with right checksums.

use super::{BadBlock, Inodes, edit_inode, edit_superblock, extents, items, plant, rot, sample_of, spawn};
use siphasher::sip::SipHasher24;
use std::sync::Arc;
use syncline::{Filesystem, FormatOptions, ImageOptions, QuotaLimits};
use syncline_check::FindingKind;
use syncline_device::{AlignedBuf, Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::batch::BatchHeader;
use syncline_format::fork::{ForkRecord, RECORD_AT};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::Extent;
use syncline_format::items::parent::Parent;
use syncline_format::items::preallocation::{Preallocation, encode_sum};
use syncline_format::items::quota::Quota;
use syncline_format::items::shared::SharedRun;
use syncline_format::items::xattr::ChunkRef;
use syncline_format::items::{HASH_MAX, hash_offsets};
use syncline_format::superblock::{FEATURE_FORK, LogStart};
use syncline_format::{BlockRun, Key, Kind};
use syncline_store::{Snapshot, Store, StoreOptions, read_snapshots, read_superblocks};

pub const ROOT: u64 = 1;
pub const DIRECTORY: u8 = 0o04;

/// Where the entry of a name belongs.
pub fn place(store: &Store, name: &str) -> u64 {
    let hash = SipHasher24::new_with_key(&store.hash_seed()).hash(name.as_bytes());
    hash_offsets(hash % (HASH_MAX + 1)).0
}

pub fn entry(directory: u64, store: &Store, name: &str, ino: u64, file_type: u8) -> (Key, Vec<u8>) {
    let key = Key::new(directory, Kind::Dirent, place(store, name));
    (key, Dirent { ino, file_type, name: name.as_bytes() }.encode())
}

pub fn open_read_only(device: &Arc<MemoryDevice>) -> Arc<Store> {
    let options = StoreOptions { read_only: true, ..StoreOptions::default() };
    block_on(Store::open(device.clone(), options, spawn())).unwrap().0
}

/// Plants damage of one kind. The device to check is the same one, unless the function returns
/// another.
pub type Damage = fn(&Arc<MemoryDevice>, Inodes) -> Option<Arc<dyn Device>>;

pub const DAMAGES: &[(FindingKind, Damage)] = &[
    (FindingKind::SuperblockDamaged, |device, _| {
        rot(device, 16);
        None
    }),
    (FindingKind::SuperblockCounter, |device, _| {
        edit_superblock(device, |superblock| superblock.used_blocks += 1);
        None
    }),
    (FindingKind::LogDamaged, |device, _| {
        // Five acknowledged batches, the second of which rots.
        let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
        for index in 0..5 {
            fs.write("small", format!("{index}")).unwrap();
            fs.open_file("small").unwrap().sync_all().unwrap();
        }
        let crashed = device.snapshot();
        let batches = log(&crashed);
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
        // The directory moves into its own subdirectory.
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
            let extent = Extent::plain(1000, 3, vec![0]);
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
        Some(BadBlock::new(device.clone(), block))
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
    (FindingKind::ReferenceCount, |device, inodes| {
        plant(device, |store, transaction| {
            // Two extents share, and the count says three.
            let extent = Extent { shared: true, ..extents(store, inodes.large)[0].clone() };
            let copy = Extent { file_block: 320, ..extent.clone() };
            transaction.put(Key::new(inodes.large, Kind::Extent, extent.file_block), extent.encode());
            transaction.put(Key::new(inodes.second, Kind::Extent, 320), copy.encode());
            let counts = SharedRun { run: extent.run(), count: 3 };
            transaction.put(Key::new(0, Kind::Shared, extent.addr), counts.encode());
        });
        None
    }),
    (FindingKind::ParentMissing, |device, inodes| {
        edit_inode(device, inodes.small, |inode| inode.parents.clear());
        None
    }),
    (FindingKind::ParentDangling, |device, inodes| {
        let no_name = Parent { parent: inodes.directory, name: b"no such name" };
        edit_inode(device, inodes.small, |inode| inode.parents.push(no_name));
        None
    }),
    (FindingKind::ParentCount, |device, inodes| {
        edit_inode(device, inodes.small, |inode| inode.parent_items += 1);
        None
    }),
    (FindingKind::PreallocationOverlap, |device, inodes| {
        plant(device, |_, transaction| {
            let twice = Preallocation { file_block: 10, blocks: 1 };
            transaction.put(Key::new(inodes.second, Kind::Preallocation, 10), twice.encode());
        });
        None
    }),
    (FindingKind::PreallocationSum, |device, inodes| {
        plant(device, |_, transaction| {
            transaction.put(Key::new(0, Kind::Preallocation, inodes.large), encode_sum(5));
        });
        None
    }),
    (FindingKind::SnapshotTable, |device, _| {
        take_snapshot(device);
        rot(device, open_read_only(device).superblock().snapshots.addr);
        None
    }),
    (FindingKind::SnapshotDamaged, |device, inodes| {
        let addr = extents(&open_read_only(device), inodes.large)[0].addr;
        take_snapshot(device);
        // From here on only the snapshot has these blocks.
        let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
        fs.write("large", vec![9; 300_000]).unwrap();
        fs.close().unwrap();
        rot(device, addr);
        None
    }),
    (FindingKind::QuotaUsage, |device, _| {
        limit(device);
        edit_quota(device, |quota| quota.used_units += 1);
        None
    }),
    (FindingKind::QuotaRoot, |device, inodes| {
        limit(device);
        edit_quota(device, |quota| quota.root = inodes.small);
        None
    }),
    (FindingKind::UnplacedStray, |device, inodes| {
        plant(device, |_, transaction| {
            // The inode item does not mention it.
            transaction.put(Key::new(inodes.large, Kind::Unplaced, 2), vec![1]);
        });
        None
    }),
    (FindingKind::LogLead, |device, _| {
        // More acknowledged log than fits a segment.
        let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
        for _ in 0..25 {
            fs.set_xattr("small", "user.long", &[3; 60_000]).unwrap();
            fs.open_file("small").unwrap().sync_all().unwrap();
        }
        let crashed = device.snapshot();
        let leads = log(&crashed).into_iter().filter(|batch| batch.leads_on());
        let leads: Vec<u64> = leads.map(|batch| batch.addr).collect();
        rot(&crashed, leads[0]);
        Some(crashed)
    }),
    (FindingKind::ForkRecord, |device, _| {
        // Its blocks are here, as those of an image that was copied whole.
        let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
        fs.create_snapshot("monday").unwrap();
        fs.close().unwrap();
        let own: Arc<dyn Device> = device.clone();
        let snapshot = block_on(read_snapshots(&own)).unwrap().1.remove(0);
        let Snapshot { id, tree, space, .. } = snapshot;
        edit_superblock(device, |superblock| {
            superblock.features |= FEATURE_FORK;
            superblock.base = id;
        });
        for sequence in [1, 2] {
            let record = ForkRecord { sequence, fork_id: 1, hold: 1, tree, space, base: "/base.img".into() };
            let block = AlignedBuf::copy_from(&record.encode().unwrap()).into_bytes();
            block_on(device.write_at(BlockRun::new(record.place(), 1).offset_bytes(), vec![block])).unwrap();
        }
        rot(device, RECORD_AT[0]);
        None
    }),
    (FindingKind::CopyDamaged, |_, _| {
        let (device, _) = sample_of(&FormatOptions::default());
        let root = open_read_only(&device).superblock().tree.node;
        rot(&device, root.copy);
        Some(device)
    }),
];

/// The batches of the log.
fn log(device: &Arc<MemoryDevice>) -> Vec<BatchHeader> {
    let any: Arc<dyn Device> = device.clone();
    let superblock = block_on(read_superblocks(&any)).unwrap().superblock;
    let scan =
        syncline_log::scan(&any, superblock.geometry, superblock.epoch, superblock.log, superblock.clean);
    block_on(scan).unwrap().batches
}

/// Sets a quota on the sample's directory.
pub fn limit(device: &Arc<MemoryDevice>) {
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.set_quota("directory", QuotaLimits { bytes: 1 << 30, inodes: 0 }).unwrap();
    fs.close().unwrap();
}

pub fn edit_quota(device: &Arc<MemoryDevice>, edit: impl FnOnce(&mut Quota)) {
    plant(device, |store, transaction| {
        let (from, to) = (Key::new(0, Kind::Quota, 0), Key::new(0, Kind::Quota, u64::MAX));
        let chunk = block_on(store.scan(from, to, 2)).unwrap();
        let [(key, value)] = &chunk.items[..] else { panic!("there is one quota") };
        let mut quota = Quota::decode(value).unwrap();
        edit(&mut quota);
        transaction.put(*key, quota.encode());
    });
}

/// Makes a snapshot of the sample.
pub fn take_snapshot(device: &Arc<MemoryDevice>) {
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.create_snapshot("of the sample").unwrap();
    fs.close().unwrap();
}
