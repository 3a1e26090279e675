use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Why this test can't run here, if so.
pub fn why_not() -> Option<&'static str> {
    let python = Command::new("python3").args(["-c", "import sqlite3"]).output();
    match python {
        Ok(output) if output.status.success() => {}
        _ => return Some("python3 with sqlite3 is not installed"),
    }
    (!Path::new("/dev/fuse").exists()).then_some("there is no /dev/fuse")
}

/// A program of `tests/programs`, recorded.
pub struct Program {
    script: PathBuf,
    pub folder: TempDir,
}

impl Program {
    pub fn record(kind: &str, name: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{kind}/{name}.py"));
        let program = Self { script, folder: tempfile::tempdir().unwrap() };
        let setup = program.python("setup").current_dir(program.folder.path()).output().unwrap();
        assert!(setup.status.success(), "{setup:?}");
        let python = program.python("work");
        let words = [python.get_program()].into_iter().chain(python.get_args());
        let recorded = program.crashlab(&["record", "-o", "r.crashlab", "--"]).args(words).output().unwrap();
        assert!(recorded.status.success(), "{recorded:?}");
        program
    }

    /// Starts quickly: without the user's modules.
    fn python(&self, verb: &str) -> Command {
        let mut command = Command::new("python3");
        command.args(["-I", "-S"]).arg(&self.script).arg(verb);
        command
    }

    pub fn crashlab(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// The command that checks a state.
    pub fn check(&self) -> String {
        format!("python3 -I -S '{}' check", self.script.display())
    }

    /// A file in the folder of the recording.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// The same, of JSON.
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    fn explore(&self, model: &str, options: &[&str]) -> (Output, Value) {
        let check = self.check();
        let words =
            ["explore", "--check", &check, "--model", model, "--timeout", "3600", "--report", "r.json"];
        let output = self.crashlab(&words).args(options).output().unwrap();
        (output, self.json("r.json"))
    }

    /// The models under which it fails, by its own words.
    fn fails(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.script).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("fails: "));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }
}

/// Every planted bug is found under `posix`, and explained with these missing syncs, each the path of a
/// file, or of a directory with a slash at its end.
fn is_found(name: &str, missing: &[&str]) {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Program::record("planted", name);
    // Until it is explained: however busy the machine is.
    let (output, json) = program.explore("posix", &["--seconds", "3600"]);
    assert_eq!(output.status.code(), Some(1), "{name}: {json:#}");
    let found = match &json["first"]["missing"]["syncs"] {
        Value::Array(syncs) => syncs.clone(),
        _ => Vec::new(),
    };
    let mut found: Vec<String> = found
        .iter()
        .map(|sync| {
            let slash = if sync["directory"] == true { "/" } else { "" };
            format!("{}{slash}", sync["path"].as_str().unwrap())
        })
        .collect();
    found.sort();
    assert_eq!(found, missing, "{name}: {json:#}");
    // The state that is named fails again, and its files can be had.
    let state = json["first"]["state"].as_str().unwrap();
    let check = program.check();
    for model in ["posix", "syncline"] {
        let words = ["explore", "--model", model, "--state", state, "--check", &check];
        let again = program.crashlab(&words).output().unwrap();
        assert_eq!(again.status.code(), Some(1), "{name}: {again:?}");
        let is_refused = String::from_utf8(again.stderr).unwrap().contains("does not allow this state");
        let is_allowed = json["first"]["models"].as_array().unwrap().contains(&model.into());
        assert!(is_allowed || is_refused, "{name} under {model}: {json:#}");
        assert!(model != "posix" || !is_refused, "{name}");
    }
    let extract = || program.crashlab(&["extract", "r.crashlab", state, "files"]).output().unwrap();
    let extracted = extract();
    assert!(extracted.status.success(), "{extracted:?}");
    assert!(program.folder.path().join("files").is_dir());
    assert_eq!(extract().status.code(), Some(2), "into a folder that is there");
}

/// No state of a correct program fails under `posix`, which allows the most.
fn is_correct(name: &str) {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Program::record("correct", name);
    // As many states as there is time for: a busy machine looks at fewer.
    let (output, json) = program.explore("posix", &["--seconds", "1"]);
    assert_eq!(output.status.code(), Some(0), "{name}: {json:#}");
    assert!(json["checked"].as_u64().unwrap() > 0);
}

macro_rules! programs {
    ($($test:ident: $name:literal misses $missing:expr;)* | $($correct:ident: $correct_name:literal;)*) => {
        $(#[test]
        fn $test() {
            is_found($name, &$missing);
        })*
        $(#[test]
        fn $correct() {
            is_correct($correct_name);
        })*

        const PLANTED: &[&str] = &[$($name),*];
        const CORRECT: &[&str] = &[$($correct_name),*];
    };
}

programs! {
    no_fsync: "no-fsync" misses ["./", "notes"];
    fsync_of_the_wrong_file: "wrong-file" misses ["data"];
    no_fsync_of_the_directory: "no-directory-fsync" misses ["notes/"];
    rename_before_data: "rename-before-data" misses ["state.new"];
    two_renames_in_any_order: "two-renames" misses ["data/"];
    truncate_and_rewrite: "truncate-rewrite" misses [];
    append_without_checksum: "append-no-checksum" misses [];
    fdatasync_where_fsync_is_needed: "fdatasync-attribute" misses ["key"];
    mapping_without_msync: "mmap-no-msync" misses ["table"];
    lock_file_left: "lock-file" misses [];
    |
    atomic_replace: "atomic-replace";
    log_with_checksums: "append-log-with-checksums";
    write_ahead_log: "write-ahead-log";
    maildir: "maildir";
    sqlite_with_a_rollback_journal: "sqlite";
    sqlite_with_a_write_ahead_log: "sqlite-wal";
    two_files_in_order: "two-files-ordered";
    mapping_with_msync: "mmap-msync";
    lock_by_flock: "lock-by-flock";
    directory_replaced_by_a_symlink: "shadow-directory";
}

#[test]
fn a_check_may_name_devices_and_pipes() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Program::record("correct", "atomic-replace");
    let made = Command::new("mkfifo").arg("pipe").current_dir(program.folder.path()).status().unwrap();
    assert!(made.success());
    let words = ["explore", "--check", "true /dev/zero ../../../../dev/zero pipe", "--seconds", "3600"];
    let output = program.crashlab(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_file_that_is_replaced_as_a_whole_needs_no_checker() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let explore = |program: &Program| {
        let output = program.crashlab(&["explore", "--model", "xfs", "--seconds", "3600"]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = explore(&Program::record("planted", "rename-before-data"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("neither an old nor a new version"), "{said}");
    assert!(said.contains("Missing: fsync of state.new"), "{said}");
    let (code, said) = explore(&Program::record("correct", "atomic-replace"));
    assert_eq!(code, Some(0), "{said}");
    // A program whose files are of no known kind.
    let (code, _) = explore(&Program::record("planted", "no-fsync"));
    assert_eq!(code, Some(2));
}

/// Every program under every model: planted bugs fail where their first lines say, and nowhere else.
#[test]
#[ignore = "takes half an hour"]
fn every_program_under_every_model() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let programs =
        PLANTED.iter().map(|name| ("planted", name)).chain(CORRECT.iter().map(|name| ("correct", name)));
    for (kind, name) in programs {
        let program = Program::record(kind, name);
        let fails = program.fails();
        for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "ext4-journal", "syncline"] {
            let (output, json) = program.explore(model, &["--seconds", "60"]);
            let expected = i32::from(fails.iter().any(|failing| failing == model));
            assert_eq!(output.status.code(), Some(expected), "{name} under {model}: {json:#}");
        }
    }
}
