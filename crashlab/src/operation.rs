//! The operations of a program in words, and the fate of each in a power cut.

use crate::action::{Action, Event, Ino};
use crate::history::{History, Paths, describe};
use crate::model::Part;
use crate::state::State;
use crate::symbols::{Frame, Symbols};
use std::collections::{HashMap, HashSet};

/// A kind of event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// The program begins or ends.
    Border,
    /// A change of files.
    Change,
    /// An fsync, fdatasync or sync.
    Sync,
    /// A printed line.
    Printed,
}

/// An event in words.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    /// Its place among the events of the recording.
    pub at: usize,
    /// Its number, counted from the program's first.
    pub number: usize,
    /// Nanoseconds since the program began.
    pub time_ns: u64,
    /// The process, or zero where the kernel acts on its own.
    pub pid: u32,
    /// The program that it runs.
    pub program: Option<&'a str>,
    /// Its kind.
    pub sort: Sort,
    /// The inode that the operation changes or syncs.
    pub ino: Option<Ino>,
    /// The operation in words: `write data, 10 bytes at 0`.
    pub what: String,
    /// The stack of the thread that did it, or zero.
    pub stack: u32,
}

/// All operations of a program, in order.
pub struct Operations<'a> {
    /// From the beginning of the program on.
    pub list: Vec<Operation<'a>>,
    /// One process did everything.
    pub is_alone: bool,
    symbols: Symbols<'a>,
}

impl<'a> Operations<'a> {
    /// The operations of a recording.
    pub fn new(history: &'a History) -> Self {
        let (events, begin) = (history.events(), history.recording.begin);
        let start = events.get(begin.saturating_sub(1)).map_or(0, |event| event.time_ns);
        let mut paths = Paths::default();
        let mut programs = HashMap::new();
        let mut list = Vec::with_capacity(events.len().saturating_sub(begin) + 1);
        for (at, event) in events.iter().enumerate() {
            programs.extend(event.program.as_deref().map(|program| (event.pid, program)));
            if at + 1 >= begin && (at >= begin || event.action == Action::Begin) {
                list.push(Operation {
                    at,
                    number: at + 1 - begin,
                    time_ns: event.time_ns.saturating_sub(start),
                    pid: event.pid,
                    program: programs.get(&event.pid).copied(),
                    sort: Sort::of(&event.action),
                    ino: event.action.ino(),
                    // Before the event: an unlinked file still has its name.
                    what: describe(event, &paths),
                    stack: event.stack,
                });
            }
            paths.add(&event.action);
        }
        let processes: HashSet<u32> = list.iter().map(|one| one.pid).filter(|pid| *pid != 0).collect();
        let symbols = Symbols::new(&history.recording.stacks);
        Self { list, is_alone: processes.len() < 2, symbols }
    }

    /// Those before a power cut after so many events of the recording, and the others.
    pub fn until(&self, position: usize) -> (&[Operation<'a>], &[Operation<'a>]) {
        self.list.split_at(self.list.partition_point(|one| one.at < position))
    }

    /// The last operation before a power cut after so many events of the recording.
    pub fn before(&self, position: usize) -> Option<&Operation<'a>> {
        self.until(position).0.last()
    }

    /// The operation at a place among the events of the recording.
    pub fn at(&self, at: usize) -> Option<&Operation<'a>> {
        let first = self.list.first()?.at;
        self.list.get(at.checked_sub(first)?)
    }

    /// The function of the program that did it.
    pub fn frame(&self, operation: &Operation<'_>) -> Option<Frame> {
        self.symbols.frame(operation.stack)
    }

    /// The functions that led to it, from the innermost outwards.
    pub fn frames(&self, operation: &Operation<'_>) -> Vec<Frame> {
        self.symbols.frames(operation.stack)
    }

    /// The different programs, by name.
    pub fn programs(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.list.iter().filter_map(|one| one.program) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl Operation<'_> {
    /// The process and its program.
    pub fn process(&self) -> String {
        match self.program {
            Some(program) => format!("{program}, process {}", self.pid),
            None if self.pid == 0 => "the kernel".to_owned(),
            None => format!("process {}", self.pid),
        }
    }
}

impl Sort {
    fn of(action: &Action) -> Self {
        match action {
            Action::Begin | Action::End { .. } => Self::Border,
            Action::Sync { .. } | Action::SyncAll | Action::SyncRange { .. } => Self::Sync,
            Action::Printed(_) => Self::Printed,
            _ => Self::Change,
        }
    }
}

/// The fate of an operation in a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The change is lost.
    Lost,
    /// Only this part of the change is there.
    Torn(Part),
    /// The change is there.
    There,
    /// The operation came before the power cut, and changed no file: a sync, or a printed line.
    Before,
    /// The power failed before the operation.
    NotYet,
}

impl Fate {
    /// The fate of the event at this place.
    pub fn of(state: &State, at: usize, event: &Event) -> Self {
        match state.lost.get(&at) {
            _ if at >= state.position => Self::NotYet,
            Some(None) => Self::Lost,
            Some(Some(part)) => Self::Torn(*part),
            None if event.action.is_change() => Self::There,
            None => Self::Before,
        }
    }

    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Torn(_) => "torn",
            Self::There => "there",
            Self::Before => "before",
            Self::NotYet => "not yet",
        }
    }

    /// The change, or some of it, is not there though it was done.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::Lost | Self::Torn(_))
    }

    /// Which part of a torn change is there.
    pub fn detail(self, action: &Action) -> Option<String> {
        let Self::Torn(part) = self else { return None };
        Some(match part {
            Part::Before(size) if !action.is_write() => {
                format!("the file is left with {size} bytes, which are old")
            }
            Part::Before(offset) => format!("only the bytes before {offset} are there"),
            Part::From(offset) => format!("only the bytes from {offset} on are there"),
            Part::Slice { from, before, .. } if !action.is_write() => {
                format!("only zeros from {from} to {before} are there, and the old size")
            }
            Part::Slice { from, before, size } => {
                format!("only the bytes from {from} to {before} are there, and the size is {size}")
            }
            Part::Without { from, before, size } => {
                let end = size.map_or(String::new(), |size| format!(", and those from {size} on"));
                format!("the bytes from {from} to {before} are missing{end}")
            }
            Part::Unlinked => "what had the new name has lost it, and nothing has it".to_owned(),
            Part::Left => "it has lost the old name, and has not got the new one".to_owned(),
            Part::Unnamed => "it has never had this name".to_owned(),
            Part::Linked => "both names are there".to_owned(),
            Part::Size => "only the new size is there, with zeros".to_owned(),
        })
    }
}
