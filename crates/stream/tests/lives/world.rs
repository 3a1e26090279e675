//! A filesystem in memory, and a random life on it: every call that changes something that a stream
//! tells.

use crate::pairs::Pair;
use bytes::Bytes;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_format::items::inode::{FLAG_UNPLACED, InodeItem};
use syncline_format::{Key, Kind};
use syncline_fs::types::{
    Algorithm, Caller, FileFlags, FileType, Ino, ROOT, RenameFlags, SetAttributes, SetTime, Timestamp,
    XattrMode,
};
use syncline_fs::{Allocation, Filesystem, FsError, Options, QuotaLimits};
use syncline_store::{Canary, FormatOptions, Lab, Snapshot, Store, StoreOptions, Transaction, format};

pub const ROOT_USER: Caller = Caller { uid: 0, gid: 0 };
const NAMES: [&[u8]; 10] =
    [b"a", b"b", b"c", b"d", b"e", b".hidden", b"x y", "\u{e9}".as_bytes(), b"\xff\n", &[b'n'; 255]];

pub fn spawn() -> Arc<dyn Spawn> {
    Arc::new(Background::start(WorkerOptions::default()).unwrap())
}

/// An image that is open.
pub struct World {
    pub device: Arc<MemoryDevice>,
    pub spawn: Arc<dyn Spawn>,
    pub fs: Arc<Filesystem>,
    /// Inodes made so far; some are gone.
    inos: Vec<Ino>,
    dirs: Vec<Ino>,
    /// Files that are open, and may have no name.
    open: VecDeque<Ino>,
    /// Files that share their blocks.
    pub pairs: Vec<Pair>,
    canary: Option<Canary>,
}

impl World {
    pub fn new(spawn: &Arc<dyn Spawn>, size_bytes: u64, node_bytes: u32) -> Self {
        Self::born(spawn, size_bytes, node_bytes, 1)
    }

    /// The same, in which this rule is broken from now on.
    pub fn breaking(self, canary: Option<Canary>) -> Self {
        self.close();
        let (device, spawn) = (self.device.clone(), self.spawn.clone());
        Self::open_breaking(device, &spawn, canary)
    }

    /// A new one of this birth.
    pub fn born(spawn: &Arc<dyn Spawn>, size_bytes: u64, node_bytes: u32, seconds: i64) -> Self {
        let device = MemoryDevice::new(size_bytes);
        make(&device, spawn, node_bytes, seconds);
        Self::open(device, spawn)
    }

    pub fn open(device: Arc<MemoryDevice>, spawn: &Arc<dyn Spawn>) -> Self {
        Self::open_breaking(device, spawn, None)
    }

    fn open_breaking(device: Arc<MemoryDevice>, spawn: &Arc<dyn Spawn>, canary: Option<Canary>) -> Self {
        let (fs, spawn) = (open_breaking(device.clone(), spawn, canary), spawn.clone());
        let (inos, dirs, open, pairs) = (Vec::new(), vec![ROOT], VecDeque::new(), Vec::new());
        Self { device, spawn, fs, inos, dirs, open, pairs, canary }
    }

    /// Loses power a moment after some small writes were synced, which lie in the log then.
    pub fn crash(&mut self, rng: &mut ChaCha8Rng) {
        for _ in 0..rng.random_range(0..5) {
            let (ino, blocks) = self.any_or_shared(rng);
            let block = rng.random_range(0..blocks);
            let written = self.fs.write(ino, block * 4096, Bytes::from(vec![rng.random(); 100]), false);
            if block_on(written).is_ok() {
                block_on(self.fs.fsync(ino, false)).unwrap();
            }
        }
        let device = self.device.snapshot();
        self.close();
        let Self { device, fs, .. } = Self::open_breaking(device, &self.spawn, self.canary);
        (self.device, self.fs) = (device, fs);
        self.open.clear();
    }

    /// Leaves a file as a crash in the middle of a truncation does: with extents behind its end. The
    /// filesystem has just been opened, and has not looked at the file.
    pub fn cut_short(&self, ino: Ino, size: u64) {
        let key = Key::new(ino, Kind::Inode, 0);
        let value = block_on(self.fs.store().get(key)).unwrap().unwrap();
        let item = InodeItem { size, ..InodeItem::decode(&value).unwrap() };
        let mut transaction = Transaction::new();
        transaction.put(key, item.encode());
        self.fs.store().commit(transaction).unwrap();
    }

    /// Does so with some files after a crash.
    pub fn crash_in_truncations(&mut self, rng: &mut ChaCha8Rng) {
        self.crash(rng);
        for _ in 0..rng.random_range(1..6) {
            let (ino, _) = self.any_or_shared(rng);
            let value = block_on(self.fs.store().get(Key::new(ino, Kind::Inode, 0))).unwrap();
            let Some(value) = value else { continue };
            let item = InodeItem::decode(&value).unwrap();
            let blocks = item.size / 4096;
            let is_regular = FileType::from_number((item.mode >> 12) as u8) == Some(FileType::Regular);
            // Data in the log goes with the first transaction.
            if is_regular && blocks > 1 && item.data.is_none() && item.flags & FLAG_UNPLACED == 0 {
                self.cut_short(ino, rng.random_range(1..blocks) * 4096);
            }
        }
    }

    /// The same world on another device, opened again.
    pub fn moved_to(self, device: Arc<MemoryDevice>) -> Self {
        let Self { spawn, inos, dirs, pairs, canary, .. } = self;
        Self { inos, dirs, pairs, ..Self::open_breaking(device, &spawn, canary) }
    }

    pub fn close(&self) {
        block_on(self.fs.close()).unwrap();
        block_on(self.fs.store().close()).unwrap();
    }

    /// Opens a snapshot as somebody else would.
    pub fn snapshot(&self, name: &str) -> (Arc<Filesystem>, Snapshot) {
        open_snapshot(self.device.clone(), &self.spawn, name)
    }

    /// Makes this many random changes. Refused changes change nothing, and count as well.
    pub fn live(&mut self, rng: &mut ChaCha8Rng, steps: usize) {
        for _ in 0..steps {
            match block_on(self.step(rng)) {
                Ok(()) => {}
                Err(FsError::Store(error)) => panic!("{error}"),
                Err(_) => {}
            }
        }
    }

    fn any(&self, rng: &mut ChaCha8Rng) -> Ino {
        // Inodes made last more often than others.
        let count = self.inos.len();
        match count {
            _ if rng.random_ratio(1, 50) => ROOT,
            0 => ROOT,
            _ if rng.random_bool(0.5) => self.inos[count - 1 - rng.random_range(0..count.min(8))],
            _ => self.inos[rng.random_range(0..count)],
        }
    }

    /// A file, and blocks that it has or may have. One that shares its blocks more often than others.
    fn any_or_shared(&self, rng: &mut ChaCha8Rng) -> (Ino, u64) {
        match self.any_pair(rng) {
            Some(pair) if rng.random_bool(0.5) => (pair.inos[rng.random_range(0..2)], pair.blocks),
            _ => (self.any(rng), 40),
        }
    }

    fn dir(&self, rng: &mut ChaCha8Rng) -> Ino {
        self.dirs[rng.random_range(0..self.dirs.len())]
    }

    async fn step(&mut self, rng: &mut ChaCha8Rng) -> Result<(), FsError> {
        let fs = self.fs.clone();
        let (dir, name) = (self.dir(rng), NAMES[rng.random_range(0..NAMES.len())]);
        let caller = Caller { uid: rng.random_range(0..3) * 1000, gid: rng.random_range(0..3) * 100 };
        match rng.random_range(0..120) {
            100..106 => self.make_pair(rng).await?,
            106..120 => self.meddle_with_pair(rng).await?,
            0..14 => {
                let made = fs.mknod(caller, dir, name, FileType::Regular, 0o644, 0).await?;
                self.made(made.ino);
            }
            14..20 => {
                let made = fs.mkdir(caller, dir, name, 0o755).await?;
                self.dirs.push(made.ino);
                self.made(made.ino);
            }
            20..23 => {
                let length = [1, 30, 3000, 4095][rng.random_range(0..4)];
                let target = vec![b'a' + rng.random_range(0..26); length];
                let made = fs.symlink(caller, dir, name, &target).await?;
                self.made(made.ino);
            }
            23..26 => {
                let kinds = [FileType::Fifo, FileType::Socket, FileType::CharDevice, FileType::BlockDevice];
                let kind = kinds[rng.random_range(0..4)];
                let made = fs.mknod(caller, dir, name, kind, 0o600, rng.random_range(0..9999)).await?;
                self.made(made.ino);
            }
            26..31 => {
                fs.link(self.any(rng), dir, name).await?;
            }
            31..37 => {
                let (from, old) = (self.dir(rng), NAMES[rng.random_range(0..NAMES.len())]);
                let exchange = rng.random_bool(0.3);
                let flags = RenameFlags { exchange, ..RenameFlags::default() };
                fs.rename(from, old, dir, name, flags).await?;
            }
            37..41 => {
                if rng.random_bool(0.5) {
                    self.hold_open(dir, name).await?;
                }
                fs.unlink(dir, name).await?;
            }
            41..44 => fs.rmdir(dir, name).await?,
            44..62 => self.write(rng).await?,
            62..80 => self.change_contents(rng).await?,
            _ => self.change_attributes(rng).await?,
        }
        Ok(())
    }

    /// Keeps some inodes, with or without a name.
    pub async fn hold_open(&mut self, dir: Ino, name: &[u8]) -> Result<(), FsError> {
        let ino = self.fs.lookup(dir, name).await?.ino;
        let opened = self.fs.open_file(ino).await;
        self.fs.forget(ino, 1);
        opened?;
        self.open.push_back(ino);
        if self.open.len() > 6
            && let Some(first) = self.open.pop_front()
        {
            self.fs.release_file(first);
        }
        Ok(())
    }

    pub fn made(&mut self, ino: Ino) {
        self.fs.forget(ino, 1);
        self.inos.push(ino);
    }

    async fn write(&mut self, rng: &mut ChaCha8Rng) -> Result<(), FsError> {
        let ino = self.any(rng);
        let length = [1, 100, 4096, 5000, 40_000, 300_000][rng.random_range(0..6)];
        let offset = match rng.random_range(0..3) {
            0 => 0,
            1 => rng.random_range(0..64) * 4096,
            _ => rng.random_range(0..300_000),
        };
        let random = rng.random_bool(0.5);
        let seed: u8 = rng.random();
        let data: Vec<u8> = match random {
            true => (0..length).map(|_| rng.random()).collect(),
            false => (0..length).map(|at| seed.wrapping_add((at / 100) as u8)).collect(),
        };
        self.fs.write(ino, offset, Bytes::from(data), false).await?;
        match rng.random_range(0..4) {
            0 => self.fs.fsync(ino, true).await,
            _ => Ok(()),
        }
    }

    async fn change_contents(&mut self, rng: &mut ChaCha8Rng) -> Result<(), FsError> {
        let (fs, ino) = (self.fs.clone(), self.any(rng));
        let (offset, length) = (rng.random_range(0..100) * 4096, rng.random_range(1..40) * 4096);
        let keep_size = rng.random_bool(0.5);
        match rng.random_range(0..8) {
            0 => {
                let size = Some(rng.random_range(0..400_000));
                let changes = SetAttributes { size, ..SetAttributes::default() };
                fs.setattr(ROOT_USER, ino, changes).await?;
            }
            1 => fs.allocate(ino, Allocation::PunchHole, offset, length, false).await?,
            2 => fs.allocate(ino, Allocation::Preallocate { keep_size }, offset, length, false).await?,
            3 => fs.allocate(ino, Allocation::CollapseRange, offset, length, false).await?,
            4 => fs.allocate(ino, Allocation::InsertRange, offset, length, false).await?,
            _ => {
                let (to, at) = (self.any(rng), rng.random_range(0..60) * 4096);
                let whole = rng.random_bool(0.5);
                let (from, to, length) =
                    if whole { ((ino, 0), (to, 0), 1 << 30) } else { ((ino, offset), (to, at), length) };
                fs.copy_range(from, to, length, false).await?;
            }
        }
        Ok(())
    }

    async fn change_attributes(&mut self, rng: &mut ChaCha8Rng) -> Result<(), FsError> {
        let (fs, ino) = (self.fs.clone(), self.any(rng));
        match rng.random_range(0..8) {
            0..2 => {
                let moment = |rng: &mut ChaCha8Rng| {
                    let (seconds, nanoseconds) =
                        (rng.random_range(-9..2_000_000_000), rng.random_range(0..999_999_999));
                    Some(SetTime::To(Timestamp { seconds, nanoseconds }))
                };
                let changes = SetAttributes {
                    permissions: Some(rng.random_range(0..0o10000)),
                    uid: Some(rng.random_range(0..9)),
                    gid: Some(rng.random_range(0..9)),
                    atime: moment(rng),
                    mtime: moment(rng),
                    ..SetAttributes::default()
                };
                fs.setattr(ROOT_USER, ino, changes).await?;
            }
            2..4 => {
                let names = ["user.a", "user.b", "trusted.c", "security.capability", "user.long"];
                let name = names[rng.random_range(0..names.len())].as_bytes();
                if rng.random_bool(0.3) {
                    return fs.removexattr(ino, name).await;
                }
                let length = [0, 20, 300, 6000, 60_000][rng.random_range(0..5)];
                let value = vec![rng.random::<u8>(); length];
                fs.setxattr(ino, name, &value, XattrMode::Set).await?;
            }
            4 => {
                let name: &[u8] = match rng.random_bool(0.5) {
                    true => b"system.posix_acl_access",
                    false => b"system.posix_acl_default",
                };
                let value = acl(rng.random_range(0..8), rng.random_range(1..5000));
                fs.setxattr(ino, name, &value, XattrMode::Set).await?;
            }
            5 => {
                let (immutable, append_only) = (rng.random_bool(0.1), rng.random_bool(0.1));
                let compression = [None, Some(Algorithm::Lz4), Some(Algorithm::Zstd)][rng.random_range(0..3)];
                let (no_dump, no_access_time) = (rng.random_bool(0.5), rng.random_bool(0.5));
                let flags = FileFlags {
                    immutable,
                    append_only,
                    no_access_time,
                    no_dump,
                    compression,
                    ..FileFlags::default()
                };
                fs.set_file_flags(ino, flags).await?;
            }
            6 => {
                let dir = self.dir(rng);
                let limits = QuotaLimits { bytes: 1 << 40, inodes: rng.random_range(0..1 << 30) };
                match rng.random_bool(0.7) {
                    true => drop(fs.set_quota(dir, limits).await?),
                    false => fs.remove_quota(dir).await?,
                }
            }
            _ => fs.syncfs().await?,
        }
        Ok(())
    }
}

/// Makes a filesystem of this birth on a device.
pub fn make(device: &Arc<MemoryDevice>, spawn: &Arc<dyn Spawn>, node_bytes: u32, seconds: i64) {
    let options = FormatOptions { node_bytes, ..FormatOptions::default() };
    let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds, nanoseconds: 0 });
    block_on(format(device.clone(), options, root, spawn.clone())).unwrap();
}

/// Opens an image for writing.
pub fn open(device: Arc<dyn Device>, spawn: &Arc<dyn Spawn>) -> Arc<Filesystem> {
    open_breaking(device, spawn, None)
}

fn open_breaking(device: Arc<dyn Device>, spawn: &Arc<dyn Spawn>, canary: Option<Canary>) -> Arc<Filesystem> {
    // A small memtable, so that checkpoints come in the middle of everything.
    let lab = Lab::breaking(canary);
    let options = StoreOptions { memtable_bytes: 256 << 10, lab, ..StoreOptions::default() };
    let (store, _) = block_on(Store::open(device, options, spawn.clone())).unwrap();
    let options = Options { writeback_age: Duration::from_millis(20), ..Options::default() };
    block_on(Filesystem::open(store, spawn.clone(), options)).unwrap()
}

pub fn open_snapshot(
    device: Arc<dyn Device>,
    spawn: &Arc<dyn Spawn>,
    name: &str,
) -> (Arc<Filesystem>, Snapshot) {
    let (store, snapshot) =
        block_on(Store::open_snapshot(device, StoreOptions::default(), spawn.clone(), name)).unwrap();
    let fs = block_on(Filesystem::open(store, spawn.clone(), Options::default())).unwrap();
    (fs, snapshot)
}

/// An access control list that says more than a mode.
pub fn acl(permissions: u16, user: u32) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    let entries =
        [(1, 6, u32::MAX), (2, permissions, user), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&u16::to_le_bytes(tag));
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}
