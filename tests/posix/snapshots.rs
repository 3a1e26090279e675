//! Snapshots: made while files are written, mounted beside the filesystem, compared, rolled back
//! to.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, Mount, no_fuse, syncline};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

fn snapshot(words: &[&dyn AsRef<OsStr>]) -> Answer {
    let words = words.iter().map(|word| word.as_ref());
    syncline([OsStr::new("snapshot")].into_iter().chain(words))
}

fn list(source: &Path) -> Vec<serde_json::Value> {
    let text = snapshot(&[&"list", &source, &"--json"]).ok().out;
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["snapshots"].as_array().unwrap().clone()
}

fn names(source: &Path) -> Vec<String> {
    list(source).iter().map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

/// Mounts a snapshot in a new directory.
fn mount(ground: &Ground, source: &Path, name: &str) -> Mount {
    let directory = ground.place.directory(&format!("of-{}", name.len()));
    snapshot(&[&"mount", &source, &name, &directory]).ok();
    Mount::of(&directory)
}

#[test]
fn a_snapshot_keeps_everything_as_it_was() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let image = ground.place.image();
    let large: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
    fs::create_dir(ground.path("dir")).unwrap();
    fs::write(ground.path("dir/large"), &large).unwrap();
    fs::write(ground.path("dir/small"), "before").unwrap();
    // Not synced, but data written before is in the snapshot all the same.
    snapshot(&[&"create", &ground.path("dir"), &"a, b & c"]).ok();
    fs::write(ground.path("dir/small"), "after, and longer").unwrap();
    File::options()
        .write(true)
        .open(ground.path("dir/large"))
        .unwrap()
        .write_all_at(&[9; 100_000], 5000)
        .unwrap();
    fs::remove_file(ground.path("dir/small")).unwrap();
    fs::rename(ground.path("dir"), ground.path("renamed")).unwrap();
    for round in 0..2 {
        let root = ground.path("");
        let view = mount(&ground, if round == 0 { &root } else { &image }, "a, b & c");
        assert!(fs::read(view.path.join("dir/large")).unwrap() == large);
        assert_eq!(fs::read(view.path.join("dir/small")).unwrap(), b"before");
        assert!(!view.path.join("renamed").exists());
        let refused = fs::write(view.path.join("dir/new"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(30), "a snapshot is read-only");
        snapshot(&[&"delete", &ground.path(""), &"a, b & c"])
            .fails(3, &["in use", "unmount it first", "being sent"]);
        let directory = view.path.clone();
        view.unmount().ok();
        fs::remove_dir(directory).unwrap();
        ground.remount();
    }
    assert_eq!(names(&ground.path("")), ["a, b & c"]);
    ground.end();
}

#[test]
fn a_snapshot_of_a_mount_is_looked_at_by_its_directory() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let root = ground.path("");
    fs::create_dir(ground.path("dir")).unwrap();
    fs::write(ground.path("dir/file"), "before").unwrap();
    snapshot(&[&"create", &root, &"monday"]).ok();
    fs::write(ground.path("dir/file"), "after").unwrap();
    let place = |path: &str| format!("{}@monday:{path}", root.to_str().unwrap().trim_end_matches('/'));
    assert_eq!(syncline(["ls", &place("/dir")]).ok().out, "file\n");
    assert_eq!(syncline(["cat", &place("/dir/file")]).ok().out, "before");
    let copy = ground.place.path().join("copy");
    syncline(["cp", "-a", &place("/dir"), copy.to_str().unwrap()]).ok();
    assert_eq!(fs::read(copy.join("file")).unwrap(), b"before");
    let inside = format!("{}@monday:/dir", ground.path("dir").display());
    assert_eq!(syncline(["ls", &inside]).ok().out, "file\n", "any directory of the mount will do");
    syncline(["ls", &place("/dir").replace("monday", "none")]).fails(1, &["no snapshot", "snapshot list"]);
    syncline(["ls", root.to_str().unwrap()]).fails(5, &["is a directory", "DIRECTORY@SNAPSHOT"]);
    syncline(["ls", "/@monday:/"]).fails(6, &["image is mounted"]);
    // A user who reads the list on a terminal gets a hint; a script does not.
    assert_eq!(snapshot(&[&"list", &root]).ok().err, "");
    if crate::support::missing_of(&["script"]).is_none() {
        let mut command = std::process::Command::new("script");
        let program = crate::support::program().get_program().to_str().unwrap().to_owned();
        command.args(["-qec", &format!("{program} snapshot list '{}'", root.display()), "/dev/null"]);
        let told = crate::support::run(command).ok().out;
        assert!(told.contains("syncline ls") && told.contains("syncline snapshot mount"), "{told}");
    }
    ground.end();
}

#[test]
fn what_only_a_snapshot_used_comes_back_when_it_goes() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let free = || rustix::fs::statvfs(ground.path("")).map(|all| all.f_bfree).unwrap();
    let root = ground.path("");
    // Large, so that the sizes of structures do not matter.
    fs::write(ground.path("kept"), vec![1; 8 << 20]).unwrap();
    snapshot(&[&"create", &root, &"first"]).ok();
    fs::write(ground.path("gone"), vec![2; 16 << 20]).unwrap();
    snapshot(&[&"create", &root, &"second"]).ok();
    let files = || rustix::fs::statvfs(ground.path("")).map(|all| all.f_files - all.f_ffree).unwrap();
    let before = files();
    fs::remove_file(ground.path("gone")).unwrap();
    // Removed in the background, once the kernel has reported that no program has it open. Until
    // then the next snapshot would keep it too.
    crate::support::eventually("the file is gone", || files() < before);
    File::open(&root).unwrap().sync_all().unwrap();
    snapshot(&[&"create", &root, &"third"]).ok();
    let before = free();
    let exclusive: Vec<u64> =
        list(&root).iter().map(|snapshot| snapshot["exclusive_bytes"].as_u64().unwrap()).collect();
    assert!(exclusive[1] >= 16 << 20 && exclusive[0] < 1 << 20 && exclusive[2] < 1 << 20, "{exclusive:?}");
    snapshot(&[&"delete", &root, &"second"]).ok();
    let freed = (free() - before) * 4096;
    assert!(freed >= 16 << 20 && freed.abs_diff(exclusive[1]) < 1 << 20, "{freed} of {exclusive:?}");
    assert_eq!(names(&root), ["first", "third"]);
    snapshot(&[&"delete", &root, &"second"]).fails(1, &["no snapshot", "snapshot list"]);
    snapshot(&[&"create", &root, &"first"]).fails(1, &["already"]);
    snapshot(&[&"create", &root, &"a/b"]).fails(1, &["can't be the name"]);
    ground.end();
}

#[test]
fn differences_are_told_by_name() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let root = ground.path("");
    fs::create_dir_all(ground.path("docs/old")).unwrap();
    for name in ["docs/stays", "docs/changes", "docs/mode", "docs/old/moves", "docs/goes", "docs/replaced"] {
        fs::write(ground.path(name), name.repeat(1000)).unwrap();
    }
    for index in 0..2000 {
        fs::write(ground.path(&format!("other-{index}")), "x").unwrap();
    }
    snapshot(&[&"create", &root, &"before"]).ok();
    fs::write(ground.path("docs/changes"), "changed").unwrap();
    fs::set_permissions(ground.path("docs/mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(ground.path("docs/old/moves"), ground.path("docs/moved")).unwrap();
    fs::remove_file(ground.path("docs/goes")).unwrap();
    fs::remove_file(ground.path("docs/replaced")).unwrap();
    fs::write(ground.path("docs/replaced"), "another file").unwrap();
    fs::create_dir(ground.path("new")).unwrap();
    fs::hard_link(ground.path("docs/stays"), ground.path("new/link")).unwrap();
    snapshot(&[&"create", &root, &"after"]).ok();
    let lines = |answer: Answer| answer.ok().out.lines().map(str::to_owned).collect::<Vec<_>>();
    let expected = [
        "M /docs/changes",
        "- /docs/goes",
        "A /docs/mode",
        "R /docs/old/moves -> /docs/moved",
        "- /docs/replaced",
        "+ /docs/replaced",
        "+ /new",
        "+ /new/link",
    ];
    assert_eq!(lines(snapshot(&[&"diff", &root, &"before", &"after"])), expected);
    assert!(lines(snapshot(&[&"diff", &root, &"after", &"after"])).is_empty());
    snapshot(&[&"diff", &root, &"before"]).fails(2, &["name two snapshots"]);
    ground.mount.take().unwrap().unmount().ok();
    let image = ground.place.image();
    assert_eq!(lines(snapshot(&[&"diff", &image, &"before"])), expected, "with the present state");
    ground.place.check_clean();
}

#[test]
fn going_back_undoes_everything_but_snapshots() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let (root, image) = (ground.path(""), ground.place.image());
    fs::write(ground.path("file"), "good").unwrap();
    snapshot(&[&"create", &root, &"good"]).ok();
    fs::write(ground.path("file"), "bad").unwrap();
    fs::write(ground.path("virus"), vec![6; 1 << 20]).unwrap();
    for name in ["file", "virus"] {
        File::open(ground.path(name)).unwrap().sync_all().unwrap();
    }
    snapshot(&[&"rollback", &root, &"good"]).fails(3, &["syncline umount"]);
    // A crash leaves a log to recover first.
    ground.mount.as_mut().unwrap().kill();
    let directory = ground.mount.take().unwrap().path.clone();
    snapshot(&[&"rollback", &image, &"better"]).fails(1, &["no snapshot"]);
    snapshot(&[&"rollback", &image, &"good", &"--keep", &"bad"]).ok();
    ground.place.check_clean();
    let mounted = Mount::new(&image, &directory, &[]);
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"good");
    assert!(!directory.join("virus").exists());
    assert_eq!(names(&directory), ["good", "bad"]);
    fs::write(directory.join("file"), "better").unwrap();
    let view = crate::support::Mount::new(&image, &ground.place.directory("view"), &["--snapshot", "bad"]);
    assert_eq!(fs::read(view.path.join("file")).unwrap(), b"bad");
    assert_eq!(fs::read(view.path.join("virus")).unwrap(), [6; 1 << 20]);
    view.unmount().ok();
    mounted.unmount().ok();
    ground.place.check_clean();
}

#[test]
fn a_snapshot_outlives_that_the_image_grows() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let (root, image) = (ground.path(""), ground.place.image());
    fs::write(ground.path("file"), vec![1; 5 << 20]).unwrap();
    snapshot(&[&"create", &root, &"small"]).ok();
    fs::write(ground.path("file"), vec![2; 5 << 20]).unwrap();
    ground.mount.take().unwrap().unmount().ok();
    // So large that the space map gets an index page.
    syncline([OsStr::new("resize"), image.as_ref(), OsStr::new("300MiB")]).ok();
    ground.place.check_clean();
    // With no way to roll back, no snapshot of the current state is made.
    let refused = snapshot(&[&"rollback", &image, &"small", &"--keep", &"present"]);
    refused.fails(1, &["syncline resize", "mount the snapshot"]);
    assert_eq!(names(&image), ["small"]);
    let mounted = Mount::new(&image, &root, &[]);
    fs::write(root.join("larger"), vec![3; 150 << 20]).unwrap();
    snapshot(&[&"create", &root, &"large"]).ok();
    let view = Mount::new(&image, &ground.place.directory("view"), &["--snapshot", "small"]);
    assert!(fs::read(view.path.join("file")).unwrap() == vec![1; 5 << 20]);
    assert!(!view.path.join("larger").exists());
    view.unmount().ok();
    snapshot(&[&"delete", &root, &"small"]).ok();
    assert_eq!(names(&root), ["large"]);
    mounted.unmount().ok();
    snapshot(&[&"rollback", &image, &"large"]).ok();
    ground.place.check_clean();
}
