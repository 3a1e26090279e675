//! Room left on an image where snapshots keep everything that is replaced: enough to open it again
//! and then delete a snapshot.

use crate::troubles::support::{background, block, image, key, open, quiet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};
use syncline_device::{MemoryDevice, Spawn, block_on};
use syncline_format::BlockRun;
use syncline_format::snapshots::SNAPSHOTS_MAX;
use syncline_store::{GiveWay, Lab, Store, StoreError, StoreOptions, Transaction};

/// Items this far apart lie in different leaves.
const APART: u64 = 6;

/// Items of which only a few fit into a leaf, and snapshots that keep all of them.
fn items_in_snapshots(
    mib: u64,
    items: u64,
    snapshots: usize,
) -> (Arc<dyn Spawn>, Arc<MemoryDevice>, Arc<Store>) {
    let spawn = background();
    let memory = image(mib, &spawn);
    let store = open(memory.clone(), quiet(), &spawn);
    for first in (0..items).step_by(100) {
        let mut transaction = Transaction::new();
        (first..items.min(first + 100)).for_each(|n| transaction.put(key(1000 + n), vec![7; 3000]));
        store.commit(transaction).unwrap();
        block_on(store.checkpoint()).unwrap();
    }
    for n in 0..snapshots {
        block_on(store.create_snapshot(&n.to_string(), n as u64)).unwrap();
    }
    (spawn, memory, store)
}

/// Takes blocks for data until only about `free` are free.
fn fill_to(store: &Arc<Store>, free: u64) -> Vec<(u64, BlockRun)> {
    let (mut all, mut object) = (Vec::new(), 1_000_000);
    loop {
        let now = store.space().free;
        if now <= free + 20 {
            return all;
        }
        // There may be less room than ordinary writers may use.
        let mut room = store.reserve_again((now - free - 16).min(200));
        while room.blocks() > 0 {
            let run = store.allocate(&mut room, 200, None).unwrap();
            let data = store.write_data(run, (0..run.blocks).map(|_| block(0)).collect());
            let mut names = Transaction::new();
            names.name_data(&data, run);
            names.put(key(object), "x");
            store.commit(names).unwrap();
            all.push((object, run));
            object += 1;
        }
        block_on(store.checkpoint()).unwrap();
    }
}

/// Changes one item after the other, each in a leaf of its own, until there is no room for another
/// checkpoint; returns how many changes had room.
fn change_until_full(store: &Store, items: u64, first: u64) -> u64 {
    for n in (first..items).step_by(APART as usize) {
        let mut change = Transaction::new();
        change.put(key(1000 + n), vec![8; 3000]);
        store.commit(change).unwrap();
        match block_on(store.checkpoint()) {
            Ok(()) => {}
            Err(StoreError::NoSpace) => return n,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("there is room for all: {:?}", store.space());
}

/// Opens the image as after a crash, and deletes a snapshot.
fn opens_and_deletes(memory: &MemoryDevice, spawn: &Arc<dyn Spawn>) -> Result<(), String> {
    let opened = block_on(Store::open(memory.snapshot(), quiet(), spawn.clone()));
    let (store, _) = opened.map_err(|error| format!("open: {error}"))?;
    let free = store.space().free;
    block_on(store.delete_snapshot("0")).map_err(|error| format!("delete: {error}; {free} blocks were free"))
}

/// At opening, the log leaves enough room to delete a snapshot.
#[test]
fn the_log_of_the_next_mount_leaves_room_to_delete_a_snapshot() {
    let (spawn, memory, store) = items_in_snapshots(64, 2000, SNAPSHOTS_MAX);
    fill_to(&store, 700);
    // The log's last segments are short, and give nothing back when the log moves on.
    for n in 0.. {
        let mut change = Transaction::new();
        (0..16).for_each(|i| change.put(key(2_000_000 + n * 16 + i), vec![9; 3000]));
        let op = store.commit(change).unwrap();
        block_on(store.sync(op)).unwrap();
        if store.space().free <= 560 {
            break;
        }
    }
    change_until_full(&store, 2000, 0);
    assert_eq!(opens_and_deletes(&memory, &spawn), Ok(()));
    assert_eq!(block_on(store.delete_snapshot("0")).map_err(|error| error.to_string()), Ok(()));
}

/// With the maximum number of snapshots, the table without one of them takes room, too.
#[test]
fn there_is_room_to_delete_one_of_many_snapshots() {
    let (spawn, memory, store) = items_in_snapshots(16, 900, SNAPSHOTS_MAX);
    fill_to(&store, 330);
    change_until_full(&store, 900, 0);
    assert_eq!(opens_and_deletes(&memory, &spawn), Ok(()));
    assert_eq!(block_on(store.delete_snapshot("0")).map_err(|error| error.to_string()), Ok(()));
}

/// Blocks freed while a checkpoint is in progress are not free if the power fails after it.
#[test]
fn a_checkpoint_does_not_count_on_what_is_freed_behind_it() {
    let (spawn, memory, store) = items_in_snapshots(16, 900, SNAPSHOTS_MAX);
    let freed = fill_to(&store, 600).into_iter().max_by_key(|(_, run)| run.blocks).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    let (mut wrong, mut taken) = (Vec::new(), 0);
    for leaves in 30..90 {
        let image = memory.snapshot();
        let (armed, target) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Weak::<Store>::new())));
        let give_way = {
            let (armed, target) = (armed.clone(), target.clone());
            GiveWay::calling(move |place| {
                if place.file().ends_with("checkpoint/run.rs") && armed.swap(false, Ordering::SeqCst) {
                    let mut frees = Transaction::new();
                    frees.free(freed.1);
                    frees.delete(key(freed.0));
                    target.lock().unwrap().upgrade().unwrap().commit(frees).unwrap();
                }
            })
        };
        let store = open(image.clone(), StoreOptions { lab: Lab::giving_way(give_way), ..quiet() }, &spawn);
        *target.lock().unwrap() = Arc::downgrade(&store);
        let mut change = Transaction::new();
        (0..leaves).for_each(|n| change.put(key(1000 + n * APART), vec![8; 3000]));
        store.commit(change).unwrap();
        armed.store(true, Ordering::SeqCst);
        match block_on(store.checkpoint()) {
            Err(StoreError::NoSpace) => {}
            Err(error) => panic!("{error}"),
            Ok(()) => {
                taken += 1;
                let left = store.space().free;
                if let Err(error) = opens_and_deletes(&image, &spawn) {
                    wrong.push(format!("{leaves} leaves, {left} blocks left: {error}"));
                }
            }
        }
        assert!(!armed.load(Ordering::SeqCst), "something was freed meanwhile");
    }
    assert!(taken > 0 && wrong.is_empty(), "{taken} checkpoints; {wrong:#?}");
}
