//! A limit on the size of files (`ulimit -f`): a write beyond it is reported as an error, and does
//! not end the process.

use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, program, run, syncline};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The program, with a limit of this many KiB for files.
fn limited(place: &Place, kib: u32, words: &[&str]) -> Command {
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("ulimit -c 0; ulimit -f {kib}; exec \"$0\" \"$@\""));
    command.arg(program().get_program()).args(words).current_dir(place.path());
    command
}

#[test]
fn an_image_past_it_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let answer = run(limited(&place, 20_000, &["mkfs", "new", "--size", "64MiB"]));
    assert!(answer.code > 0 && answer.code < 128, "{answer:?}");
    assert!(answer.err.contains("File too large"), "{answer:?}");
    assert!(!place.path().join("new").exists(), "{answer:?}");
}

#[test]
fn a_filesystem_in_use_that_would_grow_past_it_stays() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let directory = place.directory("mount");
    let image = place.image();
    let image = image.to_str().unwrap();
    run(limited(&place, 70_000, &["mount", image, "mount"])).ok();
    let mounted = Mount::of(&directory);
    fs::write(directory.join("file"), "not synced").unwrap();
    let answer = syncline([Path::new("resize"), &directory, Path::new("100MiB")]);
    assert!(answer.code > 0 && answer.code < 128, "{answer:?}");
    assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "not synced");
    mounted.unmount().ok();
    place.check_clean();
}
