//! Unreadable blocks of the log: a block that nobody needs does not make the image unusable.

use crate::troubles::support::{Unruly, background, block, image, key, open, put};
use std::sync::Arc;
use syncline_device::{DeviceExt, MemoryDevice, Spawn, block_on};
use syncline_format::batch::BatchHeader;
use syncline_store::{Store, StoreOptions, Transaction};

/// The errors of opening an image with this block lost, read-only and with `accept_damaged_log`.
fn refusals(crashed: &MemoryDevice, lost: u64, spawn: &Arc<dyn Spawn>) -> Vec<(bool, String)> {
    let opened = [true, false].into_iter().map(|read_only| {
        let device = Unruly::new(crashed.snapshot());
        device.lose(lost);
        let options = StoreOptions { read_only, accept_damaged_log: !read_only, ..StoreOptions::default() };
        Some((read_only, block_on(Store::open(device, options, spawn.clone())).err()?.to_string()))
    });
    opened.flatten().collect()
}

/// In an image that was unmounted, a sector goes bad to which no batch was ever written.
#[test]
fn a_clean_image_with_a_bad_sector_in_free_log_can_be_read() {
    let spawn = background();
    let device = image(64, &spawn);
    let store = open(device.clone(), StoreOptions::default(), &spawn);
    put(&store, 100, "value");
    block_on(store.close()).unwrap();
    assert!(store.superblock().clean);
    let last = store.superblock().log.segment.end() - 1;
    drop(store);
    let refused = refusals(&device, last, &spawn);
    assert!(refused.is_empty(), "(read-only, why): {refused:?}");
}

/// A log sector can't be read or written any more, and the power fails before the log has been
/// left.
#[test]
fn a_crash_while_a_bad_log_is_left_can_be_mounted() {
    let spawn = background();
    let device = image(64, &spawn);
    let store = open(device.clone(), StoreOptions::default(), &spawn);
    let op = put(&store, 100, "value");
    block_on(store.sync(op)).unwrap();
    let bad = store.superblock().log.addr + 1;
    // The next batch should have gone there, but did not.
    let crashed = device.snapshot();
    drop(store);
    let refused = refusals(&crashed, bad, &spawn);
    assert!(refused.is_empty(), "(read-only, why): {refused:?}");
}

/// The lead can't be read; its copy can.
#[test]
fn the_copy_of_a_lead_that_cant_be_read_counts() {
    let spawn = background();
    let device = image(64, &spawn);
    let store = open(device.clone(), StoreOptions::default(), &spawn);
    let mut last = 0;
    for n in 0..80 {
        let mut transaction = Transaction::new();
        (0..6).for_each(|m| transaction.put(key(100 + n * 6 + m), vec![n as u8; 3000]));
        last = 100 + n * 6;
        let op = store.commit(transaction).unwrap();
        block_on(store.sync(op)).unwrap();
    }
    let log = store.superblock().log;
    let geometry = store.geometry();
    let crashed = device.snapshot();
    drop(store);
    let lead = (log.addr..log.segment.end()).find(|addr| {
        let block = block_on(crashed.read_at(addr * 4096, 4096)).unwrap();
        BatchHeader::decode(&block, geometry)
            .is_ok_and(|(header, _)| header.leads_on() && header.addr == *addr)
    });
    let lead = lead.expect("the log went on in another segment");
    let mut wrong = Vec::new();
    for (name, rotten, read_only, accept) in [
        ("rotten", true, false, false),
        ("unreadable", false, false, false),
        ("unreadable, read-only", false, true, false),
        ("unreadable, accept-damaged-log", false, false, true),
    ] {
        let device = Unruly::new(crashed.snapshot());
        match rotten {
            true => block_on(device.write_at(lead * 4096, vec![block(0)])).unwrap(),
            false => device.lose(lead),
        }
        let options = StoreOptions { read_only, accept_damaged_log: accept, ..StoreOptions::default() };
        match block_on(Store::open(device, options, spawn.clone())) {
            Err(error) => wrong.push(format!("{name}: {error}")),
            Ok((store, report)) => {
                if block_on(store.get(key(last))).unwrap().is_none() {
                    wrong.push(format!(
                        "{name}: what was synced last is gone; {} batches, {:?}",
                        report.batches, report.notes
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
