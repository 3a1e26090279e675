//! `crashlab init`.

use crate::programs::why_not;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Replaces a file three times, without the sync between the write and the rename.
const PROGRAM: &str =
    "for n in 1 2 3; do echo version $n >new; mv new settings; sync .; echo saved $n; done; echo x >later";

fn crashlab(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

/// Explores with the command that `init` has printed. Returns the exit code, and everything printed.
fn explore(folder: &Path, init: &Output) -> (Option<i32>, String) {
    let printed = String::from_utf8_lossy(&init.stdout);
    let line = printed.lines().find_map(|line| line.trim().strip_prefix("crashlab explore ")).unwrap();
    let script = format!("'{}' explore --seconds 3600 {line}", env!("CARGO_BIN_EXE_crashlab"));
    let ran = Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap();
    (ran.status.code(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
}

#[test]
fn a_checker_from_a_recording_finds_the_bug_as_it_is() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    // A name that has to be quoted, twice.
    let folder = tempfile::Builder::new().prefix("it's here ").tempdir().unwrap();
    let folder = folder.path();
    assert!(crashlab(folder, &["record", "--", "sh", "-c", PROGRAM]).status.success());
    for file in ["check.py", "check.sh"] {
        let init = crashlab(folder, &["init", file]);
        assert!(init.status.success(), "{init:?}");
        let (code, said) = explore(folder, &init);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("settings is missing or empty, and the program had printed: saved "), "{said}");
        let text = fs::read_to_string(folder.join(file)).unwrap();
        assert!(text.contains("#     saved 3\n# Besides the files below it left:\n#     later\n"), "{text}");
    }
}

#[test]
fn a_checker_without_a_recording_needs_a_name() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (option, file, before, after) in [
        (None, "check.py", "FILES = []", "FILES = ['settings']"),
        (Some("my.sh"), "my.sh", "set -- \n", "set -- settings\n"),
    ] {
        let words: Vec<&str> = ["init"].into_iter().chain(option).collect();
        let _ = fs::remove_file(folder.join("r.crashlab"));
        let init = crashlab(folder, &words);
        assert!(init.status.success(), "{init:?}");
        assert!(
            crashlab(folder, &["record", "-o", "r.crashlab", "--", "sh", "-c", PROGRAM]).status.success()
        );
        let (code, said) = explore(folder, &init);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("looks at nothing yet"), "{said}");
        let text = fs::read_to_string(folder.join(file)).unwrap();
        assert!(text.contains(before), "{text}");
        fs::write(folder.join(file), text.replace(before, after)).unwrap();
        let (code, said) = explore(folder, &init);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("settings is missing or empty"), "{said}");
    }
}

#[test]
fn nothing_is_overwritten_and_a_strange_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("check.py"), "mine").unwrap();
    for words in [&["init"][..], &["init", "check.rb"], &["init", "check"]] {
        let init = crashlab(folder.path(), words);
        assert_eq!(init.status.code(), Some(2), "{init:?}");
    }
    assert_eq!(fs::read(folder.path().join("check.py")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
