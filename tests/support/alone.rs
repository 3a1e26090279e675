//! Tests that need a process to themselves, because they measure or change the whole process.

use std::process::{Command, Stdio};

/// Set in such a process to the name of its test.
const ALONE: &str = "SYNCLINE_TEST_ALONE";

/// True in a process that runs nothing but the test `name`, which calls this. Elsewhere starts such a process,
/// waits until it has passed, and returns false.
pub fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|test| test == name) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--include-ignored", "--nocapture"]).env(ALONE, name);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}");
    // With another name no test would run, and none would fail.
    assert!(output.status.success() && told.contains("1 passed"), "{name}: {}", output.status);
    false
}
