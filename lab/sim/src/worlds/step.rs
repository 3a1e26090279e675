//! The elements of workloads: changes and syncs on named paths, each with a form that can be
//! printed and parsed.

use super::feature::{self, Feature};
use crate::model::RenameKind;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use syncline_fs::Allocation;
use syncline_fs::Durability;
use syncline_fs::types::Algorithm;

/// The forms of fallocate, by their names in workloads.
const ALLOCATIONS: &[(&str, Allocation)] = &[
    ("preallocate", Allocation::Preallocate { keep_size: false }),
    ("preallocate-beyond", Allocation::Preallocate { keep_size: true }),
    ("punch", Allocation::PunchHole),
    ("zero", Allocation::ZeroRange { keep_size: false }),
    ("zero-inside", Allocation::ZeroRange { keep_size: true }),
    ("collapse", Allocation::CollapseRange),
    ("insert", Allocation::InsertRange),
    ("unshare", Allocation::UnshareRange { keep_size: false }),
];

/// Seconds of class `ordered`: less than an idle time.
const ORDERED: u8 = 3;

/// A path in the small filesystem, without a leading slash; empty for the root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Arc<str>);

impl Path {
    /// Makes a path from a string.
    pub fn new(path: &str) -> Self {
        Self(path.into())
    }

    /// The parent directory.
    pub fn parent(&self) -> Self {
        Self::new(self.0.rsplit_once('/').map_or("", |(parent, _)| parent))
    }

    /// The last name.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// The names in the path, starting at the root.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "/" } else { &self.0 })
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One call that changes something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Create an empty file.
    Create(Path),
    /// Create a directory.
    Mkdir(Path),
    /// Create a symlink whose target has this many bytes.
    Symlink(Path, usize),
    /// Create a file without a name, write this many bytes, then link it.
    Publish(Path, usize),
    /// Add a second name to a file.
    Link(Path, Path),
    /// Remove a name of a file.
    Unlink(Path),
    /// Remove an empty directory.
    Rmdir(Path),
    /// Rename.
    Rename(Path, Path, RenameKind),
    /// Write data at an offset: path, offset, length.
    Write(Path, u64, usize),
    /// Write data at an offset in a transaction of two writes, after a sync of everything: path,
    /// offset, length.
    Transaction(Path, u64, usize),
    /// Append data: path, length.
    Append(Path, usize),
    /// Set a new size.
    Truncate(Path, u64),
    /// Set an xattr: path, name, length of the value.
    SetXattr(Path, Path, usize),
    /// Remove an xattr.
    RemoveXattr(Path, Path),
    /// Set permissions.
    Chmod(Path, u16),
    /// Copy a whole file over the beginning of another, by copy_file_range.
    Copy(Path, Path),
    /// Change the allocation of a range by fallocate: path, how, offset, length.
    Allocate(Path, Allocation, u64, u64),
    /// A feature that is not in POSIX.
    Feature(Feature),
}

/// An operation as a user sees it; some take several calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// One call.
    One(Step),
    /// Open with O_CREAT and write: path, offset, length.
    Put(Path, u64, usize),
    /// Write a new file beside this one and rename it over it: path, length.
    ReplaceByRename(Path, usize),
    /// Open with O_CREAT and copy a whole file into it.
    Copy(Path, Path),
    /// Open with O_CREAT, turn on compression, and write: path, how, offset, length.
    Pack(Path, Algorithm, u64, usize),
    /// Open with O_CREAT, give it class `ordered`, and write: path, offset, length.
    Order(Path, u64, usize),
}

/// A persistence point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Persist {
    /// None.
    Nothing,
    /// fsync of a file or a directory.
    Fsync(Path),
    /// fdatasync of a file.
    Fdatasync(Path),
    /// Two files in one sync (promise P6).
    SyncMany(Path, Path),
    /// syncfs: all data, and a checkpoint.
    Syncfs,
    /// A checkpoint of the store, which does not include data that was never submitted.
    Checkpoint,
    /// A checkpoint starts together with the next operation and is not waited for.
    CheckpointBegun,
    /// No call, but time passes: background work happens, and none of it is promised.
    Idle,
}

/// Operations, each followed by a persistence point.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload(pub Vec<(Op, Persist)>);

impl Op {
    /// The calls it takes, depending on whether its path exists.
    pub fn steps(&self, exists: bool) -> Vec<Step> {
        match self {
            Self::One(step) => vec![step.clone()],
            Self::Put(path, offset, len) => {
                let write = Step::Write(path.clone(), *offset, *len);
                if exists { vec![write] } else { vec![Step::Create(path.clone()), write] }
            }
            Self::Copy(from, to) => {
                let copy = Step::Copy(from.clone(), to.clone());
                if exists { vec![copy] } else { vec![Step::Create(to.clone()), copy] }
            }
            Self::Pack(path, how, offset, len) => {
                let compress = Step::Feature(Feature::Compress(path.clone(), Some(*how)));
                let create = (!exists).then(|| Step::Create(path.clone()));
                create.into_iter().chain([compress, Step::Write(path.clone(), *offset, *len)]).collect()
            }
            Self::Order(path, offset, len) => {
                let class = Step::Feature(Feature::Class(path.clone(), Some(Durability::Ordered(ORDERED))));
                let create = (!exists).then(|| Step::Create(path.clone()));
                create.into_iter().chain([class, Step::Write(path.clone(), *offset, *len)]).collect()
            }
            Self::ReplaceByRename(path, len) => {
                let beside = Path::new(&format!("{path}.new"));
                vec![
                    Step::Create(beside.clone()),
                    Step::Write(beside.clone(), 0, *len),
                    Step::Rename(beside, path.clone(), RenameKind::Replace),
                ]
            }
        }
    }

    /// The path whose existence decides which calls are made.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Put(path, ..) | Self::Copy(_, path) | Self::Pack(path, ..) | Self::Order(path, ..) => {
                Some(path)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(path) => write!(f, "create {path}"),
            Self::Mkdir(path) => write!(f, "mkdir {path}"),
            Self::Symlink(path, len) => write!(f, "symlink {path} {len}"),
            Self::Publish(path, len) => write!(f, "publish {path} {len}"),
            Self::Link(from, to) => write!(f, "link {from} {to}"),
            Self::Unlink(path) => write!(f, "unlink {path}"),
            Self::Rmdir(path) => write!(f, "rmdir {path}"),
            Self::Rename(from, to, RenameKind::Replace) => write!(f, "rename {from} {to}"),
            Self::Rename(from, to, RenameKind::NoReplace) => write!(f, "rename-noreplace {from} {to}"),
            Self::Rename(from, to, RenameKind::Exchange) => write!(f, "exchange {from} {to}"),
            Self::Write(path, offset, len) => write!(f, "pwrite {path} {offset} {len}"),
            Self::Transaction(path, offset, len) => write!(f, "transaction {path} {offset} {len}"),
            Self::Append(path, len) => write!(f, "append {path} {len}"),
            Self::Truncate(path, size) => write!(f, "truncate {path} {size}"),
            Self::SetXattr(path, name, len) => write!(f, "setxattr {path} {name} {len}"),
            Self::RemoveXattr(path, name) => write!(f, "removexattr {path} {name}"),
            Self::Chmod(path, mode) => write!(f, "chmod {path} {mode:o}"),
            Self::Copy(from, to) => write!(f, "copy-range {from} {to}"),
            Self::Allocate(path, what, offset, len) => {
                let name = ALLOCATIONS.iter().find(|(_, known)| known == what).map_or("?", |(name, _)| name);
                write!(f, "{name} {path} {offset} {len}")
            }
            Self::Feature(feature) => feature.fmt(f),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(step) => step.fmt(f),
            Self::Put(path, offset, len) => write!(f, "write {path} {offset} {len}"),
            Self::ReplaceByRename(path, len) => write!(f, "replace {path} {len}"),
            Self::Copy(from, to) => write!(f, "copy {from} {to}"),
            Self::Pack(path, how, offset, len) => {
                write!(f, "pack {path} {} {offset} {len}", feature::name_of(Some(*how)))
            }
            Self::Order(path, offset, len) => write!(f, "order {path} {offset} {len}"),
        }
    }
}

impl fmt::Display for Persist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "-"),
            Self::Fsync(path) => write!(f, "fsync {path}"),
            Self::Fdatasync(path) => write!(f, "fdatasync {path}"),
            Self::SyncMany(one, other) => write!(f, "fsync2 {one} {other}"),
            Self::Syncfs => write!(f, "syncfs"),
            Self::Checkpoint => write!(f, "checkpoint"),
            Self::CheckpointBegun => write!(f, "checkpoint&"),
            Self::Idle => write!(f, "idle"),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(op, persist)| format!("{op}; {persist}")).collect();
        f.write_str(&parts.join("; "))
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(';').map(str::trim).filter(|part| !part.is_empty()).collect();
        if !parts.len().is_multiple_of(2) {
            return Err("each operation is followed by a persistence point, or by '-'".to_owned());
        }
        let pairs = parts.chunks(2).map(|pair| Ok((parse_op(pair[0])?, parse_persist(pair[1])?)));
        pairs.collect::<Result<_, String>>().map(Self)
    }
}

pub(super) fn path(word: &str) -> Path {
    Path::new(word.trim_matches('/'))
}

pub(super) fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is not a number"))
}

fn parse_op(text: &str) -> Result<Op, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let step = match words[..] {
        ["create", at] => Step::Create(path(at)),
        ["mkdir", at] => Step::Mkdir(path(at)),
        ["symlink", at, len] => Step::Symlink(path(at), number(len)?),
        ["publish", at, len] => Step::Publish(path(at), number(len)?),
        ["link", from, to] => Step::Link(path(from), path(to)),
        ["unlink", at] => Step::Unlink(path(at)),
        ["rmdir", at] => Step::Rmdir(path(at)),
        ["rename", from, to] => Step::Rename(path(from), path(to), RenameKind::Replace),
        ["rename-noreplace", from, to] => Step::Rename(path(from), path(to), RenameKind::NoReplace),
        ["exchange", from, to] => Step::Rename(path(from), path(to), RenameKind::Exchange),
        ["pwrite", at, offset, len] => Step::Write(path(at), number(offset)?, number(len)?),
        ["transaction", at, offset, len] => Step::Transaction(path(at), number(offset)?, number(len)?),
        ["append", at, len] => Step::Append(path(at), number(len)?),
        ["truncate", at, size] => Step::Truncate(path(at), number(size)?),
        ["setxattr", at, name, len] => Step::SetXattr(path(at), path(name), number(len)?),
        ["removexattr", at, name] => Step::RemoveXattr(path(at), path(name)),
        ["chmod", at, mode] => {
            let mode = u16::from_str_radix(mode, 8).map_err(|_| format!("{mode:?} is no octal mode"))?;
            Step::Chmod(path(at), mode)
        }
        ["copy-range", from, to] => Step::Copy(path(from), path(to)),
        [how, at, offset, len] if ALLOCATIONS.iter().any(|(name, _)| *name == how) => {
            let (_, what) = ALLOCATIONS.iter().find(|(name, _)| *name == how).expect("was found just now");
            Step::Allocate(path(at), *what, number(offset)?, number(len)?)
        }
        ["pack", at, how, offset, len] => {
            let how = feature::algorithm(how)?.ok_or_else(|| format!("{text:?} packs nothing"))?;
            return Ok(Op::Pack(path(at), how, number(offset)?, number(len)?));
        }
        ["order", at, offset, len] => {
            return Ok(Op::Order(path(at), number(offset)?, number(len)?));
        }
        ["copy", from, to] => return Ok(Op::Copy(path(from), path(to))),
        ["write", at, offset, len] => return Ok(Op::Put(path(at), number(offset)?, number(len)?)),
        ["replace", at, len] => return Ok(Op::ReplaceByRename(path(at), number(len)?)),
        _ => match feature::parse(&words)? {
            Some(feature) => Step::Feature(feature),
            None => return Err(format!("{text:?} is not an operation")),
        },
    };
    Ok(Op::One(step))
}

fn parse_persist(text: &str) -> Result<Persist, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["-"] => Ok(Persist::Nothing),
        ["fsync", at] => Ok(Persist::Fsync(path(at))),
        ["fdatasync", at] => Ok(Persist::Fdatasync(path(at))),
        ["fsync2", one, other] => Ok(Persist::SyncMany(path(one), path(other))),
        ["syncfs"] => Ok(Persist::Syncfs),
        ["checkpoint"] => Ok(Persist::Checkpoint),
        ["checkpoint&"] => Ok(Persist::CheckpointBegun),
        ["idle"] => Ok(Persist::Idle),
        _ => Err(format!("{text:?} is not a persistence point")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_workload_is_refused() {
        for text in ["create", "create A/foo", "create A/foo; sync", "write A/foo x 1; -", "chmod A 9; -"] {
            assert!(text.parse::<Workload>().is_err(), "{text}");
        }
        assert_eq!("".parse::<Workload>().unwrap(), Workload::default());
    }

    #[test]
    fn a_write_creates_what_is_missing() {
        let put = Op::Put(Path::new("B/foo"), 0, 10);
        assert_eq!(put.steps(true).len(), 1);
        assert_eq!(put.steps(false)[0], Step::Create(Path::new("B/foo")));
    }
}
