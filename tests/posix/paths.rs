//! `syncline path`: the paths of an inode, on a mount and in an unmounted image.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, NOBODY, Place, as_nobody, is_root, no_fuse, program, run};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

fn path(of: &Path, inode: u64, options: &[&str]) -> Answer {
    let mut command = program();
    command.arg("path").arg(of).arg(inode.to_string()).args(options);
    run(command)
}

fn lines(answer: Answer) -> Vec<String> {
    answer.ok().out.lines().map(str::to_owned).collect()
}

#[test]
fn paths_are_the_same_from_the_mount_and_from_the_image() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    fs::create_dir_all(ground.path("one/two")).unwrap();
    fs::write(ground.path("one/two/file"), "contents").unwrap();
    fs::hard_link(ground.path("one/two/file"), ground.path("second")).unwrap();
    // Enough names for items of their own, and for more than a page of output.
    let long = "n".repeat(200);
    for index in 0..150 {
        fs::hard_link(ground.path("second"), ground.path(&format!("one/{long}{index:03}"))).unwrap();
    }
    fs::rename(ground.path("one"), ground.path("renamed")).unwrap();
    let file = fs::metadata(ground.path("second")).unwrap().ino();
    let directory = fs::metadata(ground.path("renamed/two")).unwrap().ino();
    let mut expected: Vec<_> = (0..150).map(|index| format!("/renamed/{long}{index:03}")).collect();
    expected.extend(["/renamed/two/file".into(), "/second".into()]);
    let mount = ground.path("");
    assert_eq!(lines(path(&mount, file, &[])), expected);
    assert_eq!(lines(path(&ground.path("renamed/two"), directory, &[])), ["/renamed/two"]);
    assert_eq!(lines(path(&mount, 1, &[])), ["/"]);
    let counters = ground.mount.as_ref().unwrap().stats()["files"].clone();
    assert!(counters["parents_short"].as_u64() >= Some(4), "{counters}");
    assert!(counters["parents_long"].as_u64() > Some(100), "{counters}");
    let answer: serde_json::Value = serde_json::from_str(&path(&mount, file, &["--json"]).ok().out).unwrap();
    assert_eq!(answer["inode"], file);
    assert_eq!(answer["paths"].as_array().unwrap().len(), expected.len());

    // An inode without names, and one that does not exist.
    fs::write(ground.path("removed"), "soon").unwrap();
    let open = File::open(ground.path("removed")).unwrap();
    fs::remove_file(ground.path("removed")).unwrap();
    let removed = open.metadata().unwrap().ino();
    path(&mount, removed, &[]).fails(1, &["no name left", &removed.to_string()]);
    path(&mount, 1 << 40, &[]).fails(1, &["no inode 1099511627776"]);
    path(&std::env::temp_dir(), file, &[]).fails(6, &["not on a mounted Syncline filesystem"]);
    drop(open);

    let image = ground.place.image();
    path(&image, file, &[]).fails(3, &[]);
    let Ground { mount, place } = ground;
    mount.unwrap().unmount().ok();
    assert_eq!(lines(path(&image, file, &[])), expected);
    path(&image, 1 << 40, &[]).fails(1, &["no inode 1099511627776"]);
    place.check_clean();
}

#[test]
fn an_image_made_without_them_says_so() {
    skip_if!(no_fuse());
    let place = Place::new();
    let mut mkfs = program();
    mkfs.arg("mkfs").arg(place.image()).args(["--size", "16MiB", "--parent-pointers", "off"]);
    run(mkfs).ok();
    let mount = place.mount("mount");
    fs::write(mount.path.join("file"), "contents").unwrap();
    let file = fs::metadata(mount.path.join("file")).unwrap().ino();
    path(&mount.path, file, &[]).fails(1, &["mkfs --parent-pointers on"]);
    mount.unmount().ok();
    path(&place.image(), file, &[]).fails(1, &["mkfs --parent-pointers on"]);
    place.check_clean();
    let mut mkfs = program();
    mkfs.arg("mkfs").arg(place.path().join("other")).args(["--parent-pointers", "maybe"]);
    assert_eq!(run(mkfs).code, 2);
}

/// Names may be in directories that not every user may read.
#[test]
fn others_are_not_told() {
    skip_if!(no_fuse());
    skip_if!((!is_root()).then_some("this needs root"));
    let ground = Ground::new();
    fs::create_dir(ground.path("secret")).unwrap();
    fs::write(ground.path("secret/name"), "contents").unwrap();
    let file = fs::metadata(ground.path("secret/name")).unwrap().ino();
    // The user nobody must be able to get here and run the program.
    for path in [ground.place.path(), &ground.path("")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir(ground.path("open")).unwrap();
    chown(ground.path("open"), Some(NOBODY), None).unwrap();
    let copy = ground.place.copy_of_program("syncline");
    let mut command = std::process::Command::new(&copy);
    command.arg("path").arg(ground.path("open")).arg(file.to_string());
    run(as_nobody(command)).fails(9, &["root"]);
    ground.end();
}
