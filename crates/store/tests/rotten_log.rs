//! Rot of acknowledged log, where one segment leads to the next.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, Background, DeviceExt, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::{BlockAddr, BlockRun, Geometry, Key};
use syncline_store::{FormatOptions, RecoveryReport, Store, StoreError, StoreOptions, Transaction, format};

const SIZE: u64 = 64 << 20;
const SYNCS: u64 = 600;

fn spawn() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

fn key(n: u64) -> Key {
    Key { object: 100 + n, kind: 1, offset: 0 }
}

/// A store after a crash, with this many acknowledged syncs of one block, and the segments of its
/// log.
fn crashed(syncs: u64) -> (Arc<MemoryDevice>, Vec<BlockRun>) {
    let spawn = spawn();
    let device = MemoryDevice::new(SIZE);
    block_on(format(device.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    let store = block_on(Store::open(device.clone(), StoreOptions::default(), spawn.clone())).unwrap().0;
    for n in 0..syncs {
        let mut transaction = Transaction::new();
        transaction.put(key(n), "value".to_owned());
        let op = store.commit(transaction).unwrap();
        block_on(store.sync(op)).unwrap();
    }
    let crashed = device.snapshot();
    let salvaged = block_on(Store::open_to_salvage(crashed.clone(), spawn)).unwrap().1;
    (crashed, salvaged.segments)
}

/// Opens the image with these blocks zeroed; returns how many of the syncs are there, and the
/// report.
fn open(
    crashed: &MemoryDevice,
    rotten: Range<BlockAddr>,
    options: StoreOptions,
) -> Result<(u64, RecoveryReport), StoreError> {
    let device = crashed.snapshot();
    for addr in rotten {
        block_on(device.write_at(addr * 4096, vec![AlignedBuf::zeroed(4096).into_bytes()])).unwrap();
    }
    let (store, report) = block_on(Store::open(device, options, spawn()))?;
    let there = (0..SYNCS).filter(|n| block_on(store.get(key(*n))).unwrap().is_some()).count() as u64;
    Ok((there, report))
}

fn refusal(crashed: &MemoryDevice, rotten: Range<BlockAddr>) -> String {
    match open(crashed, rotten, StoreOptions::default()) {
        Ok((there, report)) => panic!("mounted with {there} of {SYNCS}: {report:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_batch_that_leads_to_the_next_segment_may_rot() {
    let (crashed, segments) = crashed(SYNCS);
    assert!(segments.len() >= 3);
    for segment in &segments[..segments.len() - 1] {
        // Behind the last sync of the segment there is room for a marker that was not written.
        let lead = segment.end() - 2;
        let (there, report) = open(&crashed, lead..lead + 1, StoreOptions::default()).unwrap();
        assert_eq!(there, SYNCS);
        assert!(report.notes.iter().any(|note| note.contains("its copy at block")), "{:?}", report.notes);
    }
}

#[test]
fn so_may_its_copy() {
    let (crashed, segments) = crashed(SYNCS);
    let (there, report) =
        open(&crashed, segments[0].start..segments[0].start + 1, StoreOptions::default()).unwrap();
    assert_eq!((there, report.notes), (SYNCS, vec![]));
}

#[test]
fn a_batch_in_the_middle_of_its_segment_is_missed() {
    let (crashed, segments) = crashed(SYNCS);
    let rotten = segments[1].start + 100;
    assert!(refusal(&crashed, rotten..rotten + 1).contains("the log is damaged"));
}

/// The proof of the loss lies in a segment that only the copy leads to.
#[test]
fn the_end_of_a_segment_is_missed_with_all_that_leads_on_from_it() {
    let (crashed, segments) = crashed(SYNCS);
    let rotten = segments[0].end() - 20..segments[0].end();
    assert!(refusal(&crashed, rotten.clone()).contains("the log is damaged"));
    let read_only = StoreOptions { read_only: true, ..StoreOptions::default() };
    let (there, report) = open(&crashed, rotten.clone(), read_only).unwrap();
    assert!(there < SYNCS && !report.notes.is_empty());
    let accepting = StoreOptions { accept_damaged_log: true, ..StoreOptions::default() };
    let (there, report) = open(&crashed, rotten, accepting).unwrap();
    assert!(there < SYNCS && !report.notes.is_empty());
}

/// Wherever in its segment the last batch lies, an idle store calls it durable in another block.
#[test]
fn the_last_batch_is_missed_wherever_it_lies() {
    let spawn = spawn();
    let small = || {
        let device = MemoryDevice::new(Geometry::MIN_BLOCKS * 4096);
        let options = FormatOptions::default();
        block_on(format(device.clone(), options, Transaction::new(), spawn.clone())).unwrap();
        device
    };
    for syncs in 56..64 {
        let device = small();
        let store = block_on(Store::open(device.clone(), StoreOptions::default(), spawn.clone())).unwrap().0;
        let segment = store.superblock().log.segment;
        for n in 0..syncs {
            let mut transaction = Transaction::new();
            transaction.put(key(n), "value".to_owned());
            let op = store.commit(transaction).unwrap();
            block_on(store.sync(op)).unwrap();
        }
        let begun = Instant::now();
        while store.counters().markers == 0 {
            assert!(begun.elapsed() < Duration::from_secs(600), "no marker after {syncs} syncs");
            std::thread::sleep(Duration::from_millis(10));
        }
        let crashed = device.snapshot();
        // The last used block of the first segment, or of the next one.
        let salvaged = block_on(Store::open_to_salvage(crashed.clone(), spawn.clone())).unwrap().1;
        let last = *salvaged.segments.last().unwrap();
        assert!(last == segment || salvaged.segments.len() == 2);
        for addr in salvaged.segments.iter().flat_map(|segment| segment.start..segment.end()) {
            if let Ok((there, report)) = open(&crashed, addr..addr + 1, StoreOptions::default()) {
                assert_eq!(there, syncs, "{report:?}");
            }
        }
    }
}
