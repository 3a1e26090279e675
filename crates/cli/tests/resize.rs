//! `resize`: image files and block devices become larger, and keep their contents.

use crate::skip_if;
use crate::support::{Answer, Loop, Mount, Place, no_fuse, not_root, program, run};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn resize(image: &Path, size: &str) -> Answer {
    let mut command = program();
    command.arg("resize").arg(image).arg(size);
    run(command)
}

fn info(image: &Path) -> serde_json::Value {
    let mut command = program();
    command.arg("info").arg(image).arg("--json");
    serde_json::from_str(&run(command).ok().out).unwrap()
}

#[test]
fn an_image_file_grows_with_its_filesystem() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let image = place.image();
    let mut mount = place.mount("mount");
    let contents: Vec<u8> = (0..5_000_000u32).map(|index| (index % 251) as u8).collect();
    fs::write(mount.path.join("large"), &contents).unwrap();
    fs::File::open(mount.path.join("large")).unwrap().sync_all().unwrap();
    resize(&mount.path, "16MiB").fails(3, &["can't be made smaller", "unmount"]);
    resize(&image, "64MiB").fails(3, &["in use"]);
    // Data that is only in the log is kept.
    mount.kill();
    drop(mount);
    assert!(resize(&image, "300MiB").ok().out.contains("32.00 MiB before, 300.00 MiB now"));
    let metadata = image.metadata().unwrap();
    assert_eq!(metadata.len(), 300 * MIB);
    assert!(metadata.blocks() * 512 >= 300 * MIB, "fully allocated");
    let told = info(&image);
    assert_eq!((&told["size_bytes"], &told["clean"]), (&(300 * MIB).into(), &true.into()));
    place.check_clean();
    let mount = Mount::new(&image, &place.directory("again"), &[]);
    assert!(fs::read(mount.path.join("large")).unwrap() == contents);
    // More than fitted before.
    for index in 0..4 {
        fs::write(mount.path.join(format!("copy {index}")), vec![index; 50 << 20]).unwrap();
    }
    let space = rustix::fs::statvfs(&mount.path).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 300 * MIB);
    mount.unmount().ok();
    place.check_clean();
}

/// Files in two halves of an image; those in the first half are removed.
#[test]
fn an_image_file_becomes_smaller_with_its_filesystem() {
    skip_if!(no_fuse());
    let place = Place::with_image("300MiB");
    let image = place.image();
    let contents = |index: u8| -> Vec<u8> { (0..20_000_000u32).map(|at| (at / 3) as u8 ^ index).collect() };
    let mut mount = place.mount("mount");
    for index in 0..12 {
        fs::write(mount.path.join(format!("file {index}")), contents(index)).unwrap();
        syncline_fuse::control::sync(&mount.path).unwrap();
    }
    resize(&image, "100MiB").fails(3, &["in use"]);
    for index in 0..9 {
        fs::remove_file(mount.path.join(format!("file {index}"))).unwrap();
    }
    fs::write(mount.path.join("late"), "late").unwrap();
    fs::File::open(mount.path.join("late")).unwrap().sync_all().unwrap();
    mount.kill();
    drop(mount);
    // Orphans and the log are handled too; 60 MB are in use.
    resize(&image, "40MiB").fails(10, &["too few"]);
    assert_eq!(image.metadata().unwrap().len(), 300 * MIB);
    assert!(resize(&image, "120MiB").ok().out.contains("300.00 MiB before, 120.00 MiB now"));
    assert_eq!(
        (image.metadata().unwrap().len(), &info(&image)["size_bytes"]),
        (120 * MIB, &(120 * MIB).into())
    );
    place.check_clean();
    resize(&image, "min").ok();
    let least = image.metadata().unwrap().len();
    assert!((60_000_000..80_000_000).contains(&least), "{least}");
    place.check_clean();
    assert!(resize(&image, "min").ok().out.contains("as before"), "that was as small as will do");
    // A crash came before the file was shortened.
    fs::File::options().write(true).open(&image).unwrap().set_len(90 * MIB).unwrap();
    assert!(resize(&image, &least.to_string()).ok().out.contains("as before"));
    assert_eq!(image.metadata().unwrap().len(), least);
    let mount = Mount::new(&image, &place.directory("again"), &[]);
    for index in 9..12 {
        assert!(fs::read(mount.path.join(format!("file {index}"))).unwrap() == contents(index));
    }
    assert_eq!(fs::read(mount.path.join("late")).unwrap(), b"late");
    // And larger again.
    resize(&mount.path, "200MiB").ok();
    fs::write(mount.path.join("more"), contents(77)).unwrap();
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn the_snapshot_that_keeps_an_image_large_is_named() {
    let place = Place::with_image("64MiB");
    let image = place.image();
    let answer = resize(&image, "min").ok();
    assert_eq!(answer.err, "", "nothing keeps it");
    let place = Place::with_image("64MiB");
    let image = place.image();
    let mut command = program();
    command.args(["snapshot", "create"]).arg(&image).arg("monday");
    run(command).ok();
    let answer = resize(&image, "min").ok();
    assert!(answer.err.contains("\"monday\"") && answer.err.contains("snapshot delete"), "{answer:?}");
    assert_eq!(answer.err.lines().count(), 1, "{answer:?}");
    assert!(answer.out.contains("as before"), "{answer:?}");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let place = Place::with_image("32MiB");
    let image = place.image();
    let before = fs::read(&image).unwrap();
    resize(&image, "8MiB").fails(10, &["too few", "smallest size that will do is"]);
    assert!(resize(&image, "max").ok().out.contains("32.00 MiB, as before"));
    assert!(resize(&image, "32MiB").ok().out.contains("as before"));
    assert_eq!(resize(&image, "more").code, 2);
    resize(&place.path().join("none"), "64MiB").fails(5, &["cannot open"]);
    let other = place.path().join("other");
    fs::write(&other, vec![7; 20 << 20]).unwrap();
    resize(&other, "64MiB").fails(5, &["not a Syncline image"]);
    assert_eq!(other.metadata().unwrap().len(), 20 * MIB);
    assert!(fs::read(&image).unwrap() == before);
}

/// A place with too little space to grow.
#[test]
fn a_full_host_leaves_the_image_as_it_was() {
    skip_if!(not_root());
    let place = Place::new();
    let Some(small) = crate::support::Tmpfs::new(place.directory("small"), "48m") else {
        eprintln!("skipped: no tmpfs can be mounted here");
        return;
    };
    let image = small.path.join("image");
    let mut command = program();
    command.arg("mkfs").arg(&image).args(["--size", "32MiB"]);
    run(command).ok();
    resize(&image, "64MiB").fails(10, &["cannot make", "nothing has changed"]);
    assert_eq!(image.metadata().unwrap().len(), 32 * MIB);
    let mut command = program();
    command.arg("check").arg(&image);
    run(command).ok();
}

/// The device was enlarged first, as LVM does it.
#[test]
fn a_filesystem_takes_all_of_a_larger_block_device() {
    skip_if!(not_root());
    let place = Place::with_image("32MiB");
    fs::File::options().write(true).open(place.image()).unwrap().set_len(200 * MIB).unwrap();
    let Some(disk) = Loop::new(&place.image()) else {
        eprintln!("skipped: there are no loop devices");
        return;
    };
    // Before it is resized, it can be used and checked as it is.
    assert_eq!(info(&disk.device)["size_bytes"], 32 * MIB);
    let mut command = program();
    command.arg("check").arg(&disk.device);
    run(command).ok();
    resize(&disk.device, "201MiB").fails(2, &["smaller than that", "max"]);
    resize(&disk.device, "100MiB").ok();
    assert_eq!(info(&disk.device)["size_bytes"], 100 * MIB);
    resize(&disk.device, "max").ok();
    assert_eq!(info(&disk.device)["size_bytes"], 200 * MIB);
    drop(disk);
    place.check_clean();
}
