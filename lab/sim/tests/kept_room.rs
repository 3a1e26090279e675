//! A full filesystem with large metadata: changes in memory never outgrow the room for their
//! checkpoint, and the image mounts after any crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use syncline_device::{AlignedBuf, Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, RenameFlags, Timestamp, XattrMode};
use syncline_fs::{Filesystem, FsError, Options};
use syncline_store::{FormatOptions, Metadata, Store, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const KINDS: [Metadata; 2] = [Metadata::Single, Metadata::Dup];

struct Rig {
    spawn: Arc<dyn Spawn>,
    memory: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    files: Vec<Ino>,
    filler: Ino,
}

fn open(device: Arc<dyn Device>, spawn: &Arc<dyn Spawn>) -> Result<Arc<Filesystem>, String> {
    let options = StoreOptions { checkpoint_interval: Duration::from_secs(3600), ..StoreOptions::default() };
    let (store, _) =
        block_on(Store::open(device, options, spawn.clone())).map_err(|error| error.to_string())?;
    let options = Options { writeback_age: Duration::from_secs(3600), ..Options::default() };
    block_on(Filesystem::open(store, spawn.clone(), options)).map_err(|error| error.to_string())
}

fn write(fs: &Filesystem, ino: Ino, at: u64, len: usize) -> Result<(), FsError> {
    block_on(fs.write(ino, at, AlignedBuf::copy_from(&vec![5; len]).into_bytes(), false)).map(drop)
}

impl Rig {
    /// Describes all errors at the end: after a crash, without the snapshot, and after an unmount.
    fn end(&self, wrong: &mut Vec<String>) {
        if let Err(error) = self.mount_after_crash() {
            wrong.push(format!("mount after a crash: {error}"));
        }
        if let Err(error) = self.delete_after_crash() {
            wrong.push(format!("delete of the snapshot after a crash: {error}"));
        }
        let deleted = block_on(self.fs.delete_snapshot("all")).map_err(|error| error.to_string());
        let closed = block_on(self.fs.close()).map_err(|error| error.to_string());
        let stored = block_on(self.fs.store().close()).map_err(|error| error.to_string());
        wrong.extend(
            (deleted.is_err() || closed.is_err() || stored.is_err())
                .then(|| format!("delete of the snapshot {deleted:?}, unmount {closed:?} {stored:?}")),
        );
        if let Err(error) = self.mount_after_crash() {
            wrong.push(format!("mount: {error}"));
        }
    }

    /// Creates this many files, each with so much in its inode item that few fit a node. The image
    /// has `mib` for each copy of the metadata.
    fn begin(metadata: Metadata, mib: u64, node_bytes: u32, files: u64, attribute: usize) -> Self {
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
        let memory = MemoryDevice::new((metadata.copies() * mib) << 20);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
        let options = FormatOptions { node_bytes, metadata, hash_seed: [2; 16], ..FormatOptions::default() };
        block_on(format(memory.clone(), options, root, spawn.clone())).unwrap();
        let fs = open(memory.clone(), &spawn).unwrap();
        let files = (0..files)
            .map(|n| {
                let name = format!("{n:0>6}");
                let ino = block_on(fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0))
                    .unwrap()
                    .ino;
                block_on(fs.setxattr(ino, b"user.x", &vec![7; attribute], XattrMode::Set)).unwrap();
                ino
            })
            .collect();
        let filler = block_on(fs.mknod(CALLER, ROOT, b"filler", FileType::Regular, 0o644, 0)).unwrap().ino;
        block_on(fs.syncfs()).unwrap();
        Self { spawn, memory, fs, files, filler }
    }

    /// Fills the image until this many blocks are left.
    fn fill(&self, left: u64) {
        let mut at = block_on(self.fs.getattr(self.filler)).unwrap().size;
        for _ in 0..3 {
            for len in [1 << 20, 64 << 10, 4096] {
                while self.fs.store().available_data_blocks() > left + len as u64 / 4096
                    && write(&self.fs, self.filler, at, len).is_ok()
                {
                    at += len as u64;
                }
            }
            block_on(self.fs.fsync(self.filler, false)).unwrap();
            block_on(self.fs.store().checkpoint()).unwrap();
        }
    }

    fn tell(&self, what: &str) {
        let store = self.fs.store();
        println!(
            "{what}: {:?}, tree {} nodes, available {}",
            store.space(),
            store.superblock().tree_nodes,
            store.available_data_blocks()
        );
    }

    /// Deletes the snapshot in a mount after a crash now.
    fn delete_after_crash(&self) -> Result<(), String> {
        let fs = open(self.memory.snapshot(), &self.spawn)?;
        block_on(fs.delete_snapshot("all")).map_err(|error| error.to_string())
    }

    /// The result of a mount after a crash now.
    fn mount_after_crash(&self) -> Result<(), String> {
        let fs = open(self.memory.snapshot(), &self.spawn)?;
        block_on(fs.close()).map_err(|error| format!("close: {error}"))?;
        block_on(fs.store().close()).map_err(|error| format!("close of the store: {error}"))
    }
}

/// Small writes to files, each in a leaf of its own that a snapshot keeps.
fn small_writes(metadata: Metadata, node_bytes: u32, step: usize, files: u64, attribute: usize, len: usize) {
    let rig = Rig::begin(metadata, 64, node_bytes, files, attribute);
    rig.tell("made");
    block_on(rig.fs.create_snapshot("all")).unwrap();
    rig.fill(400);
    rig.tell("filled");
    let mut accepted = Vec::new();
    for ino in rig.files.iter().step_by(step) {
        match write(&rig.fs, *ino, 0, len) {
            Ok(()) => accepted.push(*ino),
            Err(_) => break,
        }
    }
    rig.tell("accepted");
    let mut wrong = Vec::new();
    let mut synced = 0;
    for ino in &accepted {
        match block_on(rig.fs.fsync(*ino, false)) {
            Ok(()) => synced += 1,
            Err(error) => {
                wrong.push(format!("fsync after {synced} of {}: {error}", accepted.len()));
                break;
            }
        }
        if synced % 8 == 0
            && let Err(error) = rig.mount_after_crash()
        {
            wrong.push(format!("mount after {synced} syncs: {error}"));
            break;
        }
    }
    rig.tell("synced");
    rig.end(&mut wrong);
    assert!(wrong.is_empty(), "{synced} of {} synced; {wrong:#?}", accepted.len());
}

#[test]
fn small_writes_beside_a_snapshot_are_synced() {
    for metadata in KINDS {
        small_writes(metadata, 16384, 6, 6000, 2900, 100);
    }
}

#[test]
fn blocks_beside_a_snapshot_are_synced() {
    for metadata in KINDS {
        small_writes(metadata, 16384, 6, 6000, 2900, 4096);
    }
}

/// Files are written while there is no snapshot, and one is made before they are synced, as beside
/// a snapshot's own write-back.
fn written_before_the_snapshot(metadata: Metadata, len: usize) {
    let rig = Rig::begin(metadata, 64, 16384, 6000, 2900);
    rig.fill(400);
    let files = rig.files.iter().step_by(6).copied();
    let accepted: Vec<_> = files.take_while(|ino| write(&rig.fs, *ino, 0, len).is_ok()).collect();
    rig.tell("accepted");
    let made = block_on(rig.fs.store().create_snapshot("all", 1)).map(drop);
    rig.tell("after the snapshot");
    let mut wrong = Vec::new();
    let mut synced = 0;
    for ino in &accepted {
        match block_on(rig.fs.fsync(*ino, false)) {
            Ok(()) => synced += 1,
            Err(error) => {
                wrong.push(format!("fsync after {synced} of {}: {error}", accepted.len()));
                break;
            }
        }
    }
    rig.tell("synced");
    if made.is_err() {
        block_on(rig.fs.create_snapshot("all")).unwrap();
    }
    rig.end(&mut wrong);
    assert!(wrong.is_empty(), "the snapshot {made:?}, {synced} of {} synced; {wrong:#?}", accepted.len());
}

#[test]
fn small_writes_before_a_snapshot_are_synced() {
    for metadata in KINDS {
        written_before_the_snapshot(metadata, 100);
    }
}

#[test]
fn blocks_before_a_snapshot_are_synced() {
    for metadata in KINDS {
        written_before_the_snapshot(metadata, 4096);
    }
}

/// Reads every file.
fn reads(metadata: Metadata, each: usize) {
    let rig = Rig::begin(metadata, 64, 16384, 6000, 2900);
    for ino in &rig.files {
        write(&rig.fs, *ino, 0, 10).unwrap();
    }
    block_on(rig.fs.syncfs()).unwrap();
    block_on(rig.fs.create_snapshot("all")).unwrap();
    rig.fill(8);
    rig.tell("filled");
    let mut wrong = Vec::new();
    let mut read = 0;
    for some in rig.files.chunks(each) {
        for ino in some {
            block_on(rig.fs.read(*ino, 0, 10)).unwrap();
            read += 1;
        }
        if let Err(error) = block_on(rig.fs.syncfs()) {
            wrong.push(format!("syncfs after {read} were read: {error}"));
            break;
        }
    }
    rig.tell("read");
    rig.end(&mut wrong);
    assert!(wrong.is_empty(), "{read} read; {wrong:#?}");
}

#[test]
fn to_read_everything_takes_no_room_that_others_need() {
    for metadata in KINDS {
        reads(metadata, 6000);
    }
}

#[test]
fn to_read_everything_bit_by_bit_leaves_an_image_that_mounts() {
    for metadata in KINDS {
        reads(metadata, 10);
    }
}

#[test]
fn a_sync_of_many_files_leaves_room_for_the_checkpoint() {
    KINDS.into_iter().for_each(sync_many);
}

/// One sync of many files, each in a large node of its own.
fn sync_many(metadata: Metadata) {
    let rig = Rig::begin(metadata, 16, 65536, 1000, 3500);
    rig.fill(100);
    let mut accepted = Vec::new();
    for ino in rig.files.iter().step_by(1000 / 64) {
        if write(&rig.fs, *ino, 0, 4096).is_ok() {
            accepted.push(*ino);
        }
    }
    let mut wrong = Vec::new();
    // A single transaction for all of them may be too large.
    let synced = block_on(rig.fs.sync_many(&accepted, 0)).map_err(|error| error.to_string());
    rig.tell("synced");
    if let Err(error) = rig.mount_after_crash() {
        wrong.push(format!("mount after a crash: {error}"));
    }
    if let Err(error) = block_on(rig.fs.store().checkpoint()) {
        wrong.push(format!("checkpoint: {error}"));
    }
    for ino in &accepted {
        if let Err(error) = block_on(rig.fs.fsync(*ino, false)) {
            wrong.push(format!("fsync: {error}"));
            break;
        }
    }
    assert!(wrong.is_empty(), "{} accepted, sync of all {synced:?}: {wrong:#?}", accepted.len());
}

/// A memory device whose flushes can be made slow.
struct Slow(Arc<MemoryDevice>, AtomicBool);

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: syncline_device::Completion<AlignedBuf>) {
        self.0.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<bytes::Bytes>, done: syncline_device::Completion<()>) {
        self.0.write(offset, bufs, done);
    }
    fn flush(&self, done: syncline_device::Completion<()>) {
        if self.1.load(Ordering::SeqCst) {
            let inner = self.0.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                inner.flush(done);
            });
            return;
        }
        self.0.flush(done);
    }
    fn discard(&self, offset: u64, len: u64, done: syncline_device::Completion<()>) {
        self.0.discard(offset, len, done);
    }
}

#[test]
fn renames_at_once_are_not_refused_because_of_each_other() {
    KINDS.into_iter().for_each(rename_at_once);
}

/// Many renames at once, each admitted before it waits for the directory.
fn rename_at_once(metadata: Metadata) {
    let rig = Rig::begin(metadata, 64, 16384, 6000, 2900);
    block_on(rig.fs.close()).unwrap();
    block_on(rig.fs.store().close()).unwrap();
    let device = Arc::new(Slow(rig.memory.clone(), false.into()));
    let fs = open(device.clone(), &rig.spawn).unwrap();
    let rig = Rig { fs, ..rig };
    rig.fill(1500);
    rig.tell("filled");
    device.1.store(true, Ordering::SeqCst);
    let answers: Vec<_> = (0..200)
        .map(|n| {
            let fs = rig.fs.clone();
            std::thread::spawn(move || {
                let (from, to) = (format!("{:0>6}", n * 29), format!("r{n:0>5}"));
                block_on(fs.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameFlags::default()))
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|one| one.join().unwrap())
        .collect();
    device.1.store(false, Ordering::SeqCst);
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    rig.tell("renamed");
    assert!(refused == 0, "{refused} of {} renames were refused", answers.len());
}
