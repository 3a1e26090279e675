//! Receipts, through the program.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, as_nobody, no_fuse, not_root, program, run};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

fn explain(path: &Path, more: &[&str]) -> Answer {
    let mut command = program();
    command.arg("explain").arg(path).args(more);
    run(command)
}

fn receipts(path: &Path, more: &[&str]) -> Vec<Value> {
    let answer = explain(path, &[&["--json"], more].concat()).ok();
    serde_json::from_str::<Value>(&answer.out).unwrap().as_array().unwrap().clone()
}

fn counter(ground: &Ground, name: &str) -> u64 {
    ground.mount.as_ref().unwrap().stats()["store"][name].as_u64().unwrap()
}

fn append(path: &Path, data: &[u8]) -> File {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(data).unwrap();
    file
}

#[test]
fn an_fsync_is_explained_by_what_the_counters_say() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let path = ground.path("journal");
    let file = append(&path, &[1; 65536]);
    let before = counter(&ground, "flushes_issued");
    file.sync_all().unwrap();
    file.sync_all().unwrap();
    assert_eq!(counter(&ground, "flushes_issued") - before, 1);
    let made = receipts(&path, &[]);
    assert_eq!(made.len(), 2, "{made:#?}");
    let (first, second) = (&made[0], &made[1]);
    assert_eq!(first["inodes"][0].as_u64(), Some(fs::metadata(&path).unwrap().ino()));
    assert_eq!((&first["call"], &first["cover"]), (&"fsync".into(), &"issued".into()));
    assert_eq!(first["submitted"]["blocks"], 16);
    assert_eq!(first["durable"]["flush"].as_u64(), Some(counter(&ground, "flushes_issued")));
    let why: Vec<&str> = first["why"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(why.contains(&"dirty_data") && why.contains(&"name"), "{why:?}");
    // The second had nothing to do, thanks to the first's flush.
    assert_eq!((&second["cover"], &second["why"]), (&"elided".into(), &Value::Array(Vec::new())));
    assert_eq!(second["durable"], first["durable"]);
    let text = explain(&path, &[]).ok().out;
    for words in [
        "fsync of ",
        "journal",
        "issued: durable by flush",
        "elided: everything up to",
        "64 KiB in 1 device write",
    ] {
        assert!(text.contains(words), "{words:?} is missing: {text}");
    }
    // The summary counts the flushes and syncs that the receipts call elided.
    let mut stats = program();
    stats.arg("stats").arg(&path);
    let summary = run(stats).ok().out;
    let told = summary.lines().find(|line| line.starts_with("flushes")).unwrap();
    let elided = counter(&ground, "flushes_elided") + counter(&ground, "syncs_elided");
    assert!(elided >= 1 && told.contains(&format!(", {elided} elided,")), "{elided}: {summary}");
    // The newest receipts, and the receipts of the whole mount, including directories.
    assert_eq!(receipts(&path, &["--last", "1"]), made[1..]);
    File::open(ground.path("")).unwrap().sync_all().unwrap();
    append(&ground.path("other"), b"x").sync_data().unwrap();
    let calls: Vec<Value> =
        receipts(&ground.path(""), &["--last", "100"]).iter().map(|one| one["call"].clone()).collect();
    assert_eq!(calls, ["fsync", "fsync", "fsyncdir", "fdatasync"]);
    drop(file);
    ground.end();
}

#[test]
fn where_there_is_nothing_to_explain_is_told() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    fs::write(ground.path("file"), "x").unwrap();
    explain(&ground.path("file"), &[]).fails(1, &["no receipts", "was not synced"]);
    explain(&ground.path(""), &[]).fails(1, &["no receipts"]);
    assert!(receipts(&ground.path("file"), &[]).is_empty());
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    explain(elsewhere.path(), &[]).fails(6, &["not on a mounted Syncline"]);
    explain(&ground.path("missing"), &[]).fails(6, &["missing"]);
    assert_eq!(explain(&ground.path("file"), &["--last", "0"]).code, 2);
    ground.end();
}

#[test]
fn others_learn_only_of_files_that_they_can_read() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let ground = Ground::new();
    for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
        let path = ground.path(name);
        append(&path, b"x").sync_all().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // Other users may not be able to enter the build folder.
    let copy = ground.place.copy_of_program("syncline");
    for path in [copy.as_path(), ground.place.path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_other = |name: &str| {
        let mut command = Command::new(&copy);
        command.arg("explain").arg(ground.path(name)).arg("--json").current_dir(ground.place.path());
        run(as_nobody(command))
    };
    assert!(as_other("open").ok().out.contains("\"fsync\""));
    as_other("closed").fails(9, &["cannot be opened"]);
    as_other("").fails(9, &["only root and the mount's owner", "name one file"]);
    ground.end();
}
