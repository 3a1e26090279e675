//! Others use the filesystem into which a stream comes.

use crate::describe::{describe, require_same};
use crate::pieces::{kept, rest, visible};
use crate::world::{self, ROOT_USER, World};
use crate::{require_sound, stream};
use bytes::Bytes;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use syncline_device::block_on;
use syncline_fs::types::{FileType, XattrMode};
use syncline_fs::{Allocation, Filesystem, QuotaLimits};
use syncline_store::{SnapshotError, StoreError};
use syncline_stream::{Header, Options, Origin, Record, Writer, receive, receive_with};

/// Input that does something each time some of it has been read.
pub struct Meanwhile<'a, F> {
    pub bytes: &'a [u8],
    pub at: usize,
    pub every: usize,
    pub next: usize,
    pub act: F,
}

impl<F: FnMut()> Read for Meanwhile<'_, F> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        if self.at >= self.next {
            self.next = self.at + self.every;
            (self.act)();
        }
        let mut rest = &self.bytes[self.at..];
        let read = rest.read(room)?;
        self.at += read;
        Ok(read)
    }
}

fn file(fs: &Arc<Filesystem>, name: &[u8]) -> u64 {
    block_on(fs.mknod(ROOT_USER, 1, name, FileType::Regular, 0o644, 0)).unwrap().ino
}

/// A source with two snapshots, of which the second has 40 MiB more, and a target with the first.
fn scene() -> (World, World) {
    let spawn = world::spawn();
    let mut source = World::new(&spawn, 96 << 20, 16384);
    source.live(&mut ChaCha8Rng::seed_from_u64(11), 60);
    block_on(source.fs.create_snapshot("old")).unwrap();
    let ino = file(&source.fs, b"large file");
    for piece in 0..40u64 {
        let data = Bytes::from(vec![piece as u8 + 1; 1 << 20]);
        block_on(source.fs.write(ino, piece << 20, data, false)).unwrap();
    }
    source.live(&mut ChaCha8Rng::seed_from_u64(12), 60);
    block_on(source.fs.create_snapshot("new")).unwrap();
    let target = World::new(&spawn, 1 << 30, 16384);
    block_on(receive(&target.fs, &stream(&source, "old", None)[..], None)).unwrap();
    (source, target)
}

#[test]
fn others_write_sync_and_make_snapshots_while_a_stream_comes() {
    let (source, target) = scene();
    let bytes = stream(&source, "new", Some("old"));
    let stop = Arc::new(AtomicBool::new(false));
    let (fs, stopped) = (target.fs.clone(), stop.clone());
    let ino = file(&target.fs, b"own");
    let writer = std::thread::spawn(move || {
        let mut rounds = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            let data = Bytes::from(rounds.to_le_bytes().repeat(1000));
            block_on(fs.write(ino, rounds % 50 * 8000, data, false)).unwrap();
            if rounds.is_multiple_of(5) {
                block_on(fs.fsync(ino, false)).unwrap();
            }
            rounds += 1;
        }
        rounds
    });
    let (fs, mut times) = (target.fs.clone(), 0u64);
    let act = || {
        times += 1;
        // Most of the image is still there for others.
        let space = fs.store().space();
        assert!(space.free > space.total / 2, "{space:?}");
        // The snapshot that the stream starts from can't go.
        let refused = block_on(fs.store().delete_snapshot("old")).unwrap_err();
        assert!(matches!(refused, StoreError::Snapshot(SnapshotError::InUse { .. })), "{refused}");
        if times == 3 {
            block_on(fs.create_snapshot("own")).unwrap();
            block_on(fs.delete_snapshot("own")).unwrap();
        }
        let other = file(&fs, format!("other-{times}").as_bytes());
        block_on(fs.write(other, 0, Bytes::from(vec![3; 100_000]), false)).unwrap();
    };
    let input = Meanwhile { bytes: &bytes, at: 0, every: 3 << 20, next: 1 << 20, act };
    let options = Options { is_shared: true, ..Options::default() };
    block_on(receive_with(&target.fs, input, options)).map_err(|cut| cut.error).unwrap();
    assert!(times > 5, "{times}");
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().unwrap() > 10);
    require_same(&describe(&source.snapshot("new").0), &describe(&target.snapshot("new").0), "shared");
    block_on(target.fs.delete_snapshot("old")).unwrap();
    target.close();
    require_sound(&target.device, &target.spawn, "shared");
}

#[test]
fn a_full_target_refuses_the_stream_and_not_the_others() {
    let (source, _) = scene();
    let spawn = source.spawn.clone();
    let bytes = stream(&source, "new", None);
    let target = World::new(&spawn, 40 << 20, 16384);
    let ino = file(&target.fs, b"own");
    let mut written = 0u64;
    let fs = target.fs.clone();
    let act = || {
        if block_on(fs.write(ino, written << 16, Bytes::from(vec![7; 1 << 16]), false)).is_ok() {
            written += 1;
            block_on(fs.fsync(ino, false)).unwrap();
        }
    };
    let input = Meanwhile { bytes: &bytes, at: 0, every: 1 << 20, next: 0, act };
    let options = Options { is_shared: true, piece_bytes: Some(8 << 20), ..Options::default() };
    let cut = block_on(receive_with(&target.fs, input, options)).unwrap_err();
    assert!(cut.error.to_string().contains("no space"), "{}", cut.error);
    assert!(visible(&target.fs).is_empty());
    let token = cut.kept.expect("a piece came");
    assert_eq!(kept(&target.fs), Some(token));
    // The refused part has given its room back.
    for number in 0..8 {
        block_on(target.fs.write(ino, (written + number) << 16, Bytes::from(vec![7; 1 << 16]), false))
            .unwrap();
    }
    block_on(target.fs.fsync(ino, false)).unwrap();
    assert!(rest(&source, "new", None, &token).is_ok());
    target.close();
    require_sound(&target.device, &spawn, "full and shared");
}

/// A snapshot from which the next one starts may have more room set aside than is lent at a time.
#[test]
fn room_that_is_set_aside_does_not_stop_the_next_stream() {
    let spawn = world::spawn();
    let source = World::new(&spawn, 1 << 30, 16384);
    let ino = file(&source.fs, b"aside");
    let aside = Allocation::Preallocate { keep_size: true };
    block_on(source.fs.allocate(ino, aside, 0, 300 << 20, false)).unwrap();
    block_on(source.fs.create_snapshot("old")).unwrap();
    file(&source.fs, b"later");
    block_on(source.fs.create_snapshot("new")).unwrap();
    let target = World::new(&spawn, 2 << 30, 16384);
    let options = Options { is_shared: true, ..Options::default() };
    for (name, from) in [("old", None), ("new", Some("old"))] {
        let bytes = stream(&source, name, from);
        block_on(receive_with(&target.fs, &bytes[..], options)).map_err(|cut| cut.error).unwrap();
        require_same(&describe(&source.snapshot(name).0), &describe(&target.snapshot(name).0), name);
    }
}

/// Each inode below a directory gets the number of its limit, so the whole tree is written again.
#[test]
fn a_limit_of_a_large_tree_is_set_with_the_room_that_there_is() {
    const FILES: u32 = 6000;
    let spawn = world::spawn();
    let source = World::new(&spawn, 256 << 20, 16384);
    let top = block_on(source.fs.mkdir(ROOT_USER, 1, b"top", 0o755)).unwrap().ino;
    for number in 0..FILES {
        let name = format!("file-{number}");
        let made = source.fs.mknod(ROOT_USER, top, name.as_bytes(), FileType::Regular, 0o644, 0);
        let ino = block_on(made).unwrap().ino;
        block_on(source.fs.setxattr(ino, b"user.note", &[7; 3000], XattrMode::Set)).unwrap();
        source.fs.forget(ino, 1);
    }
    block_on(source.fs.create_snapshot("old")).unwrap();
    let limits = QuotaLimits { bytes: 1 << 40, inodes: 1 << 20 };
    block_on(source.fs.set_quota(top, limits)).unwrap();
    block_on(source.fs.create_snapshot("new")).unwrap();
    let tree = source.snapshot("old").1.used_blocks * 4096;
    // Half of the free blocks is not enough for the tree once more; all of them are.
    let target = World::new(&spawn, (tree * 11 / 4).next_multiple_of(1 << 20), 16384);
    let options = Options { is_shared: true, ..Options::default() };
    for (name, from) in [("old", None), ("new", Some("old"))] {
        let bytes = stream(&source, name, from);
        block_on(receive_with(&target.fs, &bytes[..], options)).map_err(|cut| cut.error).unwrap();
    }
    assert_eq!(target.snapshot("new").0.quotas().len(), 1);
    target.close();
    require_sound(&target.device, &spawn, "with a limit");
}

/// A stream that needs more room than any target has is refused, and meanwhile the others have as much
/// room as before.
#[test]
fn a_stream_that_asks_for_more_than_there_is_takes_nothing_from_others() {
    let spawn = world::spawn();
    let origin = Origin { created_ns: 5, id: 1, name: "s".to_owned() };
    let header = Header {
        uuid: [0; 16],
        filesystem_features: 0,
        next_object: 9000,
        objects: 3,
        used_bytes: 0,
        resumed: None,
        snapshot: origin,
        parent: None,
    };
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &header).unwrap();
    for ino in 2..3000 {
        writer.put(&Record::Make { ino, mode: 0o100_644, rdev: 0, target: Bytes::new() }).unwrap();
        let (name, value) = (b"user.note".to_vec(), Bytes::from(vec![7; 3000]));
        writer.put(&Record::Xattr { ino, name, value }).unwrap();
    }
    // A checkpoint is taken before it is refused.
    writer.put(&Record::Reserve { ino: 2, offset: 0, length: 1 << 31 }).unwrap();
    writer.end().unwrap();
    let target = World::new(&spawn, 1 << 30, 16384);
    let (stop, fs) = (Arc::new(AtomicBool::new(false)), target.fs.clone());
    let stopped = stop.clone();
    let least = std::thread::spawn(move || {
        let mut least = u64::MAX;
        while !stopped.load(Ordering::Relaxed) {
            least = least.min(fs.store().space().free);
            std::thread::sleep(Duration::from_millis(1));
        }
        least
    });
    let options = Options { is_shared: true, ..Options::default() };
    let cut = block_on(receive_with(&target.fs, &bytes[..], options)).unwrap_err();
    stop.store(true, Ordering::Relaxed);
    assert!(cut.error.to_string().contains("no space"), "{}", cut.error);
    let (least, total) = (least.join().unwrap(), target.fs.store().space().total);
    assert!(least > total / 2, "{least} of {total}");
}
