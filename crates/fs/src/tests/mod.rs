//! The filesystem over a store on a memory device.

mod access;
mod acl;
mod attributes;
mod histories;
mod model;
mod names;
mod orphans;
mod parents;
mod rename;
mod threads;
mod xattrs;

use crate::names::hash::NameHasher;
use crate::types::{Attributes, Caller, FileType, Ino, ROOT, RenameFlags, Timestamp};
use crate::{AccessTime, Filesystem, FsError, ManualClock, Options};
use std::sync::Arc;
use syncline_device::{Background, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_store::{Ablation, Ablations, FormatOptions, Lab, Store, StoreOptions, format};

pub(super) const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const SIZE: u64 = 64 << 20;

/// A mounted filesystem, with everything that is needed to mount it again.
pub(super) struct Mount {
    pub fs: Arc<Filesystem>,
    pub device: Arc<MemoryDevice>,
    pub clock: Arc<ManualClock>,
    spawn: Arc<dyn Spawn>,
    setup: Setup,
}

/// The settings of a test.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub size_bytes: u64,
    pub node_bytes: u32,
    /// Number of different name hashes, if limited.
    pub hashes: Option<u64>,
    pub cached_inodes_max: usize,
    pub parent_pointers: bool,
    /// Mechanisms that are switched off.
    pub ablations: Ablations,
    pub access_time: AccessTime,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            size_bytes: SIZE,
            node_bytes: 16384,
            hashes: None,
            cached_inodes_max: 65536,
            parent_pointers: true,
            ablations: Ablations::default(),
            access_time: AccessTime::default(),
        }
    }
}

impl Mount {
    pub(super) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(super) fn with(setup: Setup) -> Self {
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
        let device = MemoryDevice::new(setup.size_bytes);
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp { seconds: 1, nanoseconds: 0 });
        let options = FormatOptions {
            node_bytes: setup.node_bytes,
            hash_seed: [7; 16],
            parent_pointers: setup.parent_pointers,
            ..Default::default()
        };
        block_on(format(device.clone(), options, root, spawn.clone())).unwrap();
        Self::open(device, Arc::new(ManualClock::at(10_000_000_000)), spawn, setup)
    }

    fn open(device: Arc<MemoryDevice>, clock: Arc<ManualClock>, spawn: Arc<dyn Spawn>, setup: Setup) -> Self {
        let store_options =
            StoreOptions { lab: Lab::without(setup.ablations.iter()), ..StoreOptions::default() };
        let opened = Store::open(device.clone(), store_options, spawn.clone());
        let (store, _) = block_on(opened).unwrap();
        let seed = store.hash_seed();
        let hasher = match setup.hashes {
            Some(bound) => NameHasher::colliding(&seed, bound),
            None => NameHasher::new(&seed),
        };
        let options = Options {
            clock: clock.clone(),
            cached_inodes_max: setup.cached_inodes_max,
            access_time: setup.access_time,
            ..Options::default()
        };
        let fs = block_on(Filesystem::open_with(store, spawn.clone(), options, hasher)).unwrap();
        Self { fs, device, clock, spawn, setup }
    }

    /// Unmounts and mounts again.
    pub(super) fn reopen(self) -> Self {
        block_on(self.fs.close()).unwrap();
        block_on(self.fs.store().close()).unwrap();
        Self::open(self.device, self.clock, self.spawn, self.setup)
    }

    /// Unmounts, and mounts again without these mechanisms.
    pub(super) fn ablated(mut self, without: &[Ablation]) -> Self {
        self.setup.ablations = without.iter().copied().collect();
        self.reopen()
    }

    /// Mounts the state that a crash now would leave if everything ever written were on the device.
    pub(super) fn crash(self) -> Self {
        Self::open(self.device.snapshot(), self.clock, self.spawn, self.setup)
    }

    /// The same, beside the filesystem that goes on.
    pub(super) fn snapshot(&self) -> Self {
        Self::open(self.device.snapshot(), self.clock.clone(), self.spawn.clone(), self.setup)
    }

    /// Makes everything durable.
    pub(super) fn sync(&self) {
        block_on(self.fs.store().sync(self.fs.store().last_op())).unwrap();
    }

    /// Advances the clock.
    pub(super) fn tick(&self) -> Timestamp {
        self.clock.advance(1_000_000_000);
        self.fs.now()
    }

    pub(super) fn create(&self, parent: Ino, name: &str) -> Ino {
        self.try_create(parent, name).unwrap().ino
    }

    pub(super) fn try_create(&self, parent: Ino, name: &str) -> Result<Attributes, FsError> {
        block_on(self.fs.mknod(CALLER, parent, name.as_bytes(), FileType::Regular, 0o644, 0))
    }

    pub(super) fn mkdir(&self, parent: Ino, name: &str) -> Ino {
        block_on(self.fs.mkdir(CALLER, parent, name.as_bytes(), 0o755)).unwrap().ino
    }

    /// Looks up a name, and gives the reference back.
    pub(super) fn lookup(&self, parent: Ino, name: &str) -> Result<Attributes, FsError> {
        let attributes = block_on(self.fs.lookup(parent, name.as_bytes()))?;
        self.fs.forget(attributes.ino, 1);
        Ok(attributes)
    }

    pub(super) fn getattr(&self, ino: Ino) -> Attributes {
        block_on(self.fs.getattr(ino)).unwrap()
    }

    pub(super) fn rename(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<(), FsError> {
        self.rename_with(from, to, RenameFlags::default())
    }

    pub(super) fn rename_with(
        &self,
        from: (Ino, &str),
        to: (Ino, &str),
        flags: RenameFlags,
    ) -> Result<(), FsError> {
        block_on(self.fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags))
    }

    /// Names in a directory without "." and "..", in the order of their bytes; read in small
    /// pieces.
    pub(super) fn names(&self, ino: Ino) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let entries = block_on(self.fs.readdir(ino, cookie, 7)).unwrap();
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            names.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    /// Waits until no removal of orphans is pending.
    pub(super) fn settle(&self) {
        let begun = std::time::Instant::now();
        while !self.fs.orphans_settled() {
            assert!(begun.elapsed().as_secs() < 120, "orphans are still being removed");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// The errno of a failure.
pub(super) fn errno<T: std::fmt::Debug>(result: Result<T, FsError>) -> i32 {
    result.expect_err("it should have failed").errno()
}

#[test]
fn an_empty_filesystem_has_a_root() {
    let mount = Mount::new();
    let root = mount.getattr(ROOT);
    assert_eq!((root.file_type, root.nlink, root.size), (FileType::Directory, 2, 0));
    assert!(mount.names(ROOT).is_empty());
    let statfs = mount.fs.statfs();
    assert_eq!((statfs.blocks, statfs.objects), (SIZE / 4096, 1));
    assert!(statfs.free <= statfs.blocks && statfs.available < statfs.free && statfs.available > 0);
}
