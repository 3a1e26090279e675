//! The example in Go.

use crate::programs::why_not;
use std::path::Path;
use std::process::Command;

#[test]
fn the_example_in_go_passes_and_fails_without_its_sync() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let go = |words: &[&str]| {
        let mut command = Command::new("go");
        command.args(words).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/go"));
        // Nothing is fetched, and nothing is left outside of the target directory.
        command.env("GOTOOLCHAIN", "local").env("GOPROXY", "off").env("TMPDIR", temporary.path());
        command.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
        command.env("CRASHLAB", env!("CARGO_BIN_EXE_crashlab")).output()
    };
    if !go(&["version"]).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: go is not installed");
        return;
    }
    let said = |words: &[&str]| {
        let ran = go(words).unwrap();
        (ran.status.success(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
    };
    let (passed, text) = said(&["test", "-count=1", "-vet=off", "."]);
    assert!(passed, "{text}");
    let (passed, text) = said(&["test", "-count=1", "-vet=off", ".", "-args", "-without-sync"]);
    assert!(!passed && text.contains("Missing: fsync of key.draft"), "{text}");
}
