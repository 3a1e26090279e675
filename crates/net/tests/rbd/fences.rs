//! A client that was taken over from writes nothing any more, whatever it was doing.

use crate::rbd::children::{CHILD, Writer};
use crate::rbd::cluster::{Cluster, WATCH, on_the_cluster};
use crate::rbd::records::{all_blocks, check_acknowledged, read_all, read_records, record, write_records};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use syncline_device::{DeviceExt, block_on};
use syncline_nbdlab::Pace;
use syncline_net::rbd::{Canary, RbdDevice, RbdOptions};

const LIMIT: Duration = Duration::from_secs(150);
const FIRST: u64 = 1;
const SECOND: u64 = 2;

fn with(canary: Option<Canary>) -> RbdOptions {
    // A machine that is busy with other tests takes longer than a second to find a name.
    RbdOptions { canary, name_wait: Duration::from_secs(20), ..RbdOptions::default() }
}

/// Asserts that only the holder's writes change the device, while this happens and for a while after
/// it.
fn nothing_lands(holder: &RbdDevice, happens: impl FnOnce()) {
    let before = read_all(holder);
    let last = before.len() - 1;
    happens();
    block_on(holder.write_at(last as u64 * 4096, vec![record(SECOND, 0)])).unwrap();
    thread::sleep(Duration::from_secs(2));
    let after = read_all(holder);
    for (block, (before, after)) in before.iter().zip(&after).enumerate() {
        let expected = if block == last { &Some((SECOND, 0)) } else { before };
        assert_eq!(after, expected, "a write of the former holder landed in block {block}");
    }
}

/// Takes over from a device of this process with 64 writes in flight.
fn take_over_under_load(cluster: &Cluster, canary: Option<Canary>) {
    let (spec, first) = cluster.create(256, &with(canary));
    let (stop, told) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            write_records(&*first, FIRST, all_blocks(&*first), 64, &stop, |count| {
                told.store(count, Ordering::Relaxed)
            })
        });
        let stopping = Stop(&stop);
        let started = Instant::now();
        while told.load(Ordering::Relaxed) < 200 {
            assert!(started.elapsed() < Duration::from_secs(60), "too slow");
            thread::sleep(Duration::from_millis(5));
        }
        let taking = Instant::now();
        let second = RbdDevice::take_over(&spec, &with(canary)).unwrap();
        let took = taking.elapsed();
        nothing_lands(&second, || {});
        drop(stopping);
        let stream = writing.join().unwrap();
        let error = stream.error.expect("the first one is told").to_string();
        assert!(error.contains("this host was fenced"), "{error}");
        let process = format!("process {}", std::process::id());
        assert!(error.contains("has its lock now") && error.contains(&process), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        // For good.
        for _ in 0..3 {
            assert!(block_on(first.write_at(0, vec![record(FIRST, 0)])).is_err());
            assert!(block_on(first.flush_all()).is_err());
            assert!(block_on(first.read_at(0, 4096)).is_err());
            assert!(block_on(first.discard_at(0, 4096)).is_err());
        }
        assert!(first.broken().is_some());
        check_acknowledged(&read_all(&*second), FIRST, stream.acknowledged);
        eprintln!("taken over in {took:?}, {} records of the first were acknowledged", stream.acknowledged);
    });
    // A fenced device is closed at once.
    let pace = Pace::start();
    drop(first);
    pace.assert_within(Duration::from_secs(9));
}

/// Stops a stream, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes over from a process that is stopped, with writes in flight, and continues afterwards.
fn take_over_while_stopped(cluster: &Cluster, canary: Option<Canary>) {
    let (spec, device) = cluster.create(256, &with(canary));
    drop(device);
    let mut writer = Writer::start(cluster, &spec, canary);
    writer.wait_for(200);
    writer.signal(libc::SIGSTOP);
    let taking = Instant::now();
    let second = RbdDevice::take_over(&spec, &with(canary)).unwrap();
    let took = taking.elapsed();
    nothing_lands(&second, || {
        writer.signal(libc::SIGCONT);
        thread::sleep(Duration::from_millis(500));
    });
    let why = writer.wait_for_end();
    assert!(why.contains("this host was fenced") && why.contains("has its lock now"), "{why}");
    assert_eq!(writer.line(), "after 0");
    assert_eq!(writer.line(), "closed");
    writer.join();
    check_acknowledged(&read_all(&*second), CHILD, writer.acknowledged);
    eprintln!("taken over from a stopped process in {took:?}, {} acknowledged", writer.acknowledged);
}

/// Asserts that a test fails, with these words.
fn fails(words: &str, test: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(test)).expect_err("the test does not notice a broken rule");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_take_over_with_writes_in_flight() {
    on_the_cluster(LIMIT, |cluster| take_over_under_load(cluster, None));
}

#[test]
fn canary_automatic_locks_let_both_write() {
    on_the_cluster(LIMIT, |cluster| {
        fails("of the former holder landed", || take_over_under_load(cluster, Some(Canary::AutomaticLock)));
    });
}

#[test]
fn a_take_over_from_a_stopped_process() {
    on_the_cluster(LIMIT, |cluster| take_over_while_stopped(cluster, None));
}

#[test]
fn canary_without_a_fence_a_stopped_process_goes_on_writing() {
    on_the_cluster(LIMIT, |cluster| {
        fails("landed", || take_over_while_stopped(cluster, Some(Canary::Unfenced)));
    });
}

#[test]
fn a_process_that_was_stopped_for_longer_than_its_watch_comes_back_to_nothing() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(256, &with(None));
        drop(device);
        let mut writer = Writer::start(cluster, &spec, None);
        writer.wait_for(200);
        writer.signal(libc::SIGSTOP);
        // Not taken over: it seems dead.
        let patient = RbdOptions { lock_wait: WATCH * 4, ..with(None) };
        let second = RbdDevice::open(&spec, &patient).unwrap();
        nothing_lands(&second, || {
            writer.signal(libc::SIGCONT);
            thread::sleep(Duration::from_millis(500));
        });
        let why = writer.wait_for_end();
        assert!(why.contains("this host was fenced"), "{why}");
        assert_eq!(writer.line(), "after 0");
        check_acknowledged(&read_all(&*second), CHILD, writer.acknowledged);
    });
}

/// Each of many takes over from the one before it, which has writes in flight in blocks of its own.
/// `SYNCLINE_RBD_TAKEOVERS` is how often.
#[test]
fn take_overs_in_a_row() {
    let count = std::env::var("SYNCLINE_RBD_TAKEOVERS").map_or(8, |count| count.parse().expect("a number"));
    let limit = Duration::from_secs(120 + 20 * count);
    on_the_cluster(limit, move |cluster| {
        const EACH: u64 = 600;
        let (spec, mut holder) = cluster.create((count + 1) * EACH * 4096 / (1 << 20) + 1, &with(None));
        let mut found = Vec::new();
        let mut longest = Duration::ZERO;
        for writer in 0..count {
            let blocks = writer * EACH..(writer + 1) * EACH;
            let (stop, told) = (AtomicBool::new(false), AtomicU64::new(0));
            let (next, stream) = thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    write_records(&*holder, writer, blocks.clone(), 32, &stop, |count| {
                        told.store(count, Ordering::Relaxed);
                    })
                });
                let _stopping = Stop(&stop);
                // At another moment each time.
                while told.load(Ordering::Relaxed) < (writer * 37) % 300 && !writing.is_finished() {
                    thread::sleep(Duration::from_millis(1));
                }
                let taking = Instant::now();
                let next = RbdDevice::take_over(&spec, &with(None)).unwrap();
                longest = longest.max(taking.elapsed());
                found.push(read_records(&*next, blocks.clone()));
                (next, writing.join().unwrap())
            });
            assert!(stream.error.is_some() || stream.acknowledged == EACH, "{stream:?}");
            check_acknowledged(&found[writer as usize], writer, stream.acknowledged);
            holder = next;
        }
        for (writer, found) in (0..).zip(&found) {
            let now = read_records(&*holder, writer * EACH..(writer + 1) * EACH);
            assert!(now == *found, "a write of holder {writer} landed after it was taken over from");
        }
        eprintln!("{count} take-overs, the longest took {longest:?}");
    });
}

#[test]
fn an_idle_device_notices_that_it_was_fenced() {
    on_the_cluster(LIMIT, |cluster| {
        let options = RbdOptions { check_every: Duration::from_millis(200), ..RbdOptions::default() };
        let (spec, first) = cluster.create(4, &options);
        let second = RbdDevice::take_over(&spec, &options).unwrap();
        let started = Instant::now();
        while first.broken().is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "it did not notice");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(second.broken().is_none());
        // And back.
        let third = RbdDevice::take_over(&spec, &options).unwrap();
        block_on(third.write_at(0, vec![record(FIRST, 0)])).unwrap();
        assert!(block_on(second.write_at(0, vec![record(SECOND, 0)])).is_err());
        assert_eq!(&block_on(third.read_at(0, 4096)).unwrap()[..], &record(FIRST, 0)[..]);
    });
}

#[test]
fn an_image_that_nobody_has_can_be_taken_over() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(4, &RbdOptions::default());
        drop(device);
        let device = RbdDevice::take_over(&spec, &RbdOptions::default()).unwrap();
        block_on(device.write_at(0, vec![record(FIRST, 0)])).unwrap();
    });
}
