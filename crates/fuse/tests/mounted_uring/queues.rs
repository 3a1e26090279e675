//! Tests of the parts that only the transport over io_uring has: the queues of each CPU, their
//! entries, and the requests that still come over /dev/fuse.

use super::TestMount;
use crate::support::{self, Setup, pattern};
use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use syncline_device::{allowed_cpus, pin_to_cpu};
use syncline_fuse::control;

/// Mounts of a test that needs a moment which a mount seldom meets.
const MOUNTS: usize = 40;

#[test]
fn the_transport_is_what_was_asked_for() {
    let Some(mount) = TestMount::or_skip() else { return };
    assert_eq!(control::text(&mount.path(), "transport").unwrap(), "uring");
    mount.unmount();
}

#[test]
fn without_the_switch_the_error_names_it() {
    let Some(mount) = TestMount::or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let off = Setup { switched_on: false, ..Setup::default() };
    let (mut daemon, mut output) = TestMount::start_daemon(directory.path(), off);
    let refusal = support::wait_until_ready(&mut output).unwrap_err();
    for words in ["switched off", "echo Y > /sys/module/fuse/parameters/enable_uring", "--transport classic"]
    {
        assert!(refusal.contains(words), "{refusal}");
    }
    daemon.wait().unwrap();
    let left =
        syncline_fuse::mounts().unwrap().into_iter().any(|entry| entry.mount_point == directory.path());
    assert!(!left, "no mount is left behind");
    // A mount that was made before keeps working.
    fs::write(mount.path().join("file"), "x").unwrap();
    mount.unmount();
}

#[test]
fn callers_on_every_cpu_are_served() {
    let Some(mount) = TestMount::or_skip() else { return };
    let threads: Vec<_> = allowed_cpus()
        .unwrap()
        .into_iter()
        .map(|cpu| {
            let path = mount.path().join(format!("cpu{cpu}"));
            std::thread::spawn(move || {
                pin_to_cpu(cpu).unwrap();
                for round in 0..50 {
                    let data = pattern(100 + 5000 * round, cpu);
                    fs::write(&path, &data).unwrap();
                    File::open(&path).unwrap().sync_all().unwrap();
                    assert!(fs::read(&path).unwrap() == data);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    mount.unmount();
}

/// A request that comes while the daemon gets ready waits. If it began, it could keep a lock that the daemon needs
/// to get ready.
#[test]
fn requests_before_the_daemon_is_ready_wait() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path();
    support::unmount(&path);
    for _ in 0..MOUNTS {
        let has_mounted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for cpu in allowed_cpus().unwrap() {
                let (has_mounted, missing) = (&has_mounted, path.join(format!("cpu{cpu}")));
                scope.spawn(move || {
                    pin_to_cpu(cpu).unwrap();
                    while !has_mounted.load(Ordering::Relaxed) {
                        assert!(!missing.exists());
                    }
                });
            }
            let (mut daemon, mut output) = TestMount::start_daemon(&path, Setup::default());
            let mounted = support::wait_until_ready(&mut output);
            has_mounted.store(true, Ordering::Relaxed);
            mounted.unwrap();
            let early = control::text(&path, "early requests");
            support::unmount(&path);
            daemon.wait().unwrap();
            assert_eq!(early.unwrap(), "0");
        });
    }
}

/// How many times the scheduler has moved this thread to another CPU.
fn migrations() -> Option<u64> {
    let figures = fs::read_to_string("/proc/thread-self/sched").ok()?;
    figures
        .lines()
        .find_map(|line| line.strip_prefix("se.nr_migrations")?.rsplit(':').next()?.trim().parse().ok())
}

/// The worker stands aside for its caller. Otherwise every second answer would move the caller to
/// the other CPU, if that is idle.
#[test]
fn one_caller_stays_on_its_cpu() {
    let Some(mount) = TestMount::or_skip() else { return };
    let Some(before) = migrations() else {
        eprintln!("skipped: this kernel does not tell how often a thread moved");
        return;
    };
    let asked_before = mount.requests("Lookup") + mount.requests("MkNod") + mount.requests("GetAttr");
    for index in 0..4000 {
        File::create(mount.path().join(format!("file{index}"))).unwrap();
    }
    let moved = migrations().unwrap() - before;
    let asked = mount.requests("Lookup") + mount.requests("MkNod") + mount.requests("GetAttr") - asked_before;
    assert!(asked >= 8000, "{asked}");
    println!("moved {moved} times in {asked} requests");
    // Other programs may need the CPU.
    assert!(moved * 12 < asked, "moved {moved} times in {asked} requests");
    mount.unmount();
}

#[test]
fn more_requests_than_entries_wait_their_turn() {
    let Some(mount) = TestMount::or_skip() else { return };
    // More than all the entries of two CPUs, each kept for the duration of an fsync.
    let threads: Vec<_> = (0..300)
        .map(|thread| {
            let path = mount.path().join(format!("file{thread}"));
            std::thread::spawn(move || {
                let mut file = File::create(&path).unwrap();
                for round in 0..5 {
                    file.write_all(&pattern(70_000, thread + round)).unwrap();
                    file.sync_all().unwrap();
                }
                drop(file);
                let data: Vec<u8> = (0..5).flat_map(|round| pattern(70_000, thread + round)).collect();
                assert!(fs::read(&path).unwrap() == data);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(mount.requests("FSync"), 1500);
    mount.unmount();
}

#[test]
fn forgets_still_come() {
    let Some(mount) = TestMount::or_skip() else { return };
    for index in 0..200 {
        fs::write(mount.path().join(format!("file{index}")), "x").unwrap();
        fs::remove_file(mount.path().join(format!("file{index}"))).unwrap();
    }
    // Nobody waits for FORGETs, so they may come late.
    let came = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        mount.requests("Forget") + mount.requests("BatchForget") > 0
    });
    assert!(came, "the kernel's FORGETs were not read");
    mount.unmount();
}
