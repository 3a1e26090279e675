//! Transactions of Btrfs in which directories were moved or names exchanged. Their log has each synced inode with
//! its present names, and replays them in an order of its own. So an fsync may bring a name forward without any other
//! change of names. Yet no inode whose creation is durable loses all its names.

use super::Durable;
use crate::Error;
use crate::action::{Action, Event, Ino, ROOT};
use crate::history::Survivor;
use crate::model::Part;
use crate::tree::Tree;
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};

/// Events from one kept tree to the next.
const KEPT_EVERY: usize = 256;

/// The names at the present event, and at some before it.
#[derive(Default)]
pub(super) struct Names {
    tree: Tree,
    kept: Vec<(usize, Tree)>,
}

impl Names {
    /// Follows one more change of names.
    fn add(&mut self, at: usize, action: &Action) {
        if self.kept.last().is_none_or(|(kept, _)| at >= kept + KEPT_EVERY) {
            self.kept.push((at, self.tree.clone()));
        }
        // Names take no bytes, so nothing can fail.
        let _ = self.tree.apply(action, 0, &[]);
    }
}

impl Durable<'_> {
    /// Notes a change of names. One that moves a directory or exchanges names tangles all of them.
    pub(super) fn note_names(&mut self, at: usize, action: &Action) {
        self.tree.add(at, action);
        if let Action::Rename { ino, exchanged, .. } = action {
            self.is_tangled |= at >= self.begin && (*exchanged || self.directories.contains(ino));
        }
    }

    /// The files that have to be there after a power cut, if names are tangled.
    pub fn tangled_files(&self) -> Option<Named> {
        let creation = |at: &usize| match &self.events[*at].action {
            Action::Create { ino, .. } => Some(*ino),
            _ => None,
        };
        self.is_tangled.then(|| Named {
            tree: self.tree.tree.clone(),
            kept: self.tree.kept.clone(),
            new: self.open.iter().filter_map(creation).collect(),
            inodes: OnceCell::new(),
        })
    }
}

/// The inodes that a power cut must leave with a name.
pub struct Named {
    /// The names if nothing is lost.
    tree: Tree,
    kept: Vec<(usize, Tree)>,
    /// Inodes whose creation is not durable.
    new: HashSet<Ino>,
    /// Each inode with the directory of its name. If that is not there either, they may be gone together.
    inodes: OnceCell<Vec<(Ino, Ino)>>,
}

impl Named {
    fn inodes(&self) -> &[(Ino, Ino)] {
        self.inodes.get_or_init(|| {
            let (mut inodes, mut todo, mut seen) = (Vec::new(), vec![ROOT], HashSet::new());
            while let Some(dir) = todo.pop() {
                if !seen.insert(dir) {
                    continue;
                }
                for (_, ino) in self.tree.entries(dir).into_iter().flatten() {
                    inodes.extend((!self.new.contains(ino)).then_some((*ino, dir)));
                    todo.push(*ino);
                }
            }
            inodes
        })
    }

    /// True if they all have a name in this tree.
    pub fn are_in(&self, tree: &Tree) -> bool {
        let there: HashSet<Ino> = tree.walk().into_iter().map(|(_, ino)| ino).chain([ROOT]).collect();
        self.inodes().iter().all(|(ino, dir)| there.contains(ino) || !there.contains(dir))
    }

    /// The same for the tree of a state.
    pub fn survive(
        &self,
        events: &[Event],
        position: usize,
        lost: &BTreeMap<usize, Option<Part>>,
    ) -> Result<bool, Error> {
        let first = lost.keys().next().copied().unwrap_or(position);
        let place = self.kept.partition_point(|(at, _)| *at <= first).checked_sub(1);
        let (from, tree) = place.map_or((0, Tree::default()), |place| self.kept[place].clone());
        let mut survivor = Survivor::new(tree);
        for (at, event) in events.iter().enumerate().take(position).skip(from) {
            if event.action.is_of_names() {
                survivor.step(event, &[], lost.get(&at).copied())?;
            }
        }
        Ok(self.are_in(&survivor.tree))
    }
}
