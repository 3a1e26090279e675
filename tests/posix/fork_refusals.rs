//! What stands in the way of making, removing and forgetting forks, and the next step that each message names.

use crate::posix::fork::{at, ground, in_temporary, list, on};
use crate::skip_if;
use crate::support::{Mount, Place, edit, edit_blocks, no_fuse, stop};
use rustix::process::{Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// A base that is not mounted, with a snapshot `monday` and a fork of it.
fn unmounted() -> (Place, PathBuf) {
    let (place, base) = ground();
    let work = place.path().join("work.img");
    on(&[&"fork", &at(&base.path, "monday"), &work]).ok();
    base.unmount().ok();
    (place, work)
}

#[test]
fn a_fork_stays_while_something_reads_it_or_the_base_can_not_release_it() {
    skip_if!(no_fuse());
    let (place, work) = unmounted();
    let remove = || on(&[&"fork", &"--remove", &work]);
    let directory = place.directory("then");
    on(&[&"snapshot", &"mount", &work, &"monday", &directory]).ok();
    let then = Mount::of(&directory);
    remove().fails(3, &["snapshot \"monday\" is in use"]);
    then.unmount().ok();
    let base = Mount::new(&place.image(), &place.directory("again"), &["-o", "ro"]);
    remove().fails(3, &["work.img stays", "in use", "'rm'", "--forget"]);
    assert!(work.exists());
    base.unmount().ok();
    on(&[&"check", &work]).ok();
    remove().ok();
    on(&[&"snapshot", &"delete", &place.image(), &"monday"]).ok();
}

#[test]
fn a_fork_that_can_not_be_removed_names_the_way_out() {
    skip_if!(no_fuse());
    let (place, work) = unmounted();
    let (image, moved, saved) = (place.image(), place.path().join("moved"), place.path().join("saved"));
    let remove = || on(&[&"fork", &"--remove", &work]);
    fs::copy(&work, &saved).unwrap();
    let again = || fs::copy(&saved, &work).unwrap();
    fs::rename(&image, &moved).unwrap();
    remove().fails(5, &["out of reach", "--base BASE FORK", "if the base is gone for good, 'rm' is enough"]);
    fs::rename(&moved, &image).unwrap();
    // Neither copy of the record.
    edit(&work, 49 * 4096, 2 * 4096, |bytes| bytes.fill(b'X'));
    remove().fails(5, &["record of its base is damaged", "'rm'", "'syncline fork --forget BASE "]);
    again();
    edit_blocks(&work, |block| block.starts_with(b"SYNCSNAP"), |block| block[100..104].fill(b'X'));
    remove().fails(4, &["'rm'", "'syncline fork --forget BASE "]);
    fs::remove_file(&work).unwrap();
    remove().fails(5, &["if its file was removed, 'syncline fork --forget BASE "]);
    on(&[&"snapshot", &"delete", &image, &"monday"]).fails(3, &["--forget BASE FORK", "whose file is gone"]);
    on(&[&"fork", &"--forget", &image, &work]).ok();
    again();
    remove().fails(5, &["keeps no snapshot for this fork", "'rm' is enough"]);
}

#[test]
fn a_fork_is_forgotten_by_the_path_that_is_shown() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let make = |name: String| {
        let directory = place.path().join(name);
        fs::create_dir(&directory).unwrap();
        let fork = directory.join("the end".repeat(33));
        on(&[&"fork", &at(&base.path, "monday"), &fork]).ok();
        fork
    };
    let shown = || list(&base.path)["snapshots"][0]["forks"][0].as_str().map(str::to_owned);
    let forks = ["one".repeat(30), "two".repeat(30)].map(make);
    let text = shown().unwrap();
    assert!(text.starts_with('\u{2026}'), "{text}");
    forks.iter().for_each(|fork| fs::remove_file(fork).unwrap());
    let forget = |fork: &dyn AsRef<OsStr>| on(&[&"fork", &"--forget", &base.path, &fork.as_ref()]);
    forget(&text).fails(1, &["knows of 2 forks that are shown as", "whole path"]);
    forget(&forks[0]).ok();
    let told = forget(&text).ok().err;
    assert!(told.contains("is not known in full") && told.contains("fork --base"), "{told}");
    assert_eq!(shown(), None);
    base.unmount().ok();
}

#[test]
fn a_fork_is_not_made_where_it_can_not_be() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let source = at(&place.image(), "monday");
    let kept = place.path().join("kept.img");
    on(&[&"run", &source, &"--keep", &kept, &"-o", &"ro,bogus", &"--", &"true"]).fails(2, &["bogus"]);
    assert!(!kept.exists());
    let mut slash = kept.into_os_string();
    slash.push("/");
    on(&[&"fork", &source, &slash]).fails(2, &["without a slash at its end"]);
    let missing = place.path().join("missing");
    let directory = place.directory("fork");
    in_temporary(&missing, &[&"mount", &source, &directory, &"--fork"]).fails(1, &["set TMPDIR"]);
    in_temporary(&missing, &[&"run", &source, &"--", &"true"]).fails(1, &["set TMPDIR"]);
    assert_eq!(list(&base.path)["snapshots"][0]["forks"].as_array().map(Vec::len), Some(0));
    base.unmount().ok();
}

#[test]
fn a_fork_of_a_daemon_that_does_not_answer_is_refused() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let new = place.path().join("new.img");
    let daemon = base.pid();
    stop(daemon);
    let refused = on(&[&"fork", &at(&base.path, "monday"), &new]);
    kill_process(daemon, Signal::CONT).unwrap();
    refused.fails(1, &["has not answered", "kill -CONT"]);
    assert!(!new.exists());
    on(&[&"fork", &at(&base.path, "monday"), &new]).ok();
    base.unmount().ok();
}

/// The others go.
#[test]
fn pruning_goes_on_behind_a_snapshot_with_forks() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let prune =
        |source: &Path| on(&[&"snapshot", &"prune", &source, &"--prefix", &"a-", &"--keep", &"last=1"]);
    let make = |names: &[&str]| {
        for name in names {
            on(&[&"snapshot", &"create", &base.path, name]).ok();
        }
    };
    make(&["a-1", "a-2", "a-3"]);
    on(&[&"fork", &at(&base.path, "a-1"), &place.path().join("work.img")]).ok();
    let pruned = prune(&base.path);
    assert_eq!((pruned.code, pruned.out.as_str()), (3, "deleted \"a-2\"\n"), "{pruned:?}");
    assert!(pruned.err.contains("is the base of") && pruned.err.contains("work.img"), "{pruned:?}");
    make(&["a-4", "a-5"]);
    base.unmount().ok();
    let pruned = prune(&place.image());
    assert_eq!((pruned.code, pruned.out.as_str()), (3, "deleted \"a-3\"\ndeleted \"a-4\"\n"), "{pruned:?}");
}
