//! Sharing blocks through a mount: copy_file_range, cp, du.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{no_fuse, program, run};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Bytes without two equal blocks.
fn contents(len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

fn counter(ground: &Ground, part: &str, name: &str) -> u64 {
    ground.mount.as_ref().unwrap().stats()[part][name].as_u64().unwrap()
}

/// The output of `du` for paths: total and shared bytes.
fn du(paths: &[&Path]) -> Vec<(u64, u64)> {
    let mut program = program();
    program.arg("du").arg("--json").args(paths);
    let lines: Vec<serde_json::Value> = serde_json::from_str(&run(program).ok().out).unwrap();
    let number = |line: &serde_json::Value, name: &str| line[name].as_u64().unwrap();
    lines.iter().map(|line| (number(line, "total_bytes"), number(line, "shared_bytes"))).collect()
}

fn copy_range(from: &File, from_at: u64, to: &File, to_at: u64, len: usize) -> std::io::Result<usize> {
    let (mut from_at, mut to_at) = (from_at, to_at);
    Ok(rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)?)
}

#[test]
fn cp_shares_and_writes_no_data() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let (one, other) = (ground.path("one"), ground.path("other"));
    let bytes = contents(8 * MIB + 5);
    fs::write(&one, &bytes).unwrap();
    File::open(&one).unwrap().sync_all().unwrap();
    let written = counter(&ground, "files", "submitted_bytes") + counter(&ground, "files", "writeback_bytes");
    let mut cp = Command::new("cp");
    cp.args(["--reflink=auto"]).arg(&one).arg(&other);
    assert!(cp.status().unwrap().success());
    assert_eq!(fs::read(&other).unwrap(), bytes);
    let after = counter(&ground, "files", "submitted_bytes") + counter(&ground, "files", "writeback_bytes");
    assert_eq!(after, written, "no data was written");
    let all = (8 * MIB + 4096) as u64;
    assert_eq!(du(&[&one, &other]), [(all, all), (all, all)]);
    // Both files change independently.
    let file = OpenOptions::new().write(true).open(&other).unwrap();
    file.write_all_at(&[7; 5000], 100_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    ground.remount();
    assert_eq!(fs::read(&one).unwrap(), bytes);
    let mut changed = bytes.clone();
    changed[100_000..105_000].fill(7);
    assert_eq!(fs::read(&other).unwrap(), changed);
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::read(&other).unwrap(), changed);
    ground.end();
}

#[test]
fn ranges_are_copied_and_cached_contents_follow() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let (one, other) = (ground.path("one"), ground.path("other"));
    let bytes = contents(MIB);
    fs::write(&one, &bytes).unwrap();
    fs::write(&other, vec![1; MIB]).unwrap();
    // Brings it into the page cache.
    assert_eq!(fs::read(&other).unwrap(), vec![1; MIB]);
    let from = File::open(&one).unwrap();
    let to = OpenOptions::new().read(true).write(true).open(&other).unwrap();
    assert_eq!(copy_range(&from, 8192, &to, 4096, 65536).unwrap(), 65536);
    assert_eq!(copy_range(&from, 100, &to, 300_001, 10_000).unwrap(), 10_000);
    let mut expected = vec![1; MIB];
    expected[4096..4096 + 65536].copy_from_slice(&bytes[8192..8192 + 65536]);
    expected[300_001..310_001].copy_from_slice(&bytes[100..10_100]);
    assert_eq!(fs::read(&other).unwrap(), expected);
    assert_eq!(copy_range(&from, MIB as u64, &to, 0, 10).unwrap(), 0, "nothing is behind the end");
    assert_eq!(errno(copy_range(&to, 0, &to, 4096, 8192)), Some(22));
    // Beyond the end: the gap is zeros.
    assert_eq!(copy_range(&from, 0, &to, 2 * MIB as u64, MIB).unwrap(), MIB);
    expected.resize(2 * MIB, 0);
    expected.extend_from_slice(&bytes);
    assert_eq!(fs::read(&other).unwrap(), expected);
    drop((from, to));
    ground.end();
}

#[test]
fn a_clone_of_much_is_fast_and_needs_no_room() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let one = ground.path("one");
    // Of the image's 128 MiB.
    fs::write(&one, contents(40 * MIB)).unwrap();
    let from = File::open(&one).unwrap();
    for copy in 0..20 {
        let to = File::create(ground.path(&format!("copy {copy}"))).unwrap();
        let mut done = 0;
        while done < 40 * MIB {
            done += copy_range(&from, done as u64, &to, done as u64, 40 * MIB - done).unwrap();
        }
    }
    drop(from);
    let directory = ground.mount.as_ref().unwrap().path.clone();
    assert_eq!(du(&[&directory]), [(21 * 40 * MIB as u64, 21 * 40 * MIB as u64)]);
    ground.end();
}
