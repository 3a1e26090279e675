//! Transactions of Btrfs in which directories were moved or names exchanged. Their log has each synced inode with
//! its present names, and replays them in an order of its own. So a name may be there without any other change of
//! names. What holds is that no file vanishes that is durably there.

use super::Durable;
use crate::Error;
use crate::action::{Action, Event, Ino, ROOT};
use crate::history::Survivor;
use crate::model::Part;
use crate::tree::Tree;
use std::collections::{BTreeMap, HashSet};

impl Durable<'_> {
    /// Notes a change that moves a directory or exchanges names.
    pub(super) fn note_tangle(&mut self, at: usize, action: &Action) {
        let Action::Rename { ino, exchanged, .. } = action else { return };
        self.is_tangled |= at >= self.begin && (*exchanged || self.directories.contains(ino));
    }

    /// The files that have to be there after a power cut, if names are tangled.
    pub fn tangled_files(&self) -> Option<Named> {
        self.is_tangled.then(|| Named::new(self))
    }
}

/// The inodes that a power cut must leave with a name.
pub struct Named {
    begin: usize,
    /// The names before the program.
    start: Survivor,
    /// Each inode with the directory of its name. If that is not there either, they may be gone together.
    inodes: Vec<(Ino, Ino)>,
}

impl Named {
    fn new(durable: &Durable<'_>) -> Self {
        let mut tree = Tree::default();
        let events = durable.events[..durable.position].iter().enumerate();
        let mut start = None;
        for (at, event) in events.filter(|(_, event)| event.action.is_of_names()) {
            if at >= durable.begin {
                start.get_or_insert_with(|| tree.clone());
            }
            // Names take no bytes, so nothing can fail.
            let _ = tree.apply(&event.action, 0, &[]);
        }
        let (mut inodes, mut todo, mut seen) = (Vec::new(), vec![ROOT], HashSet::new());
        while let Some(dir) = todo.pop().filter(|dir| seen.insert(*dir)) {
            let entries = tree.entries(dir).into_iter().flatten().map(|(_, ino)| *ino);
            for ino in entries {
                if !durable.is_open_creation(ino) {
                    inodes.push((ino, dir));
                }
                todo.push(ino);
            }
        }
        Self { begin: durable.begin, start: Survivor::new(start.unwrap_or(tree)), inodes }
    }

    /// True if they all have a name in this tree.
    pub fn are_in(&self, tree: &Tree) -> bool {
        let there: HashSet<Ino> = tree.walk().into_iter().map(|(_, ino)| ino).chain([ROOT]).collect();
        self.inodes.iter().all(|(ino, dir)| there.contains(ino) || !there.contains(dir))
    }

    /// The same for the tree of a state.
    pub fn survive(
        &self,
        events: &[Event],
        position: usize,
        lost: &BTreeMap<usize, Option<Part>>,
    ) -> Result<bool, Error> {
        let mut survivor = self.start.clone();
        for (at, event) in events.iter().enumerate().take(position).skip(self.begin) {
            if event.action.is_of_names() {
                survivor.step(event, &[], lost.get(&at).copied())?;
            }
        }
        Ok(self.are_in(&survivor.tree))
    }
}
