//! What a recording sees, and what it leaves alone.

use crate::programs::why_not;
use crate::real::Temporary;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the kernel may take to kill a process.
const KILL: Duration = Duration::from_secs(300);

fn crashlab(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
    command.args(words).current_dir(folder).stdin(Stdio::null());
    command
}

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
    let script = "echo x >file; readlink /proc/self/ns/mnt";
    let recorded = crashlab(folder.path(), &["record", "--", "sh", "-c", script]).output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let said = String::from_utf8_lossy(&recorded.stdout);
    if !root.contains(" shared:") {
        assert_eq!(said.trim(), own.to_string_lossy());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the recording, and nothing of the program");
}

#[test]
fn syncs_that_reach_no_fuse_filesystem_are_recorded_after_what_they_cover() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/syncs.py");
    let words = ["record", "--", "python3", "-I", "-S", script.to_str().unwrap()];
    let recorded = crashlab(folder.path(), &words).output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let shown = crashlab(folder.path(), &["show"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let events = shown.lines().map(|line| line.split_once(" ms ").unwrap().1.trim_start());
    // Without the number of the process, where there is one.
    let without_process = |event| str::trim_start_matches(event, |c: char| c.is_ascii_digit()).trim_start();
    let events: Vec<&str> = events.map(without_process).collect();
    let page = |offset: u64| format!("write through a mapping data, 4096 bytes at {offset}");
    let expected = [
        "-- the program begins --",
        "python3         create data",
        "python3         write data, 8192 bytes at 0",
        "printed 'begin'",
        &page(0),
        "python3         sync_file_range data, 4096 bytes at 0",
        "printed 'a range'",
        &page(0),
        &page(4096),
        "python3         sync",
        "printed 'the filesystem'",
        "python3         rename data -> renamed",
        &page(0).replace("data", "renamed"),
        "python3         sync",
        "printed 'all'",
        "-- the program ends with exit code 0 --",
    ];
    assert_eq!(events, expected, "{shown}");
}

#[test]
fn without_a_view_of_all_syncs_the_recording_goes_on_with_a_note() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The kernel tells one listener at most.
    let own = env!("CARGO_BIN_EXE_crashlab");
    let words = ["record", "--", own, "record", "-o", "inner", "--", "sh", "-c", "echo x >file; sync file"];
    let recorded = crashlab(folder.path(), &words).output().unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success(), "{recorded:?}");
    assert_eq!(said.matches("sync_file_range(2) of PROGRAM can't be seen here").count(), 1, "{said}");
    assert!(said.contains("changes and syncs in inner"), "{said}");
}

#[test]
fn a_program_ends_with_the_recording() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let temporary = Temporary::new();
    let words = ["record", "-o", "r", "--", "sh", "-c", "echo $$; exec sleep 3600"];
    let mut command = crashlab(temporary.path(), &words);
    let mut recording = command.env("TMPDIR", temporary.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(recording.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let program = Path::new("/proc").join(line.trim());
    assert!(program.exists(), "{line:?}");
    recording.kill().unwrap();
    recording.wait().unwrap();
    // It is a zombie for as long as nobody asks for its exit code.
    let runs = || {
        let status = fs::read_to_string(program.join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
    };
    let killed = Instant::now();
    while runs() {
        assert!(killed.elapsed() < KILL, "the program goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
}
