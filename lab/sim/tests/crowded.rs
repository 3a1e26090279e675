//! A full filesystem in use: names that become longer, copies that share, files created at once, a
//! snapshot that keeps everything.

use std::sync::Arc;
use syncline_device::{AlignedBuf, Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, RenameFlags, Timestamp};
use syncline_fs::{Filesystem, FsError, Options};
use syncline_store::{FormatOptions, Store, StoreError, StoreOptions, format};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

fn rig(mib: u64, node_bytes: u32) -> (Arc<dyn Spawn>, Arc<MemoryDevice>, Arc<Filesystem>) {
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let memory = MemoryDevice::new(mib << 20);
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
    let options = FormatOptions { node_bytes, hash_seed: [2; 16], ..FormatOptions::default() };
    block_on(format(memory.clone(), options, root, spawn.clone())).unwrap();
    let fs = open(memory.clone(), &spawn).unwrap();
    (spawn, memory, fs)
}

fn open(device: Arc<dyn Device>, spawn: &Arc<dyn Spawn>) -> Result<Arc<Filesystem>, String> {
    let (store, _) = block_on(Store::open(device, StoreOptions::default(), spawn.clone()))
        .map_err(|error| error.to_string())?;
    block_on(Filesystem::open(store, spawn.clone(), Options::default())).map_err(|error| error.to_string())
}

fn make(fs: &Filesystem, name: &str) -> Result<Ino, FsError> {
    let ino = block_on(fs.mknod(CALLER, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0))?.ino;
    Ok(ino)
}

fn write(fs: &Filesystem, ino: Ino, at: u64, len: usize) -> Result<(), FsError> {
    block_on(fs.write(ino, at, AlignedBuf::copy_from(&vec![5; len]).into_bytes(), false)).map(drop)
}

/// Short names become long ones on a full filesystem: each rename draws on the reserve.
fn renames(mib: u64, files: u64) {
    let (spawn, memory, fs) = rig(mib, 16384);
    for n in 0..files {
        let ino = make(&fs, &format!("{n}")).unwrap();
        fs.forget(ino, 1);
    }
    let filler = make(&fs, "filler").unwrap();
    let mut at = 0;
    for len in [1 << 20, 64 << 10, 4096] {
        while write(&fs, filler, at, len).is_ok() {
            at += len as u64;
        }
    }
    block_on(fs.syncfs()).unwrap();
    let mut wrong = Vec::new();
    let (mut done, mut refused) = (0, 0);
    for n in 0..files {
        let long = format!("{n:0>250}");
        match block_on(fs.rename(
            ROOT,
            format!("{n}").as_bytes(),
            ROOT,
            long.as_bytes(),
            RenameFlags::default(),
        )) {
            Ok(()) => done += 1,
            Err(FsError::Store(StoreError::NoSpace)) => refused += 1,
            Err(error) => wrong.push(format!("rename: {error}")),
        }
        if n % 500 == 499
            && let Err(error) = block_on(fs.fsync(filler, false))
        {
            wrong.push(format!("fsync after {n}: {error}; {:?}", fs.store().space()));
            break;
        }
    }
    println!("{done} renamed, {refused} refused; {:?}", fs.store().space());
    if !wrong.is_empty() {
        // Make room: the largest file is removed.
        let unlinked = block_on(fs.unlink(ROOT, b"filler")).map_err(|error| error.to_string());
        fs.forget(filler, 1);
        std::thread::sleep(std::time::Duration::from_secs(2));
        let synced: Vec<_> =
            (0..3).map(|_| block_on(fs.syncfs()).map_err(|error| error.to_string())).collect();
        wrong.push(format!(
            "then rm of the largest file: {unlinked:?}, syncs {synced:?}; {:?}",
            fs.store().space()
        ));
    }
    let closed = block_on(fs.close()).map_err(|error| error.to_string());
    let stored = block_on(fs.store().close()).map_err(|error| error.to_string());
    if closed.is_err() || stored.is_err() {
        wrong.push(format!("unmount: {closed:?}, {stored:?}"));
    }
    drop(fs);
    if let Err(error) = open(memory.snapshot(), &spawn) {
        wrong.push(format!("mount: {error}"));
    }
    assert!(wrong.is_empty(), "{done} renamed, {refused} refused: {wrong:#?}");
}

#[test]
fn renames_on_a_full_filesystem_leave_room_for_a_checkpoint() {
    renames(16, 5000);
}

#[test]
fn renames_on_a_full_filesystem_of_64_mib() {
    renames(64, 20_000);
}

/// A snapshot keeps everything that is replaced, so changes of names may use up the room needed to
/// name accepted data.
#[test]
fn data_that_was_accepted_can_be_synced_although_a_snapshot_keeps_everything() {
    let (spawn, memory, fs) = rig(64, 16384);
    for n in 0..8000 {
        let ino = make(&fs, &format!("{n:0>6}")).unwrap();
        fs.forget(ino, 1);
    }
    block_on(fs.syncfs()).unwrap();
    block_on(fs.create_snapshot("all")).unwrap();
    let filler = make(&fs, "filler").unwrap();
    let accepted = make(&fs, "accepted").unwrap();
    let mut at = 0;
    while fs.store().available_data_blocks() > 80 {
        for len in [1 << 20, 64 << 10, 4096] {
            while fs.store().available_data_blocks() > 60 + len as u64 / 4096
                && write(&fs, filler, at, len).is_ok()
            {
                at += len as u64;
            }
        }
        block_on(fs.fsync(filler, false)).unwrap();
        block_on(fs.store().checkpoint()).unwrap();
    }
    let some = fs.store().available_data_blocks() as usize / 2;
    assert!(some > 4, "{some} blocks");
    write(&fs, accepted, 0, some * 4096).unwrap();
    let (mut done, mut refused) = (0, 0);
    for n in (0..8000).step_by(20) {
        let (from, to) = (format!("{n:0>6}"), format!("r{n:0>5}"));
        match block_on(fs.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameFlags::default())) {
            Ok(()) => done += 1,
            Err(_) => refused += 1,
        }
    }
    let synced: Vec<_> =
        (0..3).map(|_| block_on(fs.fsync(accepted, false)).map_err(|error| error.to_string())).collect();
    let closed = block_on(fs.close()).map_err(|error| error.to_string());
    let stored = block_on(fs.store().close()).map_err(|error| error.to_string());
    drop(fs);
    let fs = open(memory.snapshot(), &spawn).unwrap();
    let size = block_on(fs.lookup(ROOT, b"accepted")).map(|found| found.size);
    assert!(
        synced[2].is_ok(),
        "{done} renamed, {refused} refused; fsync of accepted data {synced:?}, unmount {closed:?} {stored:?}, then it has {size:?} bytes"
    );
}

/// A memory device with slow flushes.
struct Slow(Arc<MemoryDevice>, std::sync::atomic::AtomicU64);

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
        let (inner, ms) = (self.0.clone(), self.1.load(std::sync::atomic::Ordering::SeqCst));
        if ms == 0 {
            return inner.flush(done);
        }
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(ms));
            inner.flush(done);
        });
    }
    fn discard(&self, offset: u64, len: u64, done: syncline_device::Completion<()>) {
        self.0.discard(offset, len, done);
    }
}

/// Many files are created at once during a checkpoint, with more than 10 MiB available.
#[test]
fn files_made_at_once_are_not_refused_because_of_each_other() {
    let (spawn, memory, fs) = rig(64, 16384);
    block_on(fs.close()).unwrap();
    block_on(fs.store().close()).unwrap();
    drop(fs);
    let device = Arc::new(Slow(memory.snapshot(), 0.into()));
    let fs = open(device.clone(), &spawn).unwrap();
    for n in 0..8000 {
        let ino = make(&fs, &format!("{n:0>6}")).unwrap();
        block_on(fs.setxattr(ino, b"user.x", &[7; 2900], syncline_fs::types::XattrMode::Set)).unwrap();
        fs.forget(ino, 1);
    }
    block_on(fs.syncfs()).unwrap();
    let filler = make(&fs, "filler").unwrap();
    let mut at = 0;
    while fs.store().available_data_blocks() > 2800 {
        write(&fs, filler, at, 256 << 10).unwrap();
        at += 256 << 10;
    }
    block_on(fs.syncfs()).unwrap();
    block_on(fs.store().checkpoint()).unwrap();
    let mut n = 0;
    while fs.store().is_roomy(0) && n < 8000 {
        let (from, to) = (format!("{n:0>6}"), format!("r{n:0>5}"));
        block_on(fs.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameFlags::default())).unwrap();
        n += 1;
    }
    device.1.store(300, std::sync::atomic::Ordering::SeqCst);
    let many: Vec<_> = (0..64)
        .map(|n| {
            let fs = fs.clone();
            std::thread::spawn(move || make(&fs, &format!("new {n}")))
        })
        .collect();
    let answers: Vec<_> = many.into_iter().map(|one| one.join().unwrap()).collect();
    device.1.store(0, std::sync::atomic::Ordering::SeqCst);
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    let later = (0..64).filter(|n| make(&fs, &format!("later {n}")).is_ok()).count();
    assert!(
        refused == 0,
        "{refused} of 64 creat(2) at once: ENOSPC; statfs: {} blocks; one by one {later} of 64 are made",
        fs.statfs().available
    );
}

/// Many copies that share, of a file with many extents, at once on a full image: each is admitted
/// before it waits for the file.
#[test]
fn copies_at_once_leave_room_for_a_checkpoint() {
    let (_spawn, _memory, fs) = rig(16, 16384);
    let source = make(&fs, "source").unwrap();
    for n in 0..1000 {
        write(&fs, source, n * 8192, 4096).unwrap();
    }
    block_on(fs.syncfs()).unwrap();
    let copies: Vec<Ino> = (0..160).map(|n| make(&fs, &format!("copy {n}")).unwrap()).collect();
    let filler = make(&fs, "filler").unwrap();
    let mut at = 0;
    for len in [256 << 10, 64 << 10, 4096] {
        while fs.store().available_data_blocks() > 400 && write(&fs, filler, at, len).is_ok() {
            at += len as u64;
        }
    }
    block_on(fs.syncfs()).unwrap();
    block_on(fs.store().checkpoint()).unwrap();
    let many: Vec<_> = copies
        .iter()
        .map(|ino| {
            let (fs, ino) = (fs.clone(), *ino);
            std::thread::spawn(move || block_on(fs.copy_range((source, 0), (ino, 0), 2000 * 4096, false)))
        })
        .collect();
    let answers: Vec<_> = many.into_iter().map(|one| one.join().unwrap()).collect();
    let made = answers.iter().filter(|answer| answer.is_ok()).count();
    let mut wrong = Vec::new();
    if let Err(error) = block_on(fs.syncfs()).and_then(|_| Ok(block_on(fs.store().checkpoint())?)) {
        let unlinked = block_on(fs.unlink(ROOT, b"filler")).is_ok();
        fs.forget(filler, 1);
        std::thread::sleep(std::time::Duration::from_secs(1));
        let later = block_on(fs.store().checkpoint()).map_err(|error| error.to_string());
        wrong.push(format!(
            "checkpoint: {error}; then rm {unlinked}, checkpoint {later:?}, {:?}",
            fs.store().space()
        ));
    }
    assert!(wrong.is_empty(), "{made} of 160 copied: {wrong:?}");
}
