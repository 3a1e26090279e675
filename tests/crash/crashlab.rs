//! `syncline crashlab` finds the fsync that a program forgets, and finds nothing wrong with
//! programs that forget none.

use crate::skip_if;
use crate::support::{Answer, Mount, Place, no_fuse, program, run, syncline};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The reason why there is no Python, if so.
fn no_python() -> Option<String> {
    let found = crate::support::tool("python3", &["-c".as_ref(), "import sqlite3".as_ref()]);
    found.is_none().then(|| "python3 with sqlite3 is not installed".to_owned())
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/crash/fixtures").join(name)
}

/// A place with an image, and its recordings.
struct Lab {
    place: Place,
}

impl Lab {
    fn new() -> Self {
        Self { place: Place::with_image("32MiB") }
    }

    fn recording(&self) -> PathBuf {
        self.place.path().join("image.crashlab")
    }

    fn record(&self, command: &[&OsStr]) -> Answer {
        self.record_with("", command)
    }

    /// The same on a mount with these options.
    fn record_with(&self, options: &str, command: &[&OsStr]) -> Answer {
        let directory = self.place.path().join("recorded");
        fs::create_dir_all(&directory).unwrap();
        let image = self.place.image();
        let words: [&OsStr; 7] = [
            "crashlab".as_ref(),
            "record".as_ref(),
            image.as_os_str(),
            directory.as_os_str(),
            "--mount-options".as_ref(),
            options.as_ref(),
            "--".as_ref(),
        ];
        syncline(words.iter().chain(command))
    }

    fn record_python(&self, script: &str, arguments: &[&str]) -> Answer {
        let script = fixture(script);
        let mut command = vec![OsStr::new("python3"), script.as_os_str()];
        command.extend(arguments.iter().map(OsStr::new));
        self.record(&command)
    }

    fn explore(&self, check: &str, options: &[&str]) -> Answer {
        let recording = self.recording();
        let words = [
            "crashlab".as_ref(),
            "explore".as_ref(),
            recording.as_os_str(),
            "--check".as_ref(),
            check.as_ref(),
        ];
        syncline(words.into_iter().chain(options.iter().map(OsStr::new)))
    }

    fn list(&self) -> Value {
        let recording = self.recording();
        let words = ["crashlab".as_ref(), "list".as_ref(), "--json".as_ref(), recording.as_os_str()];
        serde_json::from_str(&syncline(words).ok().out).expect("JSON")
    }
}

fn python(script: &str) -> String {
    format!("python3 {}", fixture(script).display())
}

/// The state to which an exploration reduced the failure.
fn state_of(answer: &Answer) -> String {
    let line = answer.out.lines().find(|line| line.starts_with("Look at it: ")).expect("a failing state");
    line.split(' ').rev().nth(1).expect("state and DIR").to_owned()
}

#[test]
fn a_forgotten_fsync_is_found_reduced_and_shown() {
    skip_if!(no_fuse());
    skip_if!(no_python());
    let lab = Lab::new();
    let recorded = lab.record_python("saver.py", &["forgetful"]).ok();
    assert!(recorded.out.contains("saved 5"), "what it prints is passed on: {recorded:?}");
    let found = lab.explore(&python("saver_check.py"), &[]);
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.out.contains("saved 1"), "the first promise that is broken: {found:?}");
    assert!(!found.out.contains("look at the checker"), "{found:?}");
    assert!(found.out.contains("ledger"), "it is told what is missing: {found:?}");
    // The same state examined later, through a mount.
    let state = state_of(&found);
    let directory = lab.place.directory("state");
    let recording = lab.recording();
    let words: [&OsStr; 5] =
        ["crashlab".as_ref(), "mount".as_ref(), recording.as_ref(), state.as_ref(), directory.as_ref()];
    syncline(words).ok();
    let mount = Mount::of(&directory);
    assert!(!directory.join("ledger").exists(), "nothing of it is there");
    syncline([OsStr::new("stats"), directory.as_ref()]).ok();
    fs::write(directory.join("scratch"), b"forgotten").unwrap();
    mount.unmount().ok();
    // The state by itself fails again, and the same seed leads to the same state.
    assert_eq!(lab.explore(&python("saver_check.py"), &["--state", &state]).code, 1);
    let report = lab.explore(&python("saver_check.py"), &["--json"]);
    assert_eq!(report.code, 1);
    let report: serde_json::Value = serde_json::from_str(&report.out).unwrap();
    assert_eq!(report["simplest"]["state"].as_str(), Some(state.as_str()));
    assert_eq!(report["fails_without_power_cut"], false);
    assert!(report["trees"].as_u64() > Some(0) && !report["failing"].as_array().unwrap().is_empty());
    let again = lab.explore(&python("saver_check.py"), &["--jobs", "1"]);
    assert_eq!(state_of(&again), state);
    lab.place.check_clean();
}

#[test]
fn the_same_program_with_its_fsyncs_passes() {
    skip_if!(no_fuse());
    skip_if!(no_python());
    let lab = Lab::new();
    // The starting image has snapshots, including blocks that only they still use.
    let mount = lab.place.mount("before");
    let snapshot = |name: &str| {
        let words = ["snapshot".as_ref(), "create".as_ref(), mount.path.as_os_str(), name.as_ref()];
        syncline(words).ok();
    };
    fs::write(mount.path.join("old"), vec![1; 100_000]).unwrap();
    snapshot("with");
    fs::remove_file(mount.path.join("old")).unwrap();
    snapshot("without");
    mount.unmount().ok();
    lab.record_python("saver.py", &["careful"]).ok();
    let found = lab.explore(&python("saver_check.py"), &[]).ok();
    assert!(found.out.contains(" 0 failing"), "{found:?}");
    eprintln!("{}", found.out);
    let listed = lab.list();
    let causes: Vec<&Value> = listed["points"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|point| point["causes"].as_array().unwrap())
        .collect();
    let count = |kind: &str, key: &str, value: &str| {
        causes.iter().filter(|cause| cause["kind"] == kind && cause[key] == value).count()
    };
    assert_eq!(count("fsync", "path", "/ledger.new"), 5, "{listed:#}");
    assert_eq!(count("fsync", "path", "/"), 5, "{listed:#}");
    assert_eq!(count("stdout", "line", "saved 3\n"), 1, "{listed:#}");
}

/// Records SQLite with this journal mode, and checks its promises.
fn sqlite(mode: &str, rows: &str, options: &[&str]) {
    let lab = Lab::new();
    lab.record_python("sqlite_writer.py", &[mode, rows]).ok();
    let found = lab.explore(&python("sqlite_check.py"), options).ok();
    eprintln!("{mode}: {}", found.out);
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_its_promises() {
    skip_if!(no_fuse());
    skip_if!(no_python());
    sqlite("delete", "2", &["--torn", "1"]);
}

#[test]
fn sqlite_with_a_write_ahead_log_keeps_its_promises() {
    skip_if!(no_fuse());
    skip_if!(no_python());
    sqlite("wal", "4", &["--torn", "1"]);
}

#[test]
fn a_file_under_its_final_name_is_whole_after_a_power_cut() {
    skip_if!(no_fuse());
    let lab = Lab { place: Place::with_image("64MiB") };
    lab.record(&["bash".as_ref(), fixture("names.sh").as_os_str()]).ok();
    let check = format!("bash {}", fixture("names_check.sh").display());
    let found = lab.explore(&check, &["--limit", "200"]).ok();
    assert!(found.out.contains(" 0 failing"), "{found:?}");
}

/// Records git in each of its ways of syncing, and looks so often at thirty states.
fn git(commits: &str, times: u32) {
    for mode in ["defaults", "batch"] {
        let lab = Lab { place: Place::with_image("128MiB") };
        let script = fixture("git_commits.sh");
        lab.record(&["bash".as_ref(), script.as_ref(), mode.as_ref(), commits.as_ref()]).ok();
        let check = format!("bash {} {mode}", fixture("git_check.sh").display());
        for seed in 0..times {
            let found =
                lab.explore(&check, &["--limit", "30", "--torn", "1", "--seed", &seed.to_string()]).ok();
            eprintln!("git, {mode}: {}", found.out);
            assert!(found.out.contains(" 0 failing"), "{found:?}");
        }
    }
}

/// No name outlives its data (promise P3).
#[test]
fn a_git_repository_is_whole_after_a_power_cut() {
    skip_if!(no_fuse());
    skip_if!(crate::support::missing_of(&["git"]));
    git("3", 1);
}

#[test]
#[ignore = "takes half an hour"]
fn a_git_repository_is_whole_after_a_thousand_power_cuts() {
    skip_if!(no_fuse());
    git("20", 17);
}

/// Python flushes each line to a terminal, and a pipe only when its buffer is full.
#[test]
fn output_is_taken_when_it_is_printed() {
    skip_if!(no_fuse());
    skip_if!(no_python());
    let lab = Lab::new();
    let python = |script: &str| {
        let words: [&OsStr; 6] = [
            "env".as_ref(),
            "-u".as_ref(),
            "PYTHONUNBUFFERED".as_ref(),
            "python3".as_ref(),
            "-c".as_ref(),
            script.as_ref(),
        ];
        lab.record(&words).ok()
    };
    let save = "import os; d = os.environ['SYNCLINE_CRASHLAB_DIR']
def save(name):
    f = open(d + '/' + name, 'w'); f.write('x' * 100); f.flush(); os.fsync(f.fileno())
";
    let answer = python("import sys; print(sys.stdout.isatty()); print('twice')");
    assert_eq!(answer.out, "True\ntwice\n");
    // One that keeps it back.
    let late = "for name in 'abc': save(name)\nprint('saved a\\nsaved b\\nsaved c')";
    let answer = python(&format!("{save}{late}"));
    assert!(answer.err.contains("all 3 lines") && answer.err.contains("at its end"), "{answer:?}");
    // And one that does not look where the mount is.
    let answer = python("print('done')");
    assert!(
        answer.err.contains("changed nothing on the mount") && answer.err.contains("recorded"),
        "{answer:?}"
    );
}

#[test]
fn a_checker_that_is_wrong_is_told_from_a_program_that_is() {
    skip_if!(no_fuse());
    let lab = Lab::new();
    let script = "echo one > $SYNCLINE_CRASHLAB_DIR/a; sync $SYNCLINE_CRASHLAB_DIR/a; exit 7";
    let recorded = lab.record(&["sh".as_ref(), "-c".as_ref(), script.as_ref()]);
    assert_eq!(recorded.code, 7, "the command's own exit code: {recorded:?}");
    let found = lab.explore("echo never content; exit 3", &["--keep-going", "--limit", "20"]);
    assert_eq!(found.code, 1);
    for words in ["look at the checker first", "never content", "exit code 3", "cases fail"] {
        assert!(found.out.contains(words), "{words}: {found:?}");
    }
    let slow = lab.explore("sleep 20", &["--timeout", "0.2", "--limit", "1"]);
    assert_eq!(slow.code, 1);
    assert!(slow.out.contains("took longer than 0.2 s"), "{slow:?}");
    lab.explore("no-such-program", &[]).fails(2, &["can't be run", "127", "recovered tree", "absolute path"]);
}

#[test]
fn what_is_wrong_with_a_recording_is_said() {
    skip_if!(no_fuse());
    let lab = Lab::new();
    lab.record(&["true".as_ref()]).ok();
    let recording = lab.recording();
    let whole = fs::read(&recording).unwrap();
    let list = || syncline([OsStr::new("crashlab"), "list".as_ref(), recording.as_ref()]);
    list().ok();
    fs::write(&recording, b"something else").unwrap();
    list().fails(5, &["no recording"]);
    fs::write(&recording, &whole[..whole.len() - 7]).unwrap();
    list().fails(5, &["truncated", "record again"]);
    for (at, words) in [(8, "version"), (40, "checksum")] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(&recording, &bytes).unwrap();
        list().fails(5, &[words]);
    }
    fs::remove_file(&recording).unwrap();
    list().fails(5, &["crashlab record"]);
    fs::write(&recording, &whole).unwrap();
    let mount = |state: &str| {
        let directory = lab.place.path().join("recorded");
        let words = [
            "crashlab".as_ref(),
            "mount".as_ref(),
            recording.as_os_str(),
            state.as_ref(),
            directory.as_os_str(),
        ];
        syncline(words)
    };
    for state in ["x", "99999999", "0.q1", "0.l1", "0.k\u{e9}", "0."] {
        mount(state).fails(2, &["no state of this recording"]);
    }
}

#[test]
fn a_recording_that_can_not_begin_says_why() {
    skip_if!(no_fuse());
    let lab = Lab::new();
    lab.record(&["/no/such/program".as_ref()]).fails(127, &["cannot run /no/such/program"]);
    assert!(!lab.recording().exists(), "nothing was recorded");
    fs::write(lab.place.path().join("recorded/file"), b"").unwrap();
    lab.record(&["true".as_ref()]).fails(6, &["not empty"]);
    fs::remove_file(lab.place.path().join("recorded/file")).unwrap();
    let mut mount = lab.place.mount("mount");
    lab.record(&["true".as_ref()]).fails(3, &["in use"]);
    fs::write(mount.path.join("file"), b"x").unwrap();
    mount.kill();
    drop(mount);
    lab.record(&["true".as_ref()]).fails(1, &["not unmounted cleanly", "mount and unmount it"]);
    let (image, directory) = (lab.place.image(), lab.place.path().join("recorded"));
    let record_to = |output: &OsStr| {
        let mut command = program();
        command.args(["crashlab", "record"]).arg(&image).arg(&directory).arg("-o").arg(output);
        command.args(["--", "true"]).current_dir(lab.place.path());
        run(command)
    };
    record_to(lab.place.path().join("missing/rec").as_os_str()).fails(1, &["cannot write", "--output"]);
    // 'mount' and 'run' take options with -o.
    for option in ["check_opens", "discard", "noatime,durability=ordered", "commit=x"] {
        record_to(option.as_ref()).fails(2, &["an option of a mount", "--mount-options", option]);
        assert!(!lab.place.path().join(option).exists());
    }
    record_to("./ro".as_ref()).fails(1, &["not unmounted cleanly"]);
}
