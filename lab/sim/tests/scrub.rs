//! A scrub of a filesystem with snapshots reads blocks that only they have, and reads shared blocks
//! once.

use std::sync::Arc;
use std::time::Duration;
use syncline_check::{FindingKind, Scrub, ScrubReport};
use syncline_device::{AlignedBuf, BLOCK_BYTES, DeviceExt, MemoryDevice, Spawn, block_on};
use syncline_fs::types::{Caller, FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Filesystem, FsError, Options};
use syncline_sim::{Simulation, block_of};
use syncline_store::{FormatOptions, Store, StoreOptions};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// Blocks in each version of the file.
const BLOCKS: u64 = 40;

struct World {
    device: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    spawn: Arc<dyn Spawn>,
}

impl World {
    async fn new(device: Arc<MemoryDevice>, spawn: Arc<dyn Spawn>) -> Result<Self, FsError> {
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp::default());
        let format = FormatOptions { node_bytes: 4096, ..FormatOptions::default() };
        syncline_store::format(device.clone(), format, root, spawn.clone()).await?;
        let (store, _) = Store::open(device.clone(), StoreOptions::default(), spawn.clone()).await?;
        let fs = Filesystem::open(store, spawn.clone(), Options::default()).await?;
        Ok(Self { device, fs, spawn })
    }

    async fn write(&self, ino: Ino, tag: u64) -> Result<(), FsError> {
        let data: Vec<u8> = (0..BLOCKS).flat_map(|index| block_of(tag, index)).collect();
        self.fs.write(ino, 0, AlignedBuf::copy_from(&data).into_bytes(), false).await?;
        self.fs.syncfs().await
    }

    /// Flips a bit of the block with these contents; returns its address.
    fn flip(&self, contents: &[u8]) -> u64 {
        let image = self.device.image();
        let block = image.chunks(BLOCK_BYTES).position(|block| block == contents);
        let block = block.expect("it was synced") as u64;
        let mut damaged = AlignedBuf::copy_from(contents);
        damaged[1000] ^= 4;
        let at = block * BLOCK_BYTES as u64;
        block_on(self.device.write_at(at, vec![damaged.into_bytes()])).expect("memory does not fail");
        block
    }

    async fn scrub(&self) -> ScrubReport {
        let scrub = Scrub::new(self.fs.store(), self.spawn.clone());
        assert!(scrub.start(0));
        loop {
            self.spawn.sleep(Duration::from_millis(1)).await;
            let report = scrub.report();
            if !report.running {
                assert!(report.finished);
                return report;
            }
        }
    }
}

/// A file whose first version is in one snapshot, the second in another; the current contents are
/// the third version in the first half.
fn scrubbed(damage: impl FnOnce(&World) -> u64 + Send + 'static) -> (ScrubReport, u64) {
    let simulation = Simulation::new(1);
    let (device, spawn) = (MemoryDevice::new(16 << 20), simulation.spawner());
    let scrubbing = async move {
        let world = World::new(device, spawn).await?;
        let ino = world.fs.mknod(CALLER, ROOT, b"file", FileType::Regular, 0o644, 0).await?.ino;
        world.write(ino, 1).await?;
        world.fs.create_snapshot("first").await?;
        world.write(ino, 2).await?;
        world.fs.create_snapshot("second").await?;
        let half: Vec<u8> = (0..BLOCKS / 2).flat_map(|index| block_of(3, index)).collect();
        world.fs.write(ino, 0, AlignedBuf::copy_from(&half).into_bytes(), false).await?;
        world.fs.syncfs().await?;
        let block = damage(&world);
        Ok::<_, FsError>((world.scrub().await, block))
    };
    simulation.run(scrubbing).expect("nothing stalls").expect("there is room")
}

#[test]
fn what_several_states_share_is_read_once() {
    let (report, _) = scrubbed(|_| 0);
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!(report.data_blocks, BLOCKS + BLOCKS + BLOCKS / 2, "{report:?}");
}

#[test]
fn damage_of_a_block_that_only_a_snapshot_has_is_found() {
    for (tag, name) in [(1, "first"), (2, "second")] {
        let (report, block) = scrubbed(move |world| world.flip(&block_of(tag, 3)));
        let [finding] = &report.findings[..] else { panic!("one finding, not {:?}", report.findings) };
        assert_eq!((finding.kind, finding.block), (FindingKind::SnapshotDamaged, Some(block)));
        assert!(finding.text.contains(&format!("snapshot {name:?}")), "{finding}");
        assert!(finding.text.contains("block 3 of the file"), "{finding}");
    }
}

#[test]
fn damage_that_several_states_share_is_told_of_each() {
    let (report, block) = scrubbed(|world| world.flip(&block_of(2, BLOCKS - 1)));
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.kind, finding.block)).collect();
    assert_eq!(
        found,
        [(FindingKind::DataDamaged, Some(block)), (FindingKind::SnapshotDamaged, Some(block))],
        "{report:?}"
    );
}
