//! A scrub beside programs that use the filesystem.

use crate::common::{empty, examine, extents, items, rot, spawn};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline::{Filesystem, FormatOptions, ImageOptions, format_device};
use syncline_check::{Finding, FindingKind, Scrub};
use syncline_device::{Device, DeviceExt, MemoryDevice, block_on};
use syncline_format::items::extent::Algorithm;
use syncline_format::{BLOCK_BYTES, Kind};
use syncline_store::read_superblocks;

const MIB: usize = 1 << 20;
/// A test that waits for so long has failed.
const LIMIT: Duration = Duration::from_secs(600);

/// The findings of a scrub without a rate.
fn scrub(fs: &Filesystem) -> Vec<Finding> {
    let scrub = Scrub::new(fs.engine().store(), spawn());
    assert!(scrub.start(0));
    let begun = Instant::now();
    while scrub.report().running {
        assert!(begun.elapsed() < LIMIT, "{:?}", scrub.report());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(scrub.report().finished);
    scrub.report().findings
}

/// The places of blocks whose newer contents are in the log: nobody reads the old contents there, and
/// the places are free once the newer contents have a place.
#[test]
fn damage_that_nobody_reads_is_no_finding() {
    let device = empty();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let file = fs.create_file("file").unwrap();
    file.write_all_at(&[1; 100 * BLOCK_BYTES], 0).unwrap();
    file.sync_all().unwrap();
    fs.sync().unwrap();
    file.write_all_at(&[2; BLOCK_BYTES], 5 * BLOCK_BYTES as u64).unwrap();
    file.sync_all().unwrap();
    let (store, ino) = (fs.engine().store(), fs.metadata("file").unwrap().ino());
    assert_eq!(items(store, ino, Kind::Unplaced).len(), 2, "block 5 is in the log");
    let first = extents(store, ino)[0].addr;
    for (block, is_read) in [(5, false), (6, true)] {
        let found = |findings: &[Finding]| -> Vec<_> {
            findings.iter().map(|finding| (finding.kind, finding.block, finding.text.clone())).collect()
        };
        let there = |findings: &[Finding], how: &str| {
            let found = found(findings);
            match is_read {
                false => assert_eq!(found, [], "{how}"),
                true => {
                    let [(FindingKind::DataDamaged, Some(at), text)] = &found[..] else {
                        panic!("{how}: {found:?}")
                    };
                    assert_eq!(*at, first + block);
                    assert!(text.starts_with(&format!("block {block} of the file")), "{how}: {text}");
                }
            }
        };
        rot(&device, first + block);
        let crashed = device.snapshot();
        there(&scrub(&fs), "a scrub of the mount");
        there(&examine(crashed.clone()).findings, "a check after a crash");
        let mounted = Filesystem::open_device(crashed, ImageOptions::default()).unwrap();
        there(&scrub(&mounted), "a scrub after a crash");
        let mut bytes = vec![0; BLOCK_BYTES];
        let read = mounted.open_file("file").unwrap().read_at(&mut bytes, block * BLOCK_BYTES as u64);
        assert_eq!(read.is_err(), is_read);
        assert!(is_read || bytes == [2; BLOCK_BYTES]);
        mounted.close().unwrap();
    }
    assert_eq!(items(store, ino, Kind::Unplaced).len(), 2, "it is still there");
}

/// A compressed unit is needed for its other blocks.
#[test]
fn damage_of_a_unit_of_which_a_block_is_in_the_log_is_found() {
    let device = empty();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let file = fs.create_file("file").unwrap();
    let (store, ino) = (fs.engine().store(), fs.metadata("file").unwrap().ino());
    block_on(fs.engine().set_compression(ino, Some(Algorithm::Lz4))).unwrap();
    file.write_all_at(&[1; 64 * BLOCK_BYTES], 0).unwrap();
    file.sync_all().unwrap();
    fs.sync().unwrap();
    let unit = extents(store, ino).into_iter().find(|extent| extent.packed.is_some()).unwrap();
    file.write_all_at(&[2; BLOCK_BYTES], unit.file_block * BLOCK_BYTES as u64).unwrap();
    file.sync_all().unwrap();
    assert_eq!(items(store, ino, Kind::Unplaced).len(), 2, "its first block is in the log");
    rot(&device, unit.addr);
    for findings in [scrub(&fs), examine(device.snapshot()).findings] {
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((finding.kind, finding.block), (FindingKind::DataDamaged, Some(unit.addr)));
    }
}

/// A mounted image mends damaged copies of its metadata, those of a snapshot too, and says how many.
#[test]
fn a_damaged_copy_of_metadata_is_mended() {
    let device = MemoryDevice::new(64 << 20);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    // A checkpoint that is due would mend the copies itself, or replace them.
    let options = ImageOptions::new().checkpoint_interval(Duration::from_secs(3600));
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    (0..2000).for_each(|index| fs.write(format!("file {index}"), [7; 3000]).unwrap());
    fs.create_snapshot("then").unwrap();
    (0..400).for_each(|index| fs.remove_file(format!("file {index}")).unwrap());
    fs.write("later", "not in the snapshot").unwrap();
    fs.sync().unwrap();
    let store = fs.engine().store();
    block_on(store.checkpoint()).unwrap();
    let (now, then) = (store.superblock(), block_on(store.snapshots()).remove(0));
    let pointers = [now.tree.node, now.space.page, now.snapshots, then.tree.node, then.space.page];
    for addr in pointers.iter().flat_map(|pointer| pointer.places()) {
        // Not the whole image: the background removes the contents of removed files, and logs that.
        let block = || block_on(device.read_at(addr * BLOCK_BYTES as u64, BLOCK_BYTES)).unwrap();
        let before = block();
        rot(&device, addr);
        let scrub = Scrub::new(store, spawn());
        assert!(scrub.start(0));
        let begun = Instant::now();
        while scrub.report().running {
            assert!(begun.elapsed() < LIMIT, "{:?}", scrub.report());
            std::thread::sleep(Duration::from_millis(1));
        }
        let report = scrub.report();
        assert_eq!((report.findings.len(), report.copies_mended), (0, 1), "block {addr}: {report:?}");
        assert!(block()[..] == before[..], "block {addr}");
    }
    assert_eq!(store.counters().checksum_errors, 0);
    assert!(store.counters().copies_mended >= 3);
    let store = store.clone();
    fs.close().unwrap();
    // A scrub that goes on after the unmount writes nothing: another process may have the image.
    let now = store.superblock();
    let copies = [now.tree.node.copy, now.space.page.copy, now.snapshots.copy];
    copies.iter().for_each(|copy| rot(&device, *copy));
    let before = device.image();
    let late = Scrub::new(&store, spawn());
    assert!(late.start(0));
    while late.report().running {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(device.image() == before && late.report().copies_mended == 0, "{:?}", late.report());
    copies.iter().for_each(|copy| rot(&device, *copy)); // flips the bits back
    // A mount for reading mends nothing, and its scrub names the copy.
    let any: Arc<dyn Device> = device.clone();
    rot(&device, block_on(read_superblocks(&any)).unwrap().superblock.tree.node.copy);
    let options = ImageOptions::read_only();
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let findings = scrub(&fs);
    // Each of many pieces reads the root again.
    assert!(findings.iter().all(|finding| finding.kind == FindingKind::CopyDamaged) && findings.len() == 1);
}

/// Otherwise freed blocks could not be reused, and a full filesystem would have no room, for as
/// long as a piece takes.
#[test]
fn a_scrub_that_waits_for_its_rate_keeps_nothing_from_being_used_anew() {
    let fs = Filesystem::in_memory(64 << 20).unwrap();
    fs.write("large", vec![1; 16 * MIB]).unwrap();
    fs.write("gone", vec![2; 4 * MIB]).unwrap();
    fs.sync().unwrap();
    let store = fs.engine().store();
    let scrub = Scrub::new(store, spawn());
    // The large file takes longer than anything here is waited for.
    assert!(scrub.start(MIB as u64 / 4));
    let waits = |what: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < LIMIT, "{:?}, {:?}", scrub.report(), store.space());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    waits(&|| scrub.report().data_blocks > 0);
    let before = store.space().free;
    fs.remove_file("gone").unwrap();
    waits(&|| {
        fs.write("small", b"something to write").unwrap();
        block_on(store.checkpoint()).unwrap();
        store.space().free > before + 900
    });
    assert!(scrub.report().running, "it is not through with the large file");
    scrub.cancel();
    waits(&|| !scrub.report().running);
}
