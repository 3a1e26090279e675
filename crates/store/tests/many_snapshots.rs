//! Memory use and reads of an image with the maximum number of snapshots: anything that snapshots
//! share counts once, whatever the size of the image.
//!
//! It measures the whole process, so the test has one to itself. `SYNCLINE_SNAPSHOTS_TIB` makes the
//! image larger.

use crate::alone::is_alone;
use std::sync::Arc;
use std::time::Instant;
use syncline_device::{AlignedBuf, Background, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::Key;
use syncline_format::snapshots::SNAPSHOTS_MAX;
use syncline_store::{
    FormatOptions, PageReader, Store, StoreOptions, Transaction, first_kept_by_snapshots, format,
    read_superblocks, snapshot_usage,
};

/// No step may take more memory than this, beyond what is used before the image is opened. The
/// present map of 8 TiB alone takes some megabytes.
const ROOM_MIB: u64 = 64;

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// Resets the peak of memory use, so that the next measurement is the peak from now on.
fn forget_peak() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    rss_mib()
}

fn change(store: &Arc<Store>, round: u64) {
    let mut transaction = Transaction::new();
    transaction.put(Key { object: 100 + round % 50, kind: 1, offset: 0 }, format!("round {round}"));
    let (run, data) = {
        let mut reservation = store.try_reserve(1).unwrap();
        let run = store.allocate(&mut reservation, 1, None).unwrap();
        let mut contents = AlignedBuf::zeroed(4096);
        contents[..8].copy_from_slice(&round.to_le_bytes());
        (run, store.write_data(run, vec![contents.into_bytes()]))
    };
    transaction.name_data(&data, run);
    store.commit(transaction).unwrap();
}

#[test]
fn a_thousand_snapshots_of_a_huge_image_take_little_memory() {
    if !is_alone("many_snapshots::a_thousand_snapshots_of_a_huge_image_take_little_memory") {
        return;
    }
    let tib: u64 = std::env::var("SYNCLINE_SNAPSHOTS_TIB").map_or(8, |tib| tib.parse().unwrap());
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let device = MemoryDevice::new(tib << 40);
    block_on(format(device.clone(), FormatOptions::default(), Transaction::new(), spawn.clone())).unwrap();
    let open = || block_on(Store::open(device.clone(), StoreOptions::default(), spawn.clone())).unwrap().0;
    let store = open();
    let begun = Instant::now();
    for round in 0..SNAPSHOTS_MAX as u64 {
        change(&store, round);
        block_on(store.create_snapshot(&format!("{round}"), round)).unwrap();
    }
    println!("{SNAPSHOTS_MAX} snapshots of {tib} TiB made in {:?}", begun.elapsed());
    block_on(store.close()).unwrap();
    drop(store);

    let before = forget_peak();
    let measured = |what: &str, begun: Instant| {
        let most = rss_mib();
        println!("{what}: {:?}, {most} MiB at most, {before} MiB before", begun.elapsed());
        assert!(most < before + ROOM_MIB * tib.div_ceil(8), "{what} took {} MiB", most - before);
    };
    let begun = Instant::now();
    let plain: Arc<dyn syncline_device::Device> = device.clone();
    let usage = block_on(snapshot_usage(&plain)).unwrap();
    measured("list", begun);
    assert_eq!(usage.len(), SNAPSHOTS_MAX);
    // Each has the nodes and pages that name its one additional block; the last equals the present
    // state.
    let own: Vec<u64> = usage.iter().map(|usage| usage.exclusive_blocks).collect();
    assert!(own[..SNAPSHOTS_MAX - 1].iter().all(|own| (1..100).contains(own)), "{own:?}");

    let begun = Instant::now();
    let superblock = block_on(read_superblocks(&plain)).unwrap().superblock;
    let pages = PageReader::new(syncline_device::FlushTracker::new(plain));
    assert_eq!(
        block_on(first_kept_by_snapshots(&pages, &superblock, &[superblock.log.segment])).unwrap(),
        None
    );
    measured("check's look", begun);

    let begun = Instant::now();
    let store = open();
    measured("mount", begun);
    let begun = Instant::now();
    block_on(store.delete_snapshot("500")).unwrap();
    measured("delete", begun);
    assert_eq!(block_on(store.snapshots()).len(), SNAPSHOTS_MAX - 1);
    block_on(store.close()).unwrap();
}
