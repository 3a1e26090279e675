//! A real mount on a device whose flushes take seconds: it is slow, and nothing else.

use crate::skip_if;
use crate::support::{Loop, Mount, Place, no_fuse, not_root, syncline, tool};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite, Request, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

const FLUSH: Duration = Duration::from_secs(3);
const LASTS: Duration = Duration::from_secs(20);
/// What one batch of the log holds.
const BATCH_BYTES: u64 = 64 << 20;
const KEPT: Duration = Duration::from_secs(3600);

/// A filesystem with one file, whose fsync takes its time while reads and writes go on.
struct SlowDisk(File);

impl SlowDisk {
    const NAME: &str = "disk";
    const INO: INodeNo = INodeNo(2);

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let (kind, size) = match ino {
            Self::INO => (FileType::RegularFile, self.0.metadata().map_or(0, |metadata| metadata.len())),
            _ => (FileType::Directory, 0),
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl fuser::Filesystem for SlowDisk {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == Self::NAME {
            true => reply.entry(&KEPT, &self.attributes(Self::INO), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&KEPT, &self.attributes(ino));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buf = vec![0; size as usize];
        match self.0.read_at(&mut buf, offset) {
            Ok(len) => reply.data(&buf[..len]),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        std::thread::spawn(move || {
            std::thread::sleep(FLUSH);
            reply.ok();
        });
    }
}

/// Sets long attributes anew, as fast as it is let; their bytes.
fn press(directory: &Path, number: usize, stop: &AtomicBool) -> u64 {
    let path = directory.join(format!("pressed {number}"));
    File::create(&path).unwrap();
    let mut bytes = 0;
    while !stop.load(Ordering::Relaxed) {
        let value = vec![bytes as u8; 60_000];
        rustix::fs::setxattr(&path, "user.pressed", &value, rustix::fs::XattrFlags::empty()).unwrap();
        bytes += value.len() as u64;
    }
    bytes
}

/// Where the device's file is; nothing is mounted there any more when it is dropped, whatever still uses it.
struct Below(PathBuf);

impl Drop for Below {
    fn drop(&mut self) {
        tool("umount", &[OsStr::new("-l"), self.0.as_ref()]);
    }
}

#[test]
fn flushes_of_seconds_make_writers_slow_and_nothing_else() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let backing = File::options().read(true).write(true).create_new(true).open(place.path().join("backing"));
    let backing = backing.unwrap();
    backing.set_len(512 << 20).unwrap();
    let below = Below(place.directory("below"));
    let _slow = fuser::spawn_mount(SlowDisk(backing), &below.0, &Config::default()).unwrap();
    let Some(device) = Loop::new(&below.0.join(SlowDisk::NAME)) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    syncline([OsStr::new("mkfs"), device.device.as_ref()]).ok();
    let directory = place.directory("mount");
    let mut mount = Mount::new(&device.device, &directory, &[]);
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let pressed: u64 = std::thread::scope(|scope| {
        let (stop, directory) = (&*stop, &directory);
        let pressers: Vec<_> =
            (0..4).map(|number| scope.spawn(move || press(directory, number, stop))).collect();
        let started = Instant::now();
        while started.elapsed() < LASTS {
            let number = acknowledged.load(Ordering::Relaxed);
            let mut file = File::create(directory.join(format!("synced {number}"))).unwrap();
            file.write_all(number.to_string().as_bytes()).unwrap();
            if let Err(error) = file.sync_all() {
                stop.store(true, Ordering::Relaxed);
                panic!("fsync {number}: {error}");
            }
            acknowledged.store(number + 1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        pressers.into_iter().map(|presser| presser.join().unwrap()).sum()
    });
    let acknowledged = acknowledged.into_inner();
    println!("{acknowledged} files synced, {} MB of attributes", pressed / 1_000_000);
    assert!(acknowledged >= 2 && pressed > 2 * BATCH_BYTES, "{acknowledged} syncs, {pressed} bytes");
    mount.kill();
    drop(mount);
    let mount = Mount::new(&device.device, &directory, &[]);
    for number in 0..acknowledged {
        let contents = fs::read_to_string(directory.join(format!("synced {number}"))).unwrap();
        assert_eq!(contents, number.to_string());
    }
    mount.unmount().ok();
    syncline([OsStr::new("check"), device.device.as_ref()]).ok();
}
