//! A mount whose image was lost: everything on it fails with EIO, all commands say so, and it can be
//! unmounted at once.

use super::nbd::{Server, no_exports};
use super::observed::{metric, told};
use crate::skip_if;
use crate::support::{Mount, Place, eventually, program, run, stop, syncline, wait_for_end, wait_for_log};
use rustix::process::{Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use syncline_nbdlab::Pace;

const EIO: Option<i32> = Some(5);

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Writes and syncs until that fails; returns the error.
fn sync_until_it_fails(path: &Path) -> io::Error {
    let mut file = File::create(path).unwrap();
    for record in 0u64.. {
        if let Err(error) = file.write_all(&record.to_le_bytes()).and_then(|()| file.sync_all()) {
            return error;
        }
    }
    unreachable!("there are enough numbers")
}

/// Asserts the state of a mount that has lost its image. Commands report the loss with the words `lost`,
/// and the log with `words`.
pub fn assert_lost(mount: Mount, lost: &str, log: &Path, words: &[&str]) {
    let path = mount.path.clone();
    eventually("the daemon knows it", || mount.stats()["lost"].is_object());
    let before = mount.stats();
    // Names are still there, as on ext4 after a shutdown; nothing else is.
    assert!(path.join("before").exists());
    assert_eq!(errno(File::open(path.join("before")).and_then(|file| file.sync_all())), EIO);
    assert_eq!(errno(File::create(path.join("more"))), EIO);
    assert_eq!(errno(fs::create_dir(path.join("directory"))), EIO);
    assert_eq!(errno(fs::remove_file(path.join("before"))), EIO);

    // Nothing is called damaged, or full.
    for words in [&["sync", "--all"][..], &["snapshot", "create"], &["scrub"], &["trim"]] {
        let mut command = program();
        command.args(words).arg(&path).args((words[0] == "snapshot").then_some("late"));
        run(command).fails(8, &[lost, "mount it again"]);
    }

    let stats = told(&mount, &["stats"]);
    for (what, text) in [
        ("stats", stats.clone()),
        ("status", syncline(["status"]).ok().out),
        ("info", told(&mount, &["info"])),
        ("top", told(&mount, &["top", "--once", "--width", "100", "--interval", "0.2"])),
    ] {
        assert!(text.contains(lost), "{lost:?} is missing in {what}: {text}");
    }
    assert!(stats.contains("unmount it, and mount it again"), "{stats}");
    assert_eq!(metric(&told(&mount, &["stats", "--prometheus"]), "syncline_image_lost"), Some(1.0));

    let text = wait_for_log(log, "ERROR");
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "one line tells it: {text}");
    for words in words.iter().chain([&"until then everything on the mount fails with EIO"]) {
        assert!(errors[0].contains(words), "{words:?} is missing: {text}");
    }
    std::thread::sleep(Duration::from_secs(3));
    let after = mount.stats();
    let used = after["process"]["cpu_ms"].as_u64().unwrap() - before["process"]["cpu_ms"].as_u64().unwrap();
    assert!(used < 1000, "{used} ms of CPU in more than three seconds");
    assert_eq!(after["network"]["writes"], before["network"]["writes"], "nothing more is sent");

    let (daemon, pace) = (mount.pid(), Pace::start());
    let answer = mount.unmount();
    pace.assert_within(Duration::from_secs(10));
    answer.fails(8, &["is unmounted", lost, "changes not synced by then are lost", "mount"]);
    wait_for_end(daemon);
    assert!(fs::read_dir(&path).unwrap().next().is_none(), "it is the empty directory again");
}

#[test]
fn who_was_taken_over_stays_mounted_and_answers_eio() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let log = place.path().join("log");
    let first = Mount::new(&image, &place.directory("first"), &["--log", log.to_str().unwrap()]);
    fs::write(first.path.join("before"), "acknowledged").unwrap();
    File::open(first.path.join("before")).unwrap().sync_all().unwrap();
    // Dirty data that nobody syncs, and somebody who syncs all the time.
    fs::write(first.path.join("dirty"), vec![1; 1 << 20]).unwrap();
    let path = first.path.join("synced");
    let syncing = std::thread::spawn(move || sync_until_it_fails(&path));
    let stopped = first.pid();
    std::thread::sleep(Duration::from_millis(300));
    stop(stopped);
    let mut taking = program();
    let directory = place.directory("second");
    taking.args(["mount", "--takeover"]).arg(&image).arg(&directory);
    run(taking).ok();
    let second = Mount::of(&directory);
    assert!(!syncing.is_finished());
    kill_process(stopped, Signal::CONT).unwrap();

    assert_eq!(syncing.join().unwrap().raw_os_error(), EIO);
    let holder = format!("(process {})", second.pid().as_raw_nonzero());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let holder = format!("{} {holder}", host.trim());
    let words = [&*format!("lost the lease to {holder}"), "--takeover"];
    assert_lost(first, &format!("lost its image to {holder} at 20"), &log, &words);

    // The successor works on.
    fs::write(second.path.join("after"), "more").unwrap();
    File::open(second.path.join("after")).unwrap().sync_all().unwrap();
    second.unmount().ok();
    syncline([OsStr::new("check"), image.as_os_str()]).ok();
}

/// `wait=forever` has an effect only without a lease that ends.
#[test]
fn who_waits_for_a_silent_server_is_told_when_the_lease_ends() {
    skip_if!(no_exports());
    let place = Place::new();
    let mut server = Server::new(&place);
    let image = server.image_with("forever");
    syncline([OsStr::new("mkfs"), image.as_os_str()]).ok();
    let log = place.path().join("log");
    let mount = Mount::new(&image, &place.directory("mnt"), &["--log", log.to_str().unwrap()]);
    fs::write(mount.path.join("before"), "contents").unwrap();
    server.signal(Signal::STOP);
    let pace = Pace::start();
    let error = sync_until_it_fails(&mount.path.join("synced"));
    assert_eq!(error.raw_os_error(), EIO);
    pace.assert_within(Duration::from_secs(14));
    assert_lost(mount, "lost its image at 20", &log, &["could not renew the lease within 8.8 s"]);
    server.kill();
}

/// Another host takes the image while the daemon writes its remaining changes, and leaves it clean.
#[test]
fn an_unmount_does_not_take_another_hosts_clean_image_for_its_own() {
    skip_if!(no_exports());
    // On a busy machine the daemon may have given up before it is stopped.
    assert!((0..5).any(|_| an_unmount_meets_another_host()));
}

/// False if the daemon has given up too early.
fn an_unmount_meets_another_host() -> bool {
    let place = Place::new();
    let server = Server::new(&place);
    let image = server.image_with("forever");
    syncline([OsStr::new("mkfs"), image.as_os_str()]).ok();
    let mount = Mount::new(&image, &place.directory("first"), &[]);
    let (daemon, path) = (mount.pid(), mount.path.clone());
    fs::write(path.join("unsynced"), "more than the kernel has").unwrap();
    // The daemon can't write its remaining changes, and is stopped before it has given up.
    server.signal(Signal::STOP);
    let unmounting = std::thread::spawn(move || mount.unmount());
    eventually("it is unmounted", || {
        !fs::read_to_string("/proc/mounts").unwrap().contains(path.to_str().unwrap())
    });
    if kill_process(daemon, Signal::STOP).is_err() {
        server.signal(Signal::CONT);
        unmounting.join().unwrap();
        return false;
    }
    server.signal(Signal::CONT);
    // It recovers the image, and leaves it clean. (A mount on this host would be seen.)
    syncline([OsStr::new("takeover"), image.as_os_str()]).ok();
    syncline([OsStr::new("label"), image.as_os_str(), OsStr::new("another")]).ok();
    kill_process(daemon, Signal::CONT).unwrap();
    let answer = unmounting.join().unwrap();
    assert_eq!(answer.code, 8, "{answer:?}");
    assert!(answer.err.contains("another mount has had the image before all was written"), "{answer:?}");
    true
}
