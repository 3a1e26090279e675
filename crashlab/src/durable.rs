//! What the syncs of a program have made durable, by the rules of a model.

use crate::action::{Action, Event, Ino, Name};
use crate::blocks::BLOCK_BYTES;
use crate::model::{Logged, Model, NameOrder, Part, Reach, Skips};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;

/// The deepest directory.
const DEPTH_MAX: usize = 4096;

/// The last changes of an inode.
#[derive(Clone, Copy, Default)]
struct LastChange {
    /// Of its size or of the entries of a directory, or its creation.
    of_size: Option<usize>,
    /// More than times, which a write within the file changes.
    beyond_times: Option<usize>,
    /// A write.
    of_data: Option<usize>,
}

impl LastChange {
    /// The last one that an fsync, or an fdatasync, may not leave out. Times are left out by both: if the
    /// kernel's clock has not ticked since the change before, a write within the file changes none.
    fn needed(&self, data_only: bool, skips: Skips) -> Option<usize> {
        match (data_only, skips) {
            (true, Skips::Attributes) => self.of_size,
            (false, _) | (true, Skips::Times) => self.beyond_times,
        }
    }
}

/// Walks over the events of a program, and knows which changes are durable.
pub struct Durable<'a> {
    model: &'a Model,
    events: &'a [Event],
    begin: usize,
    position: usize,
    /// Changes that are not durable.
    open: BTreeSet<usize>,
    /// Changes of an inode that are not durable yet; of a directory, also those of its entries.
    open_of: HashMap<Ino, Vec<usize>>,
    last: HashMap<Ino, LastChange>,
    /// Every change of names and attributes before this event is durable.
    journal: usize,
    /// The creation of each inode by the program.
    created: HashMap<Ino, usize>,
    /// The directory of each inode.
    parents: HashMap<Ino, Ino>,
    /// The latest changes of each name.
    names: HashMap<(Ino, Name), Vec<usize>>,
    /// Inodes that were synced, and the directories above them.
    logged: HashSet<Ino>,
    /// The synced inodes that had changes to log.
    surely_logged: HashSet<Ino>,
    /// For each change of names, whether the filesystem logs it.
    names_logged: HashMap<usize, Logged>,
    /// Renames over what is in the log, of what is not.
    unlinks: HashSet<usize>,
    /// Renames of which the new name is durable, and not yet the loss of the old one.
    halves: HashSet<usize>,
    /// A change that gives a name and the one that takes it away again: the name is durably another file's.
    passing: Vec<(usize, usize)>,
    /// What each sync_file_range has written, in order.
    ranges: VecDeque<(usize, Vec<usize>)>,
    /// What the last syncs of everything have left in the disk's cache.
    cached: Vec<usize>,
}

impl<'a> Durable<'a> {
    /// Nothing but what was there before the program.
    pub fn new(model: &'a Model, events: &'a [Event], begin: usize) -> Self {
        Self {
            model,
            events,
            begin,
            position: 0,
            open: BTreeSet::new(),
            open_of: HashMap::new(),
            last: HashMap::new(),
            journal: 0,
            created: HashMap::new(),
            parents: HashMap::new(),
            names: HashMap::new(),
            logged: HashSet::new(),
            surely_logged: HashSet::new(),
            names_logged: HashMap::new(),
            halves: HashSet::new(),
            passing: Vec::new(),
            unlinks: HashSet::new(),
            ranges: VecDeque::new(),
            cached: Vec::new(),
        }
    }

    /// Walks to the power cut after `position` events.
    pub fn advance(&mut self, position: usize) {
        while self.position < position {
            let at = self.position;
            self.position += 1;
            match &self.events[at].action {
                Action::Sync { ino, data_only } => self.synced(at, *ino, *data_only),
                Action::SyncAll => self.all_synced(at),
                Action::SyncRange { ino, offset, len } => self.written(at, *ino, *offset..offset + len),
                action if action.is_change() => self.changed(at, action),
                _ => {}
            }
        }
    }

    /// True if the change at `at` is durable, as a whole or in part.
    pub fn is(&self, at: usize) -> bool {
        !self.open.contains(&at)
    }

    /// How the filesystem logs the change at `at`.
    pub fn logged(&self, at: usize) -> Logged {
        self.names_logged.get(&at).copied().unwrap_or_default()
    }

    /// True for a rename that may leave [`Part::Unlinked`].
    pub fn may_unlink(&self, at: usize) -> bool {
        self.unlinks.contains(&at) && self.open.contains(&at)
    }

    /// True for a rename of which only the new name is durable.
    pub fn is_half(&self, at: usize) -> bool {
        self.halves.contains(&at)
    }

    /// Pairs of changes of which the second one can't be lost without the first one.
    pub fn passing(&self) -> Vec<(usize, usize)> {
        let is_open = |at: &usize| self.open.contains(at);
        self.passing.iter().filter(|(give, change)| is_open(give) && is_open(change)).copied().collect()
    }

    /// The changes that a power cut here may take away, as a whole or at least in part.
    pub fn open(&self) -> Vec<usize> {
        let mut open: Vec<usize> = self.open.iter().chain(&self.halves).copied().collect();
        open.sort_unstable();
        open.dedup();
        open
    }

    fn changed(&mut self, at: usize, action: &Action) {
        if at >= self.begin {
            self.open.insert(at);
        }
        let ino = action.ino();
        if self.model.logs_names {
            let logged = self.logged_as(action);
            self.names_logged.insert(at, logged);
            if let Action::Rename { replaced: Some(replaced), exchanged: false, .. } = action
                && logged != Logged::Yes
                && self.logged.contains(replaced)
            {
                self.unlinks.insert(at);
            }
        }
        if let Action::Create { ino, .. } = action {
            self.created.insert(*ino, at);
        }
        match action {
            Action::Create { parent, ino, .. } | Action::Link { parent, ino, .. } => {
                self.parents.insert(*ino, *parent);
            }
            Action::Rename { to, ino, .. } => {
                self.parents.insert(*ino, *to);
            }
            _ => {}
        }
        let of_size = action.extends()
            || matches!(action, Action::Create { .. } | Action::Truncate { .. } | Action::Zero { .. });
        let mut dirs: Vec<Ino> = action.names().iter().map(|(dir, _)| *dir).collect();
        dirs.dedup();
        let own = ino.map(|ino| (ino, of_size));
        for (inode, of_size) in own.into_iter().chain(dirs.into_iter().map(|dir| (dir, true))) {
            let last = self.last.entry(inode).or_default();
            last.of_size = if of_size { Some(at) } else { last.of_size };
            last.beyond_times = if of_size || !action.is_write() { Some(at) } else { last.beyond_times };
            last.of_data = if action.is_write() { Some(at) } else { last.of_data };
            if at >= self.begin {
                self.open_of.entry(inode).or_default().push(at);
            }
        }
        for (dir, name) in action.names() {
            self.names.entry((dir, name.clone())).or_default().push(at);
        }
    }

    /// Logged is another or no name of an inode that is in the log, and perhaps the name that a directory in
    /// the log loses.
    fn logged_as(&self, action: &Action) -> Logged {
        let is_in_log = |ino: &Ino| self.logged.contains(ino);
        match action {
            Action::Link { ino, .. } | Action::Unlink { ino, .. } | Action::Rename { ino, .. }
                if is_in_log(ino) =>
            {
                if self.surely_logged.contains(ino) {
                    Logged::Yes
                } else {
                    Logged::Perhaps
                }
            }
            Action::Unlink { parent, .. } | Action::Rename { parent, .. } if is_in_log(parent) => {
                Logged::Perhaps
            }
            _ => Logged::No,
        }
    }

    fn everything(&mut self, before: usize) {
        self.open.clear();
        self.journal = before;
        self.halves.clear();
        self.open_of.clear();
        self.ranges.clear();
    }

    fn all_synced(&mut self, at: usize) {
        let is_left = |at: &usize| {
            let action = &self.events[*at].action;
            self.model.sync_leaves_cached && action.is_write() && !action.extends()
        };
        let left: Vec<usize> = self.open.iter().copied().filter(is_left).collect();
        self.everything(at);
        self.open.extend(&left);
        self.cached = left;
    }

    /// All pages of this range are on the disk, and the changes of the journal that lead to them are in memory.
    fn written(&mut self, at: usize, ino: Ino, range: Range<u64>) {
        if !self.model.ranges_in_journal {
            return;
        }
        let pages = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let is_written = |at: &usize| {
            let (action, blocks) = (&self.events[*at].action, self.events[*at].action.blocks());
            action.is_write() && pages.start <= blocks.start && blocks.end <= pages.end
        };
        let open = self.open_of.get(&ino).into_iter().flatten().copied();
        self.ranges.push_back((at, open.filter(is_written).collect()));
    }

    fn synced(&mut self, at: usize, ino: Ino, data_only: bool) {
        let events = self.events;
        for cached in std::mem::take(&mut self.cached) {
            self.mark(cached);
        }
        self.halves.retain(|at| match &events[*at].action {
            Action::Rename { parent, ino: renamed, .. } => *parent != ino && *renamed != ino,
            _ => false,
        });
        let changes = self.last.get(&ino).copied().unwrap_or_default();
        let end = |last: Option<usize>| last.map_or(0, |last| last + 1);
        let last = end(changes.needed(data_only, self.model.fdatasync));
        match self.model.reach {
            Reach::Everything => self.everything_up_to(last.max(end(changes.of_data))),
            Reach::Inode => {}
            Reach::Journal => self.journal_up_to(last),
            Reach::Names if data_only && self.model.names != NameOrder::All => self.journal_up_to(last),
            // ZFS keeps attributes and sizes of other files for the next transaction group.
            Reach::Names if self.model.names == NameOrder::All => self.names_up_to(at),
            Reach::Names => self.journal_up_to(at),
            Reach::Log => self.log(ino),
        }
        let open = self.open_of.remove(&ino).unwrap_or_default();
        let (own, left): (Vec<usize>, Vec<usize>) =
            open.into_iter().partition(|at| self.is_synced_with(*at, ino, data_only));
        for at in own {
            if self.open.contains(&at)
                && self.events[at].action.names().last().is_some_and(|(dir, _)| *dir == ino)
            {
                self.halve(at);
            }
            self.mark(at);
        }
        let left: Vec<usize> = left.into_iter().filter(|at| self.open.contains(at)).collect();
        if !left.is_empty() {
            self.open_of.insert(ino, left);
        }
    }

    /// True if an fsync of `ino` makes this change durable whatever the model.
    fn is_synced_with(&self, at: usize, ino: Ino, data_only: bool) -> bool {
        let action = &self.events[at].action;
        match action {
            Action::Write { .. } | Action::Truncate { .. } | Action::Zero { .. } => true,
            Action::Attributes { .. } | Action::Xattr { .. } => {
                !data_only || self.model.fdatasync == Skips::Times
            }
            action => action.names().iter().any(|(dir, _)| *dir == ino),
        }
    }

    /// Every change of names and attributes before `end` is durable.
    fn journal_up_to(&mut self, end: usize) {
        for at in self.journal..end {
            let action = &self.events[at].action;
            if action.is_change() && !action.is_write() && !self.truncates_data(at) {
                self.mark(at);
            }
        }
        self.journal = self.journal.max(end);
        while self.ranges.front().is_some_and(|(at, _)| *at < end)
            && let Some((_, writes)) = self.ranges.pop_front()
        {
            writes.into_iter().for_each(|at| self.mark(at));
        }
    }

    /// True for a truncate that belongs to unsynced data before it.
    fn truncates_data(&self, at: usize) -> bool {
        let action = &self.events[at].action;
        let open = action.ino().and_then(|ino| self.open_of.get(&ino)).map_or(&[][..], Vec::as_slice);
        let is_open_write = |other: &usize| *other < at && self.events[*other].action.is_write();
        self.model.truncates_data && action.changes_size() && open.iter().any(is_open_write)
    }

    /// Every change before `end` is durable.
    fn everything_up_to(&mut self, end: usize) {
        for at in self.journal..end {
            if self.events[at].action.is_change() {
                self.mark(at);
            }
        }
        self.journal = self.journal.max(end);
    }

    /// Every change of names before `end` is durable.
    fn names_up_to(&mut self, end: usize) {
        for at in self.journal..end {
            if self.events[at].action.is_of_names() {
                self.mark(at);
            }
        }
        self.journal = self.journal.max(end);
    }

    /// The changes without which no filesystem has the name that the change at `at` gives or removes: the
    /// inode exists, a file moved into a directory that is there, and a directory was empty when it went.
    fn needed_by_names(&self, at: usize) -> Vec<usize> {
        let action = &self.events[at].action;
        let mut needed = Vec::new();
        let (given, gone) = match action {
            Action::Link { ino, .. } => (Some(*ino), None),
            Action::Rename { ino, to, replaced, exchanged, .. } => {
                let mut directory = Some(*to);
                for _ in 0..DEPTH_MAX {
                    let Some(inode) = directory else { break };
                    needed.extend(self.created.get(&inode).copied());
                    let open = self.open_of.get(&inode).into_iter().flatten().copied();
                    needed.extend(open.filter(|at| self.events[*at].action.moves(inode)));
                    directory = self.parents.get(&inode).copied();
                }
                (Some(*ino), replaced.filter(|_| !exchanged))
            }
            Action::Unlink { ino, .. } => (None, Some(*ino)),
            _ => (None, None),
        };
        needed.extend(given.and_then(|ino| self.created.get(&ino).copied()));
        let left = gone.and_then(|ino| self.open_of.get(&ino)).into_iter().flatten().copied();
        needed.extend(left.filter(|at| self.events[*at].action.is_of_names()));
        needed.retain(|other| *other < at);
        needed
    }

    /// The names of an inode, and those of the directories that lead to it, are durable.
    fn log(&mut self, ino: Ino) {
        self.passing = self.passing();
        // A directory takes its new entries along, as they are.
        let entries: Vec<Ino> = self
            .open_of
            .get(&ino)
            .into_iter()
            .flatten()
            .copied()
            .filter(|at| self.given(*at).is_some_and(|(dir, _)| dir == ino))
            .filter_map(|at| self.events[at].action.ino())
            .collect();
        for entry in &entries {
            let changes = self.open_of.get(entry).into_iter().flatten().copied();
            let attributes = changes
                .filter(|at| !self.events[*at].action.is_of_names() && !self.events[*at].action.is_write());
            self.names_logged.extend(attributes.map(|at| (at, Logged::Perhaps)).collect::<Vec<_>>());
        }
        self.logged.extend(entries);
        let mut next = Some(ino);
        let mut steps = 0;
        while let Some(inode) = next {
            self.logged.insert(inode);
            if self.last.get(&inode).and_then(|last| last.beyond_times).is_some_and(|at| at >= self.begin) {
                self.surely_logged.insert(inode);
            }
            let open = self.open_of.get(&inode).cloned().unwrap_or_default();
            let own = |at: &usize| {
                self.events[*at].action.is_of_names() && self.events[*at].action.ino() == Some(inode)
            };
            let own: Vec<usize> = open.into_iter().filter(own).collect();
            // The log has the last names, and no trace of those in between.
            let lasts = |at: &usize| own.iter().all(|later| later <= at || !self.takes_back(*later, *at));
            let lasting: Vec<usize> = own.iter().copied().filter(lasts).collect();
            lasting.into_iter().for_each(|at| self.mark(at));
            next = self.parents.get(&inode).copied();
            steps += 1;
            // A directory that was moved below itself would be a damaged recording.
            if steps > DEPTH_MAX {
                return;
            }
        }
    }

    /// True if a change takes the name away that a rename or link before has given.
    fn takes_back(&self, at: usize, before: usize) -> bool {
        let is_create = matches!(self.events[before].action, Action::Create { .. });
        match &self.events[at].action {
            Action::Rename { parent, name, exchanged: false, .. } | Action::Unlink { parent, name, .. } => {
                !is_create && self.given(before) == Some((*parent, name))
            }
            _ => false,
        }
    }

    /// The name that a change gives to its file.
    fn given(&self, at: usize) -> Option<(Ino, &'a Name)> {
        match &self.events[at].action {
            Action::Unlink { .. } => None,
            action => action.names().last().copied(),
        }
    }

    /// Marks a change that has given this name, or has taken it away: in the first case nothing more of it
    /// needs to be durable.
    fn mark_given(&mut self, at: usize, name: (Ino, &Name)) {
        if self.open.contains(&at) && self.events[at].action.names().last() == Some(&name) {
            self.halve(at);
        }
        self.mark(at);
    }

    /// A durable change gives a name, so no other file has it: whoever durably had it has lost it.
    fn clear(&mut self, at: usize, name: (Ino, &Name)) {
        let Some(changes) = self.names.get_mut(&(name.0, name.1.clone())) else { return };
        let count = changes.partition_point(|change| *change < at);
        let mut owner = None;
        for change in changes.drain(..count).collect::<Vec<usize>>() {
            match owner {
                Some(give) if self.open.contains(&give) => self.passing.push((give, change)),
                Some(_) => self.mark_given(change, name),
                None => {}
            }
            owner = (self.given(change) == Some(name)).then_some(change);
        }
    }

    /// Only the directory with the new name of a rename is logged.
    fn halve(&mut self, at: usize) {
        if self.model.allows(&self.events[at].action, Part::Linked) {
            self.halves.insert(at);
        }
    }

    /// Marks a change, and everything without which it can't be.
    fn mark(&mut self, at: usize) {
        if !self.open.remove(&at) {
            return;
        }
        let action = &self.events[at].action;
        let mut earlier = Vec::new();
        if self.model.logs_names {
            self.given(at).into_iter().for_each(|name| self.clear(at, name));
            earlier.extend(self.passing.iter().filter(|(give, _)| *give == at).map(|(_, change)| *change));
        } else {
            for (dir, name) in action.names() {
                let Some(changes) = self.names.get_mut(&(dir, name.clone())) else { continue };
                let count = changes.partition_point(|change| *change <= at);
                earlier.extend(changes.drain(..count).filter(|change| *change != at));
            }
        }
        let with_data = match action {
            Action::Rename { replaced, exchanged, .. } => match self.model.names {
                NameOrder::Replacing => replaced.is_some() && !exchanged,
                order => order == NameOrder::Naming,
            },
            Action::Link { .. } => self.model.names == NameOrder::Naming,
            _ => false,
        };
        let data: Vec<usize> = match action.ino().filter(|_| with_data) {
            Some(ino) => self.open_of.get(&ino).cloned().unwrap_or_default(),
            None => Vec::new(),
        };
        let is_data = |other: &usize| {
            let action = &self.events[*other].action;
            let waits = self.model.rename_waits_for_all_data() || action.needs_blocks();
            *other < at && action.is_write() && waits
        };
        let data: Vec<usize> = data.into_iter().filter(is_data).collect();
        let needed = self.needed_by_names(at);
        earlier.into_iter().chain(data).chain(needed).for_each(|at| self.mark(at));
    }
}
