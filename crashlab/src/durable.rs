//! What the syncs of a program have made durable, by the rules of a model.

mod log;
mod tangle;

use crate::action::{Action, Event, Ino, Name, What};
use crate::blocks::BLOCK_BYTES;
use crate::model::{Logged, Model, NameOrder, Part, Reach, Skips};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;

pub use tangle::Named;
use tangle::Names;

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
    /// Inodes that are directories.
    directories: HashSet<Ino>,
    /// A directory was moved, or names exchanged, since the last sync of everything.
    is_tangled: bool,
    /// The names, if there is a log of names.
    tree: Names,
    /// The directory of each inode.
    parents: HashMap<Ino, Ino>,
    /// The latest changes of each name.
    names: HashMap<(Ino, Name), Vec<usize>>,
    /// A change that gives a file a name, and the later change that takes the name away again. If the later
    /// one survives, the first one may have left no trace.
    fading: BTreeMap<usize, usize>,
    /// For each inode that is not in the log, the pairs of changes that begin to fade when it is logged.
    between: HashMap<Ino, Vec<(usize, usize)>>,
    /// Renames of which only the loss of the old name is durable.
    left: HashSet<usize>,
    /// For a change that gives a name, the removals of that name from other files that are durable with it.
    removed: HashMap<usize, Vec<usize>>,
    /// The changes that have given each inode its present names, if there is a log of names.
    names_of: HashMap<Ino, Vec<usize>>,
    /// Changes that give a name in a directory, after an fsync of that directory.
    in_directory: HashSet<usize>,
    /// Inodes that were synced, and the directories above them.
    logged: HashSet<Ino>,
    /// The synced inodes that had changes to log, each with the last sync that logged it.
    surely_logged: HashMap<Ino, usize>,
    /// The last sync of a file or directory.
    last_sync: usize,
    /// For each change of names, whether the filesystem logs it.
    names_logged: HashMap<usize, Logged>,
    /// Renames over what is in the log, of what is not.
    unlinks: HashSet<usize>,
    /// Renames of which the new name is durable, and not yet the loss of the old one.
    halves: HashSet<usize>,
    /// Writes of which the blocks and the size are durable, and not yet the data.
    sized: HashSet<usize>,
    /// Truncates in the log that may have left their file with this size, which it got later.
    cut: HashMap<usize, u64>,
    /// A change that gives a name, and the later change that takes it away again, of a name that is durably
    /// another file's now. The later change can't be lost alone.
    passing: BTreeMap<usize, usize>,
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
            directories: HashSet::new(),
            is_tangled: false,
            tree: Names::default(),
            parents: HashMap::new(),
            names: HashMap::new(),
            fading: BTreeMap::new(),
            left: HashSet::new(),
            removed: HashMap::new(),
            between: HashMap::new(),
            names_of: HashMap::new(),
            in_directory: HashSet::new(),
            logged: HashSet::new(),
            surely_logged: HashMap::new(),
            last_sync: 0,
            names_logged: HashMap::new(),
            halves: HashSet::new(),
            sized: HashSet::new(),
            cut: HashMap::new(),
            passing: BTreeMap::new(),
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
        let logged = self.names_logged.get(&at).copied().unwrap_or_default();
        let is_free = self.is_tangled && self.events[at].action.is_of_names();
        match logged {
            // Without an fsync after it, only a commit has it.
            Logged::No if is_free && at < self.last_sync => Logged::Freely,
            Logged::Perhaps if is_free => Logged::Freely,
            logged => logged,
        }
    }

    /// True for a rename that may leave [`Part::Unlinked`].
    pub fn may_unlink(&self, at: usize) -> bool {
        self.unlinks.contains(&at) && self.open.contains(&at)
    }

    /// True for a rename that leaves [`Part::Left`] if it is lost.
    pub fn is_left(&self, at: usize) -> bool {
        self.left.contains(&at) && self.open.contains(&at)
    }

    /// True for a rename that may leave [`Part::Linked`]: a directory has one name.
    pub fn may_link(&self, at: usize) -> bool {
        let action = &self.events[at].action;
        self.model.allows(action, Part::Linked)
            && action.ino().is_some_and(|ino| !self.directories.contains(&ino))
    }

    /// True for a rename of which only the new name is durable.
    pub fn is_half(&self, at: usize) -> bool {
        self.halves.contains(&at)
    }

    /// True for a write that can lose its data only: its blocks and its size are durable.
    pub fn is_sized(&self, at: usize) -> bool {
        self.sized.contains(&at)
    }

    /// The size with which a truncate may leave its file instead of its own.
    pub fn cut(&self, at: usize) -> Option<u64> {
        self.cut.get(&at).copied().filter(|_| self.open.contains(&at))
    }

    /// The changes that a power cut here may take away, as a whole or at least in part.
    pub fn open(&self) -> Vec<usize> {
        let mut open: Vec<usize> =
            self.open.iter().chain(&self.halves).chain(self.fading.keys()).copied().collect();
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
            if logged != Logged::No {
                self.logged.extend(ino);
            }
            // A new file is logged with the name that it gets.
            let created = ino.filter(|_| logged != Logged::No).and_then(|ino| self.created.get(&ino));
            created.copied().into_iter().for_each(|at| self.may_log(at));
            if let Action::Rename { replaced: Some(other), exchanged: false, .. } = action {
                self.replaced(at, action, *other);
            }
        }
        if let Action::Create { ino, what, .. } = action {
            self.created.insert(*ino, at);
            if *what == What::Directory {
                self.directories.insert(*ino);
            }
        }
        match action {
            Action::Create { parent, ino, .. } | Action::Link { parent, ino, .. } => {
                self.parents.insert(*ino, *parent);
            }
            Action::Rename { parent, to, ino, replaced, exchanged, .. } => {
                self.parents.insert(*ino, *to);
                self.parents.extend(replaced.filter(|_| *exchanged).map(|other| (other, *parent)));
            }
            _ => {}
        }
        let of_size = action.extends()
            || matches!(action, Action::Create { .. } | Action::Truncate { .. } | Action::Zero { .. });
        let mut dirs: Vec<Ino> = action.names().iter().map(|(dir, _)| *dir).collect();
        dirs.dedup();
        let other = match action {
            Action::Rename { replaced, exchanged: true, .. } => *replaced,
            _ => None,
        };
        let is_of_directory = self.model.exchange_is_of_directory
            && matches!(action, Action::Rename { parent, to, exchanged: true, .. } if parent == to);
        for (inode, of_size) in ino
            .into_iter()
            .chain(other)
            .filter(|_| !is_of_directory)
            .map(|ino| (ino, of_size))
            .chain(dirs.into_iter().map(|dir| (dir, true)))
        {
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
        if self.model.logs_names && action.is_of_names() {
            self.name_changed(at, ino.unwrap_or_default());
            self.note_names(at, action);
        }
    }

    fn everything(&mut self, before: usize) {
        self.open.clear();
        self.is_tangled = false;
        self.logged.clear();
        self.surely_logged.clear();
        self.journal = before;
        self.halves.clear();
        self.sized.clear();
        self.cut.clear();
        self.passing.clear();
        self.fading.clear();
        self.left.clear();
        self.removed.clear();
        self.between.clear();
        self.in_directory.clear();
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
        self.last_sync = at;
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
            Reach::Log => self.log(at, ino),
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
            if self.model.logs_names && self.given(at).is_some_and(|(dir, _)| dir == ino) {
                self.in_directory.insert(at);
                self.fading.remove(&at);
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
        let named = match action {
            // Btrfs logs the one file of an exchange, and perhaps not the other.
            Action::Rename { exchanged: true, .. } if self.model.logs_names => vec![],
            Action::Rename { ino, replaced: Some(other), exchanged: true, .. } => vec![*ino, *other],
            Action::Rename { ino, .. } | Action::Link { ino, .. } => vec![*ino],
            _ => vec![],
        };
        let mut needed: Vec<usize> = named.iter().filter_map(|ino| self.created.get(ino)).copied().collect();
        let gone = match action {
            Action::Rename { to, replaced, exchanged, .. } => {
                let mut directory = Some(*to);
                for _ in 0..DEPTH_MAX {
                    let Some(inode) = directory else { break };
                    needed.extend(self.created.get(&inode).copied());
                    let open = self.open_of.get(&inode).into_iter().flatten().copied();
                    // The log knows a directory by its inode, wherever that is.
                    let moves = |at: &usize| !self.model.logs_names && self.events[*at].action.moves(inode);
                    needed.extend(open.filter(moves));
                    directory = self.parents.get(&inode).copied();
                }
                replaced.filter(|_| !exchanged)
            }
            Action::Unlink { ino, .. } => Some(*ino),
            _ => None,
        };
        let gone = gone.filter(|_| !self.is_tangled);
        let left = gone.and_then(|ino| self.open_of.get(&ino)).into_iter().flatten().copied();
        // Btrfs logs nothing of the names that a file had before, and takes no name from one that has another;
        // a new file need not be there at all.
        let is_new = gone.is_some_and(|ino| self.is_open_creation(ino));
        let is_needed = |at: &usize| {
            let action = &self.events[*at].action;
            let names = action.names();
            match self.model.logs_names {
                true => {
                    let is_link = !is_new && matches!(action, Action::Link { .. });
                    is_link || names.iter().any(|(dir, _)| Some(*dir) == gone)
                }
                false => !names.is_empty(),
            }
        };
        needed.extend(left.filter(is_needed));
        needed.retain(|other| *other < at);
        needed
    }

    /// Marks a change, and everything without which it can't be.
    fn mark(&mut self, at: usize) {
        let mut todo = vec![at];
        while let Some(at) = todo.pop() {
            if self.open.remove(&at) {
                self.sized.remove(&at);
                let needed = self.needed_by(at);
                todo.extend(needed);
            }
        }
    }

    /// The changes without which this one can't be durable.
    fn needed_by(&mut self, at: usize) -> Vec<usize> {
        let action = &self.events[at].action;
        let mut needed = self.needed_by_names(at);
        // Replay makes room for a tangled name.
        if self.model.logs_names && !self.is_tangled {
            // The log does not have the first name of a file that has another one by then.
            let is_unnamed = matches!(action, Action::Create { .. }) && self.fading.contains_key(&at);
            let name = self.given(at).filter(|_| !is_unnamed);
            let taken = name.map_or_else(Vec::new, |name| self.clear(at, name));
            needed.extend(self.take_names(at, taken));
            needed.extend(self.passing.remove(&at));
            self.keep_links_of_replaced(at);
        } else if !self.model.logs_names {
            for (dir, name) in action.names() {
                let Some(changes) = self.names.get_mut(&(dir, name.clone())) else { continue };
                let count = changes.partition_point(|change| *change <= at);
                needed.extend(changes.drain(..count).filter(|change| *change != at));
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
        let data = action.ino().filter(|_| with_data).and_then(|ino| self.open_of.get(&ino));
        let is_data = |other: &usize| {
            let action = &self.events[*other].action;
            let waits = self.model.rename_waits_for_all_data() || action.needs_blocks();
            *other < at && action.is_write() && waits && self.open.contains(other)
        };
        let data: Vec<usize> = data.into_iter().flatten().copied().filter(is_data).collect();
        match self.model.names {
            NameOrder::Replacing => self.sized.extend(data),
            _ => needed.extend(data),
        }
        needed
    }
}
