//! Opening files without asking the daemon.

use crate::Ground;
use crate::skip_if;
use crate::support::no_fuse;
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
    // The first opening of all was refused, for good.
    assert_eq!(asked(&ground), before);
    ground.end();
}

/// The daemon does not know that it is open: the kernel's reference keeps it.
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
    // Out of the page cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut bytes = vec![0; 100_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((&bytes[50_000..50_007], bytes[50_007]), (&b"changed"[..], 7));
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"another");
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
