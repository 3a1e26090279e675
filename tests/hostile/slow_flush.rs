//! A real mount on a device whose flushes take seconds: it is slow, and otherwise fine.

use super::disk::Disk;
use crate::skip_if;
use crate::support::{Loop, Mount, Place, no_fuse, not_root, syncline};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FLUSH: Duration = Duration::from_secs(3);
const LASTS: Duration = Duration::from_secs(20);
/// Capacity of one batch of the log.
const BATCH_BYTES: u64 = 64 << 20;

/// Sets long xattrs as fast as the filesystem allows, and counts their bytes.
fn press(directory: &Path, number: usize, stop: &AtomicBool, bytes: &AtomicU64) {
    let path = directory.join(format!("pressed {number}"));
    File::create(&path).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let value = vec![bytes.load(Ordering::Relaxed) as u8; 60_000];
        rustix::fs::setxattr(&path, "user.pressed", &value, rustix::fs::XattrFlags::empty()).unwrap();
        bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
    }
}

#[test]
fn flushes_of_seconds_make_writers_slow_and_nothing_else() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let disk = Disk::new(&place, 512 << 20, FLUSH);
    let Some(device) = Loop::new(&disk.path) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    syncline([OsStr::new("mkfs"), device.device.as_ref()]).ok();
    let directory = place.directory("mount");
    let mut mount = Mount::new(&device.device, &directory, &[]);
    let (stop, acknowledged, pressed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let both = || (acknowledged.load(Ordering::Relaxed), pressed.load(Ordering::Relaxed));
    let is_much = |(acknowledged, pressed)| acknowledged >= 2 && pressed > 2 * BATCH_BYTES;
    std::thread::scope(|scope| {
        let (stop, pressed, directory) = (&stop, &pressed, &directory);
        (0..4).for_each(|number| drop(scope.spawn(move || press(directory, number, stop, pressed))));
        let started = Instant::now();
        // Longer where the machine is busy.
        while started.elapsed() < LASTS || !is_much(both()) && started.elapsed() < 6 * LASTS {
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
    });
    let (acknowledged, pressed) = both();
    println!("{acknowledged} files synced, {} MB of attributes", pressed / 1_000_000);
    assert!(is_much((acknowledged, pressed)), "{acknowledged} syncs, {pressed} bytes");
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

/// The kernel does not report a flush in flight, but the next user of the device waits for it.
#[test]
fn what_a_killed_daemon_asked_a_slow_device_for_is_waited_for() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let disk = Disk::new(&place, 64 << 20, Duration::ZERO);
    let Some(device) = Loop::new(&disk.path) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    syncline([OsStr::new("mkfs"), device.device.as_ref()]).ok();
    let mut mount = Mount::new(&device.device, &place.directory("mount"), &[]);
    let path = mount.path.join("file");
    fs::write(&path, "acknowledged").unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    disk.troubles.flushes_hang.store(true, Ordering::Relaxed);
    let late = mount.path.join("late");
    let waiting = std::thread::spawn(move || {
        fs::write(&late, "not acknowledged").and_then(|()| File::open(&late)?.sync_all())
    });
    std::thread::sleep(Duration::from_secs(1));
    mount.kill();
    assert!(waiting.join().unwrap().is_err(), "its flush is still under way");
    drop(mount);
    let troubles = disk.troubles.clone();
    let started = Instant::now();
    let answers = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(5));
        troubles.flushes_hang.store(false, Ordering::Relaxed);
    });
    let mount = Mount::new(&device.device, &place.directory("again"), &[]);
    assert!(started.elapsed() >= Duration::from_secs(4), "it was waited for: {:?}", started.elapsed());
    answers.join().unwrap();
    assert_eq!(fs::read(mount.path.join("file")).unwrap(), b"acknowledged");
    mount.unmount().ok();
}
