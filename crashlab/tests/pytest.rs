//! The plugin for pytest, by its own tests.

use crate::programs::why_not;
use std::path::Path;
use std::process::Command;

#[test]
fn the_plugin_for_pytest_passes_its_tests() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let python = |words: &[&str]| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("pytest");
        let mut command = Command::new("python3");
        command.args(words).current_dir(&folder).env("PYTHONPATH", &folder);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("CRASHLAB", env!("CARGO_BIN_EXE_crashlab"));
        command.output().unwrap()
    };
    if !python(&["-c", "import pytest"]).status.success() {
        eprintln!("skipped: pytest is not installed");
        return;
    }
    let ran = python(&["-m", "pytest", "-q", "-p", "pytest_crashlab", "-p", "no:cacheprovider"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()));
}
