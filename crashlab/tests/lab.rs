//! crashlab in a test of Rust.

use crate::programs::why_not;
use crashlab::Lab;
use std::path::Path;
use std::process::Command;

/// Replaces a file three times; with `sync`, that is the command between the write and the rename.
fn replacing(sync: &str) -> Command {
    let mut program = Command::new("sh");
    let script =
        format!("for n in 1 2 3; do echo version $n >new; {sync}; mv new settings; echo saved $n; done");
    program.args(["-c", &script]);
    program
}

fn is_whole(files: &Path, _printed: &str) -> Result<(), String> {
    match std::fs::read_to_string(files.join("settings")) {
        Ok(text) if !text.starts_with("version ") => Err(format!("settings are {text:?}")),
        _ => Ok(()),
    }
}

#[test]
fn a_test_fails_with_a_report_and_passes_once_the_program_syncs() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let lab = Lab::new().model("xfs");
    let report = lab.find(&replacing("true"), is_whole).unwrap().expect("a state fails");
    assert!(report.contains("Missing: fsync of new"), "{report}");
    lab.test(&replacing("sync new"), is_whole);
}
