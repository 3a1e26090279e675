//! One writer at a time (promise P7).

use crate::rbd::children::Writer;
use crate::rbd::cluster::{Cluster, WATCH, alone_on_the_cluster, on_the_cluster};
use crate::rbd::records::{check_acknowledged, read_all, record};
use std::sync::Barrier;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use syncline_device::{DeviceError, DeviceExt, block_on};
use syncline_nbdlab::Pace;
use syncline_net::rbd::{RbdDevice, RbdError, RbdOptions, RbdSpec};

const LIMIT: Duration = Duration::from_secs(150);

#[track_caller]
fn refused(spec: &RbdSpec, options: &RbdOptions) -> DeviceError {
    match RbdDevice::open(spec, options) {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

/// True if the holder in this error is on the blocklist for years; `None` if it isn't on it.
fn fenced(cluster: &Cluster, error: &DeviceError) -> Option<bool> {
    let holder = RbdError::of(error).and_then(RbdError::holder).expect("a holder");
    let list = cluster.ceph("osd blocklist ls");
    let entry = list.lines().find_map(|line| line.strip_prefix(&format!("{} ", holder.address)))?;
    let until: u64 = entry[..4].parse().expect("a year");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date").as_secs() / (365 * 86_400) + 1970;
    Some(until >= now + 8)
}

#[test]
fn a_second_writer_is_refused_and_told_who_has_the_image() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, first) = cluster.create(4, &RbdOptions::default());
        let pace = Pace::start();
        let error = refused(&spec, &RbdOptions::default());
        pace.assert_within(Duration::from_secs(10));
        let holder = RbdError::of(&error).and_then(RbdError::holder).expect("a holder").clone();
        assert!(holder.client.starts_with("client.") && holder.alive, "{holder}");
        assert!(holder.address.starts_with("127.0.0.1:"), "{holder}");
        let process = format!("process {}", std::process::id());
        assert!(holder.about.as_deref().unwrap_or_default().contains(&process), "{holder}");
        let text = error.to_string();
        assert!(text.contains("--takeover") && text.lines().count() == 1, "{text}");
        // The first one has not noticed anything.
        block_on(first.write_at(0, vec![record(1, 0)])).unwrap();
        drop(first);
        let second = RbdDevice::open(&spec, &RbdOptions::default()).unwrap();
        assert_eq!(&block_on(second.read_at(0, 4096)).unwrap()[..], &record(1, 0)[..]);
    });
}

#[test]
fn of_many_who_open_at_once_one_gets_the_image() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(4, &RbdOptions::default());
        drop(device);
        let options = RbdOptions { lock_wait: Duration::ZERO, ..RbdOptions::default() };
        let (start, end) = (Barrier::new(4), Barrier::new(4));
        let opened = std::thread::scope(|scope| {
            let opening: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let opened = RbdDevice::open(&spec, &options);
                        // Nobody closes before all have tried.
                        end.wait();
                        match opened {
                            Ok(device) => {
                                block_on(device.write_at(0, vec![record(2, 0)])).unwrap();
                                true
                            }
                            Err(error) => {
                                let error = RbdError::of(&error).expect("an error of RBD");
                                assert!(error.holder().is_some(), "{error}");
                                false
                            }
                        }
                    })
                })
                .collect();
            opening.into_iter().map(|thread| thread.join().unwrap()).filter(|&got| got).count()
        });
        assert_eq!(opened, 1);
    });
}

#[test]
fn readers_are_refused_beside_a_writer_and_fail_when_one_comes() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, writer) = cluster.create(4, &RbdOptions::default());
        block_on(writer.write_at(0, vec![record(3, 0)])).unwrap();
        block_on(writer.flush_all()).unwrap();
        let reading =
            RbdOptions { read_only: true, check_every: Duration::from_millis(200), ..RbdOptions::default() };
        let error = refused(&spec, &reading);
        assert!(RbdError::of(&error).and_then(RbdError::holder).is_some(), "{error}");
        // Data that does not change may be read.
        let beside = RbdOptions { beside_writer: true, ..reading.clone() };
        let beside = RbdDevice::open(&spec, &beside).unwrap();
        assert_eq!(&block_on(beside.read_at(0, 4096)).unwrap()[..], &record(3, 0)[..]);
        drop(writer);
        let first = RbdDevice::open(&spec, &reading).unwrap();
        let second = RbdDevice::open(&spec, &reading).unwrap();
        assert_eq!(&block_on(first.read_at(0, 4096)).unwrap()[..], &record(3, 0)[..]);
        assert_eq!(&block_on(second.read_at(0, 4096)).unwrap()[..], &record(3, 0)[..]);
        let _writer = RbdDevice::open(&spec, &RbdOptions::default()).unwrap();
        let started = Instant::now();
        while first.broken().is_none() || second.broken().is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "nobody noticed the writer");
            std::thread::sleep(Duration::from_millis(20));
        }
        let error = block_on(first.read_at(0, 4096)).unwrap_err().to_string();
        assert!(error.contains("has begun to write") && error.contains("client."), "{error}");
        assert!(beside.broken().is_none());
    });
}

#[test]
fn the_lock_of_a_process_that_was_killed_is_had_when_its_watch_has_run_out() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(64, &RbdOptions::default());
        drop(device);
        let mut writer = Writer::start(cluster, &spec, None);
        writer.wait_for(100);
        let pid = writer.pid();
        writer.signal(libc::SIGKILL);
        writer.join();
        writer.catch_up();
        let error = refused(&spec, &RbdOptions::default());
        assert!(error.to_string().contains(&format!("process {pid}")), "{error}");
        let (started, pace) = (Instant::now(), Pace::start());
        let patient = RbdOptions { lock_wait: WATCH * 4, ..RbdOptions::default() };
        let device = RbdDevice::open(&spec, &patient).unwrap();
        let took = started.elapsed();
        pace.assert_within(WATCH * 3);
        eprintln!("the lock of a process that was killed was had after {took:?} (watch {WATCH:?})");
        check_acknowledged(&read_all(&*device), crate::rbd::children::CHILD, writer.acknowledged);
        block_on(device.write_at(0, vec![record(4, 0)])).unwrap();
        // Its client is fenced too, and for years: it might have been only cut off, or stopped.
        assert_eq!(fenced(cluster, &error), Some(true));
    });
}

#[test]
fn a_process_that_was_killed_keeps_nobody_from_reading() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(64, &RbdOptions::default());
        drop(device);
        let mut writer = Writer::start(cluster, &spec, None);
        writer.wait_for(100);
        writer.signal(libc::SIGKILL);
        writer.join();
        writer.catch_up();
        let check_every = Duration::from_millis(200);
        let reading = RbdOptions { read_only: true, check_every, ..RbdOptions::default() };
        // It may be alive.
        refused(&spec, &reading);
        std::thread::sleep(WATCH * 2);
        let reader = RbdDevice::open(&spec, &reading).unwrap();
        check_acknowledged(&read_all(&*reader), crate::rbd::children::CHILD, writer.acknowledged);
        std::thread::sleep(check_every * 5);
        assert!(reader.broken().is_none(), "{:?}", reader.broken());
        let _writer = RbdDevice::open(&spec, &RbdOptions::default()).unwrap();
        let started = Instant::now();
        while reader.broken().is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "nobody noticed the writer");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// The former holder looks for its lock now and then only.
#[test]
fn whose_lock_was_taken_away_by_hand_is_fenced_by_the_next() {
    on_the_cluster(LIMIT, |cluster| {
        let options = RbdOptions { check_every: LIMIT, ..RbdOptions::default() };
        for take_over in [false, true] {
            let (spec, first) = cluster.create(4, &options);
            block_on(first.write_at(0, vec![record(6, 0)])).unwrap();
            let image = format!("rbd/{}", spec.image);
            let listed = cluster.rbd(&format!("lock ls {image} --format json"));
            let word = |name: &str| {
                let rest = listed.split(&format!("\"{name}\":\"")).nth(1).expect("a lock");
                rest.split('"').next().unwrap().to_owned()
            };
            let unfenced = "--rbd-blocklist-on-break-lock=false";
            cluster.rbd_with(&["lock", "rm", &image, &word("id"), &word("locker"), unfenced]);
            let second = match take_over {
                false => RbdDevice::open(&spec, &RbdOptions::default()),
                true => RbdDevice::take_over(&spec, &RbdOptions::default()),
            };
            let second = second.unwrap();
            block_on(second.write_at(0, vec![record(6, 1)])).unwrap();
            let error = block_on(first.write_at(0, vec![record(6, 2)])).unwrap_err().to_string();
            assert!(error.contains("was fenced"), "{error}");
            assert_eq!(&block_on(second.read_at(0, 4096)).unwrap()[..], &record(6, 1)[..]);
        }
    });
}

/// Nobody is fenced where one closes an image and the next opens it.
#[test]
fn who_closes_an_image_is_not_fenced() {
    alone_on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(4, &RbdOptions::default());
        drop(device);
        let fenced = || cluster.ceph("osd blocklist ls --format json").matches("addr").count();
        let before = fenced();
        let mut longest = Duration::ZERO;
        for _ in 0..10 {
            let began = Instant::now();
            drop(RbdDevice::open(&spec, &RbdOptions::default()).unwrap());
            longest = longest.max(began.elapsed());
        }
        eprintln!("opening and closing took at most {longest:?}");
        assert_eq!(fenced(), before);
    });
}

#[test]
fn a_lock_that_was_taken_by_hand_is_left_alone() {
    on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(4, &RbdOptions::default());
        drop(device);
        cluster.rbd(&format!("lock add rbd/{} mine", spec.image));
        for opened in [RbdDevice::open, RbdDevice::take_over] {
            let Err(error) = opened(&spec, &RbdOptions::default()) else { panic!("opened") };
            assert!(matches!(RbdError::of(&error), Some(RbdError::LockedByHand { .. })), "{error}");
            assert!(error.to_string().contains("rbd lock rm"), "{error}");
        }
        let reading = RbdOptions { read_only: true, ..RbdOptions::default() };
        RbdDevice::open(&spec, &reading).unwrap();
    });
}
