//! Checks that need no checker: files that were replaced as a whole are whole, and files of known kinds
//! can be read.

use crate::Error;
use crate::action::{Action, Ino};
use crate::checker::run_in;
use crate::explore::{Case, Judge, Verdict};
use crate::history::{History, Paths};
use crate::state::State;
use crate::tree::{Kind, Tree};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Begins every database of SQLite.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// How long a tool may take.
const TOOL: Duration = Duration::from_secs(60);

/// Judges a state without the user's help.
pub struct BuiltIn<'a> {
    /// Contents that each path had when a rename or link put them there, of files that are never changed
    /// under this name.
    replaced: HashMap<Vec<u8>, HashSet<u128>>,
    /// Paths that hold JSON at the end.
    json: Vec<Vec<u8>>,
    tools: Vec<Tool>,
    folder: PathBuf,
    stop: &'a AtomicBool,
}

/// A command that fails where something is damaged.
struct Tool {
    command: String,
}

impl<'a> BuiltIn<'a> {
    /// Finds out what can be checked. `folder` is an empty folder for states.
    pub fn new(history: &History, folder: PathBuf, stop: &'a AtomicBool) -> Result<Self, Error> {
        let position = history.events().len();
        let end = history.tree(&State { position, lost: Default::default() })?;
        let replaced = replaced(history)?;
        let (mut json, mut tools) = (Vec::new(), Vec::new());
        for (path, ino) in end.walk() {
            let quoted = format!("'{}'", String::from_utf8_lossy(&path).replace('\'', r"'\''"));
            match end.node(ino).map(|node| &node.kind) {
                Some(Kind::File(contents)) if contents.read(0, SQLITE.len()) == SQLITE => {
                    let command = format!(
                        "[ ! -s {quoted} ] || [ \"$(sqlite3 {quoted} 'pragma integrity_check')\" = ok ] || \
                         {{ echo {quoted}: SQLite finds it damaged; exit 1; }}"
                    );
                    tools.extend(installed("sqlite3").then_some(Tool { command }));
                }
                Some(Kind::File(_)) if path.ends_with(b".json") && is_json(&end, ino) => json.push(path),
                Some(Kind::Directory(_)) if path == b".git" || path.ends_with(b"/.git") => {
                    let command =
                        format!("[ ! -f {quoted}/HEAD ] || git --git-dir={quoted} fsck --full --no-dangling");
                    tools.extend(installed("git").then_some(Tool { command }));
                }
                _ => {}
            }
        }
        Ok(Self { replaced, json, tools, folder, stop })
    }

    /// What it looks at, in words; `None` if it knows nothing in these files.
    pub fn about(&self) -> Option<String> {
        let count = |count: usize, one: &str, more: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {more}")),
        };
        let parts = [
            count(
                self.replaced.len(),
                "file that is replaced as a whole",
                "files that are replaced as a whole",
            ),
            count(self.json.len(), "JSON file", "JSON files"),
            count(self.tools.len(), "database or repository", "databases or repositories"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn fault(&self, tree: &Tree) -> Option<String> {
        for (path, ino) in tree.walk() {
            let name = || String::from_utf8_lossy(&path).into_owned();
            let Some(contents) = tree.contents(ino) else { continue };
            if self.replaced.get(&path).is_some_and(|versions| !versions.contains(&contents.digest())) {
                return Some(format!(
                    "{} has {} bytes that are neither an old nor a new version",
                    name(),
                    contents.len()
                ));
            }
            if self.json.contains(&path) && !is_json(tree, ino) {
                return Some(format!("{} is no JSON any more", name()));
            }
        }
        None
    }
}

impl Judge for BuiltIn<'_> {
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, Error> {
        if let Some(fault) = self.fault(case.tree) {
            return Ok(Verdict::Failed(fault));
        }
        for tool in &self.tools {
            match run_in(&self.folder, &tool.command, TOOL, self.stop, case)? {
                Verdict::Passed => {}
                failed => return Ok(failed),
            }
        }
        Ok(Verdict::Passed)
    }
}

/// The versions of each path that only renames and links give contents to.
fn replaced(history: &History) -> Result<HashMap<Vec<u8>, HashSet<u128>>, Error> {
    let mut paths = Paths::default();
    let mut tree = Tree::default();
    let mut versions: HashMap<Vec<u8>, HashSet<u128>> = HashMap::new();
    let mut changed: HashSet<Vec<u8>> = HashSet::new();
    for (at, event) in history.events().iter().enumerate() {
        tree.apply(&event.action, event.time_ns.into(), &history.recording.bytes(&event.action)?);
        paths.add(&event.action);
        if at < history.recording.begin {
            continue;
        }
        let digest = |ino: Ino| tree.contents(ino).map(|contents| contents.digest());
        match &event.action {
            Action::Rename { to: dir, to_name: name, ino, .. } | Action::Link { parent: dir, name, ino } => {
                let path = paths.bytes_within(*dir, name);
                versions.entry(path).or_default().extend(digest(*ino));
            }
            Action::Write { ino, .. } | Action::Truncate { ino, .. } | Action::Zero { ino, .. } => {
                changed.insert(paths.bytes_of(*ino));
            }
            _ => {}
        }
    }
    let begin = history.tree(&State { position: history.recording.begin, lost: Default::default() })?;
    for (path, ino) in begin.walk() {
        if let (Some(versions), Some(contents)) = (versions.get_mut(&path), begin.contents(ino)) {
            versions.insert(contents.digest());
        }
    }
    versions.retain(|path, versions| !changed.contains(path) && !versions.is_empty());
    Ok(versions)
}

fn is_json(tree: &Tree, ino: Ino) -> bool {
    let contents = tree.contents(ino);
    let bytes = contents.map(|contents| contents.read(0, contents.len() as usize));
    bytes.is_some_and(|bytes| serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok())
}

fn installed(tool: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}
