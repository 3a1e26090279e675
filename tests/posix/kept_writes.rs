//! Mounts whose kernel keeps writes (`-o writeback_cache`).

use crate::support::{Answer, MORE_OPTIONS, Mount, Place, no_fuse, not_root, program, run, syncline};
use crate::{Ground, errno, skip_if};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const ON: [&str; 2] = ["-o", "writeback_cache"];

/// What programs expect does not depend on where their writes are.
#[test]
fn the_tests_of_files_names_and_syncs_hold_too() {
    skip_if!(no_fuse());
    if std::env::var_os(MORE_OPTIONS).is_some() {
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.env(MORE_OPTIONS, "writeback_cache");
    let modules = [
        "acl::",
        "allocate::",
        "clone::",
        "defragment::",
        "durability::",
        "flags::",
        "limits::",
        "names::",
        "opens::",
        "paths::",
        "privileges::",
        "quotas::",
        "reflink::",
        "snapshots::",
        "sync_many::",
        "synced::",
        "tmpfile::",
    ];
    let of_main = [
        "files_keep_what_is_written_to_them",
        "holes_sizes_and_truncation",
        "attributes_survive",
        "extended_attributes_of_all_sizes",
        "an_unlinked_file_lives_until_it_is_closed",
        "appends_from_several_threads_do_not_overwrite_each_other",
        "an_fsync_costs_one_flush",
        "a_signal_unmounts_and_leaves_the_image_clean",
        "errors_have_the_numbers_that_programs_know",
    ];
    // Openings are requests, and are refused for append-only files as with check_opens. That a quota,
    // an image or a flag forbids a write is told later.
    let others = [
        "opening_and_closing_costs_no_request",
        "an_append_only_file_only_grows",
        "an_immutable_file_stays_what_it_is",
        "a_clone_that_finds_no_room_leaves_nothing",
        "limits_hold_are_shown_and_give_back_what_is_removed",
        "programs_in_c_can_set_show_and_remove_quotas",
    ];
    again.args(modules.iter().chain(&of_main)).args(others.iter().flat_map(|name| ["--skip", name]));
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn kept() -> Ground {
    Ground::with(&ON)
}

fn told(words: &[&str], path: &Path) -> Answer {
    let mut command = program();
    command.args(words).arg(path);
    run(command)
}

#[test]
fn it_is_shown_and_contradictions_are_refused() {
    skip_if!(no_fuse());
    let ground = kept();
    let root = ground.path("");
    assert!(told(&["stats"], &root).ok().out.contains("over /dev/fuse, writes kept by the kernel, for "));
    assert!(told(&["info"], &root).ok().out.contains("(-o writeback_cache)"));
    let stats = ground.mount.as_ref().unwrap().stats();
    assert_eq!(
        (&stats["daemon"]["writeback_cache"], &stats["files"]["writes_lost"]),
        (&true.into(), &0.into())
    );
    let remount = told(&["mount", "-o", "remount,nowriteback_cache", "none"], &root);
    assert!(!crate::support::is_root() || remount.ok().err.contains("stay as they were: nowriteback_cache"));
    ground.end();
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    for other in ["sync", "durability=strict", "atomic_writes", "direct_io=always", "transport=uring"] {
        let options = format!("writeback_cache,{other}");
        let words = ["mount".as_ref(), place.image().as_os_str(), directory.as_os_str(), "-o".as_ref()]
            .map(OsStr::to_owned);
        syncline(words.iter().map(|word| word.as_os_str()).chain([OsStr::new(&options)]))
            .fails(2, &["-o writeback_cache: contradicts ", "choose one"]);
    }
    // There is nothing to keep.
    let mount = Mount::new(&place.image(), &directory, &["-o", "ro,writeback_cache,atomic_writes"]);
    assert_eq!(mount.stats()["daemon"]["writeback_cache"], false);
    mount.unmount().ok();
}

/// The kernel keeps no more than a hundredth for a FUSE mount, unless it is told to.
#[test]
fn the_kernels_limits_are_raised() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = kept();
    let device = rustix::fs::stat(ground.path("")).unwrap().st_dev;
    let limit = |name: &str| {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/{name}")).unwrap().trim().to_owned()
    };
    assert_eq!((limit("max_ratio"), limit("strict_limit")), ("100".into(), "0".into()));
    ground.end();
}

#[test]
fn a_snapshot_has_what_programs_wrote_before() {
    skip_if!(no_fuse());
    let ground = kept();
    let file = File::create(ground.path("open")).unwrap();
    let data: Vec<u8> = (0..3_000_001u32).map(|index| (index % 253) as u8).collect();
    file.write_all_at(&data, 0).unwrap();
    let root = ground.path("");
    syncline(["snapshot".as_ref(), "create".as_ref(), root.as_os_str(), "before".as_ref()]).ok();
    file.write_all_at(b"later", 0).unwrap();
    let image = ground.place.image();
    let at = ground.place.directory("snapshot");
    let snapshot = Mount::new(&image, &at, &["--snapshot", "before"]);
    assert!(fs::read(at.join("open")).unwrap() == data);
    snapshot.unmount().ok();
    drop(file);
    ground.end();
}

#[test]
fn a_full_quota_is_told_by_fsync() {
    skip_if!(no_fuse());
    let ground = kept();
    let home = ground.path("home");
    fs::create_dir(&home).unwrap();
    let words = ["quota".as_ref(), "set".as_ref(), home.as_os_str(), "--bytes".as_ref(), "1MiB".as_ref()];
    syncline(words).ok();
    let file = File::create(home.join("file")).unwrap();
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&[2; 4096], 1 << 20).unwrap();
    for _ in 0..2 {
        assert_eq!(errno(file.sync_all()), Some(122));
    }
    let stats = ground.mount.as_ref().unwrap().stats();
    assert_eq!(stats["files"]["writes_lost"], 1);
    assert!(told(&["stats"], &ground.path("")).ok().out.contains("1 kept writes lost"));
    file.set_len(1 << 20).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(home.join("file")).unwrap(), [1; 1 << 20]);
    drop(file);
    ground.end();
}

#[test]
fn a_file_that_is_being_written_does_not_become_strict() {
    skip_if!(no_fuse());
    let ground = kept();
    let path = ground.path("file");
    let file = File::create(&path).unwrap();
    let set = || syncline(["durability".as_ref(), "set".as_ref(), path.as_os_str(), "strict".as_ref()]);
    set().fails(3, &["open for writing", "writeback_cache"]);
    drop(file);
    // The kernel tells of a close a moment later.
    crate::support::eventually("the file is closed", || set().code == 0);
    ground.end();
}
