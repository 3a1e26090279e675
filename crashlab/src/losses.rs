//! Lost changes, and the later changes that can't survive without them.

use crate::action::{Action, Ino};
use crate::model::{DataOrder, Logged, Model, NameOrder, Part};
use std::collections::{HashMap, HashSet};

/// The changes that a power cut has taken away, in the order of the program. Later changes may depend on them.
#[derive(Clone, Default)]
pub struct Losses {
    any: bool,
    /// A change of names, attributes or sizes.
    in_journal: bool,
    /// A change of names that was logged.
    in_log: bool,
    /// Files with such a change.
    in_log_of: HashSet<Ino>,
    data_of: HashSet<Ino>,
    /// Files with lost data that needed new blocks.
    new_blocks_of: HashSet<Ino>,
    inodes: HashSet<Ino>,
    names: HashSet<(Ino, Vec<u8>)>,
    /// Of these, the names that no file has without the lost changes.
    free: HashSet<(Ino, Vec<u8>)>,
    /// The names that a file still has because their removal is lost. They are in `names` too.
    kept: HashSet<(Ino, Vec<u8>)>,
    /// Directories that a name or a directory did not leave.
    left: HashSet<Ino>,
    /// Inodes that a link has not given another name.
    links: HashSet<Ino>,
    /// Inodes that were not moved.
    moved: HashSet<Ino>,
    /// Sizes that files are left with.
    sizes: HashMap<Ino, u64>,
}

impl Losses {
    /// True if `action`, which is not durable, can't survive after these losses.
    pub fn take(&self, model: &Model, action: &Action, logged: Logged) -> bool {
        // The kernel may have written a page of a mapping back before anything else.
        if !self.any || matches!(action, Action::Write { mapped: true, .. }) {
            return false;
        }
        self.names_are_lost(action, logged) || self.order_is_lost(model, action, logged)
    }

    /// A name needs its directory, its inode, and what the name stood for before. No filesystem gives
    /// that up.
    pub fn names_are_lost(&self, action: &Action, logged: Logged) -> bool {
        let mut names = action.names();
        if logged == Logged::Freely {
            let dir = names.last().is_some_and(|(dir, _)| self.inodes.contains(dir));
            let is_lost = |ino: &Ino| self.inodes.contains(ino) || self.in_log_of.contains(ino);
            return dir || action.files().iter().any(is_lost);
        }
        let is_removal = matches!(action, Action::Unlink { .. });
        let is_given = matches!(action, Action::Rename { .. } | Action::Link { .. });
        if logged != Logged::No && (is_removal || is_given) {
            // A log has the last names of a file, and no trace of those in between.
            names.drain(..names.len() - 1);
            names.retain(|(dir, name)| {
                let name = (*dir, (*name).clone());
                !self.kept.contains(&name) && (is_removal || !self.free.contains(&name))
            });
        }
        let lost =
            |dir: Ino, name: &[u8]| self.inodes.contains(&dir) || self.names.contains(&(dir, name.to_vec()));
        let empties = match action {
            Action::Unlink { ino, .. } => Some(*ino),
            Action::Rename { replaced, exchanged: false, .. } => *replaced,
            _ => None,
        };
        // A directory goes only when everything has left it. A file moves only into a directory that is where it
        // was; a log knows directories by their inodes.
        let leaves = empties.is_some_and(|ino| self.left.contains(&ino));
        let moves =
            matches!(action, Action::Rename { to, .. } if self.moved.contains(to)) && logged == Logged::No;
        leaves
            || moves
            || names.iter().any(|(dir, name)| lost(*dir, name))
            || (action.is_of_names() && action.ino().is_some_and(|ino| self.inodes.contains(&ino)))
            || (logged != Logged::No && action.ino().is_some_and(|ino| self.links.contains(&ino)))
    }

    fn order_is_lost(&self, model: &Model, action: &Action, logged: Logged) -> bool {
        if model.names == NameOrder::All {
            return true;
        }
        let waits_for_journal = match action.is_write() {
            true => {
                let extends = action.extends() || self.extends_what_is_left(action);
                model.data == DataOrder::All || model.data == DataOrder::Extending && extends
            }
            false => model.names_in_order,
        };
        let waits_for_data = match action {
            Action::Rename { replaced, exchanged, .. } if model.names == NameOrder::Replacing => {
                replaced.is_some() && !exchanged
            }
            Action::Rename { .. } | Action::Link { .. } => model.names == NameOrder::Naming,
            _ => false,
        };
        let journal_is_lost = match logged {
            Logged::No => self.in_journal,
            Logged::Perhaps | Logged::Yes => self.in_log,
            Logged::Freely => false,
        };
        let data_of = if model.rename_waits_for_all_data() { &self.data_of } else { &self.new_blocks_of };
        waits_for_journal && journal_is_lost
            || waits_for_data && action.ino().is_some_and(|ino| data_of.contains(&ino))
    }

    /// True if a rename can leave its file with both names: the file and the directory are there, and nobody
    /// else has the new name. In an exchange, the file has not got the name that it exchanges.
    pub fn can_link(&self, rename: &Action) -> bool {
        let Action::Rename { parent, name, ino, to, to_name, exchanged, .. } = rename else { return false };
        if *exchanged && !self.names.contains(&(*parent, name.clone())) {
            return false;
        }
        let name = (*to, to_name.clone());
        let is_there = !self.inodes.contains(ino) && !self.inodes.contains(to);
        is_there && (!self.names.contains(&name) || self.free.contains(&name))
    }

    /// True if a lost removal has left the name that a change gives.
    pub fn keep_name(&self, action: &Action) -> bool {
        action.names().last().is_some_and(|(dir, name)| self.kept.contains(&(*dir, (*name).clone())))
    }

    /// Adds a change of names that has left no trace in the log.
    pub fn fade(&mut self, action: &Action) {
        (self.any, self.in_journal) = (true, true);
        if let Action::Unlink { parent, name, .. } = action {
            self.names.insert((*parent, name.clone()));
        }
    }

    /// A durable change gives a name to a file: what was lost of that name before no longer counts.
    pub fn durable(&mut self, action: &Action) {
        if let (false, Some((dir, name))) = (matches!(action, Action::Unlink { .. }), action.names().last()) {
            self.names.remove(&(*dir, (*name).clone()));
        }
    }

    /// Notes that a name is free if the change that gave it is lost.
    fn leave_name(&mut self, action: &Action, part: Option<Part>) {
        let is_given = !matches!(action, Action::Unlink { .. }) && part != Some(Part::Linked);
        let replaces = matches!(action, Action::Rename { replaced: Some(_), .. });
        let Some((dir, name)) = action.names().last().filter(|_| is_given).copied() else { return };
        let name = (dir, name.clone());
        if part == Some(Part::Unlinked) || !replaces && !self.names.contains(&name) {
            self.free.insert(name);
        }
    }

    /// True if a write ends behind the size that its file is left with.
    fn extends_what_is_left(&self, action: &Action) -> bool {
        let Action::Write { ino, offset, len, .. } = action else { return false };
        self.sizes.get(ino).is_some_and(|size| offset + u64::from(*len) > *size)
    }

    /// Adds a change that is lost, whole or but for a part.
    pub fn add(&mut self, model: &Model, action: &Action, part: Option<Part>, logged: Logged) {
        self.any = true;
        if let Some((ino, size)) = action.size_before_growth() {
            let left = self.sizes.entry(ino).or_insert(size);
            *left = size.min(*left);
        }
        match action {
            Action::Unlink { parent, name, .. } => {
                self.left.insert(*parent);
                self.kept.insert((*parent, name.clone()));
            }
            Action::Link { ino, .. } => drop(self.links.insert(*ino)),
            Action::Rename { parent, to, ino, .. } => {
                self.left.extend((parent != to).then_some(*parent));
                self.moved.insert(*ino);
            }
            _ => {}
        }
        if logged == Logged::Yes {
            self.in_log = true;
            self.in_log_of.extend(action.files());
        }
        if action.is_write() {
            self.data_of.extend(action.ino());
            let has_size = part.is_some_and(|part| Model::keeps_size(action, part));
            self.new_blocks_of.extend(action.ino().filter(|_| action.needs_blocks() && !has_size));
            return;
        }
        let has_lost_data = action.ino().is_some_and(|ino| self.data_of.contains(&ino));
        self.in_journal |=
            logged != Logged::Freely && !(model.truncates_data && has_lost_data && action.changes_size());
        self.leave_name(action, part);
        let names = action.names().into_iter().map(|(dir, name)| (dir, name.clone()));
        // With both names of a rename, only the loss of the first is lost.
        self.names.extend(names.take(if part == Some(Part::Linked) { 1 } else { 2 }));
        if let Action::Create { ino, .. } = action {
            self.inodes.insert(*ino);
        }
    }
}
