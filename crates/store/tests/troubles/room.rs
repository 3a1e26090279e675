//! Room on a full image: for the checkpoint after failed ones, for deleting snapshots, for many
//! callers at once, and as reported by statfs.

use crate::troubles::support::{Unruly, background, bench, image, key, name, open, put, quiet, write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use syncline_device::block_on;
use syncline_store::{Admission, ChangeSize, Store, StoreError, StoreOptions, Transaction};

/// Makes a tree with many nodes.
fn with_tree(store: &Arc<Store>, items: u64) {
    let mut n = 0;
    while n < items {
        let _room = block_on(store.admit(Admission::Grow)).unwrap();
        let mut transaction = Transaction::new();
        for _ in 0..16 {
            transaction.put(key(1000 + n), vec![n as u8; 3000]);
            n += 1;
        }
        store.commit(transaction).unwrap();
    }
    block_on(store.checkpoint()).unwrap();
}

/// Writes data until at most `left` blocks are available.
fn fill(store: &Arc<Store>, left: u64) {
    let mut object = 50_000_000;
    loop {
        let available = store.available_data_blocks();
        if available <= left {
            break;
        }
        let want = (available - left).min(256);
        let Ok(mut room) = block_on(store.reserve(want)) else { break };
        while room.blocks() > 0 {
            let run = store.allocate(&mut room, want, None).unwrap();
            name(store, object, run, &write(store, run, 0));
            object += 1;
        }
    }
    block_on(store.checkpoint()).unwrap();
}

/// A full image, with some changes, spread over the tree, durable in the log.
fn full_with_changes() -> (Arc<Unruly>, Arc<Store>) {
    let (_spawn, device, store) = bench(quiet());
    with_tree(&store, 1600);
    fill(&store, 8);
    let mut op = store.last_op();
    for n in (0..1600).step_by(16) {
        let _room = block_on(store.admit(Admission::Shrink)).unwrap();
        op = put(&store, 1000 + n, vec![7; 3000]);
    }
    block_on(store.sync(op)).unwrap();
    (device, store)
}

/// Takes checkpoints until one succeeds; returns the result of the last one.
fn checkpoint_at_last(store: &Store) -> Result<(), StoreError> {
    let mut last = Ok(());
    for _ in 0..8 {
        last = block_on(store.checkpoint());
        if last.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    last
}

/// Everything is synced and nothing is pending; the device is repeatedly away when a checkpoint is
/// due.
#[test]
fn checkpoints_that_fail_leave_room_for_the_one_that_does_not() {
    let (device, store) = full_with_changes();
    device.gone.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        let failed = block_on(store.checkpoint());
        assert!(failed.is_err());
    }
    device.gone.store(false, Ordering::SeqCst);
    let last = checkpoint_at_last(&store);
    let mut transaction = Transaction::new();
    transaction.put(key(900), vec![7; 3000]);
    let synced = store.commit(transaction).map(|op| block_on(store.sync(op)));
    let closed = block_on(store.close());
    assert!(last.is_ok(), "the device is back: {last:?}, sync {synced:?}, close {closed:?}");
}

/// Like the test above, with a device that accepts writes but whose flushes fail for a while.
#[test]
fn checkpoints_whose_flush_fails_leave_room_for_the_one_that_does_not() {
    let (device, store) = full_with_changes();
    device.flush_fails.store(true, Ordering::SeqCst);
    let mut tries = 0;
    for _ in 0..10 {
        let failed = block_on(store.checkpoint());
        tries += 1;
        if matches!(failed, Err(StoreError::NoSpace)) {
            break;
        }
    }
    device.flush_fails.store(false, Ordering::SeqCst);
    let last = checkpoint_at_last(&store);
    // Somebody makes room.
    let removed = block_on(store.admit(Admission::Shrink)).map(drop);
    for n in 0..20 {
        let mut frees = Transaction::new();
        frees.delete(key(50_000_000 + n));
        store.commit(frees).unwrap();
    }
    let after = block_on(store.checkpoint());
    let mut large = Transaction::new();
    for n in 0..300 {
        large.put(key(900 + n), vec![7; 3000]);
    }
    let synced = store.commit(large).map(|op| block_on(store.sync(op)));
    let closed = block_on(store.close());
    assert!(
        last.is_ok(),
        "flushes work again after {tries} checkpoints that failed: {last:?}, unlink {removed:?}, then {after:?}, sync {synced:?}, close {closed:?}"
    );
}

/// Takes snapshots of a full image until there is no room for another: then one can still be
/// deleted, and the image can be mounted.
fn snapshots_of_a_full_image(mib: u64, touch: bool) {
    let spawn = background();
    let device = Unruly::new(image(mib, &spawn));
    let store = open(device.clone(), quiet(), &spawn);
    with_tree(&store, 640);
    fill(&store, 8);
    let (mut made, mut why) = (0, None);
    let mut refused = 0;
    for n in 0..1020_u64 {
        if touch {
            // Like a chmod; it may be refused.
            match block_on(store.admit(Admission::Shrink)) {
                Ok(_room) => {
                    put(&store, 1000 + n * 7 % 640, vec![n as u8; 3000]);
                }
                Err(_) => refused += 1,
            }
        }
        match block_on(store.create_snapshot(&format!("s{n}"), n)) {
            Ok(_) => made += 1,
            Err(error) => {
                why = Some(error.to_string());
                break;
            }
        }
    }
    let deleted = block_on(store.delete_snapshot("s0"));
    let closed = block_on(store.close());
    drop(store);
    let opened = block_on(Store::open(device.inner.snapshot(), StoreOptions::default(), spawn.clone()));
    let opened = opened.map(drop);
    assert!(
        deleted.is_ok() && opened.is_ok(),
        "after {made} snapshots ({refused} changes refused, then {why:?}): delete {deleted:?}, close {closed:?}, mount {opened:?}"
    );
}

#[test]
fn snapshots_of_a_full_image_leave_room_to_delete_one() {
    snapshots_of_a_full_image(16, false);
}

#[test]
fn snapshots_of_a_full_image_that_changes_leave_room_to_delete_one() {
    snapshots_of_a_full_image(16, true);
}

#[test]
fn the_same_on_64_mib() {
    snapshots_of_a_full_image(64, true);
}

/// Many callers request a little room during a checkpoint, and there is plenty if they go one after
/// the other.
#[test]
fn many_who_wait_for_one_checkpoint_are_not_refused_because_of_each_other() {
    let (_spawn, device, store) = bench(quiet());
    with_tree(&store, 8000);
    fill(&store, 3000);
    // Make the next request wait for a checkpoint.
    let mut n = 0;
    while store.is_roomy(0) {
        put(&store, 1000 + n * 16, vec![7; 3000]);
        n += 1;
    }
    device.flush_delay_ms.store(200, Ordering::SeqCst);
    let many: Vec<_> = (0..64)
        .map(|_| {
            let store = store.clone();
            std::thread::spawn(move || block_on(store.admit(Admission::Grow)).map(drop))
        })
        .collect();
    let answers: Vec<_> = many.into_iter().map(|one| one.join().unwrap()).collect();
    let refused = answers.iter().filter(|answer| matches!(answer, Err(StoreError::NoSpace))).count();
    device.flush_delay_ms.store(0, Ordering::SeqCst);
    let one_by_one = (0..64).filter(|_| block_on(store.admit(Admission::Grow)).is_ok()).count();
    assert!(
        refused == 0,
        "{refused} of 64 answered ENOSPC with {} MiB available; one after the other {one_by_one} of 64 pass",
        store.available_data_blocks() / 256
    );
}

/// A single reservation can get everything that statfs calls available, when contiguous blocks are
/// scarce.
#[test]
fn what_is_available_can_be_had_by_one() {
    let spawn = background();
    let device = Unruly::new(image(16, &spawn));
    let store = open(device.clone(), quiet(), &spawn);
    // Take all blocks one by one.
    let mut all = Vec::new();
    let mut object = 60_000_000;
    while let Ok(mut room) = block_on(store.reserve(1)) {
        let run = store.allocate(&mut room, 1, None).unwrap();
        name(&store, object, run, &write(&store, run, 1));
        all.push((object, run));
        object += 1;
    }
    block_on(store.checkpoint()).unwrap();
    all.sort_by_key(|(_, run)| run.start);
    let mut wrong = Vec::new();
    for (index, (object, run)) in all.iter().enumerate() {
        // Every third block stays in use, so with few exceptions no frame becomes free.
        if index % 3 == 0 && index % 200 > 8 {
            continue;
        }
        let mut frees = Transaction::new();
        frees.free(*run);
        frees.delete(key(*object));
        store.commit(frees).unwrap();
        if index % 50 == 0 {
            block_on(store.checkpoint()).unwrap();
            let available = store.available_data_blocks();
            let had = store.try_reserve(available).is_some();
            // The background may have taken a segment in between.
            let same = store.available_data_blocks() == available;
            if !had && same && available > 0 {
                wrong.push((available, (0..available).rev().find(|n| store.try_reserve(*n).is_some())));
            }
        }
    }
    assert!(wrong.is_empty(), "(statfs says, one can have): {wrong:?}");
}

/// Somebody waited in vain for a change that does not end. One that has begun since ends soon.
#[test]
fn a_change_that_began_later_is_waited_for() {
    const CHANGE: ChangeSize = ChangeSize { items: 2, bytes: 100_000 };
    let (_spawn, _device, store) = bench(quiet());
    fill(&store, 300);
    let _lasting = store.promise(CHANGE);
    let most = || (0..400).rev().find(|blocks| store.try_reserve(*blocks).is_some()).unwrap();
    // A checkpoint may yield some.
    let most = (0..10).map(|_| most()).find(|most| block_on(store.reserve(most + 1)).is_err()).unwrap();
    let later = store.promise(CHANGE);
    assert!(store.try_reserve(most).is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            drop(later);
        });
        block_on(store.reserve(most)).expect("there is room when it has ended");
    });
}

/// Changes of others do not end: a write, which may be in their way, fails soon, and many callers
/// do not each wait the full time for them.
#[test]
fn nobody_waits_long_for_those_who_do_not_end() {
    let (_spawn, _device, store) = bench(quiet());
    fill(&store, 300);
    let mut held = Vec::new();
    while store.is_roomy(0) {
        held.push(store.promise(ChangeSize::ORDINARY));
    }
    let started = Instant::now();
    let blocks = store.available_data_blocks() + 16;
    assert!(matches!(block_on(store.reserve(blocks)), Err(StoreError::NoSpace)));
    let first = started.elapsed();
    // The next caller does not wait again for the same changes.
    let again = Instant::now();
    (0..20).for_each(|_| assert!(matches!(block_on(store.reserve(blocks)), Err(StoreError::NoSpace))));
    let next = again.elapsed();
    let waiting = Instant::now();
    let many: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            std::thread::spawn(move || block_on(store.admit(Admission::Grow)).map(drop))
        })
        .collect();
    for one in many {
        assert!(matches!(one.join().unwrap(), Err(StoreError::NoSpace)));
    }
    // Each waits the full time, five seconds, beside the others.
    let full = waiting.elapsed();
    assert!(first < full && next < full, "{first:?}, {next:?}, {full:?}");
    assert!(full < Duration::from_secs(20), "{full:?}");
}
