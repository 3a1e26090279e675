//! The lines of the README, and of the documents that are there to be pasted, one after the other
//! unchanged.

use crate::skip_if;
use crate::support::{Place, no_fuse, not_root, program, run, tool};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Beginnings of lines that this test skips: they fetch, build, need a terminal, measure for minutes, or
/// contain names that only the reader knows.
const LEFT_ALONE: [&str; 6] =
    ["git clone https:", "cargo ", "syncline demo ", "syncline top ", "sudo ", "crashlab "];

/// Each begins in an empty directory.
const DOCUMENTS: [&str; 2] = [include_str!("../../README.md"), include_str!("../../docs/GUIDE.md")];

/// The lines of all code blocks that name no language.
fn lines(document: &str) -> Vec<&str> {
    let mut fences = document.split("\n```");
    fences.next();
    let blocks = fences.step_by(2).filter_map(|block| block.strip_prefix('\n'));
    blocks.flat_map(str::lines).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_lines_of_the_documents_run_as_they_stand() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    skip_if!(tool("sqlite3", &[OsStr::new("--version")]).is_none().then_some("sqlite3 is not installed"));
    DOCUMENTS.into_iter().for_each(paste);
}

/// Runs every line in a shell of its own.
fn paste(document: &str) {
    let place = Place::new();
    let programs = Path::new(program().get_program()).parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let _mounted = Leftover(&place);
    let pasted = lines(document);
    assert!(pasted.len() > 8, "{pasted:#?}");
    for line in pasted {
        if LEFT_ALONE.iter().any(|start| line.starts_with(start)) {
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(place.path()).env("PATH", &path);
        let answer = run(shell);
        let told = line.rsplit_once("exit code ").and_then(|(_, told)| told.get(..1)?.parse().ok());
        assert_eq!(answer.code, told.unwrap_or(0), "{line}\n{answer:?}");
    }
}

/// The mount that the lines make; unmounted at the end of the test, whatever its outcome.
struct Leftover<'a>(&'a Place);

impl Drop for Leftover<'_> {
    fn drop(&mut self) {
        for mount_point in ["old", "mnt"].map(|name| self.0.path().join(name)) {
            let mut umount = program();
            umount.arg("umount").arg(&mount_point);
            if run(umount).code != 0 {
                // Otherwise the folder would be removed through the mount.
                let _ = Command::new("umount").arg("-l").arg(&mount_point).output();
            }
        }
    }
}
