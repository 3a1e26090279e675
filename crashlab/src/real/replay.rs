//! Does the operations of a recording again on a real filesystem, with weather in between, and notes
//! where in the disk's log each of them ended.

use super::disk::Access;
use super::{Machine, Mounted};
use crate::Error;
use crate::action::{Action, Event, Ino, Name, ROOT, What};
use crate::contents::Contents;
use crate::export::export;
use crate::history::{History, describe};
use crate::kernel::write_range;
use crate::state::State;
use crate::tree::join;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags,
};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a write-back that was begun may take before the next operation.
const WRITE_BACK: Duration = Duration::from_millis(2);
/// Longer than the time after which a filesystem with `commit=1` writes.
const COMMIT: Duration = Duration::from_millis(1200);
/// The weather of a longer program is that of one with so many events.
const WEATHER_EVENTS: usize = 2_000;
/// A file outside the program's tree.
const OTHER: &str = "other";

/// The disk's log of a replayed program.
pub struct Run {
    /// The disk before the program.
    pub base: Contents,
    /// What the disk was asked for.
    pub log: Vec<Access>,
    /// For each event of the program the length of the log when it had ended.
    marks: Vec<usize>,
    begin: usize,
}

impl Run {
    /// Events that had happened before a power cut after so many accesses.
    pub fn position(&self, accesses: usize) -> usize {
        self.begin + self.marks.partition_point(|mark| *mark <= accesses)
    }
}

/// A replay of a recording.
pub struct Replay<'a> {
    /// The program.
    pub history: &'a History,
    /// Decides the weather.
    pub seed: u64,
    /// Ends it early.
    pub stop: &'a AtomicBool,
}

impl Replay<'_> {
    /// Does it on this machine.
    pub fn run(&self, machine: &Machine) -> Result<Run, Error> {
        machine.renew()?;
        let mounted = machine.mount()?;
        let run = self.run_in(machine, &mounted);
        mounted.leave()?;
        run
    }

    fn run_in(&self, machine: &Machine, mounted: &Mounted<'_>) -> Result<Run, Error> {
        let begin = self.history.recording.begin;
        let failed = |error| Error::file(mounted.path(), error);
        fs::create_dir(mounted.files()).map_err(failed)?;
        let start = State { position: begin, lost: BTreeMap::new() };
        export(&self.history.tree(&start)?, &mounted.files())?;
        let other = File::create(mounted.path().join(OTHER)).map_err(failed)?;
        rustix::fs::syncfs(&other).map_err(|error| failed(error.into()))?;
        let (base, mut marks) = (machine.disk.start_log(), Vec::new());
        let mut files = Files::new(self.history, mounted.files());
        let mut weather = Weather {
            rng: ChaCha8Rng::seed_from_u64(self.seed),
            other,
            other_bytes: 0,
            thinned_by: 1.max((self.history.events().len() - begin) / WEATHER_EVENTS) as u32,
            commits_by_time: machine.filesystem.commits_by_time,
        };
        let mut paths = self.history.paths(begin);
        for event in &self.history.events()[begin..] {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let bytes = self.history.recording.bytes(&event.action)?;
            files.act(event, &bytes).map_err(|error| {
                let what = describe(event, &paths);
                Error::Stopped(format!(
                    "{what}: {error} on {}, and not when it was recorded",
                    machine.filesystem.name
                ))
            })?;
            paths.add(&event.action);
            marks.push(machine.disk.log_len());
            weather.pass(&mut files).map_err(failed)?;
        }
        weather.end(&mut files).map_err(failed)?;
        Ok(Run { base, log: machine.disk.take_log(), marks, begin })
    }
}

/// What happens beside the program, as it does on every machine, at other times on each.
struct Weather {
    rng: ChaCha8Rng,
    /// Somebody else's file.
    other: File,
    other_bytes: u64,
    /// Of so many operations, one has weather behind it.
    thinned_by: u32,
    commits_by_time: bool,
}

impl Weather {
    /// Between two operations.
    fn pass(&mut self, files: &mut Files) -> io::Result<()> {
        match self.rng.random_range(0..200 * self.thinned_by) {
            0..40 => self.write_back(files),
            40..64 => self.others_fsync()?,
            64..84 => drop(self.any(files).and_then(|ino| files.open.remove(&ino))),
            84..90 => std::thread::sleep(WRITE_BACK),
            90 if self.commits_by_time => std::thread::sleep(COMMIT),
            _ => {}
        }
        Ok(())
    }

    /// After the last operation: what is left is written in some order.
    fn end(&mut self, files: &mut Files) -> io::Result<()> {
        for _ in 0..3 {
            match self.rng.random_bool(0.5) {
                true => self.write_back(files),
                false => self.others_fsync()?,
            }
        }
        rustix::fs::syncfs(&self.other)?;
        Ok(())
    }

    /// An open file.
    fn any(&mut self, files: &Files) -> Option<Ino> {
        let mut open: Vec<Ino> = files.open.keys().copied().collect();
        open.sort_unstable();
        open.into_iter().filter(|ino| files.names.contains_key(ino)).choose(&mut self.rng)
    }

    /// The kernel begins to write the data of a file, and nothing else.
    fn write_back(&mut self, files: &Files) {
        if let Some(file) = self.any(files).and_then(|ino| files.open.get(&ino)) {
            // It writes what it is to forget. A directory has nothing to write.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
            std::thread::sleep(WRITE_BACK);
        }
    }

    /// An fsync of somebody else's file takes the journal along.
    fn others_fsync(&mut self) -> io::Result<()> {
        self.other.write_all_at(b"other", self.other_bytes)?;
        self.other_bytes += 5;
        self.other.sync_all()
    }
}

/// The program's files: names and descriptors of its inodes.
struct Files {
    folder: PathBuf,
    names: HashMap<Ino, Vec<(Ino, Name)>>,
    open: HashMap<Ino, File>,
    /// The last event that needs the contents of an inode.
    needed: HashMap<Ino, usize>,
    at: usize,
}

impl Files {
    fn new(history: &History, folder: PathBuf) -> Self {
        let begin = history.recording.begin;
        let needs = |event: &Event| event.action.ino().filter(|_| !event.action.is_of_names());
        let needed = history.events().iter().enumerate();
        let needed = needed.filter_map(|(at, event)| needs(event).map(|ino| (ino, at))).collect();
        let (names, open) = (HashMap::new(), HashMap::new());
        let mut files = Self { folder, names, open, needed, at: begin };
        history.events()[..begin].iter().for_each(|event| files.name(&event.action));
        files
    }

    /// Follows the names.
    fn name(&mut self, action: &Action) {
        match action {
            Action::Create { parent, name, ino, .. } | Action::Link { ino, parent, name } => {
                self.names.entry(*ino).or_default().push((*parent, name.clone()));
            }
            Action::Unlink { parent, name, ino } => self.unname(*ino, *parent, name),
            Action::Rename { parent, name, to, to_name, ino, replaced, exchanged } => {
                self.unname(*ino, *parent, name);
                if let Some(other) = replaced {
                    self.unname(*other, *to, to_name);
                    if *exchanged {
                        self.names.entry(*other).or_default().push((*parent, name.clone()));
                    }
                }
                self.names.entry(*ino).or_default().push((*to, to_name.clone()));
            }
            _ => {}
        }
    }

    fn unname(&mut self, ino: Ino, parent: Ino, name: &Name) {
        if let Some(names) = self.names.get_mut(&ino) {
            names.retain(|(dir, other)| *dir != parent || other != name);
            if names.is_empty() {
                self.names.remove(&ino);
            }
        }
    }

    fn path(&self, ino: Ino) -> io::Result<PathBuf> {
        if ino == ROOT {
            return Ok(self.folder.clone());
        }
        let (dir, name) =
            self.names.get(&ino).and_then(|names| names.last()).ok_or(io::ErrorKind::NotFound)?;
        self.within(*dir, name)
    }

    fn within(&self, dir: Ino, name: &Name) -> io::Result<PathBuf> {
        let dir = self.path(dir)?;
        Ok(OsStr::from_bytes(&join(dir.as_os_str().as_bytes(), name)).into())
    }

    /// A descriptor of a file or directory.
    fn file(&mut self, ino: Ino) -> io::Result<&File> {
        if !self.open.contains_key(&ino) {
            let path = self.path(ino)?;
            let is_directory = fs::symlink_metadata(&path)?.is_dir();
            let file = OpenOptions::new().read(true).write(!is_directory).open(&path)?;
            self.open.insert(ino, file);
        }
        self.open.get(&ino).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Opens what is about to lose a name, if the program goes on using it.
    fn hold(&mut self, ino: Ino) -> io::Result<()> {
        match self.needed.get(&ino).is_some_and(|needed| *needed > self.at) {
            true => self.file(ino).map(drop),
            false => Ok(()),
        }
    }

    fn act(&mut self, event: &Event, bytes: &[u8]) -> io::Result<()> {
        match &event.action {
            Action::Create { .. } => self.create(&event.action)?,
            Action::Link { ino, parent, name } => {
                fs::hard_link(self.path(*ino)?, self.within(*parent, name)?)?;
            }
            Action::Unlink { parent, name, ino } => self.unlink(*parent, name, *ino)?,
            Action::Rename { parent, name, to, to_name, replaced, exchanged, .. } => {
                replaced.map_or(Ok(()), |other| self.hold(other))?;
                let (from, to) = (self.within(*parent, name)?, self.within(*to, to_name)?);
                let flags = if *exchanged { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                rustix::fs::renameat_with(CWD, from, CWD, to, flags)?;
            }
            Action::Write { ino, offset, .. } => self.file(*ino)?.write_all_at(bytes, *offset)?,
            Action::Truncate { ino, to, .. } => self.file(*ino)?.set_len(*to)?,
            Action::Zero { ino, offset, len, size } => self.zero(*ino, *offset, *len, *size)?,
            Action::Attributes { .. } => self.attributes(&event.action)?,
            Action::Xattr { ino, name, value } => {
                let (path, name) = (self.path_or_descriptor(*ino)?, OsStr::from_bytes(name));
                match value {
                    Some(value) => rustix::fs::setxattr(path, name, value, XattrFlags::empty())?,
                    None => rustix::fs::removexattr(path, name)?,
                }
            }
            Action::Sync { ino, data_only: false } => self.file(*ino)?.sync_all()?,
            Action::Sync { ino, data_only: true } => self.file(*ino)?.sync_data()?,
            Action::SyncAll => rustix::fs::syncfs(File::open(&self.folder)?)?,
            Action::SyncRange { ino, offset, len } => write_range(self.file(*ino)?, *offset, *len)?,
            Action::Printed(_) | Action::Begin | Action::End { .. } => {}
        }
        self.name(&event.action);
        self.at += 1;
        Ok(())
    }

    fn create(&mut self, action: &Action) -> io::Result<()> {
        let Action::Create { parent, name, ino, what, mode, uid, gid } = action else { return Ok(()) };
        let path = self.within(*parent, name)?;
        let bits = Mode::from_raw_mode(*mode);
        match what {
            What::File => {
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).create_new(true).mode(*mode).open(&path)?;
                self.open.insert(*ino, file);
            }
            What::Directory => rustix::fs::mkdir(&path, bits)?,
            What::Symlink(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), &path)?,
            What::Special(kind, device) => {
                rustix::fs::mknodat(CWD, &path, FileType::from_raw_mode(*kind), bits, u64::from(*device))?;
            }
        }
        let made = fs::symlink_metadata(&path)?;
        if (made.uid(), made.gid()) != (*uid, *gid) {
            std::os::unix::fs::lchown(&path, Some(*uid), Some(*gid))?;
        }
        if !made.is_symlink() && made.mode() & 0o7777 != *mode {
            fs::set_permissions(&path, Permissions::from_mode(*mode))?;
        }
        Ok(())
    }

    fn unlink(&mut self, parent: Ino, name: &Name, ino: Ino) -> io::Result<()> {
        let path = self.within(parent, name)?;
        if fs::symlink_metadata(&path)?.is_dir() {
            self.open.remove(&ino);
            return fs::remove_dir(path);
        }
        self.hold(ino)?;
        fs::remove_file(path)
    }

    fn zero(&mut self, ino: Ino, offset: u64, len: u64, size: u64) -> io::Result<()> {
        let file = self.file(ino)?;
        let flags = match file.metadata()?.len() < size {
            true => FallocateFlags::ZERO_RANGE,
            false => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        Ok(rustix::fs::fallocate(file, flags, offset, len)?)
    }

    /// The path of an inode, or one that leads to its descriptor if it has no name.
    fn path_or_descriptor(&mut self, ino: Ino) -> io::Result<PathBuf> {
        use std::os::fd::AsRawFd;
        match self.open.get(&ino) {
            Some(file) if !self.names.contains_key(&ino) => {
                Ok(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
            }
            _ => self.path(ino),
        }
    }

    fn attributes(&mut self, action: &Action) -> io::Result<()> {
        let Action::Attributes { ino, mode, uid, gid, mtime_ns } = action else { return Ok(()) };
        let path = self.path_or_descriptor(*ino)?;
        let is_descriptor = !self.names.contains_key(ino) && *ino != ROOT;
        if uid.is_some() || gid.is_some() {
            match is_descriptor {
                true => std::os::unix::fs::chown(&path, *uid, *gid)?,
                false => std::os::unix::fs::lchown(&path, *uid, *gid)?,
            }
        }
        if let Some(mode) = mode {
            fs::set_permissions(&path, Permissions::from_mode(*mode))?;
        }
        if let Some(mtime_ns) = mtime_ns {
            let seconds = mtime_ns.div_euclid(1_000_000_000) as i64;
            let nanoseconds = mtime_ns.rem_euclid(1_000_000_000) as i64;
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let last_modification = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let flags = if is_descriptor { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
            rustix::fs::utimensat(CWD, &path, &Timestamps { last_access, last_modification }, flags)?;
        }
        Ok(())
    }
}
