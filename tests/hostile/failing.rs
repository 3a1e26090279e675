//! A real mount on a device that fails for minutes while no program uses it: it reports that, and
//! neither fills a disk with log lines nor keeps the device busy. When the device works again,
//! everything dirty is written.

use super::disk::Disk;
use crate::skip_if;
use crate::support::{
    LIMIT, Mount, Place, edit_blocks, eventually, no_fuse, not_root, program, syncline, wait_for_end,
    wait_for_log,
};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const FILES: usize = 40;
const FILE_BYTES: usize = 300_000;
/// By then dirty data is due and has failed often enough.
const SETTLE: Duration = Duration::from_secs(14);
const WATCHED: Duration = Duration::from_secs(8);

#[test]
fn a_mount_that_rests_on_a_device_that_fails_is_quiet() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let disk = Disk::new(&place, 128 << 20, Duration::ZERO);
    syncline([OsStr::new("mkfs"), disk.path.as_ref()]).ok();
    let log = place.path().join("log");
    let mount = Mount::new(&disk.path, &place.directory("mount"), &["--log", log.to_str().unwrap()]);
    let synced = mount.path.join("synced");
    fs::write(&synced, "synced").unwrap();
    File::open(&synced).unwrap().sync_all().unwrap();
    disk.troubles.set(false, true, false);
    for number in 0..FILES {
        fs::write(mount.path.join(number.to_string()), vec![number as u8; FILE_BYTES]).unwrap();
    }
    let lines = || fs::read_to_string(&log).unwrap().lines().count();
    let tried = || disk.troubles.written_bytes.load(Ordering::Relaxed);
    eventually("the log tells of it", || lines() > 0);
    std::thread::sleep(SETTLE);
    let (lines_before, tried_before) = (lines(), tried());
    std::thread::sleep(WATCHED);
    let (lines, tried) = (lines() - lines_before, tried() - tried_before);
    println!("{lines} log lines and {} MB of writes that failed in {WATCHED:?}", tried / 1_000_000);
    assert!(lines <= 60, "{lines} log lines in {WATCHED:?}");
    // The dirty data, once for each place that is tried.
    assert!(tried <= 4 * (FILES * FILE_BYTES) as u64, "{tried} bytes in {WATCHED:?}");
    // A device that fails is tried with a few files at a time.
    let failed = mount.stats()["files"]["writeback_errors"].as_u64().unwrap();
    assert!((1..=FILES as u64).contains(&failed), "files, not attempts: {failed}");
    disk.troubles.set(false, false, false);
    let started = Instant::now();
    let last = File::open(mount.path.join("0")).unwrap();
    while last.sync_all().is_err() {
        // A past failure is reported once.
        assert!(started.elapsed() < LIMIT, "the device works again");
    }
    drop(last);
    mount.unmount().ok();
    let mount = Mount::new(&disk.path, &place.directory("again"), &[]);
    for number in 0..FILES {
        let contents = fs::read(mount.path.join(number.to_string())).unwrap();
        assert!(contents == vec![number as u8; FILE_BYTES], "file {number}");
    }
    mount.unmount().ok();
}

/// The log names each file of the mount once, and commands on the mount say that the device failed.
#[test]
fn a_mount_that_gave_up_writing_is_told_of_once_and_as_what_it_is() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let disk = Disk::new(&place, 64 << 20, Duration::ZERO);
    syncline([OsStr::new("mkfs"), disk.path.as_ref()]).ok();
    let log = place.path().join("log");
    let mount = Mount::new(&disk.path, &place.directory("mount"), &["--log", log.to_str().unwrap()]);
    disk.troubles.set(false, true, true);
    for number in 0..4 {
        fs::write(mount.path.join(number.to_string()), vec![7; FILE_BYTES]).unwrap();
    }
    let file = mount.path.join("0");
    let started = Instant::now();
    while mount.stats()["read_only"].is_null() {
        let _ = File::open(&file).unwrap().sync_all();
        assert!(started.elapsed() < LIMIT, "it gives up at some time");
    }
    let told = || fs::read_to_string(&log).unwrap().matches("could not be written back").count();
    eventually("all files are told of", || told() >= 4);
    std::thread::sleep(SETTLE);
    let sync = |words: &[&OsStr]| syncline([&[OsStr::new("sync")], words].concat());
    sync(&[OsStr::new("--all"), mount.path.as_ref()]).fails(8, &["gave up writing", "'syncline stats DIR'"]);
    sync(&[file.as_ref()]).fails(8, &[]);
    let told = fs::read_to_string(&log).unwrap();
    let told: Vec<_> = told.lines().filter(|line| line.contains("could not be written back")).collect();
    assert_eq!(told.len(), 4, "{told:#?}");
    let answer = syncline([OsStr::new("stats"), mount.path.as_ref()]).ok();
    assert!(answer.out.contains("4 files not written back"), "{answer:?}");
}

#[test]
fn reads_that_the_device_fails_are_counted_told_and_logged() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let disk = Disk::new(&place, 64 << 20, Duration::ZERO);
    syncline([OsStr::new("mkfs"), disk.path.as_ref()]).ok();
    let mount = Mount::new(&disk.path, &place.directory("mount"), &[]);
    for number in 0..200 {
        fs::write(mount.path.join(number.to_string()), vec![7; FILE_BYTES / 10]).unwrap();
    }
    mount.unmount().ok();
    let log = place.path().join("log");
    let mount = Mount::new(&disk.path, &place.directory("again"), &["--log", log.to_str().unwrap()]);
    let numbers = (0..200).map(|number| mount.path.join(number.to_string()));
    let mut files: Vec<File> = numbers.map(|path| File::open(path).unwrap()).collect();
    let number = rustix::fs::fstat(&files[0]).unwrap().st_ino;
    disk.troubles.set(true, false, false);
    let mut contents = Vec::new();
    for file in &mut files {
        assert_eq!(file.read_to_end(&mut contents).unwrap_err().raw_os_error(), Some(5));
    }
    let failed = mount.stats()["store"]["device_reads_failed"].as_u64().unwrap();
    assert!(failed >= 200, "{failed}");
    let answer = syncline(["status"]).ok();
    assert!(answer.out.contains(&format!("{failed} device reads failed")), "{answer:?}");
    for words in [format!("inode {number}, block "), "'dmesg'".into(), format!("path DIR {number}'")] {
        wait_for_log(&log, &words);
    }
    let told = fs::read_to_string(&log).unwrap();
    let lines = told.lines().filter(|line| line.contains("Read of")).count();
    assert!((1..=30).contains(&lines), "{lines} lines: {told}");
    drop(files);
    disk.troubles.set(false, false, false);
    mount.unmount().ok();
}

/// The command ended well, and the data that it wrote is lost all the same.
#[test]
fn a_command_whose_mount_does_not_end_well_has_failed() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let disk = Disk::new(&place, 64 << 20, Duration::ZERO);
    syncline([OsStr::new("mkfs"), disk.path.as_ref()]).ok();
    let run_in = |script: &str, each: &mut dyn FnMut()| {
        let (ready, go) = (place.path().join("ready"), place.path().join("go"));
        let mut command = program();
        let script = format!(
            "echo lost >file; {script}; touch {0}; while ! test -e {1}; do sleep 0.05; done; true",
            ready.display(),
            go.display()
        );
        command.arg("run").arg(&disk.path).args(["--", "sh", "-c", &script]).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        eventually("the command runs", || ready.exists());
        each();
        File::create(&go).unwrap();
        let output = child.wait_with_output().unwrap();
        fs::remove_file(ready).unwrap();
        fs::remove_file(go).unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = run_in("true", &mut || disk.troubles.set(false, true, true));
    assert!(code == Some(8) && text.contains("the last checkpoint did not end well"), "{code:?}: {text}");
    disk.troubles.set(false, false, false);
    let kill = |signal| {
        let told: serde_json::Value = serde_json::from_str(&syncline(["status", "--json"]).ok().out).unwrap();
        let is_ours = |mount: &&serde_json::Value| mount["image"].as_str() == disk.path.to_str();
        let pid = told.as_array().unwrap().iter().find(is_ours).unwrap()["pid"].as_i64().unwrap();
        let pid = Pid::from_raw(pid as i32).unwrap();
        kill_process(pid, signal).unwrap();
        pid
    };
    let (code, text) = run_in("true", &mut || wait_for_end(kill(Signal::KILL)));
    assert!(code == Some(8) && text.contains("its daemon died before the command did"), "{code:?}: {text}");
    // A daemon that is asked to end writes everything.
    let (code, text) = run_in("cd /", &mut || wait_for_end(kill(Signal::TERM)));
    assert_eq!(code, Some(0), "{text}");
}

/// The leaf that names the file's blocks there is damaged, so nothing can be put in their place. The rest
/// of the checkpoint ends well.
#[test]
fn an_unmount_tells_of_data_that_could_not_be_written() {
    skip_if!(no_fuse());
    let place = Place::with_image("128MiB");
    let mount = place.mount("first");
    let file = File::create(mount.path.join("file")).unwrap();
    (0..4000).for_each(|block| file.write_all_at(&[1; 4096], block * 8192).unwrap());
    drop(file);
    mount.unmount().ok();
    let tree =
        syncline([OsStr::new("inspect"), place.image().as_ref(), OsStr::new("-c"), OsStr::new("tree 1000")]);
    let tree = tree.ok().out;
    let leaf =
        tree.lines().filter(|line| line.contains(" extent ") && line.ends_with("level 0")).nth(1).unwrap();
    let block: u64 = leaf.split_whitespace().nth(1).unwrap().parse().unwrap();
    let bytes = fs::read(place.image()).unwrap();
    let node = &bytes[block as usize * 4096..][..4096];
    // Both copies have the same bytes.
    edit_blocks(&place.image(), |block| block == node, |block| block.fill(0xa5));
    let mount = place.mount("second");
    let file = File::options().write(true).open(mount.path.join("file")).unwrap();
    (0..4000).for_each(|block| file.write_all_at(&[2; 4096], block * 8192).unwrap());
    drop(file);
    fs::write(mount.path.join("other"), "whole").unwrap();
    mount.unmount().fails(8, &["had to leave out data that could not be written", "may be lost"]);
    let mount = place.mount("third");
    assert_eq!(fs::read(mount.path.join("other")).unwrap(), b"whole");
    // Nothing is left to be lost.
    mount.unmount().ok();
}
