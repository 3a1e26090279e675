//! Where in a program each change was made.

use crate::programs::why_not;
use crashlab::{Action, Frame, Recording, Symbols};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A program of `tests/programs`, compiled in a folder of its own and recorded there.
struct Compiled {
    folder: TempDir,
    source: &'static str,
    text: String,
}

impl Compiled {
    fn record(source: &'static str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
        let text = fs::read_to_string(path).unwrap();
        fs::write(folder.path().join(source), &text).unwrap();
        let compiler = if source.ends_with(".rs") { "rustc" } else { "cc" };
        let mut command = Command::new(compiler);
        command.args(["-g", source, "-o", "save"]).args(options).current_dir(folder.path());
        let compiled = command.output().unwrap();
        assert!(compiled.status.success(), "{compiled:?}");
        let program = Self { folder, source, text };
        let recorded = program.crashlab(&["record", "-o", "r.crashlab", "--", "./save"]);
        assert!(recorded.status.success(), "{recorded:?}");
        program
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("r.crashlab")
    }

    fn crashlab(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null()).output().unwrap()
    }

    /// The line of the source with this comment.
    fn line(&self, comment: &str) -> u32 {
        let comment = [format!("/* {comment} */"), format!("// {comment}")];
        let at = self.text.lines().position(|line| comment.iter().any(|comment| line.contains(comment)));
        at.unwrap() as u32 + 1
    }

    /// Each function of the source on the stack of an action, and the line of the innermost one.
    fn stacks(&self) -> Vec<(&'static str, u32, Vec<String>)> {
        let recording = Recording::open(&self.path()).unwrap();
        let symbols = Symbols::new(&recording.stacks);
        let mut found = Vec::new();
        for event in &recording.events[recording.begin..] {
            let kind = match &event.action {
                Action::Create { .. } => "create",
                Action::Write { .. } => "write",
                Action::Rename { .. } => "rename",
                Action::Sync { .. } => "fsync",
                _ => continue,
            };
            let is_own = |frame: &Frame| frame.file.as_ref().is_some_and(|file| file.ends_with(self.source));
            let own: Vec<Frame> = symbols.frames(event.stack).into_iter().filter(is_own).collect();
            let innermost = own.first().unwrap_or_else(|| panic!("no stack of {event:?}"));
            assert_eq!(symbols.frame(event.stack).as_ref(), Some(innermost));
            let line = innermost.line.unwrap();
            found.push((kind, line, own.into_iter().filter_map(|frame| frame.function).collect()));
        }
        found
    }
}

/// Each save is made by `callers`, the innermost first.
fn each_save_is_found(program: &Compiled, callers: &[&[&str]]) {
    let mut expected = Vec::new();
    for callers in callers {
        for kind in ["create", "write", "rename", "fsync"] {
            let inner: &[&str] = match kind {
                "write" if program.source.ends_with(".c") => &["put", "save"],
                _ if program.source.ends_with(".c") => &["save"],
                _ => &["save::save"],
            };
            let functions = inner.iter().chain(*callers).map(|name| (*name).to_owned()).collect();
            expected.push((kind, program.line(kind), functions));
        }
    }
    assert_eq!(program.stacks(), expected);
}

#[test]
fn the_functions_and_lines_of_a_c_program_are_found_however_it_is_compiled() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    // Without optimization there are frame pointers.
    let calls = ["-fno-optimize-sibling-calls", "-pthread"];
    for options in
        [&["-O0"][..], &["-O2"], &["-O2", "-fno-omit-frame-pointer"], &["-O1", "-static", "-no-pie"]]
    {
        let program = Compiled::record("save.c", &[options, &calls].concat());
        let main: &[&str] = &["main"];
        let deep = &["deep", "deep", "deep", "deep", "main"];
        each_save_is_found(&program, &[main, main, &["threaded"], deep, &["ordered", "main"]]);
    }
}

#[test]
fn the_functions_and_lines_of_a_rust_program_are_found() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    for options in [&[][..], &["-O"]] {
        let program = Compiled::record("save.rs", options);
        each_save_is_found(&program, &[&["save::main"], &["save::main::{{closure}}"]]);
    }
}

#[test]
fn a_report_says_where_lost_changes_were_made() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Compiled::record("save.c", &["-O0", "-pthread"]);
    let check = "! test -e settings || grep -q version settings";
    let words = ["explore", "--check", check, "--seconds", "3600", "--jobs", "1"];
    let text = String::from_utf8(program.crashlab(&words).stdout).unwrap();
    let lost = text.lines().find(|line| line.contains("LOST")).unwrap();
    assert!(lost.ends_with(&format!("   put() at save.c:{}", program.line("write"))), "{text}");
    let stack: Vec<&str> = text.lines().filter(|line| line.starts_with("  save() at save.c:")).collect();
    assert_eq!(stack.len(), 1, "{text}");

    program.crashlab(&[&words[..], &["--report", "report.json"]].concat());
    let json = fs::read_to_string(program.folder.path().join("report.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let events = json["first"]["events"].as_array().unwrap();
    let lost = events.iter().find(|event| event["fate"] == "lost").unwrap();
    let frames = lost["stack"].as_array().unwrap();
    let put = frames.iter().find(|frame| frame["function"] == "put").unwrap();
    assert_eq!(put["line"], program.line("write"));
    assert!(put["file"].as_str().unwrap().ends_with("save.c"), "{put}");

    let shown = String::from_utf8(program.crashlab(&["show", "--stacks"]).stdout).unwrap();
    assert!(shown.contains(&format!(" save() at save.c:{}\n", program.line("rename"))), "{shown}");
    // Lines of another program would be wrong.
    fs::copy("/proc/self/exe", program.folder.path().join("save")).unwrap();
    let text = String::from_utf8(program.crashlab(&words).stdout).unwrap();
    let lost = text.lines().find(|line| line.contains("LOST")).unwrap();
    assert!(lost.contains("   save+0x") && lost.ends_with(" (changed since)"), "{text}");
}

/// To read a stack, the kernel takes locks that a thread of the program can hold while it waits for this
/// filesystem.
#[test]
fn a_thread_that_waits_for_the_mount_holds_up_no_other() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Compiled::record("mapping-threads.c", &["-O2", "-pthread"]);
    let recording = Recording::open(&program.path()).unwrap();
    let is_write = |action: &Action| matches!(action, Action::Write { mapped: false, len: 1, .. });
    assert_eq!(recording.events.iter().filter(|event| is_write(&event.action)).count(), 500);
}

#[test]
fn a_report_names_all_places_that_lack_a_sync() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Compiled::record("logs.c", &["-O0"]);
    let check = "while read _ number; do grep -q e log-$number || exit 1; done <$CRASHLAB_ACKED";
    let words = ["explore", "--check", check, "--seconds", "3600", "--jobs", "1", "--report", "report.json"];
    let text = String::from_utf8(program.crashlab(&words).stdout).unwrap();
    let (first, later) = (program.line("first"), program.line("later"));
    let places =
        format!("(all of them: 2 times in later() at logs.c:{later}, once in first() at logs.c:{first})");
    assert!(text.contains(&format!("; also at 2 more places like it {places}.")), "{text}");
    let json = fs::read_to_string(program.folder.path().join("report.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let source = &json["first"]["missing"]["source"];
    assert_eq!(source[0]["changes"], 2, "{json:#}");
    assert_eq!(source[1]["place"], format!("first() at logs.c:{first}"), "{json:#}");
}
