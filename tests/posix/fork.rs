//! Forks: writable images that share the blocks of a snapshot, made while the base is mounted.

use crate::skip_if;
use crate::support::{Answer, Mount, Place, edit, edit_blocks, no_fuse, program, run, syncline};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A word of a command line that names a snapshot.
pub fn at(image: &Path, snapshot: &str) -> OsString {
    let mut word = image.as_os_str().to_owned();
    word.push("@");
    word.push(snapshot);
    word
}

pub fn on(words: &[&dyn AsRef<OsStr>]) -> Answer {
    syncline(words.iter().map(|word| word.as_ref()))
}

/// Runs the program with a directory of temporary files of its own.
pub fn in_temporary(temporary: &Path, words: &[&dyn AsRef<OsStr>]) -> Answer {
    let mut command = program();
    command.args(words.iter().map(|word| word.as_ref())).env("TMPDIR", temporary);
    run(command)
}

pub fn list(source: &Path) -> serde_json::Value {
    serde_json::from_str(&on(&[&"snapshot", &"list", &source, &"--json"]).ok().out).unwrap()
}

/// A mounted base with a snapshot `monday`, and a later state.
pub fn ground() -> (Place, Mount) {
    let place = Place::with_image("64MiB");
    let base = place.mount("base");
    fs::create_dir(base.path.join("d")).unwrap();
    fs::write(base.path.join("d/old"), vec![1; 1 << 20]).unwrap();
    on(&[&"snapshot", &"create", &base.path, &"monday"]).ok();
    fs::write(base.path.join("d/old"), vec![2; 1 << 20]).unwrap();
    (place, base)
}

fn write_synced(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn a_mounted_base_and_its_fork_go_their_own_ways() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let work = place.path().join("work.img");
    on(&[&"fork", &at(&place.image(), "monday"), &work]).ok();
    let used = work.metadata().unwrap().blocks() * 512;
    assert!(used <= 1 << 20, "a new fork takes {used} bytes");
    let mut fork = Mount::new(&work, &place.directory("fork"), &[]);
    assert_eq!(fs::read(fork.path.join("d/old")).unwrap(), vec![1; 1 << 20]);
    write_synced(&fork.path.join("d/new"), &[3; 300_000]);
    write_synced(&base.path.join("d/new"), &[4; 300_000]);
    fs::remove_file(base.path.join("d/old")).unwrap();
    fork.kill();
    drop(fork);
    let fork = Mount::new(&work, &place.directory("again"), &[]);
    assert_eq!(fs::read(fork.path.join("d/new")).unwrap(), vec![3; 300_000]);
    assert_eq!(fs::read(fork.path.join("d/old")).unwrap(), vec![1; 1 << 20]);
    assert_eq!(list(&fork.path)["base"]["snapshot"], "monday");
    on(&[&"snapshot", &"delete", &fork.path, &"monday"]).fails(3, &["is the base of this fork", "--detach"]);
    // What the fork has made comes back to the base as a snapshot.
    on(&[&"snapshot", &"create", &fork.path, &"mine"]).ok();
    let stream = place.path().join("stream");
    on(&[&"send", &fork.path, &"mine", &"--from", &at(&place.image(), "monday"), &"-o", &stream]).ok();
    on(&[&"receive", &base.path, &"-i", &stream]).ok();
    let changes = on(&[&"snapshot", &"diff", &base.path, &"monday", &"mine"]).ok().out;
    assert!(changes.contains("+ /d/new"), "{changes}");
    fork.unmount().ok();
    on(&[&"check", &work]).ok();
    base.unmount().ok();
    place.check_clean();
}

#[test]
fn a_snapshot_with_forks_says_who_needs_it() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let work = place.path().join("work.img");
    on(&[&"fork", &at(&base.path, "monday"), &work]).ok();
    assert_eq!(list(&base.path)["snapshots"][0]["forks"][0], work.to_str().unwrap());
    assert!(on(&[&"snapshot", &"list", &base.path]).ok().out.contains("base of "));
    let delete = || on(&[&"snapshot", &"delete", &base.path, &"monday"]);
    delete().fails(3, &["is the base of", "work.img", "--remove", "--detach"]);
    let forget = |fork: &Path| on(&[&"fork", &"--forget", &base.path, &fork]);
    forget(&work).fails(3, &["is still there", "--remove"]);
    forget(&place.path().join("other.img")).fails(1, &["knows of no fork", "snapshot list"]);
    fs::remove_file(&work).unwrap();
    forget(&work).ok();
    on(&[&"fork", &at(&base.path, "monday"), &work]).ok();
    on(&[&"fork", &"--remove", &work]).ok();
    assert!(!work.exists());
    delete().ok();
    // The same for an image that is not mounted.
    on(&[&"snapshot", &"create", &base.path, &"tuesday"]).ok();
    base.unmount().ok();
    on(&[&"fork", &at(&place.image(), "tuesday"), &work]).ok();
    let delete = || on(&[&"snapshot", &"delete", &place.image(), &"tuesday"]);
    delete().fails(3, &["is the base of", "work.img"]);
    on(&[&"fork", &"--detach", &work]).ok();
    delete().ok();
    fs::remove_file(place.image()).unwrap();
    on(&[&"check", &work]).ok();
    let fork = Mount::new(&work, &place.directory("fork"), &[]);
    assert_eq!(fs::read(fork.path.join("d/old")).unwrap(), vec![2; 1 << 20]);
    fork.unmount().ok();
}

#[test]
fn a_fork_of_a_mount_is_thrown_away() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let (temporary, directory) = (place.directory("tmp"), place.directory("fork"));
    let source = at(&place.image(), "monday");
    let leave: [&dyn AsRef<OsStr>; 2] = [&"-o", &"transport=available"];
    in_temporary(&temporary, &[&"mount", &source, &directory, &"--fork", leave[0], leave[1]]).ok();
    let fork = Mount::of(&directory);
    fs::remove_dir_all(fork.path.join("d")).unwrap();
    write_synced(&fork.path.join("x"), b"x");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 1);
    on(&[&"snapshot", &"delete", &base.path, &"monday"]).fails(3, &["in use"]);
    on(&[&"umount", &directory]).ok();
    drop(fork);
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    assert_eq!(fs::read(base.path.join("d/old")).unwrap(), vec![2; 1 << 20]);
    // Without --fork it is the snapshot itself.
    in_temporary(&temporary, &[&"mount", &source, &directory, leave[0], leave[1]]).ok();
    let then = Mount::of(&directory);
    assert_eq!(fs::read(then.path.join("d/old")).unwrap(), vec![1; 1 << 20]);
    assert_eq!(fs::write(then.path.join("x"), "x").unwrap_err().raw_os_error(), Some(30));
    then.unmount().ok();
    on(&[&"mount", &place.image(), &directory, &"--fork"]).fails(2, &["--fork needs a snapshot"]);
    on(&[&"snapshot", &"delete", &base.path, &"monday"]).ok();
    base.unmount().ok();
}

#[test]
fn a_command_runs_in_a_fork() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let (temporary, kept) = (place.directory("tmp"), place.path().join("kept.img"));
    let source = at(&place.image(), "monday");
    let command: [&dyn AsRef<OsStr>; 4] =
        [&"--", &"sh", &"-c", &"rm -r d; echo done > note; cat note; exit 7"];
    let all = |before: &[&dyn AsRef<OsStr>]| {
        let mut words: Vec<&dyn AsRef<OsStr>> = vec![&"run", &"-o", &"transport=available", &source];
        words.extend(before);
        words.extend(command);
        in_temporary(&temporary, &words)
    };
    for answer in [all(&[]), all(&[&"--keep", &kept])] {
        assert_eq!((answer.code, answer.out.as_str()), (7, "done\n"), "{answer:?}");
    }
    let left: Vec<PathBuf> = fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
    let mut word = kept.clone().into_os_string();
    word.push(":/note");
    assert_eq!(on(&[&"cat", &word]).ok().out, "done\n");
    all(&[&"--keep", &kept]).fails(1, &["kept.img", "choose another name"]);
    base.unmount().ok();
}

#[test]
fn what_is_wrong_with_a_fork_is_told_in_a_line() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let (image, work) = (place.image(), place.path().join("work.img"));
    on(&[&"fork", &at(&image, "sunday"), &work])
        .fails(1, &["there is no snapshot \"sunday\"", "snapshot list"]);
    on(&[&"fork", &image, &work]).fails(2, &["names no snapshot", "snapshot create"]);
    on(&[&"fork", &image]).fails(2, &["name the image to make"]);
    on(&[&"fork", &"--detach", &image]).fails(3, &["in use"]);
    base.unmount().ok();
    on(&[&"fork", &"--detach", &image]).fails(2, &["it is no fork"]);
    on(&[&"fork", &at(&image, "monday"), &work]).ok();
    on(&[&"fork", &at(&image, "monday"), &work]).fails(1, &["work.img", "choose another name"]);
    let moved = place.path().join("moved");
    fs::rename(&image, &moved).unwrap();
    on(&[&"info", &work]).fails(5, &["its base is out of reach", "fork --base BASE FORK"]);
    on(&[&"mount", &work, &place.directory("fork")]).fails(5, &["its base is out of reach"]);
    on(&[&"fork", &"--base", &moved, &work]).ok();
    on(&[&"check", &work]).ok();
    assert!(on(&[&"info", &work]).ok().out.contains("snapshot \"monday\": this is a fork"));
    on(&[&"send", &work, &"monday", &"--from", &at(&work, "monday"), &"-o", &"x"])
        .fails(2, &["is no fork of"]);
    let other = place.path().join("other");
    on(&[&"mkfs", &other, &"--size", &"16MiB"]).ok();
    on(&[&"fork", &"--base", &other, &work]).fails(5, &["does not have the snapshot"]);
    on(&[&"check", &work]).ok();
}

/// The base is repaired, and the fork with it.
#[test]
fn a_rotten_block_of_the_base_is_repaired_there() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    for index in 0..400 {
        fs::write(base.path.join(format!("d/{index}")), vec![index as u8; 9000]).unwrap();
    }
    on(&[&"snapshot", &"create", &base.path, &"tuesday"]).ok();
    base.unmount().ok();
    let (image, work) = (place.image(), place.path().join("work.img"));
    on(&[&"fork", &at(&image, "tuesday"), &work]).ok();
    let bytes = fs::read(&image).unwrap();
    let is_inner = |block: &[u8]| block.starts_with(b"SYNCNODE") && block[32] > 0;
    let root = bytes.chunks(4096).rposition(is_inner).expect("the tree has more than a leaf");
    edit(&image, root as u64 * 4096 + 100, 16, |bytes| bytes.fill(b'X'));
    assert_eq!(on(&[&"check", &work]).code, 4);
    // Nothing is lost; the copy in the base can only be mended there.
    let there =
        format!("nothing is lost: 'syncline check --repair {}' mends those in the base", image.display());
    let checked = on(&[&"check", &work]);
    assert!(checked.code == 4 && checked.out.contains(&there), "{checked:?}");
    let repaired = on(&[&"check", &"--repair", &work]);
    assert!(repaired.code == 4 && repaired.out.contains(&there), "{repaired:?}");
    assert!(repaired.out.contains("only the base itself can be repaired"), "{repaired:?}");
    let repaired = on(&[&"check", &"--repair", &image]);
    assert_eq!(repaired.code, 1, "{repaired:?}");
    on(&[&"check", &work]).ok();
    // One copy of the record that leads to the base.
    edit(&work, 50 * 4096, 4096, |bytes| bytes.fill(0));
    assert!(on(&[&"check", &work]).out.contains("SL0047 fork-record, block 50"));
    let repaired = on(&[&"check", &"--repair", &work]);
    assert_eq!(repaired.code, 1, "{repaired:?}");
    on(&[&"check", &work]).ok();
    // Without its table nobody knows which blocks lie in the base.
    edit_blocks(&work, |block| block.starts_with(b"SYNCSNAP"), |block| block[100..104].fill(b'X'));
    let refused = on(&[&"check", &"--repair", &"--accept-loss", &work]);
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!((refused.out + &refused.err).contains("tells which blocks lie in its base"));
    let fork = Mount::new(&work, &place.directory("fork"), &["-o", "ro"]);
    assert_eq!(fs::read(fork.path.join("d/7")).unwrap(), vec![7; 9000]);
    fork.unmount().ok();
}

#[test]
fn forks_are_forgotten_one_by_one() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let odd = |byte: u8| place.path().join(OsStr::from_bytes(&[b'x', byte]));
    let (first, second, line) = (odd(0xff), odd(0xfe), odd(b'\n'));
    for fork in [&first, &second, &line] {
        on(&[&"fork", &at(&base.path, "monday"), &fork]).ok();
    }
    for gone in [&first, &line] {
        fs::remove_file(gone).unwrap();
        on(&[&"fork", &"--forget", &base.path, &gone]).ok();
    }
    on(&[&"check", &second]).ok();
    // A hold is no snapshot.
    let image = place.image();
    on(&[&"snapshot", &"create", &base.path, &"fork/1/00000000000000000000000000000000/00000000/x"])
        .fails(1, &["can't be the name of a snapshot"]);
    // A sandbox is no base, since it is thrown away.
    let (temporary, directory) = (place.directory("tmp"), place.directory("sandbox"));
    let leave: [&dyn AsRef<OsStr>; 2] = [&"-o", &"transport=available"];
    in_temporary(&temporary, &[&"mount", &at(&image, "monday"), &directory, &"--fork", leave[0], leave[1]])
        .ok();
    let sandbox = Mount::of(&directory);
    on(&[&"snapshot", &"create", &directory, &"mine"]).ok();
    on(&[&"fork", &at(&directory, "mine"), &place.path().join("kept.img")]).fails(5, &["thrown away"]);
    sandbox.unmount().ok();
    base.unmount().ok();
}
