//! Discards through a mount: `syncline trim`, fstrim(8), `-o discard`.

use super::Ground;
use crate::skip_if;
use crate::support::{
    Answer, Loop, Mount, Place, Tmpfs, as_nobody, eventually, no_fuse, not_root, program, run, syncline, tool,
};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

fn trim(source: &Path, options: &[&str]) -> Answer {
    let mut command = program();
    command.arg("trim").arg(source).args(options);
    run(command)
}

fn discarded(answer: Answer) -> u64 {
    let report: serde_json::Value = serde_json::from_str(&answer.ok().out).unwrap();
    report["discarded_bytes"].as_u64().unwrap()
}

/// Bytes that a file takes on its host.
fn taken(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

/// The reason why a file's room can't be given back here, if so.
fn no_holes(place: &Place) -> Option<&'static str> {
    let path = place.path().join("probe");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, mode, 0, 1 << 20).err().map(|_| "files here have no holes")
}

fn contents(seed: u64, len: u64) -> Vec<u8> {
    (0..len / 8).flat_map(|index| (index ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

#[test]
fn an_image_gets_holes_where_it_is_free_and_keeps_its_files() {
    skip_if!(no_fuse());
    let mut ground = Ground::with(&["-o", "discard=punch"]);
    skip_if!(no_holes(&ground.place));
    let image = ground.place.image();
    for index in 0..20u64 {
        fs::write(ground.path(&format!("file {index}")), contents(index, 2 * MIB)).unwrap();
    }
    syncline_fuse::control::sync(&ground.path("")).unwrap();
    for index in (0..20).step_by(2) {
        fs::remove_file(ground.path(&format!("file {index}"))).unwrap();
    }
    assert!(taken(&image) > 120 * MIB);
    // 128 MiB in all; 20 MiB are in use, plus some for log and tree.
    let bytes = discarded(trim(&ground.path(""), &["--json"]));
    assert!((80 * MIB..108 * MIB).contains(&bytes), "{bytes}");
    assert!(taken(&image) < 128 * MIB - bytes + MIB, "{} bytes are taken", taken(&image));
    // Some of it was already discarded in the background.
    let counted = ground.mount.as_ref().unwrap().stats()["store"]["discarded_bytes"].as_u64().unwrap();
    assert!(counted >= bytes, "{counted}");
    // Runs count with their full length: most of the image is a single run.
    assert!(discarded(trim(&ground.path(""), &["--json", "--minimum", "32MiB"])) > 32 * MIB);
    assert_eq!(discarded(trim(&ground.path(""), &["--json", "--minimum", "127MiB"])), 0);
    // Written again into discarded blocks.
    fs::write(ground.path("new"), contents(99, 8 * MIB)).unwrap();
    for crashed in [true, false] {
        if crashed {
            File::open(ground.path("new")).unwrap().sync_all().unwrap();
            ground.mount.as_mut().unwrap().kill();
            let path = ground.mount.take().unwrap().path.clone();
            ground.mount = Some(Mount::new(&image, &path, &[]));
        } else {
            ground.remount();
        }
        assert!(fs::read(ground.path("new")).unwrap() == contents(99, 8 * MIB));
        for index in (1..20).step_by(2) {
            assert!(fs::read(ground.path(&format!("file {index}"))).unwrap() == contents(index, 2 * MIB));
        }
    }
    ground.end();
}

#[test]
fn an_image_that_is_not_mounted_is_trimmed() {
    let place = Place::with_image("32MiB");
    skip_if!(no_holes(&place));
    assert!(taken(&place.image()) >= 32 * MIB);
    let before = fs::read(place.image()).unwrap();
    trim(&place.image(), &[]).fails(1, &["keeps the room", "--punch"]);
    assert!(fs::read(place.image()).unwrap() == before && taken(&place.image()) >= 32 * MIB);
    let bytes = discarded(trim(&place.image(), &["--json", "--punch"]));
    assert!(bytes > 28 * MIB, "{bytes}");
    assert!(taken(&place.image()) < 5 * MIB);
    assert!(trim(&place.image(), &["--punch"]).ok().out.contains("MiB discarded"));
    place.check_clean();
    trim(&place.path().join("none"), &[]).fails(5, &["cannot open"]);
    trim(place.path(), &[]).fails(6, &["not on a mounted Syncline filesystem"]);
}

#[test]
fn fstrim_works_and_strangers_may_not() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = Ground::with(&["-o", "allow_other,discard=punch"]);
    if tool("fstrim", &["--version".as_ref()]).is_none() {
        eprintln!("skipped in part: fstrim is not installed");
    } else {
        let mut fstrim = Command::new("fstrim");
        fstrim.arg("-v").arg(ground.path(""));
        let answer = run(fstrim).ok();
        assert!(answer.out.contains("bytes) trimmed"), "{answer:?}");
    }
    fs::set_permissions(ground.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = ground.place.copy_of_program("syncline");
    let mut command = Command::new(&copy);
    command.arg("trim").arg(ground.path(""));
    run(as_nobody(command)).fails(9, &["only root"]);
    ground.end();
}

/// No other writes follow that would end the wait for one more superblock.
#[test]
fn what_was_freed_last_is_discarded_at_rest_and_at_the_end() {
    skip_if!(no_fuse());
    for options in ["discard=punch,commit=1", "discard=punch"] {
        let mut ground = Ground::with(&["-o", options]);
        skip_if!(no_holes(&ground.place));
        let image = ground.place.image();
        fs::write(ground.path("gone"), contents(2, 60 * MIB)).unwrap();
        syncline_fuse::control::sync(&ground.path("")).unwrap();
        let before = taken(&image);
        fs::remove_file(ground.path("gone")).unwrap();
        if options.contains("commit") {
            eventually("discarding 60 MiB", || taken(&image) < before - 55 * MIB);
            let stats = || ground.mount.as_ref().unwrap().stats();
            let checkpoints = || stats()["store"]["checkpoints"].as_u64().unwrap();
            eventually("it rests", || {
                let before = checkpoints();
                std::thread::sleep(std::time::Duration::from_secs(3));
                checkpoints() == before
            });
            assert_eq!(stats()["store"]["discards_failed"], 0);
        }
        ground.remount();
        assert!(taken(&image) < before - 55 * MIB, "{options}: {} of {before}", taken(&image));
        ground.end();
    }
}

#[test]
fn what_becomes_free_is_discarded_in_the_background() {
    skip_if!(no_fuse());
    let ground = Ground::with(&["-o", "discard=punch"]);
    skip_if!(no_holes(&ground.place));
    let image = ground.place.image();
    fs::write(ground.path("kept"), contents(1, 4 * MIB)).unwrap();
    fs::write(ground.path("gone"), contents(2, 60 * MIB)).unwrap();
    syncline_fuse::control::sync(&ground.path("")).unwrap();
    let before = taken(&image);
    fs::remove_file(ground.path("gone")).unwrap();
    let stats = || ground.mount.as_ref().unwrap().stats();
    eventually("discarding 60 MiB", || {
        // Two checkpoints: one that frees, and one after which no slot leads there any more.
        fs::write(ground.path("tick"), "tick").unwrap();
        syncline_fuse::control::sync(&ground.path("")).unwrap();
        stats()["store"]["discarded_bytes"].as_u64().unwrap() >= 60 * MIB
    });
    assert_eq!(stats()["store"]["discards_failed"], 0);
    assert!(taken(&image) < before - 55 * MIB);
    assert!(fs::read(ground.path("kept")).unwrap() == contents(1, 4 * MIB));
    ground.end();
}

/// The host may be full when the room is needed again.
#[test]
fn an_image_file_keeps_its_room_and_never_meets_a_full_host() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::new();
    let Some(host) = Tmpfs::new(place.directory("host"), "48m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    let image = host.path.join("image");
    syncline(["mkfs".as_ref(), image.as_os_str(), "--size".as_ref(), "32MiB".as_ref()]).ok();
    let directory = place.directory("mount");
    let words =
        ["mount".as_ref(), image.as_os_str(), directory.as_os_str(), "-o".as_ref(), "discard".as_ref()];
    let answer = syncline(words).ok();
    assert!(answer.err.contains("keeps its room") && answer.err.contains("discard=punch"), "{answer:?}");
    let mount = Mount::of(&directory);
    let write_and_sync = |name: &str| {
        fs::write(mount.path.join(name), contents(3, 16 * MIB))?;
        File::open(mount.path.join(name))?.sync_all()
    };
    write_and_sync("first").unwrap();
    fs::remove_file(mount.path.join("first")).unwrap();
    for _ in 0..4 {
        // If freed blocks were ever discarded, it would be by now.
        fs::write(mount.path.join("tick"), "tick").unwrap();
        syncline_fuse::control::sync(&mount.path).unwrap();
    }
    trim(&mount.path, &[]).fails(1, &["keeps the room", "discard=punch", "--punch"]);
    if tool("fstrim", &["--version".as_ref()]).is_some() {
        let fstrim = |options: &str| {
            let mut fstrim = Command::new("fstrim");
            fstrim.arg(options).arg(&mount.path);
            run(fstrim)
        };
        let answer = fstrim("-v");
        assert!(answer.code != 0 && answer.err.contains("not supported"), "{answer:?}");
        // As the timer calls it.
        fstrim("--quiet-unsupported").ok();
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    // Another user takes all the room on the host.
    let error = fs::write(host.path.join("others"), vec![1; 64 << 20]).expect_err("it is not that large");
    assert_eq!(error.raw_os_error(), Some(28));
    write_and_sync("second").expect("the room was never given away");
    assert!(fs::read(mount.path.join("second")).unwrap() == contents(3, 16 * MIB));
    assert!(mount.stats()["read_only"].is_null());
    mount.unmount().ok();
    syncline(["check".as_ref(), image.as_os_str()]).ok();
}

/// A user who chooses to give room back is told the consequences.
#[test]
fn giving_room_back_is_a_choice_with_a_warning() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let image = place.image();
    let words = ["mount".as_ref(), image.as_os_str(), directory.as_os_str(), "-o".as_ref()];
    let answer = syncline(words.into_iter().chain(["discard=punch".as_ref()])).ok();
    assert!(answer.err.contains("if the host is full") && answer.err.contains("read-only"), "{answer:?}");
    Mount::of(&directory).unmount().ok();
    syncline(words.into_iter().chain(["discard=often".as_ref()])).fails(2, &["discard=punch"]);
}

/// A disk responds to discards differently than a file.
#[test]
fn a_block_device_is_trimmed() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::with_image("64MiB");
    skip_if!(no_holes(&place));
    let Some(disk) = Loop::new(&place.image()) else {
        eprintln!("skipped: there are no loop devices");
        return;
    };
    let mount = Mount::new(&disk.device, &place.directory("mount"), &[]);
    fs::write(mount.path.join("file"), contents(5, 3 * MIB)).unwrap();
    let bytes = discarded(trim(&mount.path, &["--json"]));
    assert!(bytes > 50 * MIB);
    assert!(taken(&place.image()) < 16 * MIB, "{}", taken(&place.image()));
    assert!(fs::read(mount.path.join("file")).unwrap() == contents(5, 3 * MIB));
    mount.unmount().ok();
    drop(disk);
    place.check_clean();
}
