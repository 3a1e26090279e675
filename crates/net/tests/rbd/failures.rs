//! Failures of a cluster, and the messages about them.

use crate::rbd::children::Leaver;
use crate::rbd::cluster::{Cluster, alone_on_the_cluster, on_the_cluster};
use crate::rbd::records::{all_blocks, check_acknowledged, read_all, record, write_records};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use syncline_device::{Claim, Device, DeviceError, DeviceExt, block_on};
use syncline_nbdlab::Pace;
use syncline_net::rbd::{RbdDevice, RbdError, RbdOptions, RbdSpec};

const LIMIT: Duration = Duration::from_secs(150);

/// Opens what can't be opened; the message is one line with these words.
#[track_caller]
fn refused(spec: &RbdSpec, options: &RbdOptions, words: &[&str]) -> DeviceError {
    let Err(error) = RbdDevice::open(spec, options) else { panic!("opened") };
    one_line(&error, words);
    assert!(RbdError::of(&error).is_some(), "{error:?}");
    error
}

#[track_caller]
fn one_line(error: &DeviceError, words: &[&str]) {
    let text = error.to_string();
    eprintln!("{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing: {text}");
    }
}

#[test]
fn wrong_names_are_told_apart() {
    on_the_cluster(LIMIT, |cluster| {
        let options = RbdOptions::default();
        let error = refused(
            &cluster.spec("no-such-image"),
            &options,
            &["rbd:rbd/no-such-image", "no such image", "rbd ls rbd"],
        );
        assert_eq!(error.io_error().unwrap().kind(), ErrorKind::NotFound);
        let spec = RbdSpec { pool: "no-such-pool".into(), ..cluster.spec("x") };
        refused(&spec, &options, &["no pool 'no-such-pool'", "ceph osd pool ls"]);
        let spec = RbdSpec { namespace: Some("no-such".into()), ..cluster.spec("x") };
        refused(&spec, &options, &["no namespace 'no-such'", "rbd namespace ls rbd"]);
        let spec = RbdSpec { conf: Some("/no/such/ceph.conf".into()), ..cluster.spec("x") };
        refused(&spec, &options, &["/no/such/ceph.conf", "conf="]);
        refused(&cluster.spec("a\0b"), &options, &["no name that Ceph takes"]);
        refused(&cluster.spec(""), &options, &["no name that Ceph takes"]);
    });
}

#[test]
fn an_image_in_a_namespace_is_another_one() {
    on_the_cluster(LIMIT, |cluster| {
        cluster.rbd("namespace create rbd/tenant");
        let (plain, device) = cluster.create(4, &RbdOptions::default());
        let inside = RbdSpec { namespace: Some("tenant".into()), ..plain.clone() };
        assert_eq!(inside.to_string(), format!("rbd:rbd/tenant/{}", plain.image));
        refused(&inside, &RbdOptions::default(), &["no such image", "rbd ls rbd/tenant"]);
        let other = RbdDevice::create(&inside, 8 << 20, &RbdOptions::default()).unwrap();
        block_on(other.write_at(0, vec![record(1, 1)])).unwrap();
        assert_eq!((device.size_bytes(), other.size_bytes()), (4 << 20, 8 << 20));
        assert!(block_on(device.read_at(0, 4096)).unwrap().iter().all(|&byte| byte == 0));
        let Err(error) = RbdDevice::create(&inside, 8 << 20, &RbdOptions::default()) else {
            panic!("created")
        };
        one_line(&error, &["the image exists", "rbd rm rbd/tenant/"]);
    });
}

/// The cluster's configuration with another keyring.
fn with_keyring(cluster: &Cluster, name: &str, keyring: &str) -> std::path::PathBuf {
    let keyring = cluster.file(&format!("{name}.keyring"), keyring);
    let conf = std::fs::read_to_string(cluster.conf()).unwrap();
    let other = format!("keyring = {}", keyring.display());
    let lines: Vec<&str> =
        conf.lines().map(|line| if line.starts_with("keyring = ") { &other } else { line }).collect();
    cluster.file(&format!("{name}.conf"), &(lines.join("\n") + "\n"))
}

#[test]
fn keys_and_capabilities() {
    on_the_cluster(LIMIT, |cluster| {
        let options = RbdOptions { open_limit: Duration::from_secs(10), ..RbdOptions::default() };
        let (spec, device) = cluster.create(4, &options);
        // A key that is well made and not the cluster's.
        let wrong = "[client.admin]\n\tkey = AQBSdZ9nAAAAABAAq1Sx1m2vpJ0bBWJ8CUYQ2w==\n";
        let conf = with_keyring(cluster, "wrong", wrong);
        refused(&RbdSpec { conf: Some(conf), ..spec.clone() }, &options, &["client.admin", "key"]);
        let conf = with_keyring(cluster, "empty", "");
        refused(&RbdSpec { conf: Some(conf), ..spec.clone() }, &options, &["client.admin", "key"]);

        // A user who may write and may not fence.
        cluster.ceph_with(&["auth", "get-or-create", "client.weak", "mon", "allow r", "osd", "allow rwx"]);
        let key = cluster.ceph("auth get client.weak");
        let conf = with_keyring(cluster, "weak", &key);
        let weak = RbdSpec { conf: Some(conf), id: Some("weak".into()), ..spec.clone() };
        let Err(error) = RbdDevice::take_over(&weak, &options) else { panic!("taken over") };
        one_line(&error, &["client.weak may not keep", "profile rbd"]);
        // The holder has not been fenced.
        block_on(device.write_at(0, vec![record(2, 0)])).unwrap();

        // The capabilities that Ceph's documentation gives to users of images are enough.
        cluster.ceph_with(&[
            "auth",
            "get-or-create",
            "client.usual",
            "mon",
            "profile rbd",
            "osd",
            "profile rbd pool=rbd",
        ]);
        let key = cluster.ceph("auth get client.usual");
        let conf = with_keyring(cluster, "usual", &key);
        let usual = RbdSpec { conf: Some(conf), id: Some("usual".into()), ..spec.clone() };
        let taken = RbdDevice::take_over(&usual, &options).unwrap();
        assert!(block_on(device.write_at(0, vec![record(2, 1)])).is_err());
        block_on(taken.write_at(4096, vec![record(2, 2)])).unwrap();
        assert!(taken.claim_snapshot(1, Claim::Exclusive).unwrap());
        assert_eq!(block_on(taken.enlarge_to(8 << 20)).unwrap(), 8 << 20);
        drop((device, taken));

        // A user who may only read.
        cluster.ceph_with(&[
            "auth",
            "get-or-create",
            "client.reader",
            "mon",
            "profile rbd",
            "osd",
            "profile rbd-read-only",
        ]);
        let key = cluster.ceph("auth get client.reader");
        let conf = with_keyring(cluster, "reader", &key);
        let reader = RbdSpec { conf: Some(conf), id: Some("reader".into()), ..spec.clone() };
        let reading = RbdOptions { read_only: true, ..options.clone() };
        let device = RbdDevice::open(&reader, &reading).unwrap();
        assert_eq!(&block_on(device.read_at(0, 4096)).unwrap()[..], &record(2, 0)[..]);
        drop(device);
        refused(&reader, &options, &["Operation not permitted", "profile rbd"]);
    });
}

#[test]
fn an_image_must_be_lockable_and_have_our_settings() {
    on_the_cluster(LIMIT, |cluster| {
        let spec = cluster.new_spec();
        cluster.rbd(&format!("create rbd/{} --size 8M --image-feature layering", spec.image));
        let hint = format!("rbd feature enable rbd/{} exclusive-lock", spec.image);
        refused(&spec, &RbdOptions::default(), &["no exclusive lock", &hint]);
        cluster.rbd(&hint["rbd ".len()..]);
        cluster.rbd(&format!("config image set rbd/{} rbd_cache true", spec.image));
        let hint = format!("rbd config image rm rbd/{} rbd_cache", spec.image);
        refused(&spec, &RbdOptions::default(), &["rbd_cache = true", &hint]);
        cluster.rbd(&hint["rbd ".len()..]);
        RbdDevice::open(&spec, &RbdOptions::default()).unwrap();
    });
}

#[test]
fn a_cluster_that_is_not_there_is_given_up() {
    on_the_cluster(LIMIT, |cluster| {
        let conf = std::fs::read_to_string(cluster.conf()).unwrap();
        // Nobody listens on port 9.
        let lines: Vec<&str> = conf
            .lines()
            .map(|line| if line.starts_with("mon_host") { "mon_host = v2:127.0.0.1:9" } else { line })
            .collect();
        let conf = cluster.file("away.conf", &(lines.join("\n") + "\n"));
        let options = RbdOptions { open_limit: Duration::from_secs(3), ..RbdOptions::default() };
        let spec = RbdSpec { conf: Some(conf), ..cluster.spec("x") };
        let pace = Pace::start();
        let error = refused(&spec, &options, &[]);
        pace.assert_within(Duration::from_secs(10));
        assert_eq!(error.io_error().unwrap().kind(), ErrorKind::TimedOut, "{error}");
    });
}

#[test]
fn writes_outlive_an_osd_that_is_killed_and_comes_back() {
    alone_on_the_cluster(LIMIT, |cluster| {
        let (_, device) = cluster.create(128, &RbdOptions::default());
        let (stop, told) = (AtomicBool::new(false), AtomicU64::new(0));
        let stream = thread::scope(|scope| {
            let writing = scope.spawn(|| {
                write_records(&*device, 1, all_blocks(&*device), 64, &stop, |count| {
                    told.store(count, Ordering::Relaxed)
                })
            });
            let wait_for = |count: u64| {
                let started = Instant::now();
                while told.load(Ordering::Relaxed) < count && !writing.is_finished() {
                    if started.elapsed() > Duration::from_secs(45) {
                        stop.store(true, Ordering::Relaxed);
                        panic!("the writes do not go on");
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            };
            wait_for(200);
            cluster.osd("kill");
            let before = told.load(Ordering::Relaxed);
            thread::sleep(Duration::from_secs(2));
            let meanwhile = told.load(Ordering::Relaxed) - before;
            assert!(meanwhile <= 64, "{meanwhile} records were acknowledged by nobody");
            let back = Instant::now();
            cluster.osd("start");
            wait_for(before + 200);
            eprintln!("writes went on {:?} after the OSD was started again", back.elapsed());
            stop.store(true, Ordering::Relaxed);
            writing.join().unwrap()
        });
        assert!(stream.error.is_none(), "{:?}", stream.error);
        check_acknowledged(&read_all(&*device), 1, stream.acknowledged);
    });
}

#[test]
fn a_cluster_that_is_away_for_too_long_ends_the_device() {
    alone_on_the_cluster(LIMIT, |cluster| {
        let options = RbdOptions { wait: Some(Duration::from_secs(2)), ..RbdOptions::default() };
        let (spec, device) = cluster.create(4, &options);
        block_on(device.write_at(0, vec![record(1, 0)])).unwrap();
        block_on(device.flush_all()).unwrap();
        cluster.osd("kill");
        let (started, pace) = (Instant::now(), Pace::start());
        let writes: Vec<_> =
            (1..9).map(|sequence| device.write_at(sequence * 4096, vec![record(1, sequence)])).collect();
        for write in writes {
            let error = block_on(write).unwrap_err();
            assert_eq!(error.io_error().unwrap().kind(), ErrorKind::TimedOut, "{error}");
            one_line(&error, &["gave no answer for 2 s", "ceph -s"]);
        }
        assert!(started.elapsed() > Duration::from_millis(1900), "{:?}", started.elapsed());
        pace.assert_within(Duration::from_secs(8));
        // From here on at once, and for good.
        let pace = Pace::start();
        assert!(block_on(device.flush_all()).is_err());
        assert!(block_on(device.read_at(0, 4096)).is_err());
        pace.assert_within(Duration::from_millis(500));
        // Closing waits, and then leaves the rest to its thread.
        drop(device);
        cluster.osd("start");
        let patient = RbdOptions { lock_wait: Duration::from_secs(40), ..RbdOptions::default() };
        let device = RbdDevice::open(&spec, &patient).unwrap();
        check_acknowledged(&read_all(&*device), 1, 1);
    });
}

/// librbd's own call has no limit, and nothing else is under way that would end the device.
#[test]
fn an_enlargement_ends_when_the_cluster_is_away_for_too_long() {
    alone_on_the_cluster(LIMIT, |cluster| {
        let options = RbdOptions { wait: Some(Duration::from_secs(2)), ..RbdOptions::default() };
        let (_, device) = cluster.create(4, &options);
        cluster.osd("kill");
        let pace = Pace::start();
        let error = block_on(device.enlarge_to(8 << 20)).unwrap_err();
        one_line(&error, &["rbd:rbd/", "gave no answer for 2 s", "ceph -s"]);
        pace.assert_within(Duration::from_secs(8));
        let error = block_on(device.enlarge_to(8 << 20)).unwrap_err();
        one_line(&error, &["gave no answer for 2 s"]);
        drop(device);
        cluster.osd("start");
    });
}

/// The client's threads were using objects that the libraries' destructors destroy.
#[test]
fn a_process_that_ends_with_a_client_in_use_keeps_its_exit_code() {
    alone_on_the_cluster(LIMIT, |cluster| {
        let (spec, device) = cluster.create(4, &RbdOptions::default());
        drop(device);
        let leaver = Leaver::start(cluster, &spec);
        cluster.osd("kill");
        let code = leaver.exit_code();
        cluster.osd("start");
        assert_eq!(code, Some(7));
    });
}

#[test]
fn a_full_pool_refuses_writes_and_takes_them_again_when_there_is_room() {
    alone_on_the_cluster(LIMIT, |cluster| {
        let (_, device) = cluster.create(64, &RbdOptions::default());
        block_on(device.write_at(0, vec![record(1, 0)])).unwrap();
        let room = Room(cluster);
        set_ratios(cluster, ["0.00001"; 3]);
        let started = Instant::now();
        let error = loop {
            // A new object, which needs room.
            let block = started.elapsed().as_millis() as u64 % 15 + 1;
            match block_on(device.write_at(block * (4 << 20), vec![record(1, block)])) {
                Err(error) => break error,
                Ok(()) => block_on(device.discard_at(block * (4 << 20), 4 << 20)).unwrap(),
            }
            assert!(started.elapsed() < Duration::from_secs(60), "the pool does not become full");
            thread::sleep(Duration::from_millis(200));
        };
        one_line(&error, &["pool 'rbd' is full", "ceph df"]);
        assert_eq!(error.io_error().unwrap().kind(), ErrorKind::StorageFull);
        assert!(device.broken().is_none(), "a full pool is no end");
        assert_eq!(&block_on(device.read_at(0, 4096)).unwrap()[..], &record(1, 0)[..]);
        drop(room);
        let started = Instant::now();
        while block_on(device.write_at(60 << 20, vec![record(1, 1)])).is_err() {
            assert!(started.elapsed() < Duration::from_secs(60), "the pool stays full");
            thread::sleep(Duration::from_millis(200));
        }
        block_on(device.flush_all()).unwrap();
    });
}

/// It must not wait for the word of the one that was killed: the rest of this program would.
#[test]
fn an_osd_that_was_full_when_it_was_killed_comes_back() {
    alone_on_the_cluster(LIMIT, |cluster| {
        let room = Room(cluster);
        set_ratios(cluster, ["0.95", "0.00001", "0.00001"]);
        let started = Instant::now();
        while !cluster.ceph("osd dump").contains("backfillfull,exists,up") {
            assert!(started.elapsed() < Duration::from_secs(60), "the OSD does not become full");
            thread::sleep(Duration::from_millis(200));
        }
        // So that it knows itself that it is full; and it is killed before it says that it has room again.
        thread::sleep(Duration::from_secs(4));
        drop(room);
        cluster.osd("kill");
        cluster.osd("start");
        let (_, device) = cluster.create(4, &RbdOptions::default());
        block_on(device.write_at(0, vec![record(1, 0)])).unwrap();
    });
}

/// The shares of an OSD's room at which it is full, nearly full, and too full for others' data.
fn set_ratios(cluster: &Cluster, ratios: [&str; 3]) {
    for (name, ratio) in ["full", "nearfull", "backfillfull"].iter().zip(ratios) {
        cluster.ceph(&format!("osd set-{name}-ratio {ratio}"));
    }
}

/// Gives the cluster its usual ratios back, also when a test fails.
struct Room(&'static Cluster);

impl Drop for Room {
    fn drop(&mut self) {
        set_ratios(self.0, ["0.95", "0.85", "0.90"]);
    }
}
