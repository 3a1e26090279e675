//! The contents of files.

use super::TestMount;
use crate::support::{Setup, errno, pattern};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use syncline_device::AlignedBuf;

#[test]
fn files_hold_what_is_written() {
    for setup in [Setup::default(), Setup { direct_io: true, ..Setup::default() }] {
        let Some(mount) = TestMount::with(setup) else { return };
        let path = mount.path().join("file");
        // Longer than one WRITE can be, and of an odd length.
        let data = pattern((3 << 20) + 12345, 1);
        fs::write(&path, &data).unwrap();
        assert!(fs::read(&path).unwrap() == data);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&pattern(70_000, 2), 4095).unwrap();
        let mut back = vec![0; 70_002];
        file.read_exact_at(&mut back, 4094).unwrap();
        assert_eq!(back[0], data[4094]);
        assert!(back[1..70_001] == pattern(70_000, 2));
        assert_eq!(back[70_001], data[74_095]);
        assert_eq!(file.read_at(&mut back, 1 << 40).unwrap(), 0);
        file.set_len(10_000).unwrap();
        file.set_len(20_000).unwrap();
        file.read_exact_at(&mut back[..10_000], 10_000).unwrap();
        assert!(back[..10_000].iter().all(|&byte| byte == 0));
        assert_eq!(file.metadata().unwrap().len(), 20_000);
        file.sync_all().unwrap();
        drop(file);
        // O_TRUNC is part of OPEN.
        File::create(&path).unwrap().write_all(b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        assert!(mount.requests("Write") >= 5);
        mount.unmount();
    }
}

/// Through the cache, and past it.
#[test]
fn a_write_to_a_nearly_full_filesystem_writes_what_fits() {
    for direct_io in [false, true] {
        let Some(mount) = TestMount::with(Setup { direct_io, in_file: true, ..Setup::default() }) else {
            return;
        };
        let path = mount.path().join("file");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        let data = pattern(1 << 20, 3);
        let (mut expected, mut short) = (Vec::new(), 0);
        let error = loop {
            match file.write_at(&data, expected.len() as u64) {
                Ok(written) => {
                    short += u64::from(written < data.len());
                    expected.extend_from_slice(&data[..written]);
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert!(short > 0, "the last write took nothing of what was left");
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
        file.sync_all().unwrap();
        let mut found = vec![0; expected.len() + 1];
        assert_eq!(file.read_at(&mut found[..1 << 20], expected.len() as u64).unwrap(), 0);
        file.read_exact_at(&mut found[..expected.len()], 0).unwrap();
        assert!(found[..expected.len()] == expected);
        drop(file);
        mount.unmount();
    }
}

/// Long reads return the data that was written, wherever it is: in one piece, in many, compressed,
/// in holes, not yet written back.
#[test]
fn long_reads_are_right_wherever_the_data_lies() {
    const BLOCK: usize = 4096;
    const LEN: usize = (3 << 20) + 777;
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut expected = pattern(LEN, 1);
    let compare = |expected: &[u8], what: &str| {
        for (at, len) in
            [(0, 1 << 20), (BLOCK, 1 << 20), (1 << 20, 1 << 19), (3 << 20, 1 << 16), (20 * BLOCK, 17 * BLOCK)]
        {
            let mut found = AlignedBuf::zeroed(len);
            let read = direct.read_at(&mut found, at as u64).unwrap();
            assert_eq!(read, len.min(LEN - at), "{what}");
            assert!(found[..read] == expected[at..at + read], "{what}: {len} bytes at {at}");
        }
        assert!(fs::read(&path).unwrap() == expected, "{what}");
    };
    file.write_all_at(&expected, 0).unwrap();
    file.sync_all().unwrap();
    compare(&expected, "one piece");
    let put = |expected: &mut [u8], at: usize, data: &[u8]| {
        expected[at..at + data.len()].copy_from_slice(data);
        file.write_all_at(data, at as u64).unwrap();
    };
    for block in (0..LEN / BLOCK).filter(|block| block % 11 < 2) {
        put(&mut expected, block * BLOCK, &pattern(BLOCK, block));
        if block % 5 == 0 {
            file.sync_all().unwrap();
        }
    }
    file.sync_all().unwrap();
    compare(&expected, "many pieces");
    let (at, len) = (30 * BLOCK, 7 * BLOCK);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, len as i64) }, 0);
    expected[at..at + len].fill(0);
    file.sync_all().unwrap();
    compare(&expected, "a hole");
    rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::COMPRESSED).unwrap();
    put(&mut expected, 60 * BLOCK, &[7; 96 * BLOCK]);
    file.sync_all().unwrap();
    compare(&expected, "a compressed part");
    put(&mut expected, 200 * BLOCK, &pattern(3 * BLOCK, 5));
    compare(&expected, "a part in memory");
    drop((file, direct));
    mount.unmount();
}

#[test]
fn appends_of_several_processes_do_not_overwrite_each_other() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("log");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for line in 0..200 {
                    file.write_all(format!("{thread} {line:04}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let text = fs::read_to_string(&path).unwrap();
    let lines: BTreeSet<&str> = text.lines().collect();
    assert_eq!((lines.len(), text.len()), (800, 800 * 7));
    mount.unmount();
}

#[test]
fn an_open_file_outlives_its_name() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("gone");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&pattern(100_000, 3)).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert!(back[..100_000] == pattern(100_000, 3) && &back[100_000..] == b"more");
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"another");
    // Files in a working directory that was removed.
    let directory = mount.path().join("dir");
    fs::create_dir(&directory).unwrap();
    let open = File::open(&directory).unwrap();
    fs::remove_dir(&directory).unwrap();
    open.sync_all().unwrap();
    drop(open);
    mount.unmount();
}

/// A mapping of a file, until it is dropped.
pub struct Mapping(*mut libc::c_void, usize);

impl Mapping {
    pub fn new(file: &File, len: usize, sharing: libc::c_int) -> Self {
        // SAFETY: a new mapping, of a descriptor that is open.
        let map = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, protection, sharing, file.as_raw_fd(), 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        Self(map, len)
    }

    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: within the mapping. Volatile, because the file may change it.
        unsafe { self.0.cast::<u8>().add(at).read_volatile() }
    }

    pub fn set(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: within the mapping, which only this thread touches.
        unsafe { self.0.cast::<u8>().add(at).write_volatile(byte) }
    }

    pub fn contents(&self) -> Vec<u8> {
        (0..self.1).map(|at| self.get(at)).collect()
    }

    pub fn sync(&self) {
        assert!(self.is_synced());
    }

    /// False if stores to the mapping could not be written back.
    pub fn is_synced(&self) -> bool {
        // SAFETY: the range is that of the mapping.
        unsafe { libc::msync(self.0, self.1, libc::MS_SYNC) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is not used any more.
        assert_eq!(unsafe { libc::munmap(self.0, self.1) }, 0);
    }
}

#[test]
fn mapped_files_and_written_files_are_the_same() {
    for setup in [Setup::default(), Setup { direct_io: true, ..Setup::default() }] {
        let Some(mount) = TestMount::with(setup) else { return };
        let path = mount.path().join("mapped");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let len = 1 << 20;
        file.write_all_at(&pattern(len, 4), 0).unwrap();
        let mapping = Mapping::new(&file, len, libc::MAP_SHARED);
        assert!(mapping.contents() == pattern(len, 4));
        mapping.set(5000, 42);
        mapping.set(len - 1, 43);
        mapping.sync();
        let mut back = [0];
        file.read_exact_at(&mut back, 5000).unwrap();
        assert_eq!(back, [42]);
        drop(mapping);
        drop(file);
        let back = fs::read(&path).unwrap();
        assert_eq!((back[5000], back[len - 1], back[0]), (42, 43, pattern(1, 4)[0]));
        mount.unmount();
    }
}

#[test]
fn mappings_of_a_file_show_what_is_written_at_once() {
    let Some(mount) = TestMount::with(Setup::default()) else { return };
    let path = mount.path().join("mapped");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let len = 300_000;
    file.write_all_at(&pattern(len, 5), 0).unwrap();
    let shared = Mapping::new(&file, len, libc::MAP_SHARED);
    let private = Mapping::new(&file, len, libc::MAP_PRIVATE);
    assert!(private.contents() == pattern(len, 5));
    // Writes show in both mappings, and stores into the shared one show to readers, without any
    // msync.
    file.write_all_at(&[200; 10_000], 50_000).unwrap();
    assert_eq!((shared.get(55_000), private.get(55_000)), (200, 200));
    shared.set(100_000, 201);
    let read = |at: u64| {
        let mut byte = [0];
        File::open(&path).unwrap().read_exact_at(&mut byte, at).unwrap();
        byte[0]
    };
    assert_eq!((read(100_000), private.get(100_000)), (201, 201));
    // A page of the private mapping that was stored to is separate from then on, and the file does
    // not see the store.
    private.set(200_000, 202);
    file.write_all_at(&[203], 200_001).unwrap();
    assert_eq!((private.get(200_000), private.get(200_001)), (202, pattern(len, 5)[200_001]));
    assert_eq!((read(200_000), shared.get(200_001)), (pattern(len, 5)[200_000], 203));
    drop((shared, private, file));
    let mut expected = pattern(len, 5);
    expected[50_000..60_000].fill(200);
    expected[100_000] = 201;
    expected[200_001] = 203;
    assert!(fs::read(&path).unwrap() == expected);
    mount.unmount();
}

#[test]
fn synchronous_writes_are_synced() {
    for direct_io in [false, true] {
        let Some(mount) = TestMount::with(Setup { direct_io, ..Setup::default() }) else { return };
        let path = mount.path().join("synced");
        let mut options = OpenOptions::new();
        options.write(true).create(true).custom_flags(libc::O_DSYNC);
        let mut file = options.open(&path).unwrap();
        let before = mount.requests("FSync");
        file.write_all(b"data").unwrap();
        // For cached files the kernel sends an FSYNC; for direct ones the daemon syncs as part of
        // the write.
        assert_eq!(mount.requests("FSync") - before, u64::from(!direct_io));
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        File::open(mount.path()).unwrap().sync_all().unwrap();
        // Repeatedly: the kernel must not have concluded that there is nothing to do.
        file.sync_all().unwrap();
        assert_eq!(mount.requests("FSync") - before, u64::from(!direct_io) + 3);
        assert_eq!(mount.requests("FSyncDir"), 1);
        drop(file);
        mount.unmount();
    }
}

#[test]
fn holes_are_found_and_copies_made() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("sparse");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&pattern(65536, 7), 1 << 20).unwrap();
    file.set_len(4 << 20).unwrap();
    file.sync_all().unwrap();
    let seek = |offset: i64, whence: i32| {
        // SAFETY: takes no memory.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
        if found < 0 { Err(std::io::Error::last_os_error()) } else { Ok(found) }
    };
    let data = seek(0, libc::SEEK_DATA).unwrap();
    assert!(data <= 1 << 20);
    let hole = seek(1 << 20, libc::SEEK_HOLE).unwrap();
    assert!(((1 << 20) + 65536..=4 << 20).contains(&hole));
    assert_eq!(errno(seek(5 << 20, libc::SEEK_DATA)), libc::ENXIO);
    // copy_file_range, which falls back to reading and writing.
    let copy = mount.path().join("copy");
    assert_eq!(fs::copy(&path, &copy).unwrap(), 4 << 20);
    assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap());
    drop(file);
    mount.unmount();
}

#[test]
fn many_threads_at_once() {
    let Some(mount) = TestMount::or_skip() else { return };
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let root = mount.path();
            std::thread::spawn(move || {
                let mine = root.join(format!("thread{thread}"));
                fs::create_dir(&mine).unwrap();
                for round in 0..60 {
                    let temporary = mine.join("temporary");
                    let mut file = File::create(&temporary).unwrap();
                    let data = pattern(1000 * (round + 1), thread);
                    file.write_all(&data).unwrap();
                    file.sync_all().unwrap();
                    drop(file);
                    fs::rename(&temporary, mine.join("final")).unwrap();
                    assert!(fs::read(mine.join("final")).unwrap() == data);
                    File::create(root.join(format!("shared{round}"))).unwrap();
                    let _ = fs::remove_file(root.join(format!("shared{}", round / 2)));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    mount.unmount();
}
