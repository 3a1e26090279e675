//! `crashlab` on Syncline itself: the program's changes are made again on a mount, and the power of its disk
//! is cut. A program that forgets an fsync loses what it promised, and others lose nothing.

use crate::skip_if;
use crate::support::{Answer, Place, executable, missing_of, no_fuse, not_root, program, run, syncline_path};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/crash/fixtures").join(name)
}

/// The reason why nothing can be recorded or explored here, if so.
fn impossible() -> Option<String> {
    let built = syncline_path().with_file_name("crashlab").exists();
    let unbuilt = || (!built).then(|| "crashlab is not built: cargo build -p crashlab".to_owned());
    let reason = no_fuse().map(|why| why.to_string()).or_else(|| not_root().map(str::to_owned));
    reason.or_else(|| missing_of(&["losetup", "python3"])).or_else(unbuilt)
}

/// A folder with a recording.
struct Lab(Place);

impl Lab {
    /// Records a program in an empty folder.
    fn record(command: &[&str]) -> Self {
        let lab = Self(Place::new());
        let words = ["record", "--"].iter().chain(command).copied();
        lab.run(words).ok();
        lab
    }

    fn run<'a>(&self, arguments: impl Iterator<Item = &'a str>) -> Answer {
        let mut command = program();
        command.arg("crashlab").args(arguments).current_dir(self.0.path());
        run(command)
    }

    /// Explores for so many seconds, on Syncline and on what its model allows. Returns the reports.
    fn explore(&self, check: &str, seconds: &str, code: i32) -> [Value; 2] {
        ["--on", "--model"].map(|option| {
            let options = ["--report", "report.json", "--seconds", seconds, "--check", check];
            let answer = self.run(["explore", option, "syncline"].into_iter().chain(options));
            assert_eq!(answer.code, code, "{answer:?}");
            let report = fs::read_to_string(self.0.path().join("report.json")).unwrap();
            serde_json::from_str(&report).unwrap()
        })
    }

    /// Nothing fails, however little time a busy machine leaves: it gets more until it has seen some states.
    fn passes(&self, check: &str) {
        for seconds in ["10", "100", "3600"] {
            let reports = self.explore(check, seconds, 0);
            if reports.iter().all(|report| report["states"].as_u64() > Some(0)) {
                return;
            }
        }
        panic!("no state was explored");
    }
}

fn python(script: &str) -> String {
    format!("python3 {}", fixture(script).display())
}

#[test]
fn a_forgotten_fsync_is_found_on_syncline() {
    skip_if!(impossible());
    let lab = Lab::record(&["python3", fixture("saver.py").to_str().unwrap(), "forgetful"]);
    let reports = lab.explore(&python("saver_check.py"), "3600", 1);
    for report in &reports {
        let models = report["first"]["models"].as_array().unwrap();
        assert!(models.contains(&"syncline".into()), "the model has the state: {report:#}");
    }
    assert_eq!(reports[0]["on"], "syncline");
}

#[test]
fn the_same_program_with_its_fsyncs_passes() {
    skip_if!(impossible());
    Lab::record(&["python3", fixture("saver.py").to_str().unwrap(), "careful"])
        .passes(&python("saver_check.py"));
}

#[test]
fn sqlite_keeps_its_promises() {
    skip_if!(impossible());
    for (mode, rows) in [("delete", "2"), ("wal", "4")] {
        Lab::record(&["python3", fixture("sqlite_writer.py").to_str().unwrap(), mode, rows])
            .passes(&python("sqlite_check.py"));
    }
}

/// No name outlives its data (promise P3).
#[test]
fn a_file_under_its_final_name_is_whole() {
    skip_if!(impossible());
    let check = format!("bash {}", fixture("names_check.sh").display());
    Lab::record(&["bash", fixture("names.sh").to_str().unwrap()]).passes(&check);
}

#[test]
fn a_git_repository_is_whole() {
    skip_if!(impossible());
    skip_if!(missing_of(&["git"]));
    let check = format!("bash {}", fixture("git_check.sh").display());
    Lab::record(&["bash", fixture("git_commits.sh").to_str().unwrap(), "defaults", "3"]).passes(&check);
}

#[test]
fn trees_of_syncline_are_within_its_model() {
    skip_if!(impossible());
    let mut command = program();
    command.args(["crashlab", "validate", "syncline", "--programs", "6", "--seconds", "3600", "--seed", "1"]);
    let answer = run(command).ok();
    let numbers: Vec<u64> = answer.out.split('|').filter_map(|word| word.trim().parse().ok()).collect();
    let [programs, states, trees, ..] = numbers[..] else { panic!("{answer:?}") };
    assert!(programs > 0 && states > trees && trees > programs, "{answer:?}");
}

#[test]
fn without_crashlab_the_command_says_how_to_install_it() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("syncline");
    executable(&alone, &fs::read(syncline_path()).unwrap());
    let mut command = Command::new(&alone);
    command.args(["crashlab", "--help"]).env("PATH", folder.path());
    run(command).fails(1, &["cannot run crashlab", "cargo install crashlab"]);
}
