//! Durability classes on a mount: the data that a killed daemon leaves, and the reports about the
//! classes.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, Mount, Place, no_fuse, program, run, syncline};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use syncline_nbdlab::Pace;

fn durability(words: &[&str], path: &Path, more: &[&str]) -> Answer {
    let mut command = program();
    command.arg("durability").args(words).arg(path).args(more);
    run(command)
}

fn flushes(mount: &Mount) -> u64 {
    mount.stats()["store"]["flushes_issued"].as_u64().unwrap()
}

fn write_synced(path: &Path, contents: &[u8]) {
    let file = File::create(path).unwrap();
    file.write_all_at(contents, 0).unwrap();
    file.sync_all().unwrap();
}

/// Kills the daemon, and mounts the remaining image.
fn after_kill(mut mount: Mount, place: &Place) -> Mount {
    mount.kill();
    drop(mount);
    place.mount("again")
}

#[test]
fn an_ordered_tree_loses_its_last_seconds_and_not_the_order() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    let tree = mount.path.join("tree");
    fs::create_dir(&tree).unwrap();
    durability(&["set"], &tree, &["ordered", "--within", "60"]).ok();
    File::open(&mount.path).unwrap().sync_all().unwrap();
    let before = flushes(&mount);
    for number in 0..30 {
        write_synced(&tree.join(number.to_string()), &vec![number; 20_000]);
    }
    assert_eq!(flushes(&mount), before, "nobody waited for a flush");
    let told = run({
        let mut explain = program();
        explain.arg("explain").arg(tree.join("29"));
        explain
    });
    assert!(told.ok().out.contains("in order after"), "a receipt tells the class");
    // Of class fsync: it makes everything before it durable.
    write_synced(&mount.path.join("durable"), b"durable");
    let in_vain = tree.join("lost");
    write_synced(&in_vain, b"in order");
    let mount = after_kill(mount, &place);
    for number in 0..30 {
        assert_eq!(fs::read(mount.path.join(format!("tree/{number}"))).unwrap(), vec![number; 20_000]);
    }
    assert_eq!(fs::read(mount.path.join("durable")).unwrap(), b"durable");
    assert!(!mount.path.join("tree/lost").exists(), "the daemon was killed within the 60 seconds");
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn what_was_promised_is_durable_in_time() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = Mount::new(&place.image(), &place.directory("mount"), &["-o", "durability=ordered:1"]);
    write_synced(&mount.path.join("file"), &[7; 50_000]);
    Pace::sleep(Duration::from_millis(2500));
    assert_eq!(mount.stats()["files"]["syncs_ordered"], 1);
    let daemon = mount.stats()["daemon"].clone();
    assert!(daemon["durability"] == "ordered:1" && daemon["synchronous"] == "async", "{daemon}");
    let state = syncline(["stats".as_ref(), mount.path.as_os_str()]).ok().out;
    assert!(state.contains("read-write, durability=ordered:1, over "), "{state}");
    let mount = after_kill(mount, &place);
    assert_eq!(fs::read(mount.path.join("file")).unwrap(), [7; 50_000]);
    mount.unmount().ok();
}

#[test]
fn a_strict_tree_is_durable_without_a_sync() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    let (tree, loose) = (mount.path.join("tree"), mount.path.join("loose"));
    fs::create_dir(&tree).unwrap();
    durability(&["set"], &tree, &["strict"]).ok();
    fs::write(&loose, "not synced").unwrap();
    fs::write(tree.join("file"), "strict").unwrap();
    fs::rename(tree.join("file"), tree.join("renamed")).unwrap();
    fs::set_permissions(tree.join("renamed"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("target", tree.join("link")).unwrap();
    // Into the tree, and out of it.
    fs::rename(&loose, tree.join("moved in")).unwrap();
    fs::rename(tree.join("moved in"), mount.path.join("moved out")).unwrap();
    // Written by the page cache in parts.
    let appended = File::create(tree.join("appended")).unwrap();
    (0..20).for_each(|part| appended.write_all_at(&[part; 3000], u64::from(part) * 3000).unwrap());
    let mount = after_kill(mount, &place);
    let tree = mount.path.join("tree");
    assert_eq!(fs::read(tree.join("renamed")).unwrap(), b"strict");
    assert_eq!(fs::metadata(tree.join("renamed")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_link(tree.join("link")).unwrap(), Path::new("target"));
    assert!(mount.path.join("moved out").exists());
    assert_eq!(fs::metadata(tree.join("appended")).unwrap().len(), 60_000);
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn classes_are_shown_listed_and_refused() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let top = ground.path("");
    for directory in ["a/b/c", "d"] {
        fs::create_dir_all(ground.path(directory)).unwrap();
    }
    let told = durability(&["set"], &ground.path("a"), &["ordered"]).ok().out;
    assert!(told.contains("its present files keep their own class (--recursive includes them)"), "{told}");
    let told = durability(&["set"], &ground.path("d"), &["inherit"]).ok().out;
    assert!(!told.contains("present files"), "nothing is in it: {told}");
    fs::create_dir(ground.path("a/new")).unwrap();
    fs::write(ground.path("a/new/file"), "x").unwrap();
    durability(&["set"], &ground.path("a/new/file"), &["strict"]).ok();
    let shown = |path: &str| durability(&["show"], &ground.path(path), &[]).ok().out;
    assert!(shown("a/new").contains("ordered  within 5 s"), "{}", shown("a/new"));
    assert!(shown("a/b").contains("fsync") && shown("a/b").contains("of the mount"), "{}", shown("a/b"));
    ground.remount();
    let json = durability(&["list", "--json"], &top, &[]).ok().out;
    let listed: serde_json::Value = serde_json::from_str(&json).unwrap();
    let of = |line: &serde_json::Value| {
        let path = line["path"].as_str().unwrap().to_owned();
        (Path::new(&path).file_name().map(|it| it.to_owned()), line["class"].as_str().unwrap().to_owned())
    };
    let listed: Vec<_> = listed.as_array().unwrap().iter().map(of).collect();
    let name = |name: &str| Some(name.into());
    let expected =
        [(name("mount"), "fsync"), (name("a"), "ordered"), (name("b"), "fsync"), (name("file"), "strict")];
    assert_eq!(listed, expected.map(|(name, class)| (name, class.to_owned())));
    let told = durability(&["set", "--recursive"], &ground.path("a"), &["inherit"]).ok().out;
    assert!(!told.contains("already"), "{told}");
    let all = durability(&["list"], &top, &[]).ok().out;
    assert_eq!(all.lines().count(), 1, "{all}");
    durability(&["set"], &ground.path("a"), &["strict", "--within", "5"]).fails(2, &["class ordered"]);
    let never = durability(&["set"], &ground.path("a"), &["ordered", "--within", "0"]);
    assert!(never.code == 2 && never.err.contains("1..=255"), "{never:?}");
    durability(&["set"], Path::new("/"), &["ordered"]).fails(6, &["not on a mounted"]);
    ground.end();
    for (options, words) in [
        ("durability=never", &["no durability class"][..]),
        ("durability=ordered:300", &["1 to 255"]),
        ("durability=ordered,sync", &["choose one"]),
    ] {
        syncline(["mount", "image", "mount", "-o", options]).fails(2, words);
    }
}
