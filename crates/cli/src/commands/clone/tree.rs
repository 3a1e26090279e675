//! Walks the tree and makes a copy of each entry.
//!
//! One call has the daemon copy many files of a directory. This program copies the files that the daemon refuses, with
//! several calls for each.
//!
//! Everything is created without permissions for others. A file gets its attributes when it is
//! complete; a directory when everything below it is done, because otherwise its times would
//! change, or a missing write permission would be in the way.

use super::attributes::{self, Attributes};
use super::{At, AtPath, Report};
use indicatif::ProgressBar;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, lstat, mknodat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use syncline_fuse::control;
use walkdir::WalkDir;

/// The most bytes requested in one call; the filesystem shares fewer at a time.
const CALL_BYTES_MAX: u64 = 1 << 30;
/// The most entries of a directory for which the daemon is asked at once.
const WAITING_MAX: usize = 256;

/// Makes `to` a copy of `from`.
pub(super) fn clone(from: &Path, to: &Path, report: &mut Report, bar: &ProgressBar) -> Result<(), At> {
    let device = lstat(from).at(from)?.st_dev;
    let mut cloner = Cloner { device, names: HashMap::new(), late: Vec::new(), is_asking: true, report };
    // Unfinished directories: those on the path to the current entry.
    let mut open: Vec<Directory> = Vec::new();
    let mut walk = WalkDir::new(from).follow_links(false).follow_root_links(false).into_iter();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Err(error) if error.depth() > 0 && error.io_error().is_some_and(is_gone) => {
                cloner.report.removed += 1;
                continue;
            }
            entry => entry.map_err(|error| walk_failed(from, error))?,
        };
        while open.len() > entry.depth() {
            cloner.close(open.pop())?;
        }
        // The kernel has these in its cache, but not the birth time, which the standard library asks for.
        let found = match lstat(entry.path()) {
            Err(Errno::NOENT) if entry.depth() > 0 => {
                cloner.report.removed += 1;
                if entry.file_type().is_dir() {
                    walk.skip_current_dir();
                }
                continue;
            }
            found => found.at(entry.path())?,
        };
        if found.st_dev != device {
            return Err(io::Error::from(Errno::XDEV)).at(entry.path());
        }
        let below = entry.path().strip_prefix(from).expect("a walk stays below its start");
        // Joining an empty path would add a slash.
        let place = if entry.depth() == 0 { to.to_owned() } else { to.join(below) };
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind.is_dir() {
            let read = entry.path().symlink_metadata().at(entry.path());
            let attributes = match read.and_then(|metadata| Attributes::read(entry.path(), &metadata)) {
                Err(At { source, .. }) if entry.depth() > 0 && is_gone(&source) => {
                    cloner.report.removed += 1;
                    walk.skip_current_dir();
                    continue;
                }
                attributes => attributes?,
            };
            fs::DirBuilder::new().mode(0o700).create(&place).at(&place)?;
            cloner.report.directories += 1;
            open.push(Directory { place, attributes, waiting: Vec::new(), has_clones: false });
        } else if let Some(directory) = open.last_mut().filter(|_| cloner.is_asking && found.st_nlink == 1) {
            directory.waiting.push(Waiting { from: entry.into_path(), ino: found.st_ino, kind });
            if directory.waiting.len() == WAITING_MAX {
                cloner.make_waiting(directory)?;
            }
        } else {
            cloner.one_if_there(entry.path(), place)?;
        }
        bar.inc(1);
    }
    for (place, attributes) in std::mem::take(&mut cloner.late) {
        attributes.give_flags(&place, cloner.report)?;
    }
    while !open.is_empty() {
        cloner.close(open.pop())?;
    }
    Ok(())
}

/// An unfinished directory of the copy.
struct Directory {
    place: PathBuf,
    attributes: Attributes,
    /// Entries that the daemon has not been asked for yet.
    waiting: Vec<Waiting>,
    /// The daemon has made some of its files.
    has_clones: bool,
}

/// An entry that has one name, and is no directory.
struct Waiting {
    from: PathBuf,
    ino: u64,
    kind: FileType,
}

impl Waiting {
    fn name(&self) -> &OsStr {
        self.from.file_name().expect("the entry of a directory has a name")
    }
}

fn is_gone(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::NOENT, Errno::STALE])
}

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn walk_failed(from: &Path, error: walkdir::Error) -> At {
    let path = error.path().unwrap_or(from).to_owned();
    At {
        path,
        source: error.into_io_error().unwrap_or_else(|| io::Error::other("the tree changes too fast")),
    }
}

struct Cloner<'a> {
    /// The filesystem of the original and the copy.
    device: u64,
    /// Where inodes with several names were copied to.
    names: HashMap<u64, PathBuf>,
    /// The first copies of these inodes, whose flags have to wait: an immutable file gets no
    /// further name.
    late: Vec<(PathBuf, Attributes)>,
    /// The daemon may be asked to copy files.
    is_asking: bool,
    report: &'a mut Report,
}

impl Cloner<'_> {
    /// Finishes a directory.
    fn close(&mut self, directory: Option<Directory>) -> Result<(), At> {
        let Some(mut directory) = directory else { return Ok(()) };
        self.make_waiting(&mut directory)?;
        let Directory { place, attributes, has_clones, .. } = directory;
        if has_clones {
            control::show_clones(&place).at(&place)?;
        }
        attributes.give(&place, self.report)
    }

    /// Clones the waiting entries of a directory.
    fn make_waiting(&mut self, directory: &mut Directory) -> Result<(), At> {
        let waiting = std::mem::take(&mut directory.waiting);
        let mut rest = &waiting[..];
        while let Some((entry, others)) = rest.split_first() {
            rest = if self.is_asking {
                self.ask(directory, rest)?
            } else {
                self.one_if_there(&entry.from, directory.place.join(entry.name()))?;
                others
            };
        }
        Ok(())
    }

    /// Has the daemon clone some of the entries, and returns the others.
    fn ask<'w>(&mut self, directory: &mut Directory, waiting: &'w [Waiting]) -> Result<&'w [Waiting], At> {
        let place = &directory.place;
        let folder = attributes::open(place, OFlags::RDONLY | OFlags::DIRECTORY).at(place)?;
        if fstat(&folder).at(place)?.st_dev != self.device {
            return Err(io::Error::from(Errno::XDEV)).at(place);
        }
        let files = waiting.iter().map(|entry| (entry.ino, entry.name()));
        let clones = match control::clone_files(&folder, files) {
            Ok(clones) => clones,
            // An older daemon, or a caller without the capabilities.
            Err(error) if is_one_of(&error, &[Errno::OPNOTSUPP, Errno::PERM]) => {
                self.is_asking = false;
                return Ok(waiting);
            }
            Err(error) => return Err(error).at(place),
        };
        let (made, rest) = waiting.split_at(clones.made.min(waiting.len()));
        directory.has_clones |= !made.is_empty();
        made.iter().for_each(|entry| self.report.count(entry.kind));
        self.report.bytes += clones.bytes;
        let Some((entry, others)) = rest.split_first() else { return Ok(rest) };
        // Another file may have replaced this one since the walk found it. The path leads to the new file.
        let step_by_step = [Errno::OPNOTSUPP, Errno::NOENT, Errno::STALE];
        let copy = place.join(entry.name());
        match clones.error {
            None if !made.is_empty() => Ok(rest),
            Some(error) if !is_one_of(&error, &step_by_step) => Err(error).at(&copy),
            _ => {
                self.one_if_there(&entry.from, copy)?;
                Ok(others)
            }
        }
    }

    /// Clones anything but a directory, unless it has been removed meanwhile.
    fn one_if_there(&mut self, from: &Path, place: PathBuf) -> Result<(), At> {
        match self.one(from, place) {
            Err(At { path, source }) if path == from && is_gone(&source) => {
                self.report.removed += 1;
                Ok(())
            }
            done => done,
        }
    }

    fn one(&mut self, from: &Path, place: PathBuf) -> Result<(), At> {
        let metadata = from.symlink_metadata().at(from)?;
        if metadata.nlink() > 1 {
            if let Some(first) = self.names.get(&metadata.ino()) {
                fs::hard_link(first, &place).at(&place)?;
                self.report.links += 1;
                return Ok(());
            }
            self.names.insert(metadata.ino(), place.clone());
        }
        let attributes = Attributes::read(from, &metadata)?;
        let file_type = FileType::from_raw_mode(metadata.mode());
        match file_type {
            FileType::RegularFile => {
                self.report.bytes += share(from, &place)?;
            }
            FileType::Symlink => {
                symlink(fs::read_link(from).at(from)?, &place).at(&place)?;
            }
            _ => {
                mknodat(CWD, &place, file_type, Mode::RUSR | Mode::WUSR, metadata.rdev()).at(&place)?;
            }
        }
        self.report.count(file_type);
        if metadata.nlink() == 1 {
            return attributes.give(&place, self.report);
        }
        attributes.give_all_but_flags(&place, self.report)?;
        self.late.push((place, attributes));
        Ok(())
    }
}

/// Makes a file that shares the blocks of another, including holes; returns its size.
fn share(from: &Path, place: &Path) -> Result<u64, At> {
    let source = attributes::open(from, OFlags::RDONLY).at(from)?;
    let copy = File::options().write(true).create_new(true).mode_for_owner().open(place).at(place)?;
    let shared = share_all(from, &source, place, &copy);
    if shared.is_err() {
        // Half a file helps nobody; if it can't be removed, the failure tells that it is there.
        let _ = fs::remove_file(place);
    }
    shared
}

/// Shares everything from the start to the end.
fn share_all(from: &Path, source: &File, place: &Path, copy: &File) -> Result<u64, At> {
    let size = source.metadata().at(from)?.len();
    let (mut from_at, mut to_at) = (0, 0);
    while from_at < size {
        let len = (size - from_at).min(CALL_BYTES_MAX) as usize;
        let copied = rustix::fs::copy_file_range(source, Some(&mut from_at), copy, Some(&mut to_at), len);
        match copied {
            // The source was truncated meanwhile.
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).at(from),
        }
    }
    // A hole at the end is not copied as data, so set the size.
    if to_at < size && from_at >= size {
        copy.set_len(size).at(place)?;
    }
    Ok(to_at)
}

/// Makes new files accessible only to their creator until they have their owner.
trait ModeForOwner {
    fn mode_for_owner(&mut self) -> &mut Self;
}

impl ModeForOwner for fs::OpenOptions {
    fn mode_for_owner(&mut self) -> &mut Self {
        std::os::unix::fs::OpenOptionsExt::mode(self, 0o600)
    }
}
