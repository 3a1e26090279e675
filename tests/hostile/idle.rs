//! A real mount that no program uses: it takes no room and no CPU time, wherever its log ends.

use crate::skip_if;
use crate::support::{Mount, Place, no_fuse};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Longer than it takes until the marker of an idle log is written.
const REST: Duration = Duration::from_millis(650);
/// Bytes that a checkpoint may take meanwhile. A segment of the log has 256 KiB.
const CHECKPOINT_BYTES: u64 = 128 << 10;

fn available(mount: &Mount) -> u64 {
    let room = rustix::fs::statvfs(&mount.path).unwrap();
    room.f_bavail * room.f_frsize
}

/// How often the daemon's threads have waited, and the ticks of CPU time they used.
fn work(mount: &Mount) -> (u64, u64) {
    let pid = mount.pid().as_raw_nonzero();
    let switches = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    });
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (switches.sum(), fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}

/// Makes changes of one log block each, with a rest after each, so that the log grows by two blocks
/// each time. In a segment of 64 blocks it ends once at the last block, in this mount or in the one
/// that is a block ahead. (There may be no marker after the very first change.)
fn rest_everywhere(mount: &Mount, ahead: u32) {
    let path = mount.path.join("file");
    let file = File::create(&path).unwrap();
    let change = |number: u32| {
        fs::set_permissions(&path, Permissions::from_mode(0o600 + number % 8)).unwrap();
        file.sync_all().unwrap();
    };
    (0..ahead).for_each(change);
    for number in ahead..ahead + 40 {
        change(number);
        let before = available(mount);
        std::thread::sleep(REST);
        let after = available(mount);
        assert!(
            after + CHECKPOINT_BYTES > before,
            "rest {number}: {before} bytes were available, now {after}"
        );
    }
}

#[test]
fn mounts_without_work_take_no_room_and_no_processor() {
    skip_if!(no_fuse());
    let places = [Place::with_image("16MiB"), Place::with_image("16MiB")];
    let mounts = places.each_ref().map(|place| place.mount("mount"));
    std::thread::scope(|scope| {
        for (mount, ahead) in mounts.iter().zip(1..) {
            scope.spawn(move || rest_everywhere(mount, ahead));
        }
    });
    let [mount, other] = mounts;
    other.unmount().ok();
    let (room, (switches, ticks)) = (available(&mount), work(&mount));
    std::thread::sleep(Duration::from_secs(15));
    let (after, ended) = (available(&mount), work(&mount));
    assert!(after + CHECKPOINT_BYTES > room, "{room} bytes were available, now {after}");
    let (switches, ticks) = (ended.0 - switches, ended.1 - ticks);
    println!("{switches} times awake, {ticks} ticks of processor time in 15 s");
    assert!(switches < 15 * 40 && ticks < 50, "{switches} times awake, {ticks} ticks in 15 s");
    mount.unmount().ok();
    places.iter().for_each(Place::check_clean);
}
