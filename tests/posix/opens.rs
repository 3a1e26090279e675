//! Opening files without a request to the daemon.

use super::Ground;
use crate::skip_if;
use crate::support::{eventually, no_fuse};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};

fn requests(ground: &Ground, name: &str) -> u64 {
    ground.mount.as_ref().unwrap().stats()["requests"][name].as_u64().unwrap_or(0)
}

#[test]
fn opening_and_closing_costs_no_request() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, "contents").unwrap();
    let asked = |ground: &Ground| requests(ground, "Open") + requests(ground, "Release");
    File::open(&path).unwrap();
    assert_eq!(requests(&ground, "Open"), 1, "it was asked once");
    let before = asked(&ground);
    for _ in 0..50 {
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "contents");
    }
    // The very first OPEN was refused, once and for all.
    assert_eq!(asked(&ground), before);
    ground.end();
}

/// The daemon does not know that the file is open: the kernel's reference keeps it.
#[test]
fn an_open_file_without_a_name_stays() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, vec![7; 100_000]).unwrap();
    File::open(&path).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    file.write_all_at(b"changed", 50_000).unwrap();
    file.sync_all().unwrap();
    // Drops it from the page cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut bytes = vec![0; 100_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((&bytes[50_000..50_007], bytes[50_007]), (&b"changed"[..], 7));
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"another");
    ground.end();
}

/// Waits until as many bytes are free as before, except for the bytes that the log and neighbouring
/// items take.
fn expect_free(ground: &Ground, before: u64) {
    let free = |ground: &Ground| {
        let figures = rustix::fs::statvfs(&ground.mount.as_ref().unwrap().path).unwrap();
        figures.f_bfree * figures.f_frsize
    };
    eventually("its room is free again", || free(ground) + (1 << 20) > before);
}

/// Once OPEN was refused for good, no RELEASE reports the close of a file that CREATE opened.
#[test]
fn what_was_created_gives_its_room_back_when_its_name_goes() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let figures = rustix::fs::statvfs(&ground.mount.as_ref().unwrap().path).unwrap();
    let before = figures.f_bfree * figures.f_frsize;
    let large = vec![7; 8 << 20];
    // Created before the first OPEN, closed after it.
    let mut early = File::create(ground.path("early")).unwrap();
    early.write_all(&large).unwrap();
    File::open(ground.path("early")).unwrap();
    assert_eq!(requests(&ground, "Open"), 1, "it was asked once");
    drop(early);
    fs::remove_file(ground.path("early")).unwrap();
    expect_free(&ground, before);
    // Created after it; unlinked while open, and closed.
    let mut late = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(ground.path("late"))
        .unwrap();
    late.write_all(&large).unwrap();
    late.sync_all().unwrap();
    fs::remove_file(ground.path("late")).unwrap();
    late.write_all_at(b"changed", 0).unwrap();
    let mut bytes = [0; 8];
    late.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"changed\x07");
    drop(late);
    expect_free(&ground, before);
    // Without a name from the start.
    let nameless = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(ground.path(""), nameless, Mode::RUSR).unwrap());
    file.write_all(&large).unwrap();
    file.sync_all().unwrap();
    file.read_exact_at(&mut bytes, 1 << 20).unwrap();
    assert_eq!(bytes, [7; 8]);
    drop(file);
    expect_free(&ground, before);
    ground.end();
}

#[test]
fn truncation_on_opening_is_done_all_the_same() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    for round in 0..3u8 {
        let mut file = File::create(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        file.write_all(&[round; 5000]).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    ground.remount();
    assert_eq!(fs::read(&path).unwrap(), [2; 5000]);
    ground.end();
}
