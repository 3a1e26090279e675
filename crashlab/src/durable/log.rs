//! What the log of Btrfs has of the names of files: it logs inodes, each with its present names, and not the
//! changes that led to them.

use super::{DEPTH_MAX, Durable};
use crate::action::{Action, Ino, Name};
use crate::model::Logged;
use std::collections::{BTreeMap, HashSet};

/// Most names without a trace that are remembered.
const FADING_MAX: usize = 32;

impl<'a> Durable<'a> {
    /// Whether a change of names goes into the log: it does for another name of a logged inode. It may for a
    /// removal, and where the directory is in the log.
    pub(super) fn logged_as(&self, action: &Action) -> Logged {
        let is_in_log = |ino: &Ino| self.logged.contains(ino);
        match action {
            Action::Link { ino, .. } | Action::Rename { ino, .. } if self.surely_logged.contains_key(ino) => {
                Logged::Yes
            }
            Action::Link { ino, .. } | Action::Unlink { ino, .. } | Action::Rename { ino, .. }
                if is_in_log(ino) =>
            {
                Logged::Perhaps
            }
            Action::Unlink { parent, .. } | Action::Rename { parent, .. } if is_in_log(parent) => {
                Logged::Perhaps
            }
            Action::Rename { to, exchanged: true, .. } if is_in_log(to) => Logged::Perhaps,
            _ => Logged::No,
        }
    }

    /// A rename takes the name of another file.
    pub(super) fn replaced(&mut self, at: usize, rename: &Action, other: Ino) {
        let Action::Rename { parent, to, to_name, ino, .. } = rename else { return };
        let own = self.names_of.remove(&other).unwrap_or_default();
        let (taken, left) = own.into_iter().partition(|given| self.given(*given) == Some((*to, to_name)));
        self.names_of.insert(other, left);
        // The file goes into the log if it was there, or the directory that it leaves. If the other file was logged
        // later, a commit may have come in between.
        let logged_at = |ino: &Ino| self.surely_logged.get(ino);
        let is_later = |inode: &Ino| logged_at(inode).is_some_and(|at| Some(at) >= logged_at(&other));
        let is_logged = [parent, ino].into_iter().any(is_later);
        if self.logged.contains(&other) && !is_logged {
            self.unlinks.insert(at);
            // If the log loses the name of the other file, it has no trace of how that file had got it.
            let taken: Vec<usize> = taken;
            self.fading
                .extend(taken.into_iter().filter(|given| *given >= self.begin).map(|given| (given, at)));
        }
    }

    /// Notes a change of the names of an inode, after those before it.
    pub(super) fn name_changed(&mut self, at: usize, ino: Ino) {
        let mut own = self.names_of.remove(&ino).unwrap_or_default();
        if let Some(place) = own.iter().position(|given| self.takes_back(at, *given)) {
            let given = own.swap_remove(place);
            // A commit has this name if it is older than the program or the last sync of everything.
            if given >= self.begin.max(self.journal) {
                self.between.entry(ino).or_default().push((given, at));
            }
        }
        own.extend(self.given(at).is_some().then_some(at));
        self.names_of.insert(ino, own);
        if self.logged.contains(&ino) {
            self.take_attributes(ino);
            self.take_along(at);
            self.fade(ino);
        }
        if self.names_logged.get(&at).is_some_and(|logged| *logged != Logged::No) {
            self.take_name(at);
        }
    }

    /// The log has the last names of a file. Of a name that it had in between, there may be no trace.
    fn fade(&mut self, ino: Ino) {
        for (given, mut later) in self.between.remove(&ino).unwrap_or_default() {
            // The first name of a new file is not in the log, whatever became of its removal.
            if matches!(self.events[given].action, Action::Create { .. }) {
                later = self.names_of.get(&ino).and_then(|own| own.last()).copied().unwrap_or(later);
            }
            if !self.in_directory.contains(&given) {
                self.fading.insert(given, later);
                // Nor of how another file had lost it.
                let mut removed = self.removed.remove(&given).unwrap_or_default();
                removed.retain(|removal| {
                    let was_left = self.left.remove(removal);
                    if was_left {
                        self.halves.remove(removal);
                    }
                    !was_left
                });
                self.fading.extend(removed.into_iter().map(|removal| (removal, later)));
            }
        }
        // Btrfs commits twice a minute, so the oldest ones have left their trace by then.
        while self.fading.len() > FADING_MAX {
            self.fading.pop_first();
        }
    }

    /// The names of an inode, and those of the directories that lead to it, are durable.
    pub(super) fn log(&mut self, at: usize, ino: Ino) {
        if self.is_as_logged(ino) {
            return;
        }
        for entry in self.new_entries(ino) {
            self.take_attributes(entry);
            self.fade(entry);
            self.logged.insert(entry);
        }
        let mut next = Some(ino);
        let mut steps = 0;
        while let Some(inode) = next {
            self.logged.insert(inode);
            let has_changed = self.last.get(&inode).and_then(|last| last.beyond_times) >= Some(self.begin);
            // Of the directories above a file, the log has only the new ones.
            let is_new = self.created.get(&inode) >= Some(&self.begin.max(self.journal));
            if has_changed && (inode == ino || is_new) {
                self.surely_logged.insert(inode, at);
            }
            let own = self.own_names(inode);
            let lasting = self.lasting_names(inode, &own);
            if inode == ino || is_new {
                own.iter().for_each(|at| self.take_along(*at));
                for removal in own.iter().copied().filter(|at| self.is_removal(*at)).collect::<Vec<_>>() {
                    self.may_log(removal);
                }
                self.fade(inode);
                if lasting.iter().any(|at| self.events[*at].action.exchanges()) {
                    self.created.get(&inode).copied().into_iter().for_each(|at| self.mark(at));
                }
                lasting.into_iter().for_each(|at| self.mark(at));
            }
            next = self.parents.get(&inode).copied();
            steps += 1;
            // A directory that was moved below itself would be a damaged recording.
            if steps > DEPTH_MAX {
                return;
            }
        }
    }

    /// True if an inode has not changed since it was logged. An fsync logs nothing then, and none of the
    /// directories above.
    fn is_as_logged(&self, ino: Ino) -> bool {
        let Some(logged) = self.surely_logged.get(&ino) else { return false };
        let last = self.last.get(&ino).copied().unwrap_or_default();
        [last.of_size, last.beyond_times, last.of_data].into_iter().flatten().all(|change| change < *logged)
    }

    /// The changes of an inode's own names that are not durable.
    fn own_names(&mut self, inode: Ino) -> Vec<usize> {
        let Some(open) = self.open_of.get_mut(&inode) else { return Vec::new() };
        open.retain(|at| self.open.contains(at));
        let is_own = |at: &usize| match &self.events[*at].action {
            Action::Rename { ino, replaced, exchanged: true, .. } => {
                *ino == inode || *replaced == Some(inode)
            }
            action => action.is_of_names() && action.ino() == Some(inode),
        };
        open.iter().copied().filter(is_own).collect()
    }

    /// Of the changes of an inode's own names, those that the log surely has: it may keep a name that the file
    /// has lost.
    fn lasting_names(&self, inode: Ino, own: &[usize]) -> Vec<usize> {
        let between = self.between.get(&inode).map_or(&[][..], Vec::as_slice);
        let is_between =
            |at: &usize| self.fading.contains_key(at) || between.iter().any(|(given, _)| given == at);
        let lasts = |at: &usize| !self.is_removal(*at) && !is_between(at) && !self.is_replaced(*at);
        let mut lasting: Vec<usize> = own.iter().copied().filter(lasts).collect();
        if self.is_tangled {
            let present = self.names_of.get(&inode).map_or(&[][..], Vec::as_slice);
            let is_last = |at: &usize| own.last() == Some(at) && self.events[*at].action.exchanges();
            lasting.retain(|at| present.contains(at) || is_last(at));
        }
        lasting
    }

    /// True for the removal of a name.
    fn is_removal(&self, at: usize) -> bool {
        matches!(self.events[at].action, Action::Unlink { .. })
    }

    /// The new entries of a directory: an fsync takes them along, as they are. If one is a directory, the log may
    /// have its new entries too.
    fn new_entries(&mut self, dir: Ino) -> HashSet<Ino> {
        let (mut entries, mut todo) = (HashSet::new(), vec![dir]);
        while let Some(above) = todo.pop() {
            for at in self.open_of.get(&above).cloned().unwrap_or_default() {
                let given = entries_given(&self.events[at].action).into_iter();
                let own: Vec<Ino> =
                    given.filter(|(parent, _)| *parent == above).map(|(_, ino)| ino).collect();
                if above != dir && !own.is_empty() {
                    self.may_log(at);
                }
                let new: Vec<Ino> = own.into_iter().filter(|ino| entries.insert(*ino)).collect();
                todo.extend(new.into_iter().filter(|ino| self.directories.contains(ino)));
            }
        }
        entries
    }

    /// The log may have a change without those before it.
    pub(super) fn may_log(&mut self, at: usize) {
        if let Some(logged @ Logged::No) = self.names_logged.get_mut(&at) {
            *logged = Logged::Perhaps;
        }
    }

    /// A logged name takes the attributes and the size of its file along.
    fn take_attributes(&mut self, ino: Ino) {
        let own = || self.open_of.get(&ino).into_iter().flatten().map(|at| (*at, &self.events[*at].action));
        let size = own().filter_map(|(_, action)| action.size_after()).next_back();
        for (change, action) in own().filter(|(_, action)| !action.is_of_names() && !action.is_write()) {
            self.names_logged.insert(change, Logged::Perhaps);
            if let (Action::Truncate { from, to, .. }, Some(size)) = (action, size)
                && (to + 1..*from).contains(&size)
            {
                self.cut.insert(change, size);
            }
        }
    }

    /// A name that goes into the log may take along how the last file lost it.
    fn take_name(&mut self, at: usize) {
        let Some((dir, name)) = self.given(at) else { return };
        let changes = self.names.get(&(dir, name.clone())).into_iter().flatten();
        let last = changes.copied().rfind(|change| *change < at);
        last.into_iter().for_each(|last| self.may_log(last));
    }

    /// If a file has got or lost a name, the directories of its other names may be logged too, with their new
    /// entries.
    fn take_along(&mut self, at: usize) {
        let (ino, left) = match &self.events[at].action {
            Action::Rename { ino, parent, .. } | Action::Unlink { ino, parent, .. } => (*ino, Some(*parent)),
            Action::Link { ino, .. } => (*ino, None),
            _ => return,
        };
        let names = self.names_of.get(&ino).into_iter().flatten();
        let dirs = names.filter_map(|given| self.given(*given)).map(|(dir, _)| dir);
        let dirs: HashSet<Ino> = dirs.chain(left).collect();
        for dir in dirs {
            let changes = self.open_of.get(&dir).into_iter().flatten().copied();
            let entries = changes.filter(|at| self.given(*at).is_some_and(|(parent, _)| parent == dir));
            for at in entries.collect::<Vec<_>>() {
                self.may_log(at);
                self.events[at].action.ino().into_iter().for_each(|ino| self.take_attributes(ino));
            }
        }
    }

    /// A name goes into the log with how the files before lost it. Returns the changes of these that are durable
    /// with it.
    pub(super) fn take_names(&mut self, at: usize, taken: Vec<usize>) -> Vec<usize> {
        let mut durable = Vec::new();
        for change in taken.into_iter().filter(|change| self.open.contains(change)).collect::<Vec<_>>() {
            let action = &self.events[change].action;
            let is_removal = self.is_removal(change);
            match action {
                Action::Rename { ino, to, .. } if self.is_below_new(*to) || self.is_nowhere(*ino) => {
                    self.left.insert(change);
                }
                _ => durable.push(change),
            }
            if is_removal || self.left.contains(&change) {
                self.removed.entry(at).or_default().push(change);
            }
            // A file that was renamed is logged with the names that it has now.
            let own = action.ino().and_then(|ino| self.open_of.get(&ino)).into_iter().flatten().copied();
            let own = own.filter(|own| self.events[*own].action.ino() == action.ino());
            own.collect::<Vec<_>>().into_iter().for_each(|at| self.may_log(at));
            if let Some(ino) = action.ino() {
                self.take_attributes(ino);
                self.fade(ino);
            }
        }
        durable
    }

    /// A new file loses a name to another one: if it is there, it has the name that a link gave it.
    pub(super) fn keep_links_of_replaced(&mut self, at: usize) {
        let gone = match &self.events[at].action {
            Action::Rename { replaced, exchanged: false, .. } => *replaced,
            Action::Unlink { ino, .. } => Some(*ino),
            _ => None,
        };
        let Some(ino) = gone.filter(|ino| self.is_open_creation(*ino)) else { return };
        let is_link =
            |link: &&usize| **link < at && matches!(self.events[**link].action, Action::Link { .. });
        let link = self.open_of.get(&ino).into_iter().flatten().rfind(is_link);
        self.passing.extend(self.created.get(&ino).copied().zip(link.copied()));
    }

    /// True for an inode that the program has made, if its creation is not durable.
    pub(super) fn is_open_creation(&self, ino: Ino) -> bool {
        self.created.get(&ino).is_some_and(|created| self.open.contains(created))
    }

    /// True if an inode has no name any more.
    fn is_nowhere(&self, ino: Ino) -> bool {
        self.names_of.get(&ino).is_some_and(Vec::is_empty)
    }

    /// True if a directory, or one above it, is new and not in the log.
    fn is_below_new(&self, dir: Ino) -> bool {
        let mut above = std::iter::successors(Some(dir), |dir| self.parents.get(dir).copied());
        above.by_ref().take(DEPTH_MAX).any(|dir| self.is_open_creation(dir))
    }

    /// True if a change takes the name away that a rename or link before has given.
    fn takes_back(&self, at: usize, before: usize) -> bool {
        let can_fade = matches!(
            self.events[before].action,
            Action::Create { .. } | Action::Link { .. } | Action::Rename { exchanged: false, .. }
        );
        match &self.events[at].action {
            Action::Rename { parent, name, exchanged: false, .. } | Action::Unlink { parent, name, .. } => {
                can_fade && self.given(before) == Some((*parent, name))
            }
            _ => false,
        }
    }

    /// True if another file has got the name that a change gave.
    fn is_replaced(&self, at: usize) -> bool {
        let Some((dir, name)) = self.given(at) else { return false };
        let last = self.names.get(&(dir, name.clone())).and_then(|changes| changes.last());
        let owner = match last.map(|last| &self.events[*last].action) {
            Some(Action::Rename { parent, name: old, ino, replaced, exchanged: true, .. }) => {
                if (*parent, old) == (dir, name) { *replaced } else { Some(*ino) }
            }
            last => last.and_then(Action::ino),
        };
        owner.is_some_and(|owner| self.events[at].action.ino() != Some(owner))
    }

    /// The name that a change gives to its file.
    pub(super) fn given(&self, at: usize) -> Option<(Ino, &'a Name)> {
        match &self.events[at].action {
            Action::Unlink { .. } => None,
            action => action.names().last().copied(),
        }
    }

    /// A durable change gives a name, so no other file has it. Returns the changes that took it away from
    /// files that durably had it.
    pub(super) fn clear(&mut self, at: usize, name: (Ino, &Name)) -> Vec<usize> {
        if self.passing.len() > 2 * self.open.len() {
            self.passing = self.passing().into_iter().collect();
        }
        let Some(changes) = self.names.get_mut(&(name.0, name.1.clone())) else { return Vec::new() };
        let count = changes.partition_point(|change| *change < at);
        let (mut owner, mut taken) = (None, Vec::new());
        for change in changes.drain(..count).collect::<Vec<usize>>() {
            match owner {
                Some(give) if self.open.contains(&give) => drop(self.passing.insert(give, change)),
                Some(_) => {
                    // The removal of the name is durable. The rest of a rename need not be.
                    if self.open.contains(&change) && self.given(change) == Some(name) {
                        self.halve(change);
                    }
                    taken.push(change);
                }
                None => {}
            }
            owner = (self.given(change) == Some(name)).then_some(change);
        }
        taken
    }

    /// Only the directory with the new name of a rename is logged.
    pub(super) fn halve(&mut self, at: usize) {
        if self.may_link(at) && !self.events[at].action.exchanges() {
            self.halves.insert(at);
        }
    }

    /// Changes of names that may have left no trace if another one survives.
    pub fn fading(&self) -> &BTreeMap<usize, usize> {
        &self.fading
    }

    /// Pairs of changes. The second one can't be lost without the first one.
    pub fn passing(&self) -> Vec<(usize, usize)> {
        let pairs = self.passing.iter().map(|(give, change)| (*give, *change));
        pairs.filter(|(give, change)| self.open.contains(give) && self.open.contains(change)).collect()
    }
}

/// The inodes to which a change gives a name, each with the directory.
fn entries_given(action: &Action) -> Vec<(Ino, Ino)> {
    match action {
        Action::Rename { parent, to, ino, replaced: Some(other), exchanged: true, .. } => {
            vec![(*to, *ino), (*parent, *other)]
        }
        Action::Rename { to: dir, ino, .. }
        | Action::Create { parent: dir, ino, .. }
        | Action::Link { parent: dir, ino, .. } => vec![(*dir, *ino)],
        _ => Vec::new(),
    }
}
