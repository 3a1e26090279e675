//! O_SYNC and O_DSYNC hold for every way in which a program changes a file.

use crate::skip_if;
use crate::support::{Mount, Place, no_fuse};
use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A change of the second file, which holds 64 KiB of sevens like the first one.
type Change = fn(&File, &File);

const BYTES: usize = 64 << 10;
const O_DSYNC: i32 = 0o10000;
const O_SYNC: i32 = 0o4010000;

const CHANGES: [(&str, Change); 5] = [
    ("write", |_, to| to.write_all_at(&[8; 4096], 4096).unwrap()),
    ("copy", |from, to| {
        let (mut here, mut there) = (0, BYTES as u64);
        let copied = rustix::fs::copy_file_range(from, Some(&mut here), to, Some(&mut there), 4096);
        assert_eq!(copied.unwrap(), 4096);
    }),
    ("allocate", |_, to| allocate(to, FallocateFlags::empty(), BYTES as u64)),
    ("punch", |_, to| allocate(to, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096)),
    ("zero", |_, to| allocate(to, FallocateFlags::ZERO_RANGE, 8192)),
];

fn allocate(to: &File, how: FallocateFlags, offset: u64) {
    rustix::fs::fallocate(to, how, offset, 4096).unwrap();
}

/// Two durable files, the second of them opened with these flags.
fn files(directory: &Path, flags: i32) -> (File, File) {
    for name in ["from", "to"] {
        fs::write(directory.join(name), [7; BYTES]).unwrap();
        File::open(directory.join(name)).unwrap().sync_all().unwrap();
    }
    let to = File::options().write(true).custom_flags(flags).open(directory.join("to")).unwrap();
    (File::open(directory.join("from")).unwrap(), to)
}

/// How many fsyncs and fdatasyncs the daemon has served.
fn syncs(mount: &Mount) -> [u64; 2] {
    let stats = mount.stats();
    ["fsyncs", "fdatasyncs"].map(|name| stats["files"][name].as_u64().unwrap())
}

#[test]
fn every_change_through_a_synchronous_descriptor_is_synced() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    for (flags, expected) in [(0, [0, 0]), (O_DSYNC, [0, 1]), (O_SYNC, [1, 0])] {
        for (name, change) in CHANGES {
            let (from, to) = files(&mount.path, flags);
            let before = syncs(&mount);
            change(&from, &to);
            let after = syncs(&mount);
            let made = [after[0] - before[0], after[1] - before[1]];
            assert_eq!(made, expected, "{name} through a descriptor with {flags:#o}");
        }
    }
    mount.unmount().ok();
    place.check_clean();
}

/// True if the file's contents show this change.
fn is_there(name: &str, contents: &[u8]) -> bool {
    match name {
        "write" => contents[4096..8192] == [8; 4096],
        "copy" => contents[BYTES..] == [7; 4096],
        "allocate" => contents[BYTES..] == [0; 4096],
        "punch" => contents[4096..8192] == [0; 4096],
        _ => contents[8192..12288] == [0; 4096],
    }
}

#[test]
fn it_survives_the_death_of_the_daemon() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    for flags in [O_DSYNC, O_SYNC] {
        for (name, change) in CHANGES {
            let mut mount = place.mount(&format!("{name} {flags:o}"));
            let (from, to) = files(&mount.path, flags);
            change(&from, &to);
            mount.kill();
            drop((from, to, mount));
            let mount = place.mount(&format!("after {name} {flags:o}"));
            let contents = fs::read(mount.path.join("to")).unwrap();
            assert!(is_there(name, &contents), "{name} through a descriptor with {flags:#o}");
            mount.unmount().ok();
        }
    }
    place.check_clean();
}
