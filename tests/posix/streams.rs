//! Backups that travel, through the binary: sent from a mount, received in an image, compared;
//! damaged, cut off, killed.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, Mount, Place, no_fuse, program, run, syncline};
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use walkdir::WalkDir;

pub fn call(words: &[&dyn AsRef<OsStr>]) -> Answer {
    syncline(words.iter().map(|word| word.as_ref()))
}

/// The attributes and contents of a file that a program sees.
pub type Seen = ([i64; 12], Vec<u8>);

pub fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let entries = WalkDir::new(root).into_iter().map(|entry| entry.unwrap());
    let see = |path: &Path| {
        let about = path.symlink_metadata().unwrap();
        let numbers = [
            about.ino() as i64,
            about.mode().into(),
            about.nlink() as i64,
            about.uid().into(),
            about.gid().into(),
            about.rdev() as i64,
            about.len() as i64,
            about.blocks() as i64,
            about.mtime(),
            about.mtime_nsec(),
            about.ctime(),
            about.ctime_nsec(),
        ];
        let contents = match about.file_type() {
            kind if kind.is_file() => fs::read(path).unwrap(),
            kind if kind.is_symlink() => fs::read_link(path).unwrap().into_os_string().into_encoded_bytes(),
            _ => Vec::new(),
        };
        (numbers, contents)
    };
    entries.map(|entry| (entry.path().strip_prefix(root).unwrap().to_owned(), see(entry.path()))).collect()
}

fn fill(ground: &Ground) {
    fs::create_dir(ground.path("dir")).unwrap();
    fs::write(ground.path("dir/small"), "small").unwrap();
    fs::hard_link(ground.path("dir/small"), ground.path("linked")).unwrap();
    symlink("dir/small", ground.path("symlink")).unwrap();
    let text: Vec<u8> = (0..3_000_000u32).map(|index| (index / 1000) as u8).collect();
    fs::write(ground.path("large"), &text).unwrap();
    let holes = fs::File::create(ground.path("holes")).unwrap();
    holes.write_all_at(b"at the end", 5_000_000).unwrap();
    fs::set_permissions(ground.path("large"), fs::Permissions::from_mode(0o4711)).unwrap();
}

pub fn snapshot_names(image: &Path) -> Vec<String> {
    let text = call(&[&"snapshot", &"list", &image, &"--json"]).ok().out;
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names = list["snapshots"].as_array().unwrap().iter();
    names.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_backup_travels_and_is_the_same() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let path = |name: &str| ground.place.path().join(name);
    let (backup, monday, tuesday) = (path("backup.img"), path("monday"), path("tuesday"));
    call(&[&"mkfs", &backup, &"--size", &"64MiB"]).ok();
    fill(&ground);
    let mount = ground.path("");
    call(&[&"snapshot", &"create", &mount, &"monday"]).ok();
    call(&[&"send", &mount, &"monday", &"-o", &monday]).ok();
    fs::rename(ground.path("dir"), ground.path("moved")).unwrap();
    fs::remove_file(ground.path("symlink")).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(ground.path("large"))
        .unwrap()
        .write_all_at(b"new", 9000)
        .unwrap();
    call(&[&"snapshot", &"create", &mount, &"tuesday"]).ok();
    call(&[&"send", &mount, &"tuesday", &"--from", &"monday", &"-o", &tuesday]).ok();
    let length = |path: &Path| path.metadata().unwrap().len();
    assert!(length(&tuesday) < 200_000, "it costs what changed: {}", length(&tuesday));

    call(&[&"receive", &backup, &"-i", &tuesday]).fails(11, &["\"monday\"", "not in the target", "--from"]);
    assert!(call(&[&"receive", &backup, &"-i", &monday]).ok().out.contains("monday"));
    call(&[&"receive", &backup, &"-i", &monday]).fails(1, &["already", "another name"]);
    call(&[&"receive", &backup, &"-i", &tuesday, &"--name", &"other"]).ok();
    call(&[&"receive", &mount, &"-i", &tuesday]).fails(1, &["already", "another name"]);
    assert_eq!(snapshot_names(&backup), ["monday", "other"]);
    call(&[&"send", &mount, &"monday", &"--from", &"tuesday", &"-o", &path("x")]).fails(2, &["not older"]);
    call(&[&"send", &mount, &"none", &"-o", &path("x")]).fails(1, &["no snapshot", "snapshot list"]);
    assert!(!path("x").exists());
    for (sent, received) in [("monday", "monday"), ("tuesday", "other")] {
        let directories = [("sent", &ground.place.image(), sent), ("received", &backup, received)];
        let views = directories.map(|(name, image, snapshot)| {
            let directory = ground.place.directory(&format!("{name}-{snapshot}"));
            call(&[&"snapshot", &"mount", image, &snapshot, &directory]).ok();
            Mount::of(&directory)
        });
        let [sent, received] = [0, 1].map(|index: usize| seen(&views[index].path));
        assert!(sent.len() > 5);
        assert_eq!(sent, received);
        views.into_iter().for_each(|view| drop(view.unmount().ok()));
    }
    call(&[&"check", &backup]).ok();
    ground.end();
}

/// An image with a snapshot of some megabytes, its stream, and an image to receive it.
pub fn sent(place: &Place) -> (PathBuf, PathBuf) {
    let path = |name: &str| place.path().join(name);
    let tree = place.directory("tree");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
    for number in 0..60 {
        let data: Vec<u8> = (0..rng.random_range(0..200_000)).map(|_| rng.random()).collect();
        fs::write(tree.join(format!("file-{number}")), data).unwrap();
    }
    let mut copy = program();
    copy.args(["run".as_ref(), place.image().as_os_str(), "--".as_ref(), "cp".as_ref(), "-r".as_ref()]);
    run({
        copy.args([tree.as_os_str(), ".".as_ref()]);
        copy
    })
    .ok();
    call(&[&"snapshot", &"create", &place.image(), &"s"]).ok();
    call(&[&"send", &place.image(), &"s", &"-o", &path("stream")]).ok();
    // Neither a stream nor the image itself is replaced.
    for there in [path("stream"), place.image()] {
        call(&[&"send", &place.image(), &"s", &"-o", &there]).fails(2, &["is there already", "another file"]);
    }
    assert!(!call(&[&"send", &place.image(), &"s", &"-o", &"-"]).ok().out.is_empty());
    assert!(!Path::new("-").exists());
    call(&[&"mkfs", &path("target"), &"--size", &"64MiB"]).ok();
    (path("stream"), path("target"))
}

#[test]
fn a_damaged_stream_is_refused_with_a_next_step() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let bytes = fs::read(&stream).unwrap();
    let changed = place.path().join("changed");
    let receive = || call(&[&"receive", &target, &"-i", &changed]);
    for at in [0, 9, 30, 200, bytes.len() / 2, bytes.len() - 3] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 4;
        fs::write(&changed, bytes).unwrap();
        receive().fails(11, &["stream", ";"]);
        fs::write(&changed, &fs::read(&stream).unwrap()[..at]).unwrap();
        receive().fails(11, &["stream", ";"]);
    }
    assert!(snapshot_names(&target).is_empty());
    call(&[&"check", &target]).ok();
    call(&[&"receive", &target, &"-i", &stream]).ok();
    call(&[&"check", &target]).ok();
}

#[test]
fn a_receiver_that_is_killed_leaves_nothing() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(8);
    let mut killed = 0;
    for _ in 0..8 {
        let mut command = program();
        command.args(["receive".as_ref(), target.as_os_str(), "-i".as_ref(), stream.as_os_str()]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(rng.random_range(0..120_000)));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            assert_eq!(snapshot_names(&target), ["s"]);
            call(&[&"snapshot", &"delete", &target, &"s"]).ok();
            continue;
        }
        // The kill may have come between the superblock and the end.
        let names = snapshot_names(&target);
        call(&[&"check", &target]).ok();
        match names.is_empty() {
            true => killed += 1,
            false => drop(call(&[&"snapshot", &"delete", &target, &"s"]).ok()),
        }
    }
    assert!(killed > 0, "it is always faster");
    call(&[&"receive", &target, &"-i", &stream]).ok();
    call(&[&"check", &target]).ok();
}
