//! What documents and the action of GitHub say about crashlab holds.

use crate::programs::why_not;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The blocks of code of a language, and of none.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if name == language {
            found.push(block.join("\n") + "\n");
        }
    }
    found
}

#[test]
fn the_example_finds_its_bug_and_prints_what_the_readme_shows() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let python = blocks(&readme, "python");
    let shell = blocks(&readme, "");
    let shown = shell.iter().find(|block| block.starts_with("State ")).unwrap();
    let commands = shell.iter().find(|block| block.starts_with("crashlab record")).unwrap();

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("save.py"), &python[0]).unwrap();
    fs::write(folder.path().join("check.py"), &python[1]).unwrap();
    // As one state at a time, so that it does not matter which of two is found first; until it is explained.
    let commands = commands.replace("explore", "explore --jobs 1 --seconds 3600");
    let commands = commands.replace("crashlab ", &format!("'{}' ", env!("CARGO_BIN_EXE_crashlab")));
    let ran = Command::new("sh").args(["-c", &commands]).current_dir(folder.path()).output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let printed = String::from_utf8_lossy(&ran.stdout);
    // How many states there are may change.
    let counts = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    assert!(
        counts(&printed).contains(counts(shown).trim_end()),
        "the README shows:\n{shown}\nit printed:\n{printed}"
    );
}

#[test]
fn the_action_of_github_and_the_plugin_of_pytest_have_this_version() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let has_line = |file: &str, line: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        text.lines().any(|found| found.trim() == line)
    };
    assert!(has_line("action.yml", concat!("default: ", env!("CARGO_PKG_VERSION"))));
    assert!(has_line("pytest/pyproject.toml", concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"")));
}
