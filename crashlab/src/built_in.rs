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
/// The longest JSON that is read.
const JSON_BYTES_MAX: u64 = 64 << 20;
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
        let begin = history.tree(&State { position: history.recording.begin, lost: Default::default() })?;
        let named = begin.walk().into_iter().filter(|(path, _)| path.ends_with(b".json"));
        let mut json = Vec::new();
        for (path, ino) in named {
            if is_json(&begin, ino)? {
                json.push(path);
            }
        }
        let mut checks = Self { replaced, json, tools: tools(&end)?, folder, stop };
        // What is not so without a power cut is no promise.
        for tree in [&begin, &end] {
            while let Some((path, _)) = checks.fault(tree)? {
                checks.replaced.remove(&path);
                checks.json.retain(|json| *json != path);
            }
            let case = Case { tree, name: "", printed: &[], worker: 0 };
            let mut sound = Vec::new();
            for tool in std::mem::take(&mut checks.tools) {
                if run_in(&checks.folder, &tool.command, TOOL, stop, &case)? == Verdict::Passed {
                    sound.push(tool);
                }
            }
            checks.tools = sound;
        }
        Ok(checks)
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

    /// A file that is broken, and how.
    fn fault(&self, tree: &Tree) -> Result<Option<(Vec<u8>, String)>, Error> {
        for (path, ino) in tree.walk() {
            let Some(contents) = tree.contents(ino) else { continue };
            let name = String::from_utf8_lossy(&path);
            if self.replaced.get(&path).is_some_and(|versions| !versions.contains(&contents.digest())) {
                let text =
                    format!("{name} has {} bytes that are neither an old nor a new version", contents.len());
                return Ok(Some((path.clone(), text)));
            }
            if self.json.contains(&path) && !is_json(tree, ino)? {
                let text = format!("{name} is no JSON any more");
                return Ok(Some((path.clone(), text)));
            }
        }
        Ok(None)
    }
}

impl Judge for BuiltIn<'_> {
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, Error> {
        if let Some((_, fault)) = self.fault(case.tree)? {
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

/// A tool for each database and repository.
fn tools(end: &Tree) -> Result<Vec<Tool>, Error> {
    let mut tools = Vec::new();
    for (path, ino) in end.walk() {
        let Ok(name) = std::str::from_utf8(&path) else { continue };
        let quoted = format!("'./{}'", name.replace('\'', r"'\''"));
        match end.node(ino).map(|node| &node.kind) {
            Some(Kind::File(contents)) if contents.read(0, SQLITE.len())? == SQLITE => {
                let command = format!(
                    "[ ! -s {quoted} ] || [ \"$(sqlite3 {quoted} 'pragma integrity_check')\" = ok ] || \
                     {{ echo {quoted}: SQLite finds it damaged; exit 1; }}"
                );
                tools.extend(installed("sqlite3").then_some(Tool { command }));
            }
            Some(Kind::Directory(_)) if path == b".git" || path.ends_with(b"/.git") => {
                let command =
                    format!("[ ! -f {quoted}/HEAD ] || git --git-dir={quoted} fsck --full --no-dangling");
                tools.extend(installed("git").then_some(Tool { command }));
            }
            _ => {}
        }
    }
    Ok(tools)
}

/// A name that a file got, and when.
struct Naming {
    ino: Ino,
    at: usize,
    digest: u128,
}

/// The versions of each path whose files are never changed under this name.
fn replaced(history: &History) -> Result<HashMap<Vec<u8>, HashSet<u128>>, Error> {
    let mut paths = Paths::default();
    let mut tree = Tree::default();
    let mut names: HashMap<Vec<u8>, Vec<Naming>> = HashMap::new();
    let mut written: HashMap<Ino, usize> = HashMap::new();
    let mut is_replaced: HashSet<Vec<u8>> = HashSet::new();
    let begin = history.recording.begin;
    for (at, event) in history.events().iter().enumerate() {
        tree.apply(&event.action, event.time_ns.into(), &history.recording.bytes(&event.action)?)?;
        paths.add(&event.action);
        if at + 1 < begin {
            continue;
        }
        let mut named = |path: Vec<u8>, ino: Ino| {
            if let Some(contents) = tree.contents(ino) {
                names.entry(path).or_default().push(Naming { ino, at, digest: contents.digest() });
            }
        };
        match &event.action {
            _ if at + 1 == begin => tree.walk().into_iter().for_each(|(path, ino)| named(path, ino)),
            Action::Create { parent, name, ino, .. } => named(paths.bytes_within(*parent, name), *ino),
            Action::Link { parent, name, ino } => {
                is_replaced.insert(paths.bytes_within(*parent, name));
                named(paths.bytes_within(*parent, name), *ino);
            }
            Action::Rename { parent, name, to, to_name, ino, replaced, exchanged } => {
                let mut moved = vec![(paths.bytes_within(*to, to_name), *ino)];
                if let Some(other) = replaced.filter(|_| *exchanged) {
                    moved.push((paths.bytes_within(*parent, name), other));
                }
                for (path, ino) in moved {
                    tree.walk_from(&path, ino).into_iter().for_each(|(path, ino)| named(path, ino));
                    is_replaced.insert(path.clone());
                    named(path, ino);
                }
            }
            Action::Write { ino, .. } | Action::Truncate { ino, .. } | Action::Zero { ino, .. } => {
                written.insert(*ino, at);
            }
            _ => {}
        }
    }
    let unchanged = |naming: &Naming| written.get(&naming.ino).is_none_or(|at| *at < naming.at);
    names.retain(|path, namings| is_replaced.contains(path) && namings.iter().all(unchanged));
    let digests = |namings: Vec<Naming>| namings.into_iter().map(|naming| naming.digest).collect();
    Ok(names.into_iter().map(|(path, namings)| (path, digests(namings))).collect())
}

fn is_json(tree: &Tree, ino: Ino) -> Result<bool, Error> {
    let contents = tree.contents(ino).filter(|contents| contents.len() <= JSON_BYTES_MAX);
    let Some(contents) = contents else { return Ok(false) };
    let bytes = contents.read(0, contents.len() as usize)?;
    Ok(serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok())
}

fn installed(tool: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}
