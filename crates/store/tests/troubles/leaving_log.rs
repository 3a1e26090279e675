//! A log that the device does not take, met by others than the fsync that finds it first.

use crate::support::{Unruly, background, block, image, key, open};
use bytes::Bytes;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;
use syncline_device::{AlignedBuf, Completion, Device, block_on};
use syncline_format::BlockRun;
use syncline_store::{Relocate, Store, StoreError, StoreOptions, Transaction};

/// A disk without FUA: a write and the flush behind it are one request.
struct Through(Arc<Unruly>);

impl Device for Through {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.0.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.0.write(offset, bufs, done);
    }
    fn flush(&self, done: Completion<()>) {
        self.0.flush(done);
    }
    fn writes_through(&self) -> bool {
        true
    }
    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let device = self.0.clone();
        self.0.write(
            offset,
            bufs,
            Box::new(move |written| match written {
                Ok(()) => device.flush(done),
                Err(error) => done(Err(error)),
            }),
        );
    }
    fn discard(&self, offset: u64, len: u64, done: Completion<()>) {
        self.0.discard(offset, len, done);
    }
}

/// The fsync that meets the sector waits until the log was left, and succeeds.
fn sync_meets_a_bad_log(through: bool) {
    let spawn = background();
    let unruly = Unruly::new(image(64, &spawn));
    let device: Arc<dyn Device> = if through { Arc::new(Through(unruly.clone())) } else { unruly.clone() };
    let store = open(device, StoreOptions::default(), &spawn);
    // Write-back: the data has been written when it is named.
    let mut room = block_on(store.reserve(1)).unwrap();
    let run = store.allocate(&mut room, 1, None).unwrap();
    let data = store.write_data(run, vec![block(1)]);
    block_on(data.wait()).unwrap();
    let mut names = Transaction::new();
    names.name_data(&data, run);
    names.put(key(100), "names the block");
    let op = store.commit(names).unwrap();
    let segment = store.superblock().log.segment;
    unruly.bad.lock().replace(segment.offset_bytes()..segment.end() * 4096);
    let synced = block_on(store.sync(op));
    assert!(synced.is_ok(), "{synced:?}");
}

#[test]
fn a_sync_survives_a_bad_log_sector() {
    sync_meets_a_bad_log(false);
}

#[test]
fn a_sync_survives_a_bad_log_sector_on_a_disk_that_writes_through() {
    sync_meets_a_bad_log(true);
}

/// No room for a log segment (free space in pieces), and one sector of the data is bad.
#[test]
fn data_that_found_no_room_in_the_log_is_placed_anew_too() {
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    let options = StoreOptions {
        seal_bytes: 64 << 20,
        checkpoint_interval: Duration::from_secs(3600),
        patience: Duration::from_millis(500),
        ..StoreOptions::default()
    };
    let store = open(device.clone(), options, &spawn);
    struct Frees(Weak<Store>);
    impl Relocate for Frees {
        fn relocate(
            &self,
            run: BlockRun,
        ) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
            Box::pin(async move {
                let mut frees = Transaction::new();
                frees.free(run);
                frees.put(key(100), "lies elsewhere");
                self.0.upgrade().unwrap().commit(frees).map(drop)
            })
        }
    }
    store.set_relocation(Arc::new(Frees(Arc::downgrade(&store))));
    let mut room = block_on(store.reserve(1)).unwrap();
    let run = store.allocate(&mut room, 1, None).unwrap();
    device.bad.lock().replace(run.offset_bytes()..run.offset_bytes() + 4096);
    let data = store.write_data(run, vec![block(1)]);
    let mut names = Transaction::new();
    names.name_data(&data, run);
    // More than what is left of the segment of 256 blocks.
    for n in 0..400 {
        names.put(key(100 + n), vec![n as u8; 4000]);
    }
    let op = store.commit(names).unwrap();
    let mut errors = Vec::new();
    for _ in 0..8 {
        // One refusal when the batch is sealed, one in each of the two freezes.
        store.refuse_allocations(0, 3);
        match block_on(store.sync(op)) {
            Ok(()) => return,
            Err(error) => errors.push(error.to_string()),
        }
        store.refuse_allocations(0, 0);
        std::thread::sleep(Duration::from_millis(150));
    }
    panic!(
        "{errors:#?}; read-only: {:?}; logs left: {}",
        store.read_only_reason(),
        store.counters().logs_left
    );
}

/// Data of one file is placed anew; somebody else, who has nothing to do with it, needs the room that a checkpoint makes.
#[test]
fn a_writer_that_needs_room_is_not_told_of_the_sector_of_another() {
    struct Slowly {
        store: Weak<Store>,
        begun: Mutex<mpsc::Sender<()>>,
        go_on: Mutex<mpsc::Receiver<()>>,
    }
    impl Relocate for Slowly {
        fn relocate(
            &self,
            run: BlockRun,
        ) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
            Box::pin(async move {
                self.begun.lock().unwrap().send(()).unwrap();
                let _ = self.go_on.lock().unwrap().recv_timeout(Duration::from_secs(5));
                let mut frees = Transaction::new();
                frees.free(run);
                frees.put(key(100), "lies elsewhere");
                self.store.upgrade().unwrap().commit(frees).map(drop)
            })
        }
    }
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    let options = StoreOptions { checkpoint_interval: Duration::from_secs(3600), ..StoreOptions::default() };
    let store = open(device.clone(), options, &spawn);
    let ((begin, begun), (go, go_on)) = (mpsc::channel(), mpsc::channel());
    store.set_relocation(Arc::new(Slowly {
        store: Arc::downgrade(&store),
        begun: Mutex::new(begin),
        go_on: Mutex::new(go_on),
    }));
    // Blocks that are free after the next checkpoint.
    let mut room = block_on(store.reserve(4096)).unwrap();
    let large = store.allocate(&mut room, 4096, None).unwrap();
    let data = store.write_data(large, vec![AlignedBuf::zeroed(large.len_bytes() as usize).into_bytes()]);
    let mut names = Transaction::new();
    names.name_data(&data, large);
    names.put(key(99), "large");
    let op = store.commit(names).unwrap();
    block_on(store.sync(op)).unwrap();
    let mut frees = Transaction::new();
    frees.free(large);
    frees.put(key(99), "gone");
    store.commit(frees).unwrap();
    drop(room);
    // The sector.
    let mut room = block_on(store.reserve(1)).unwrap();
    let run = store.allocate(&mut room, 1, None).unwrap();
    device.bad.lock().replace(run.offset_bytes()..run.offset_bytes() + 4096);
    let data = store.write_data(run, vec![block(1)]);
    let mut names = Transaction::new();
    names.name_data(&data, run);
    names.put(key(100), "names the block");
    let op = store.commit(names).unwrap();
    let syncing = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.sync(op)))
    };
    begun.recv().unwrap();
    let wanted = store.available_data_blocks() - 64;
    let other = {
        let store = store.clone();
        std::thread::spawn(move || block_on(store.reserve(wanted)).map(drop))
    };
    std::thread::sleep(Duration::from_millis(500));
    go.send(()).unwrap();
    syncing.join().unwrap().unwrap();
    let other = other.join().unwrap();
    let later = block_on(store.reserve(wanted)).map(drop);
    assert!(later.is_ok(), "there is room for {wanted} blocks: {later:?}");
    assert!(other.is_ok(), "write(2) of another file: {other:?}; a moment later: {later:?}");
}

/// A snapshot is asked for while the log has a bad sector.
#[test]
fn a_snapshot_leaves_a_bad_log_too() {
    let spawn = background();
    let device = Unruly::new(image(64, &spawn));
    let store = open(device.clone(), StoreOptions::default(), &spawn);
    let mut transaction = Transaction::new();
    transaction.put(key(100), "value");
    store.commit(transaction).unwrap();
    let segment = store.superblock().log.segment;
    device.bad.lock().replace(segment.offset_bytes()..segment.end() * 4096);
    let made = block_on(store.create_snapshot("now", 1)).map(drop);
    let trimmed = block_on(store.trim(0..u64::MAX, 0)).map(drop);
    assert!(made.is_ok() && trimmed.is_ok(), "snapshot: {made:?}, trim: {trimmed:?}");
}
