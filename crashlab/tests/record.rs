//! What a recording leaves alone.

use crate::programs::why_not;
use std::fs;
use std::process::{Command, Stdio};

/// A namespace of its own would keep the machine's other mounts for as long as the program runs, unless
/// it follows the machine: then an unmount elsewhere reaches it.
#[test]
fn a_program_is_in_a_namespace_of_its_own_only_where_that_follows_the_machine() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
    command.args(["record", "--", "sh", "-c", "echo x >file; readlink /proc/self/ns/mnt"]);
    let recorded = command.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let said = String::from_utf8_lossy(&recorded.stdout);
    if !root.contains(" shared:") {
        assert_eq!(said.trim(), own.to_string_lossy());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the recording, and nothing of the program");
}
