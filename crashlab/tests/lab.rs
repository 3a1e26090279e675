//! crashlab in a test of Rust.

use crate::programs::why_not;
use crashlab::Lab;
use std::fs::{self, File};
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

/// Replaces a file twice, as a library would.
fn replace(with_sync: bool) {
    for version in ["old", "new"] {
        fs::write("draft", version).unwrap();
        if with_sync {
            File::open("draft").unwrap().sync_all().unwrap();
        }
        fs::rename("draft", "settings").unwrap();
        File::open(".").unwrap().sync_all().unwrap();
        println!("saved {version}");
    }
}

fn is_saved(files: &Path, printed: &str) -> Result<(), String> {
    let settings = fs::read_to_string(files.join("settings")).unwrap_or_default();
    assert!(!printed.contains("saved new") || settings == "new", "saved, and now {settings:?}");
    match printed.lines().find(|line| !line.starts_with("saved ")) {
        Some(line) => Err(format!("the program did not print {line}")),
        None => Ok(()),
    }
}

#[test]
fn a_function_of_the_test_is_the_program() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    for (with_sync, model) in [(true, "posix"), (true, "ext4")] {
        Lab::new().model(model).test(&Lab::function(|| replace(with_sync)), is_saved);
    }
    let broken = Lab::function(|| replace(false));
    let report = Lab::new().find(&broken, is_saved).unwrap().expect("a state fails");
    assert!(report.contains("saved, and now \"\""), "{report}");
    assert!(report.contains("Missing: fsync of draft"), "{report}");
}

#[test]
fn what_tells_nothing_is_an_error() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    // First, since its process comes here too.
    let nothing = Lab::function(|| {});
    let found = |program: &Command, check: fn(&Path, &str) -> Result<(), String>| {
        Lab::new().find(program, check).expect_err("it is refused").to_string()
    };
    let said = found(&replacing("exit 7"), is_whole);
    assert!(said.contains("exit code 7"), "{said}");
    let said = found(&nothing, is_whole);
    assert!(said.contains("did nothing"), "{said}");
    let said = found(&replacing("true"), |_, _| panic!("always"));
    assert!(said.contains("without any power cut, so it would fail on all states:\nalways"), "{said}");
}
