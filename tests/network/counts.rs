//! How many requests an fsync costs on a network, told by the server: one flush for one writer, and
//! for several as few as group commit makes of them.

use super::rbd::{cluster, no_clusters};
use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, not_root, run, syncline};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use syncline_nbdlab::{FLUSH, FUA, Lab, MULTI_CONN, Spec, TRIM, WRITE_ZEROES, command};
use syncline_net::Wait;

const BYTES: usize = 64 << 10;
/// Of each writer.
const FSYNCS: u64 = 60;
/// Flushes of a checkpoint: one for the blocks that it writes, and one behind each copy of the
/// superblock.
const CHECKPOINT_FLUSHES: u64 = 3;

/// Requests so far.
#[derive(Clone, Copy, Debug)]
struct Counts {
    writes: u64,
    flushes: u64,
}

/// Appends 64 KiB and syncs, again and again, by so many writers with a file each.
fn append(directory: &Path, writers: u64) {
    std::thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                let mut file = File::create(directory.join(format!("of-{writers}-{writer}"))).unwrap();
                for fill in 0..FSYNCS {
                    file.write_all(&[fill as u8; BYTES]).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
}

/// The cost of an fsync with so many writers: writes and flushes, without the flushes of
/// checkpoints.
fn cost(mount: &Mount, writers: u64, counts: impl Fn() -> Counts) -> (f64, f64) {
    let checkpoints = || mount.stats()["store"]["checkpoints"].as_u64().unwrap();
    // The folder's first sync has other things to take along.
    File::open(&mount.path).unwrap().sync_all().unwrap();
    let (before, checkpoints_before) = (counts(), checkpoints());
    append(&mount.path, writers);
    let after = counts();
    let of_checkpoints = CHECKPOINT_FLUSHES * (checkpoints() - checkpoints_before);
    let each = |count: u64| count as f64 / (writers * FSYNCS) as f64;
    let flushes = (after.flushes - before.flushes).saturating_sub(of_checkpoints);
    (each(after.writes - before.writes), each(flushes))
}

/// The flushes that an fsync of 8 writers costs on an image file of this host.
fn flushes_of_8_on_a_file() -> f64 {
    let place = Place::with_image("256MiB");
    let mount = place.mount("mnt");
    let counts = || {
        let stats = mount.stats();
        let count = |name: &str| stats["store"][name].as_u64().unwrap();
        Counts { writes: count("device_writes"), flushes: count("flushes_issued") }
    };
    let (writes, flushes) = cost(&mount, 8, counts);
    println!("a file: 8 writers: {writes:.2} writes and {flushes:.2} flushes an fsync");
    mount.unmount().ok();
    flushes
}

fn assert_is_cheap(storage: &str, mount: &Mount, counts: impl Fn() -> Counts) {
    let (writes, flushes) = cost(mount, 1, &counts);
    println!("{storage}: one writer: {writes:.2} writes and {flushes:.2} flushes an fsync");
    assert!((0.95..1.02).contains(&flushes), "{flushes} flushes an fsync");
    // The data and the batch; some of a lease or a checkpoint.
    assert!((1.95..2.4).contains(&writes), "{writes} writes an fsync");
    let (writes, flushes) = cost(mount, 8, &counts);
    println!("{storage}: 8 writers: {writes:.2} writes and {flushes:.2} flushes an fsync");
    // A writer that comes during a flush shares the next flush, there and here; how many come is
    // chance.
    let local = flushes_of_8_on_a_file();
    assert!(flushes < (1.5 * local).max(0.4), "{flushes} flushes an fsync, {local} on a file");
}

/// An export that takes two milliseconds for a flush.
fn server() -> (Lab, PathBuf) {
    let flags = FLUSH | FUA | TRIM | WRITE_ZEROES | MULTI_CONN;
    let lab = Lab::new(1, Spec { size: 256 << 20, flags, blocks: None, structured: true });
    lab.faults(|faults| faults.flush_delay = Duration::from_millis(2));
    let image = PathBuf::from(lab.location(Wait::Seconds(20)).to_string());
    (lab, image)
}

#[test]
fn an_fsync_is_one_flush_of_an_nbd_server() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::new();
    let (lab, image) = server();
    syncline([OsStr::new("mkfs"), image.as_os_str()]).ok();
    let mount = Mount::new(&image, &place.directory("mnt"), &[]);
    // A write with FUA is a flush as well, of itself.
    let counts = || {
        let log = lab.inner.log.lock().unwrap();
        let count = |kind| log.iter().filter(|(command, _)| *command == kind).count() as u64;
        let durable = log.iter().filter(|(kind, flags)| *kind == command::WRITE && flags & 1 != 0).count();
        Counts { writes: count(command::WRITE), flushes: count(command::FLUSH) + durable as u64 }
    };
    assert_is_cheap("NBD", &mount, counts);
    mount.unmount().ok();
    syncline([OsStr::new("check"), image.as_os_str()]).ok();
}

/// Counted by librbd, in the daemon: a flush is no message to an OSD, but the end of all writes.
#[test]
fn an_fsync_is_one_flush_of_librbd() {
    skip_if!(no_clusters());
    let place = Place::new();
    let cluster = cluster(&place);
    let (socket, conf) = (place.path().join("asok"), place.path().join("ceph.conf"));
    let common = fs::read_to_string(cluster.conf()).unwrap();
    fs::write(&conf, format!("{common}[client]\nadmin_socket = {}\n", socket.display())).unwrap();
    let image = PathBuf::from(format!("rbd:rbd/counted?conf={}", conf.display()));
    syncline([OsStr::new("mkfs"), image.as_os_str(), "--size".as_ref(), "256MiB".as_ref()]).ok();
    let mount = Mount::new(&image, &place.directory("mnt"), &[]);
    let counts = || {
        let mut ask = Command::new("ceph");
        ask.arg("--admin-daemon").arg(&socket).args(["perf", "dump"]);
        let told: serde_json::Value = serde_json::from_str(&run(ask).ok().out).unwrap();
        let sections = told.as_object().unwrap().iter();
        let images: Vec<_> = sections.filter(|(name, _)| name.starts_with("librbd-")).collect();
        let total = |counter: &str| images.iter().map(|(_, image)| image[counter].as_u64().unwrap()).sum();
        Counts { writes: total("wr"), flushes: total("flush") }
    };
    assert_is_cheap("RBD", &mount, counts);
    mount.unmount().ok();
}
