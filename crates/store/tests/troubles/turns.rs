//! Waits for room that others hold for a while: a wait ends when there is room, and does not end
//! early for nothing.

use crate::troubles::support::{background, block, image, key, open, quiet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline_device::block_on;
use syncline_store::{Admission, ChangeSize, Store, StoreOptions, Transaction};

/// Takes all blocks but `left`.
fn fill(store: &Arc<Store>, left: u64, first: u64) -> Vec<(u64, syncline_format::BlockRun)> {
    let (mut all, mut object) = (Vec::new(), first);
    loop {
        let available = store.available_data_blocks();
        if available <= left {
            return all;
        }
        let Ok(mut room) = block_on(store.reserve((available - left).min(64))) else { return all };
        while room.blocks() > 0 {
            let run = store.allocate(&mut room, 64, None).unwrap();
            let zeros = (0..run.blocks).map(|_| block(0)).collect();
            let data = store.write_data(run, zeros);
            let mut names = Transaction::new();
            names.name_data(&data, run);
            names.put(key(object), "x");
            all.push((object, run));
            object += 1;
            store.commit(names).unwrap();
        }
        block_on(store.checkpoint()).unwrap();
    }
}

/// Somebody holds much room for half a second, while others come and go all the time, or nobody
/// else does.
fn a_wait_for_one(others: usize) {
    let spawn = background();
    let store = open(image(16, &spawn), quiet(), &spawn);
    fill(&store, 400, 1000);
    assert!(block_on(store.admit(Admission::Grow)).is_ok());
    let large = store.promise(ChangeSize::with(0, 4 << 20));
    assert!(!store.is_roomy(0));
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..others)
        .map(|_| {
            let (store, stop) = (store.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    drop(store.promise(ChangeSize { items: 0, bytes: 0 }));
                    std::thread::sleep(Duration::from_micros(100));
                }
            })
        })
        .collect();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(large);
    });
    let admitted = block_on(store.admit(Admission::Grow)).map(drop);
    ends.join().unwrap();
    stop.store(true, Ordering::SeqCst);
    busy.into_iter().for_each(|one| one.join().unwrap());
    assert!(admitted.is_ok(), "{admitted:?}");
}

#[test]
fn room_that_one_has_is_waited_for() {
    a_wait_for_one(0);
}

#[test]
fn a_wait_for_one_does_not_end_because_many_others_do() {
    a_wait_for_one(2);
}

/// Like the tests above, for a caller that wants room for data.
#[test]
fn a_wait_for_room_for_data_does_not_end_because_many_others_do() {
    let spawn = background();
    let store = open(image(16, &spawn), quiet(), &spawn);
    fill(&store, 400, 1000);
    assert!(block_on(store.admit(Admission::Grow)).is_ok());
    let large = store.promise(ChangeSize::with(0, 4 << 20));
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let (store, stop) = (store.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                drop(store.promise(ChangeSize { items: 0, bytes: 0 }));
                std::thread::sleep(Duration::from_micros(100));
            }
        })
    };
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(large);
    });
    let reserved = block_on(store.reserve(10)).map(|room| room.blocks());
    ends.join().unwrap();
    stop.store(true, Ordering::SeqCst);
    busy.join().unwrap();
    assert!(reserved.is_ok(), "{reserved:?}");
}

/// A read that began before a file was removed keeps the file's blocks as long as it runs.
#[test]
fn room_that_a_reader_keeps_is_waited_for() {
    let spawn = background();
    let store = open(image(16, &spawn), quiet(), &spawn);
    let all = fill(&store, 0, 1000);
    assert!(block_on(store.reserve(300)).is_err());
    let pin = store.pin();
    let mut frees = Transaction::new();
    let mut blocks = 0;
    for (object, run) in all {
        if blocks < 600 {
            frees.free(run);
            frees.delete(key(object));
            blocks += run.blocks;
        }
    }
    store.commit(frees).unwrap();
    let reads = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(pin);
    });
    let reserved = block_on(store.reserve(300)).map(|room| room.blocks());
    reads.join().unwrap();
    assert!(reserved.is_ok(), "{blocks} blocks were freed: {reserved:?}; {:?}", store.space());
}

/// A change that waits for its turn and is given up lets the next one continue.
#[test]
fn a_turn_that_is_given_up_is_passed_on() {
    let spawn = background();
    let store = open(image(16, &spawn), quiet(), &spawn);
    fill(&store, 400, 1000);
    assert!(block_on(store.admit(Admission::Grow)).is_ok());
    let large = store.promise(ChangeSize::with(0, 4 << 20));
    let mut first = Box::pin(store.admit(Admission::Grow));
    let polled = block_on(futures_lite::future::poll_once(first.as_mut())).map(|done| done.map(drop));
    assert!(polled.is_none(), "{polled:?}, roomy {}", store.is_roomy(0));
    let mut second = Box::pin(store.admit(Admission::Grow));
    assert!(block_on(futures_lite::future::poll_once(second.as_mut())).is_none());
    drop(first);
    drop(large);
    assert!(block_on(second).is_ok());
    assert!(block_on(store.admit(Admission::Grow)).is_ok());
}

/// A filesystem that is full for a while is not broken: room can be made.
#[test]
fn syncs_that_find_no_room_do_not_turn_it_read_only() {
    let spawn = background();
    let options = StoreOptions { patience: Duration::from_millis(10), ..quiet() };
    let store = open(image(16, &spawn), options, &spawn);
    store.refuse_allocations(0, u64::MAX);
    let mut large = Transaction::new();
    (0..200).for_each(|n| large.put(key(1000 + n), vec![7; 3000]));
    let op = store.commit(large).unwrap();
    for _ in 0..5 {
        let synced = block_on(store.sync(op));
        assert!(matches!(synced, Err(syncline_store::StoreError::NoSpace)), "{synced:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    store.refuse_allocations(0, 0);
    let synced = block_on(store.sync(op));
    assert!(synced.is_ok(), "there is room again: {synced:?}; {:?}", store.read_only_reason());
}

/// A caller that does not wait for others gives no information about how long they take.
#[test]
fn one_that_does_not_wait_keeps_nobody_from_waiting() {
    let spawn = background();
    let store = open(image(16, &spawn), quiet(), &spawn);
    fill(&store, 400, 1000);
    let large = store.promise(ChangeSize::with(0, 4 << 20));
    assert!(block_on(store.admit_growth_now(ChangeSize::ORDINARY)).is_err());
    let waiting = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.admit(Admission::Grow)).map(drop))
    };
    std::thread::sleep(Duration::from_millis(500));
    drop(large);
    waiting.join().unwrap().unwrap();
}

/// Others hold room for as long as they like, but a checkpoint gives back more than is wanted.
#[test]
fn a_checkpoint_is_taken_before_anybody_waits_for_others() {
    let spawn = background();
    let store = open(image(16, &spawn), quiet(), &spawn);
    let all = fill(&store, 400, 1000);
    let large = store.promise(ChangeSize::with(0, 1 << 20));
    let mut frees = Transaction::new();
    let mut blocks = 0;
    for (object, run) in all {
        if blocks < 1500 {
            frees.free(run);
            frees.delete(key(object));
            blocks += run.blocks;
        }
    }
    store.commit(frees).unwrap();
    assert!(!store.is_roomy(0));
    let admitted = block_on(store.admit(Admission::Grow)).map(drop);
    drop(large);
    assert!(admitted.is_ok(), "{blocks} blocks were freed: {admitted:?}; {:?}", store.space());
}

/// Of many callers that wait in vain, none also waits through the waits of the others, although
/// others come and go all the time.
#[test]
fn who_waits_in_vain_does_so_beside_the_others() {
    let spawn = background();
    let store = open(image(16, &spawn), quiet(), &spawn);
    fill(&store, 400, 1000);
    assert!(block_on(store.admit(Admission::Grow)).is_ok());
    let large = || store.promise(ChangeSize::with(0, 4 << 20));
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let (mut held, stop, large) = (large(), &stop, &large);
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let next = large();
                drop(std::mem::replace(&mut held, next));
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let waiting: Vec<_> =
            (0..5).map(|_| scope.spawn(|| block_on(store.admit(Admission::Grow)).map(drop))).collect();
        for one in waiting {
            assert!(one.join().unwrap().is_err(), "there was no room at any time");
        }
        stop.store(true, Ordering::SeqCst);
    });
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "each waits five seconds, and all {took:?}");
}
