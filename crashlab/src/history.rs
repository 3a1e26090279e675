//! The trees that a program went through, and those that power cuts leave of them.

use crate::Error;
use crate::action::{Action, Event, Ino, Name, ROOT};
use crate::model::Part;
use crate::recording::Recording;
use crate::state::State;
use crate::tree::{Tree, join};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

/// The fewest events from one tree that is kept to the next.
const KEPT_EVERY_MIN: usize = 64;
/// The most trees that are kept.
const KEPT_MAX: usize = 64;
/// Bytes that a disk writes at once.
const SECTOR_BYTES: u64 = 512;

/// A recording, with the trees at some of its events.
pub struct History {
    /// The recording.
    pub recording: Recording,
    kept: Vec<Tree>,
    /// Events from one kept tree to the next.
    kept_every: usize,
    /// Everything that the program printed.
    printed: Vec<u8>,
    /// For each printed line, the number of events up to it and the length of the output with it.
    printed_at: Vec<(usize, usize)>,
}

impl History {
    /// Goes through a recording once.
    pub fn new(recording: Recording) -> Result<Self, Error> {
        let mut tree = Tree::default();
        let kept_every = (recording.events.len() / KEPT_MAX).max(KEPT_EVERY_MIN);
        let (mut kept, mut printed, mut printed_at) = (Vec::new(), Vec::new(), Vec::new());
        for (at, event) in recording.events.iter().enumerate() {
            if at.is_multiple_of(kept_every) {
                kept.push(tree.clone());
            }
            if let Action::Printed(line) = &event.action {
                printed.extend_from_slice(line);
                printed_at.push((at + 1, printed.len()));
            }
            tree.apply(&event.action, event.time_ns.into(), &recording.bytes(&event.action)?)?;
        }
        kept.push(tree);
        Ok(Self { recording, kept, kept_every, printed, printed_at })
    }

    /// The program's output that was certainly printed before a power cut after `position` events.
    pub fn printed(&self, position: usize) -> &[u8] {
        let lines = self.printed_at.partition_point(|(at, _)| *at <= position);
        &self.printed[..lines.checked_sub(1).map_or(0, |last| self.printed_at[last].1)]
    }

    /// All events.
    pub fn events(&self) -> &[Event] {
        &self.recording.events
    }

    /// The tree of a state.
    pub fn tree(&self, state: &State) -> Result<Tree, Error> {
        let first = state.lost.keys().next().copied().unwrap_or(state.position).min(state.position);
        let from = first / self.kept_every;
        let mut survivor = Survivor::new(self.kept[from].clone());
        for at in from * self.kept_every..state.position {
            let event = &self.events()[at];
            if event.action.is_change() {
                survivor.step(event, &self.recording.bytes(&event.action)?, state.lost.get(&at).copied())?;
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
    /// The page cache, which has every change. A write that survives brings along what else is in its
    /// blocks.
    cache: Tree,
    /// Names of files that a lost rename has not given them, with the names that they had before it.
    not_given: HashMap<(Ino, Ino, Name), (Ino, Name)>,
}

impl Survivor {
    /// Nothing is lost yet.
    pub fn new(tree: Tree) -> Self {
        Self { cache: tree.clone(), tree, not_given: HashMap::new() }
    }

    /// One more change: it survives, or is lost but for a part.
    pub fn step(&mut self, event: &Event, bytes: &[u8], loss: Option<Option<Part>>) -> Result<(), Error> {
        self.cache.apply(&event.action, event.time_ns.into(), bytes)?;
        match loss {
            None => {
                self.make_room(event)?;
                let Some(action) = self.as_it_is(&event.action) else { return Ok(()) };
                self.tree.apply(&action, event.time_ns.into(), bytes)?;
                match &event.action {
                    Action::Write { ino, .. } => {
                        self.tree.take_blocks(*ino, event.action.blocks(), &self.cache)
                    }
                    _ => Ok(()),
                }
            }
            Some(part) => {
                if let (
                    Action::Rename { parent, name, to, to_name, ino, replaced, exchanged },
                    None | Some(Part::Unlinked),
                ) = (&event.action, part)
                {
                    let before = self.name_of(*ino, *parent, name);
                    let other = replaced.filter(|_| *exchanged);
                    let others = other.and_then(|other| Some((other, self.name_of(other, *to, to_name)?)));
                    let others = others.map(|(other, before)| ((other, *parent, name.clone()), before));
                    self.not_given.extend(before.map(|before| ((*ino, *to, to_name.clone()), before)));
                    self.not_given.extend(others);
                }
                part.map_or(Ok(()), |part| self.apply_part(event, part))
            }
        }
    }

    /// A name that is given to a file is no other's, and no longer one that it had before a lost rename.
    fn make_room(&mut self, event: &Event) -> Result<(), Error> {
        let (Action::Create { parent, name, ino, .. } | Action::Link { parent, name, ino }) = &event.action
        else {
            return Ok(());
        };
        let (parent, given) = (*parent, name.clone());
        self.not_given.retain(|(other, ..), (dir, name)| other != ino || (*dir, &*name) != (parent, &given));
        match self.tree.lookup(parent, &given) {
            Some(ino) => self.apply(event, &Action::Unlink { parent, name: given, ino }),
            None => Ok(()),
        }
    }

    /// The name of a file that the program knows by this one.
    fn name_of(&self, ino: Ino, parent: Ino, name: &Name) -> Option<(Ino, Name)> {
        match self.tree.lookup(parent, name) == Some(ino) {
            true => Some((parent, name.clone())),
            false => {
                let before = self.not_given.get(&(ino, parent, name.clone()));
                before.filter(|(dir, name)| self.tree.lookup(*dir, name) == Some(ino)).cloned()
            }
        }
    }

    /// A change of names, where lost renames have left other names: it takes the one that the file has
    /// instead. Of an exchange with a file that is elsewhere, the other half is left. None for the removal of a
    /// name that the file has not got.
    fn as_it_is<'a>(&self, action: &'a Action) -> Option<Cow<'a, Action>> {
        let (parent, name, to, to_name, ino) = match action {
            Action::Rename { parent, name, to, to_name, ino, exchanged: false, .. } => {
                (parent, name, to, to_name, ino)
            }
            Action::Unlink { parent, name, ino } => {
                let name = self.name_of(*ino, *parent, name);
                return name.map(|(parent, name)| Cow::Owned(Action::Unlink { parent, name, ino: *ino }));
            }
            Action::Rename { parent, name, to, to_name, ino, replaced: Some(other), .. } => {
                let is_there = |dir: &Ino, name: &Name, ino: &Ino| self.tree.lookup(*dir, name) == Some(*ino);
                match (is_there(parent, name, ino), is_there(to, to_name, other)) {
                    (true, false) => (parent, name, to, to_name, ino),
                    (false, true) => (to, to_name, parent, name, other),
                    (false, false) => (parent, name, to, to_name, ino),
                    _ => return Some(Cow::Borrowed(action)),
                }
            }
            _ => return Some(Cow::Borrowed(action)),
        };
        let (ino, to, to_name) = (*ino, *to, to_name.clone());
        let replaced = self.tree.lookup(to, &to_name).filter(|other| *other != ino);
        Some(Cow::Owned(match self.name_of(ino, *parent, name) {
            Some((parent, name)) => {
                Action::Rename { parent, name, to, to_name, ino, replaced, exchanged: false }
            }
            None => Action::Link { ino, parent: to, name: to_name },
        }))
    }

    /// Applies the part of a change that survives.
    fn apply_part(&mut self, event: &Event, part: Part) -> Result<(), Error> {
        match (&event.action, part) {
            (Action::Rename { ino, to, to_name, replaced, .. }, Part::Linked) => {
                let (ino, parent, name) = (*ino, *to, to_name.clone());
                if let Some(ino) = replaced.filter(|other| self.tree.lookup(parent, &name) == Some(*other)) {
                    // The other file of an exchange moves if this one is elsewhere.
                    let half = self.as_it_is(&event.action).filter(|half| half.ino() == Some(ino));
                    let gone = Action::Unlink { parent, name: name.clone(), ino };
                    let half = half.map_or(gone, Cow::into_owned);
                    self.apply(event, &half)?;
                }
                self.apply(event, &Action::Link { ino, parent, name })
            }
            (Action::Rename { to, to_name, replaced: Some(ino), .. }, Part::Unlinked)
                if self.tree.lookup(*to, to_name) == Some(*ino) =>
            {
                self.apply(event, &Action::Unlink { parent: *to, name: to_name.clone(), ino: *ino })
            }
            (Action::Rename { parent, name, ino, .. }, Part::Left) => match self.name_of(*ino, *parent, name)
            {
                Some((parent, name)) => self.apply(event, &Action::Unlink { parent, name, ino: *ino }),
                None => Ok(()),
            },
            (create @ Action::Create { .. }, Part::Unnamed) => {
                self.tree.apply_unnamed(create, event.time_ns.into());
                Ok(())
            }
            (Action::Truncate { ino, .. }, Part::Before(size)) => {
                let from = self.tree.contents(*ino).map_or(0, |contents| contents.len());
                let shorter = Action::Truncate { ino: *ino, from, to: size.min(from) };
                self.apply(event, &shorter)
            }
            (Action::Truncate { ino, .. }, Part::Slice { from, before, .. }) => {
                let len = before.saturating_sub(from);
                self.apply(event, &Action::Zero { ino: *ino, offset: from, len, size: 0 })
            }
            (Action::Write { ino, offset, len, .. }, part) => {
                self.apply_part_of_write(event, *ino, *offset..offset + u64::from(*len), part)
            }
            _ => Ok(()),
        }
    }

    fn apply_part_of_write(
        &mut self,
        event: &Event,
        ino: Ino,
        written: Range<u64>,
        part: Part,
    ) -> Result<(), Error> {
        let cut = |at: u64| at.clamp(written.start, written.end);
        match part {
            Part::Before(at) => self.copy(event, ino, written.start..cut(at)),
            Part::From(at) => self.copy(event, ino, cut(at)..written.end),
            Part::Size => self.grow(event, ino, written.end),
            Part::Linked | Part::Unlinked | Part::Left | Part::Unnamed => Ok(()),
            Part::Without { from, before, size } => {
                self.copy(event, ino, written.start..cut(from))?;
                self.copy(event, ino, cut(before)..size.map_or(written.end, cut))
            }
            Part::Slice { from, before, size } => {
                let len = self.tree.contents(ino).map_or(0, |contents| contents.len());
                let before = if size == 0 { before.min(len) } else { before };
                self.grow(event, ino, size)?;
                self.copy(event, ino, cut(from)..cut(before))
            }
        }
    }

    /// Copies bytes from the page cache, as whole sectors.
    fn copy(&mut self, event: &Event, ino: Ino, range: Range<u64>) -> Result<(), Error> {
        let Some(cached) = self.cache.contents(ino).filter(|_| !range.is_empty()) else { return Ok(()) };
        let offset = range.start - range.start % SECTOR_BYTES;
        let bytes = cached.read(offset, (range.end - offset) as usize)?;
        let (len, stored) = (bytes.len() as u32, Default::default());
        let write = Action::Write { ino, offset, len, size: 0, mapped: false, stored };
        self.tree.apply(&write, event.time_ns.into(), &bytes)
    }

    fn grow(&mut self, event: &Event, ino: Ino, size: u64) -> Result<(), Error> {
        let from = self.tree.contents(ino).map_or(0, |contents| contents.len());
        match size > from {
            true => self.apply(event, &Action::Truncate { ino, from, to: size }),
            false => Ok(()),
        }
    }

    fn apply(&mut self, event: &Event, action: &Action) -> Result<(), Error> {
        self.tree.apply(action, event.time_ns.into(), &[])
    }
}

/// Paths of inodes, each with its names in the order in which it got them.
#[derive(Clone, Default)]
pub struct Paths(HashMap<Ino, Vec<(Ino, Name)>>);

impl Paths {
    /// Follows one more event.
    pub fn add(&mut self, action: &Action) {
        match action {
            Action::Create { parent, name, ino, .. } | Action::Link { parent, name, ino } => {
                self.give(*ino, *parent, name);
            }
            Action::Unlink { parent, name, ino } => self.take(*ino, *parent, name),
            Action::Rename { parent, name, to, to_name, ino, replaced, exchanged } => {
                self.give(*ino, *to, to_name);
                self.take(*ino, *parent, name);
                if let Some(other) = replaced {
                    if *exchanged {
                        self.give(*other, *parent, name);
                    }
                    self.take(*other, *to, to_name);
                }
            }
            _ => {}
        }
    }

    fn give(&mut self, ino: Ino, dir: Ino, name: &Name) {
        self.0.entry(ino).or_default().push((dir, name.clone()));
    }

    /// Removes a name. An inode keeps its last one, so that a report can name it.
    fn take(&mut self, ino: Ino, dir: Ino, name: &Name) {
        if let Some(names) = self.0.get_mut(&ino).filter(|names| names.len() > 1)
            && let Some(place) = names.iter().position(|(parent, own)| *parent == dir && own == name)
        {
            names.remove(place);
        }
    }

    /// The path of an inode, safe for a terminal.
    pub fn of(&self, ino: Ino) -> String {
        clean(&self.bytes(ino, 0))
    }

    /// The path of a name in a directory, safe for a terminal.
    pub fn within(&self, dir: Ino, name: &[u8]) -> String {
        clean(&self.bytes_within(dir, name))
    }

    /// The path of an inode.
    pub fn bytes_of(&self, ino: Ino) -> Vec<u8> {
        self.bytes(ino, 0)
    }

    /// The path of a name in a directory.
    pub fn bytes_within(&self, dir: Ino, name: &[u8]) -> Vec<u8> {
        let dir = if dir == ROOT { Vec::new() } else { self.bytes(dir, 0) };
        join(&dir, name)
    }

    fn bytes(&self, ino: Ino, depth: usize) -> Vec<u8> {
        match self.0.get(&ino).and_then(|names| names.last()) {
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
            format!("{verb} attribute {} of {}", clean(name), path(ino))
        }
        Action::Sync { ino, data_only } => {
            format!("{} {}", if *data_only { "fdatasync" } else { "fsync" }, path(ino))
        }
        Action::SyncAll => "sync".into(),
        Action::SyncRange { ino, offset, len } => {
            format!("sync_file_range {}, {len} bytes at {offset}", path(ino))
        }
        Action::Printed(line) => format!("printed '{}'", short(line)),
        Action::Begin => "the program begins".into(),
        Action::End { code } => format!("the program ends with exit code {code}"),
    }
}

/// Text, with each character as `?` that a terminal or a page would obey.
pub(crate) fn clean(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if is_obeyed(c) { '?' } else { c }).collect()
}

/// True for control characters, for those that turn the direction of writing, and for those that are none.
pub(crate) fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// The beginning of a printed line, safe for a terminal.
fn short(line: &[u8]) -> String {
    let clean = clean(line.trim_ascii_end());
    match clean.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &clean[..end]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_name_that_the_file_still_has() {
        let name = |text: &str| text.as_bytes().to_vec();
        let rename =
            |from: &str, to: &str, ino: Ino, replaced: Option<Ino>, exchanged: bool| Action::Rename {
                parent: ROOT,
                name: name(from),
                to: ROOT,
                to_name: name(to),
                ino,
                replaced,
                exchanged,
            };
        let mut paths = Paths::default();
        for (ino, own) in [(2, "a"), (3, "b")] {
            paths.add(&Action::Link { ino, parent: ROOT, name: name(own) });
        }
        paths.add(&Action::Link { ino: 2, parent: ROOT, name: name("c") });
        assert_eq!(paths.of(2), "c");
        paths.add(&rename("b", "c", 3, Some(2), false));
        assert_eq!([paths.of(2), paths.of(3)], ["a", "c"]);
        paths.add(&rename("a", "c", 2, Some(3), true));
        assert_eq!([paths.of(2), paths.of(3)], ["c", "a"]);
        paths.add(&Action::Unlink { ino: 2, parent: ROOT, name: name("c") });
        assert_eq!(paths.of(2), "c", "it had no other");
    }
}
