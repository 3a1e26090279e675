//! Holes that stores into a mapping fill: SEEK_DATA, copies, archives and numbers of blocks tell of
//! them at once, in files that were there as in new ones.

use super::TestMount;
use super::files::Mapping;
use crate::support::Setup;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Length of the files.
const LEN: usize = 4 * MIB;

/// How a file has come to have holes.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// Nothing was ever written.
    Empty,
    /// Data lies behind the hole, on the device.
    Behind,
    /// Data lies behind the hole, and was not synced.
    BehindUnsynced,
    /// It was longer than its data.
    Extended,
    /// A range was punched out of data.
    Punched,
    /// Every eighth page is data.
    Pieces,
}

const ORIGINS: [Origin; 6] = [
    Origin::Empty,
    Origin::Behind,
    Origin::BehindUnsynced,
    Origin::Extended,
    Origin::Punched,
    Origin::Pieces,
];

impl Origin {
    /// A file whose pages around 1 MiB are a hole.
    fn make(self, path: &Path) -> File {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        let write = |len: usize, at: usize| file.write_all_at(&vec![b'x'; len], at as u64).unwrap();
        match self {
            Self::Empty => {}
            Self::Behind | Self::BehindUnsynced => write(MIB, 3 * MIB),
            Self::Extended => write(MIB, 0),
            Self::Punched => {
                write(LEN, 0);
                file.sync_all().unwrap();
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: takes no memory.
                let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, MIB as i64, MIB as i64) };
                assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
            }
            Self::Pieces => (4..LEN / PAGE).step_by(8).for_each(|page| write(PAGE, page * PAGE)),
        }
        file.set_len(LEN as u64).unwrap();
        if !matches!(self, Self::BehindUnsynced) {
            file.sync_all().unwrap();
        }
        file
    }
}

/// The output of a shell command.
fn told(script: &str, mount: &Path) -> String {
    let done = Command::new("sh").arg("-c").arg(script).current_dir(mount).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{script}: {said}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// The number of blocks, as another process is told it.
fn blocks(mount: &Path) -> u64 {
    told("stat -c %b file", mount).parse().unwrap()
}

/// Stores into pages of a hole, and has other processes look.
fn fill(mount: &Path, origin: Origin, was_read: bool) {
    let what = format!("{origin:?}, read before: {was_read}");
    let path = mount.join("file");
    let file = origin.make(&path);
    let before = blocks(mount);
    if was_read {
        // The pages are in the cache, so that storing asks for nothing.
        fs::read(&path).unwrap();
    }
    let mapping = Mapping::new(&file, LEN, libc::MAP_SHARED);
    let copies = |at: usize| {
        told("cp --sparse=auto file copy", mount);
        assert_eq!(fs::read(mount.join("copy")).unwrap()[at], b'y', "{what}: a copy");
    };
    let counts = |pages: u64| assert_eq!(blocks(mount), before + 8 * pages, "{what}: blocks");
    // The first program that looks at the file has the stored page written back.
    mapping.set(MIB + 5, b'y');
    counts(1);
    copies(MIB + 5);
    mapping.set(MIB + PAGE + 9, b'y');
    copies(MIB + PAGE + 9);
    counts(2);
    mapping.set(MIB + 6, b'z');
    mapping.set(MIB + PAGE + 10, b'z');
    // It may say that the file changed meanwhile: its times move when pages are written back.
    told("tar --sparse -cf archive file; [ $? -le 1 ] && mkdir out && tar -C out -xf archive", mount);
    let whole = mapping.contents();
    assert!(fs::read(mount.join("out/file")).unwrap() == whole, "{what}: an archive");
    assert_eq!((whole[MIB + 6], whole[MIB + PAGE + 10]), (b'z', b'z'));
    drop(mapping);
    // Both blocks are dirty again. If they are on the device by now, they count twice until they are placed.
    let units = blocks(mount);
    assert!([before + 16, before + 32].contains(&units), "{what}: {units} after {before}");
    told("rm -r file copy archive out", mount);
}

#[test]
fn stores_into_holes_are_copied_archived_and_counted() {
    for setup in [Setup::default(), Setup { direct_io: true, ..Setup::default() }] {
        let Some(mount) = TestMount::with(setup) else { return };
        for origin in ORIGINS {
            for was_read in [false, true] {
                fill(&mount.path(), origin, was_read);
            }
        }
        mount.unmount();
    }
}

/// GNU tar takes a file without blocks for a single hole, and does not read it.
#[test]
fn a_file_that_was_filled_through_a_mapping_has_blocks() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path();
    for is_told in [true, false] {
        let file = Origin::Empty.make(&path.join("file"));
        file.set_len(4 * PAGE as u64).unwrap();
        if is_told {
            // The kernel knows by now that it has none.
            assert_eq!(blocks(&path), 0);
        }
        // Few, so that the kernel has no reason to write them back.
        let mapping = Mapping::new(&file, 4 * PAGE, libc::MAP_SHARED);
        (0..4).for_each(|page| mapping.set(page * PAGE, 1));
        assert_eq!(blocks(&path), 4 * 8);
        // Through a listing as well.
        assert_ne!(told("ls -ls | sed -n 's/^ *\\([0-9]*\\) .* file$/\\1/p'", &path), "0");
        told("rm file", &path);
    }
    mount.unmount();
}

/// The number of requests shows the cost of a stat(2). It costs nothing for files that the kernel
/// knows, with holes or without, unless holes are in the kernel's cache.
#[test]
fn only_cached_holes_are_asked_about() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("file");
    let file = Origin::Behind.make(&path);
    let asked = |times: usize| {
        let before = mount.requests("GetAttr");
        (0..times).for_each(|_| _ = fs::metadata(&path).unwrap());
        mount.requests("GetAttr") - before
    };
    asked(1);
    assert_eq!(asked(10), 0);
    fs::read(&path).unwrap();
    // The first stat(2) has the pages dropped, and with the pages everything that the kernel knew
    // of the file.
    assert!(asked(3) <= 2);
    assert_eq!(asked(10), 0);
    drop(file);
    mount.unmount();
}
