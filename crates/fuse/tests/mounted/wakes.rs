//! Which workers a request wakes.

use super::TestMount;
use crate::support::Setup;
use std::fs::File;
use syncline_device::{Worker, WorkerOptions};
use syncline_fuse::control;

const FILES: u64 = 1000;
/// LOOKUP, MKNOD, GETATTR of the directory.
const REQUESTS_EACH: u64 = 3;

/// A request wakes a few of many workers, not all: a machine with 64 CPUs has 64 workers.
#[test]
fn a_request_wakes_few_of_many_workers() {
    if !Worker::new(WorkerOptions::default()).unwrap().has_ring() {
        eprintln!("skipped: poll(2) wakes all who wait");
        return;
    }
    let Some(mount) = TestMount::with(Setup { workers: 64, ..Setup::default() }) else { return };
    let make = |name: String| drop(File::create(mount.path().join(name)).unwrap());
    make("first".into());
    let sleeps = || control::text(&mount.path(), "sleeps").unwrap().parse::<u64>().unwrap();
    let before = sleeps();
    (0..FILES).for_each(|number| make(number.to_string()));
    let each = (sleeps() - before) as f64 / (FILES * REQUESTS_EACH) as f64;
    println!("{each} threads woken for each request");
    assert!(each < 7.0, "{each} threads woken for each request");
    mount.unmount();
}
