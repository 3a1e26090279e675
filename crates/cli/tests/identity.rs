//! `label` and `uuid`: the names of a filesystem, on images and through mounts.

use crate::skip_if;
use crate::support::{Answer, Place, as_nobody, no_fuse, not_root, program, run};
use serde_json::Value;
use std::path::Path;

const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

fn name(command: &str, source: &Path, new: &[&str]) -> Answer {
    let mut program = program();
    program.arg(command).arg(source).args(new);
    run(program)
}

fn info(image: &Path) -> Value {
    serde_json::from_str(&name("info", image, &["--json"]).ok().out).unwrap()
}

#[test]
fn an_image_is_renamed_and_stays_clean() {
    let place = Place::with_image("16MiB");
    let image = place.image();
    let before = info(&image);
    assert_eq!(name("label", &image, &[]).ok().out, "\n");
    assert_eq!(name("uuid", &image, &[]).ok().out.trim(), before["uuid"].as_str().unwrap());
    name("label", &image, &["a label"]).ok();
    assert_eq!(name("uuid", &image, &[UUID]).ok().out.trim(), UUID);
    assert_eq!(name("label", &image, &[]).ok().out, "a label\n");
    let after = info(&image);
    assert_eq!((after["uuid"].as_str(), after["label"].as_str()), (Some(UUID), Some("a label")));
    assert_eq!((after["clean"].as_bool(), &after["objects"]), (Some(true), &before["objects"]));
    let random = name("uuid", &image, &["random"]).ok().out;
    assert!(random.trim() != UUID && random == name("uuid", &image, &[]).ok().out);
    name("label", &image, &[""]).ok();
    assert_eq!(info(&image)["label"], "");
    place.check_clean();
}

/// Whichever slot is lost, the other one has the new names too.
#[test]
fn both_superblock_slots_are_renamed() {
    let place = Place::with_image("16MiB");
    name("label", &place.image(), &["kept"]).ok();
    name("uuid", &place.image(), &[UUID]).ok();
    for copies in [[16u64, 4096 - 16], [32, 4096 - 8]] {
        let copy = place.path().join("copy");
        std::fs::copy(place.image(), &copy).unwrap();
        for block in copies {
            crate::support::edit(&copy, block * 4096, 4096, |bytes| bytes.fill(0));
        }
        assert_eq!(name("label", &copy, &[]).ok().out, "kept\n");
        assert_eq!(name("uuid", &copy, &[]).ok().out.trim(), UUID);
    }
}

#[test]
fn impossible_names_are_refused_and_change_nothing() {
    let place = Place::with_image("16MiB");
    let image = place.image();
    let uuid = name("uuid", &image, &[]).ok().out;
    name("label", &image, &[&"x".repeat(65)]).fails(2, &["64 bytes", "65"]);
    assert_eq!(name("uuid", &image, &["none"]).code, 2);
    assert_eq!(name("uuid", &image, &["00000000-0000-0000-0000-000000000000"]).code, 2);
    assert_eq!(name("uuid", &image, &[]).ok().out, uuid);
    assert_eq!(name("label", &image, &[]).ok().out, "\n");
    name("label", &place.path().join("none"), &["x"]).fails(5, &["cannot open", "mkfs"]);
    name("label", place.path(), &["x"]).fails(6, &["not on a mounted Syncline filesystem"]);
}

#[test]
fn a_mount_is_labelled_and_keeps_its_uuid() {
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let uuid = name("uuid", &place.image(), &[]).ok().out;
    let mut mount = place.mount("mount");
    name("label", &mount.path, &["while mounted"]).ok();
    assert_eq!(name("label", &mount.path, &[]).ok().out, "while mounted\n");
    assert_eq!(syncline_fuse::control::label(&mount.path).unwrap(), "while mounted");
    assert_eq!(name("uuid", &mount.path, &[]).ok().out, uuid);
    name("uuid", &mount.path, &["random"]).fails(3, &["unmount"]);
    name("label", &place.image(), &["x"]).fails(3, &["in use"]);
    assert!(syncline_fuse::control::set_label(&mount.path, &"x".repeat(65)).is_err());
    if crate::support::is_root() {
        // Anyone who can enter the mount may read the label, but not set it.
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = place.copy_of_program("syncline");
        let by_nobody = |new: &[&str]| {
            let mut command = std::process::Command::new(&copy);
            command.arg("label").arg(&mount.path).args(new);
            run(as_nobody(command))
        };
        assert_eq!(by_nobody(&[]).ok().out, "while mounted\n");
        by_nobody(&["theirs"]).fails(9, &["only root"]);
    } else {
        eprintln!("skipped in part: {}", not_root().unwrap());
    }
    // The change was durable when the command returned.
    mount.kill();
    drop(mount);
    assert_eq!(name("label", &place.image(), &[]).ok().out, "while mounted\n");
    let mount = crate::support::Mount::new(&place.image(), &place.directory("again"), &["-o", "ro"]);
    name("label", &mount.path, &["x"]).fails(9, &["read-only"]);
    mount.unmount().ok();
    place.check_clean();
}
