//! Copies of forks, and links to them: which hold goes with which file.

use crate::posix::fork::{at, ground, on};
use crate::skip_if;
use crate::support::no_fuse;
use std::fs;

/// The link stays, and the fork goes.
#[test]
fn a_fork_is_removed_through_a_link() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let [work, link, name] = ["work.img", "link.img", "name.img"].map(|name| place.path().join(name));
    on(&[&"fork", &at(&base.path, "monday"), &work]).ok();
    std::os::unix::fs::symlink(&work, &link).unwrap();
    fs::hard_link(&work, &name).unwrap();
    on(&[&"fork", &"--remove", &link]).fails(3, &["has 2 names", "find -samefile"]);
    fs::remove_file(&name).unwrap();
    on(&[&"fork", &"--remove", &link]).ok();
    assert!(!work.exists() && link.is_symlink());
    on(&[&"snapshot", &"delete", &base.path, &"monday"]).ok();
    base.unmount().ok();
}

#[test]
fn a_copy_that_goes_leaves_the_hold_to_its_original() {
    skip_if!(no_fuse());
    let (place, base) = ground();
    let [work, copy] = ["work.img", "copy.img"].map(|name| place.path().join(name));
    on(&[&"fork", &at(&base.path, "monday"), &work]).ok();
    for way in ["--remove", "--detach"] {
        fs::copy(&work, &copy).unwrap();
        let told = on(&[&"fork", &way, &copy]).ok().err;
        assert!(told.contains("stays for the fork at ") && told.contains("work.img"), "{told}");
        on(&[&"snapshot", &"delete", &base.path, &"monday"]).fails(3, &["is the base of"]);
        on(&[&"info", &work]).ok();
    }
    base.unmount().ok();
}
