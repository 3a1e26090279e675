//! The trees that a program went through, and those that power cuts leave of them.

use crate::Error;
use crate::action::{Action, Event, Ino, Name, ROOT};
use crate::contents::BLOCK_BYTES;
use crate::model::Part;
use crate::recording::Recording;
use crate::state::State;
use crate::tree::{Tree, join};
use std::collections::HashMap;
use std::sync::Arc;

/// Events from one tree that is kept to the next.
const KEPT_EVERY: usize = 64;

/// A recording, with the tree at every 64th event.
pub struct History {
    /// The recording.
    pub recording: Recording,
    kept: Vec<Tree>,
}

impl History {
    /// Goes through a recording once.
    pub fn new(recording: Recording) -> Result<Self, Error> {
        let mut tree = Tree::default();
        let mut kept = Vec::new();
        for (at, event) in recording.events.iter().enumerate() {
            if at.is_multiple_of(KEPT_EVERY) {
                kept.push(tree.clone());
            }
            tree.apply(&event.action, event.time_ns.into(), &recording.bytes(&event.action)?);
        }
        kept.push(tree);
        Ok(Self { recording, kept })
    }

    /// All events.
    pub fn events(&self) -> &[Event] {
        &self.recording.events
    }

    /// The tree of a state.
    pub fn tree(&self, state: &State) -> Result<Tree, Error> {
        let first = state.lost.keys().next().copied().unwrap_or(state.position).min(state.position);
        let from = first / KEPT_EVERY;
        let mut survivor = Survivor::new(self.kept[from].clone());
        for at in from * KEPT_EVERY..state.position {
            let event = &self.events()[at];
            if event.action.is_change() {
                survivor.step(event, &self.recording.bytes(&event.action)?, state.lost.get(&at).copied());
            }
        }
        Ok(survivor.tree)
    }

    /// The path of an inode after `position` events: its newest name; of one that has none, the name that
    /// it had last.
    pub fn paths(&self, position: usize) -> Paths {
        let mut paths = Paths::default();
        self.events()[..position].iter().for_each(|event| paths.add(&event.action));
        paths
    }
}

/// A tree while some of its changes are lost.
#[derive(Clone)]
pub(crate) struct Survivor {
    /// What has survived so far.
    pub tree: Tree,
    lost: LostWrites,
}

impl Survivor {
    /// Nothing is lost yet.
    pub fn new(tree: Tree) -> Self {
        Self { tree, lost: LostWrites::default() }
    }

    /// One more change: it survives, or is lost but for a part.
    pub fn step(&mut self, event: &Event, bytes: &[u8], loss: Option<Option<Part>>) {
        let Some(part) = loss else {
            self.lost.before(&mut self.tree, event);
            return self.tree.apply(&event.action, event.time_ns.into(), bytes);
        };
        if let Some(part) = part {
            apply_part(&mut self.tree, event, part, bytes);
        }
        self.lost.add(&event.action, bytes);
    }
}

/// Writes that are lost. A later write to the same block of the page cache brings their bytes in that
/// block along.
#[derive(Clone, Default)]
struct LostWrites(HashMap<Ino, Vec<LostBytes>>);

#[derive(Clone)]
struct LostBytes {
    begin: u64,
    end: u64,
    /// `None`: zeros, behind which the file had ended.
    bytes: Option<Arc<[u8]>>,
}

impl LostWrites {
    fn add(&mut self, action: &Action, bytes: &[u8]) {
        let (ino, lost) = match action {
            Action::Write { ino, offset, .. } => {
                let end = offset + bytes.len() as u64;
                (ino, LostBytes { begin: *offset, end, bytes: Some(bytes.into()) })
            }
            Action::Truncate { ino, from, to } => {
                let end = to.next_multiple_of(BLOCK_BYTES).min(*from);
                (ino, LostBytes { begin: *to, end, bytes: None })
            }
            _ => return,
        };
        self.0.entry(*ino).or_default().push(lost);
    }

    /// Applies what comes along with a change that survives.
    fn before(&self, tree: &mut Tree, event: &Event) {
        let Action::Write { ino, .. } = &event.action else { return };
        let blocks = event.action.blocks();
        let touched = blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
        for lost in self.0.get(ino).into_iter().flatten() {
            let (begin, end) = (touched.start.max(lost.begin), touched.end.min(lost.end));
            match &lost.bytes {
                _ if begin >= end => {}
                Some(bytes) => {
                    let part = &bytes[(begin - lost.begin) as usize..(end - lost.begin) as usize];
                    apply_bytes(tree, event, *ino, begin, part);
                }
                None => apply_zeros(tree, event, *ino, begin, end),
            }
        }
    }
}

/// Applies the part of a torn write that survives.
fn apply_part(tree: &mut Tree, event: &Event, part: Part, bytes: &[u8]) {
    if let (Action::Rename { ino, to, to_name, replaced, .. }, Part::Linked) = (&event.action, part) {
        let (ino, parent, name) = (*ino, *to, to_name.clone());
        if let Some(other) = replaced {
            let unlink = Action::Unlink { parent, name: name.clone(), ino: *other };
            tree.apply(&unlink, event.time_ns.into(), &[]);
        }
        return tree.apply(&Action::Link { ino, parent, name }, event.time_ns.into(), &[]);
    }
    if let (Action::Rename { to, to_name, replaced: Some(ino), .. }, Part::Unlinked) = (&event.action, part) {
        let unlink = Action::Unlink { parent: *to, name: to_name.clone(), ino: *ino };
        return tree.apply(&unlink, event.time_ns.into(), &[]);
    }
    if let (Action::Truncate { ino, .. }, Part::Slice { from, before, .. }) = (&event.action, part) {
        return apply_zeros(tree, event, *ino, from, before);
    }
    let Action::Write { ino, offset, len, size, .. } = &event.action else { return };
    let cut = |at: u64| at.clamp(*offset, offset + u64::from(*len));
    match part {
        Part::Before(at) => apply_bytes(tree, event, *ino, *offset, &bytes[..(cut(at) - offset) as usize]),
        Part::From(at) => apply_bytes(tree, event, *ino, cut(at), &bytes[(cut(at) - offset) as usize..]),
        Part::Size => {
            let grown = Action::Truncate { ino: *ino, from: *size, to: offset + u64::from(*len) };
            tree.apply(&grown, event.time_ns.into(), &[]);
        }
        Part::Linked | Part::Unlinked => {}
        Part::Without { from, before } => {
            for (begin, end) in [(*offset, cut(from)), (cut(before), offset + u64::from(*len))] {
                if begin < end {
                    let bytes = &bytes[(begin - offset) as usize..(end - offset) as usize];
                    apply_bytes(tree, event, *ino, begin, bytes);
                }
            }
        }
        Part::Slice { from, before, size } => {
            let len = tree.contents(*ino).map_or(0, |contents| contents.len());
            let before = if size == 0 { before.min(len) } else { before };
            let (from, before) = (cut(from), cut(before));
            if size > len {
                tree.apply(&Action::Truncate { ino: *ino, from: len, to: size }, event.time_ns.into(), &[]);
            }
            if from < before {
                apply_bytes(
                    tree,
                    event,
                    *ino,
                    from,
                    &bytes[(from - offset) as usize..(before - offset) as usize],
                );
            }
        }
    }
}

fn apply_zeros(tree: &mut Tree, event: &Event, ino: Ino, begin: u64, end: u64) {
    let zeros = Action::Zero { ino, offset: begin, len: end.saturating_sub(begin), size: 0 };
    tree.apply(&zeros, event.time_ns.into(), &[]);
}

fn apply_bytes(tree: &mut Tree, event: &Event, ino: Ino, offset: u64, bytes: &[u8]) {
    let write = Action::Write {
        ino,
        offset,
        len: bytes.len() as u32,
        size: 0,
        mapped: false,
        stored: Default::default(),
    };
    tree.apply(&write, event.time_ns.into(), bytes);
}

/// Paths of inodes.
#[derive(Clone, Default)]
pub struct Paths(HashMap<Ino, (Ino, Name)>);

impl Paths {
    /// Follows one more event.
    pub fn add(&mut self, action: &Action) {
        match action {
            Action::Create { parent, name, ino, .. } | Action::Link { parent, name, ino } => {
                self.0.insert(*ino, (*parent, name.clone()));
            }
            Action::Rename { parent, name, to, to_name, ino, replaced, exchanged } => {
                self.0.insert(*ino, (*to, to_name.clone()));
                if let Some(other) = replaced.filter(|_| *exchanged) {
                    self.0.insert(other, (*parent, name.clone()));
                }
            }
            _ => {}
        }
    }

    /// The path of an inode.
    pub fn of(&self, ino: Ino) -> String {
        String::from_utf8_lossy(&self.bytes(ino, 0)).into_owned()
    }

    /// The path of a name in a directory.
    pub fn within(&self, dir: Ino, name: &[u8]) -> String {
        let dir = if dir == ROOT { Vec::new() } else { self.bytes(dir, 0) };
        String::from_utf8_lossy(&join(&dir, name)).into_owned()
    }

    fn bytes(&self, ino: Ino, depth: usize) -> Vec<u8> {
        match self.0.get(&ino) {
            _ if ino == ROOT => b".".to_vec(),
            Some((ROOT, name)) => name.clone(),
            Some((dir, name)) if depth < 256 => join(&self.bytes(*dir, depth + 1), name),
            _ => format!("inode {ino}").into_bytes(),
        }
    }
}

/// An event in words.
pub fn describe(event: &Event, paths: &Paths) -> String {
    let path = |ino: &Ino| paths.of(*ino);
    match &event.action {
        Action::Create { parent, name, what, .. } => {
            let kind = match what {
                crate::action::What::File => "create",
                crate::action::What::Directory => "mkdir",
                crate::action::What::Symlink(_) => "symlink",
                crate::action::What::Special(..) => "mknod",
            };
            format!("{kind} {}", paths.within(*parent, name))
        }
        Action::Link { ino, parent, name } => {
            format!("link {} -> {}", path(ino), paths.within(*parent, name))
        }
        Action::Unlink { parent, name, .. } => format!("unlink {}", paths.within(*parent, name)),
        Action::Rename { parent, name, to, to_name, exchanged, .. } => {
            let verb = if *exchanged { "exchange" } else { "rename" };
            format!("{verb} {} -> {}", paths.within(*parent, name), paths.within(*to, to_name))
        }
        Action::Write { ino, offset, len, mapped, .. } => {
            let how = if *mapped { "write through a mapping" } else { "write" };
            format!("{how} {}, {len} bytes at {offset}", path(ino))
        }
        Action::Truncate { ino, from, to } => format!("truncate {} from {from} to {to} bytes", path(ino)),
        Action::Zero { ino, offset, len, .. } => format!("zero {}, {len} bytes at {offset}", path(ino)),
        Action::Attributes { ino, mode, uid, gid, .. } => match (mode, uid, gid) {
            (Some(mode), ..) => format!("chmod {mode:o} {}", path(ino)),
            (None, None, None) => format!("set times of {}", path(ino)),
            _ => format!("chown {}", path(ino)),
        },
        Action::Xattr { ino, name, value } => {
            let verb = if value.is_some() { "set" } else { "remove" };
            format!("{verb} attribute {} of {}", String::from_utf8_lossy(name), path(ino))
        }
        Action::Sync { ino, data_only } => {
            format!("{} {}", if *data_only { "fdatasync" } else { "fsync" }, path(ino))
        }
        Action::SyncAll => "sync".into(),
        Action::Printed(line) => format!("printed '{}'", short(line)),
        Action::Begin => "the program begins".into(),
        Action::End { code } => format!("the program ends with exit code {code}"),
    }
}

/// The beginning of a printed line, safe for a terminal.
fn short(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let clean: String = text.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    match clean.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &clean[..end]),
        None => clean,
    }
}
