//! The most synced files, with their paths.

use crate::commands::explain::{BUSIEST, Busiest, BusyFile};
use crate::failure::Failure;
use crate::printed::one_line;
use serde::Serialize;
use std::cmp::Reverse;
use std::io::ErrorKind;
use std::path::Path;
use syncline_fuse::control::{self, ControlError};

/// How many files get their path looked up: as many as fit on a large page.
const NAMED_MAX: usize = 32;

/// The sort order of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// Most syncs first.
    Syncs,
    /// Most time in them first.
    Time,
    /// The longest sync first.
    Longest,
    /// Most bytes written by them first.
    Bytes,
}

impl Sort {
    /// In the order in which a key cycles through them.
    pub const ALL: [Self; 4] = [Self::Syncs, Self::Time, Self::Longest, Self::Bytes];

    /// The heading of its column.
    pub fn column(self) -> &'static str {
        match self {
            Self::Syncs => "syncs",
            Self::Time => "mean",
            Self::Longest => "longest",
            Self::Bytes => "written",
        }
    }
}

/// The files of an interval.
#[derive(Debug, Serialize)]
pub struct Files {
    /// Why there are none, if they were refused.
    pub refused: Option<&'static str>,
    /// Their sort order.
    pub sort: Sort,
    /// Receipts that were pushed out before they could be examined.
    pub missed: u64,
    /// The files.
    pub list: Vec<NamedFile>,
    /// The newest receipt that was seen.
    #[serde(skip)]
    serial: u64,
}

/// A file and its path.
#[derive(Debug, Serialize)]
pub struct NamedFile {
    /// One of its paths, if it has any.
    pub path: Option<String>,
    /// The totals of its syncs.
    #[serde(flatten)]
    pub busy: BusyFile,
}

impl Files {
    /// Starts empty: only later syncs count.
    pub fn new(directory: &Path) -> Result<Self, Failure> {
        let mut files = Self { refused: None, sort: Sort::Syncs, missed: 0, list: Vec::new(), serial: 0 };
        if let Some(busiest) = files.ask(directory)? {
            files.serial = busiest.serial;
        }
        Ok(files)
    }

    /// Replaces the list with the files synced since the last time.
    pub fn renew(&mut self, directory: &Path) -> Result<(), Failure> {
        if self.refused.is_some() {
            return Ok(());
        }
        let Some(busiest) = self.ask(directory)? else { return Ok(()) };
        self.serial = busiest.serial;
        self.missed = busiest.missed;
        self.list = busiest.files.into_iter().map(|busy| NamedFile { path: None, busy }).collect();
        self.sort_by(self.sort);
        for file in self.list.iter_mut().take(NAMED_MAX) {
            file.path = path_of(directory, file.busy.inode);
        }
        Ok(())
    }

    /// Sorts again.
    pub fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.list.sort_by_key(|NamedFile { busy, .. }| {
            let value = match sort {
                Sort::Syncs => busy.syncs,
                Sort::Time => busy.total_ns,
                Sort::Longest => busy.max_ns,
                Sort::Bytes => busy.bytes,
            };
            (Reverse(value), busy.inode)
        });
    }

    fn ask(&mut self, directory: &Path) -> Result<Option<Busiest>, Failure> {
        match control::text(directory, &format!("{BUSIEST}:{}", self.serial)) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| Failure::new(format!("the daemon's answer makes no sense: {error}"))),
            Err(ControlError::Failed { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                self.refused = Some("only root and the mount's owner may see the files");
                Ok(None)
            }
            Err(ControlError::Unknown { .. }) => {
                self.refused = Some("the daemon is too old to tell");
                Ok(None)
            }
            // The next sample reports the reason.
            Err(_) => Ok(None),
        }
    }
}

/// One path of an inode, if it has a name and the image keeps them.
fn path_of(directory: &Path, inode: u64) -> Option<String> {
    let paths = control::paths(directory, inode).ok()?;
    Some(one_line(String::from_utf8_lossy(paths.first()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_by_what_was_chosen() {
        let file = |inode, syncs, total_ns, max_ns, bytes| NamedFile {
            path: None,
            busy: BusyFile { inode, syncs, elided: 0, total_ns, max_ns, bytes },
        };
        let list = vec![file(1, 9, 1, 2, 3), file(2, 1, 9, 3, 2), file(3, 2, 2, 9, 1), file(4, 3, 3, 1, 9)];
        let mut files = Files { refused: None, sort: Sort::Syncs, missed: 0, list, serial: 0 };
        for (sort, first) in Sort::ALL.into_iter().zip([1, 2, 3, 4]) {
            files.sort_by(sort);
            assert_eq!(files.list[0].busy.inode, first, "{sort:?}");
        }
    }
}
