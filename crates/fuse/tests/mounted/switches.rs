//! How often the daemon's threads sleep for an operation. Times differ from machine to machine;
//! these counts repeat, and a regression shows as a number.

use super::TestMount;
use crate::support::Setup;
use std::fs::File;
use std::os::unix::fs::FileExt;

const OPERATIONS: u64 = 1000;

/// Context switches of the daemon, each of which is a thread that went to sleep, for each operation.
fn of_each(mount: &TestMount, what: &str, most: f64, mut operation: impl FnMut(u64)) {
    let before = mount.sleeps();
    (0..OPERATIONS).for_each(&mut operation);
    let each = (mount.sleeps() - before) as f64 / OPERATIONS as f64;
    println!("{what}: {each} sleeps");
    assert!(each > 0.0 && each <= most, "{each} sleeps of the daemon for each {what}, at most {most}");
}

/// One caller: a create is three requests (LOOKUP, MKNOD, GETATTR), an overwrite one, a sync one,
/// with one wait for the device. On two CPUs a create takes 3.0 sleeps over io_uring and 3.8 over
/// /dev/fuse, an overwrite with its sync 7.1 and 8.6, threads of the image's file included. The
/// limits are twice that.
#[test]
fn an_operation_puts_the_daemon_to_sleep_a_few_times() {
    let Some(mount) = TestMount::with(Setup { in_file: true, ..Setup::default() }) else { return };
    of_each(&mount, "create", 8.0, |number| {
        drop(File::create(mount.path().join(number.to_string())).unwrap())
    });
    let file = File::create(mount.path().join("pages")).unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    of_each(&mount, "overwrite and fdatasync", 16.0, |number| {
        file.write_all_at(&[2; 4096], number * 37 % 1024 * 4096).unwrap();
        file.sync_data().unwrap();
    });
    drop(file);
    mount.unmount();
}
