//! One step of a program, or one look of it or of a witness.

use super::model::Model;
use syncline_fs::types::Ino;
use syncline_sim::model::Place;

/// Letters that say how a file is opened.
pub type How = &'static str;

/// A range of an open file.
#[derive(Clone, Debug)]
pub struct Part {
    pub slot: u64,
    pub offset: u64,
    pub len: usize,
}

#[derive(Clone, Debug)]
pub enum Step {
    Create {
        slot: u64,
        at: Place,
        how: How,
    },
    Open {
        slot: u64,
        at: Place,
        how: How,
    },
    Close(u64),
    /// Has the kernel drop the pages of a file that are clean.
    Drop(u64),
    Write(Part, u64),
    Map {
        slot: u64,
        len: u64,
    },
    /// Stores through the mapping.
    Store(Part, u64),
    Msync(u64),
    Unmap(u64),
    Allocate {
        part: Part,
        mode: u32,
    },
    Copy {
        from: Part,
        to: u64,
        to_at: u64,
    },
    Truncate {
        slot: u64,
        size: u64,
    },
    Rename {
        from: Place,
        to: Place,
    },
    Exchange {
        from: Place,
        to: Place,
    },
    Link {
        from: Place,
        to: Place,
    },
    Unlink(Place),
    Mkdir(Place),
    Rmdir(Place),
    Chmod {
        at: Place,
        mode: u16,
    },
    Times {
        at: Place,
        seconds: i64,
    },
    Sync {
        slot: u64,
        data_only: bool,
    },
    SyncDirectory(Ino),
    // Steps that the test asks the daemon for.
    SyncAll,
    Snapshot(String),
    /// While the program counts, in data and in names.
    SnapshotMeanwhile(String),
    Quota {
        dir: Ino,
        on: bool,
    },
    Grow(u64),
    /// Looks.
    Read(Part),
    /// Through the mapping.
    Load(Part),
    Seek(u64),
    List {
        dir: Ino,
        again: bool,
    },
    Stat(Place),
    ReadWhole(Place),
    /// Up to the size that stat(2) tells.
    MapWhole(Place),
    /// A third process begins or ends to list everything again and again.
    Spin(bool),
}

/// The process that makes a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    Program,
    /// Looks only.
    Witness,
    Lister,
    /// The test itself, over the control channel.
    Owner,
}

impl Step {
    /// The line that tells a worker what to do, or names what the owner does.
    pub fn line(&self, model: &Model) -> String {
        let path = |at: &Place| model.path(at);
        let part = |part: &Part| format!("{} {} {}", part.slot, part.offset, part.len);
        match self {
            Self::Create { slot, at, how } => format!("create {slot} {} {how}", path(at)),
            Self::Open { slot, at, how } => format!("open {slot} {} {how}", path(at)),
            Self::Close(slot) => format!("close {slot}"),
            Self::Drop(slot) => format!("drop {slot}"),
            Self::Write(range, tag) => format!("write {} {tag}", part(range)),
            Self::Map { slot, len } => format!("map {slot} {len}"),
            Self::Store(range, tag) => format!("store {} {tag}", part(range)),
            Self::Msync(slot) => format!("msync {slot}"),
            Self::Unmap(slot) => format!("unmap {slot}"),
            Self::Allocate { part: range, mode } => format!("allocate {} {mode}", part(range)),
            Self::Copy { from, to, to_at } => {
                format!("copy {} {} {to} {to_at} {}", from.slot, from.offset, from.len)
            }
            Self::Truncate { slot, size } => format!("truncate {slot} {size}"),
            Self::Rename { from, to } => format!("rename {} {}", path(from), path(to)),
            Self::Exchange { from, to } => format!("exchange {} {}", path(from), path(to)),
            Self::Link { from, to } => format!("link {} {}", path(from), path(to)),
            Self::Unlink(at) => format!("unlink {}", path(at)),
            Self::Mkdir(at) => format!("mkdir {}", path(at)),
            Self::Rmdir(at) => format!("rmdir {}", path(at)),
            Self::Chmod { at, mode } => format!("chmod {} {mode}", path(at)),
            Self::Times { at, seconds } => format!("times {} {seconds}", path(at)),
            Self::Sync { slot, data_only: false } => format!("fsync {slot}"),
            Self::Sync { slot, .. } => format!("fdatasync {slot}"),
            Self::SyncDirectory(dir) => format!("syncdir {}", model.path_of(*dir)),
            Self::SyncAll => "(sync of everything)".into(),
            Self::Snapshot(name) => format!("(snapshot {name})"),
            Self::SnapshotMeanwhile(name) => format!("(snapshot {name}, while the program counts)"),
            Self::Quota { dir, on } => format!("(quota of {}: {on})", model.path_of(*dir)),
            Self::Grow(size) => format!("(grow to {size})"),
            Self::Read(range) => format!("read {}", part(range)),
            Self::Load(range) => format!("load {}", part(range)),
            Self::Seek(slot) => format!("seek {slot}"),
            Self::List { dir, again: false } => format!("list {}", model.path_of(*dir)),
            Self::List { dir, .. } => format!("relist {}", model.path_of(*dir)),
            Self::Stat(at) => format!("stat {}", path(at)),
            Self::ReadWhole(at) => format!("readpath {}", path(at)),
            Self::MapWhole(at) => format!("mappath {}", path(at)),
            Self::Spin(true) => "spin .".into(),
            Self::Spin(false) => "rest".into(),
        }
    }

    /// True for a step that any process can make which only looks.
    pub fn is_for_witnesses(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Stat(_) | Self::ReadWhole(_) | Self::MapWhole(_))
    }

    /// True for steps that the test itself asks the daemon for.
    pub fn is_for_owner(&self) -> bool {
        matches!(
            self,
            Self::SyncAll
                | Self::Snapshot(_)
                | Self::SnapshotMeanwhile(_)
                | Self::Quota { .. }
                | Self::Grow(_)
        )
    }
}
