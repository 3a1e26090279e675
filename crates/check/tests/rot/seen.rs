//! Everything visible of a filesystem that may be damaged, and the differences between two views.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use syncline::{Filesystem, Metadata, QuotaLimits};

const PIECE_BYTES: u64 = 4096;
/// Only both ends of a longer file are read: the rest is a hole.
const WHOLE_BYTES_MAX: u64 = 4 << 20;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
/// The directory where a repair puts files that lost their names.
const LOST_AND_FOUND: &str = "/lost+found";
/// Stands for an object that is not a directory.
const NO_DIRECTORY: i32 = 0;

/// A result: a value or an errno.
pub type Answer<T> = Result<T, i32>;

/// One name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Type and permissions, size, links.
    facts: (u32, u64, u32),
    target: Option<Answer<PathBuf>>,
    xattrs: Answer<BTreeMap<String, Answer<Vec<u8>>>>,
    /// Blocks of a file.
    blocks: Vec<Answer<Vec<u8>>>,
    /// Whether all names of a directory could be listed.
    listed: Answer<()>,
    /// Limits of a quota's root. Usage is left out: it changes with write-back, and a check
    /// verifies it.
    quota: Option<Answer<QuotaLimits>>,
}

/// All names. A name in a snapshot begins with `@` and the snapshot's name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Survey {
    names: BTreeMap<PathBuf, Answer<Seen>>,
}

impl Survey {
    /// Surveys a filesystem.
    pub fn of(fs: &Filesystem) -> Self {
        let mut survey = Self::default();
        survey.look(fs, Path::new("/"), Path::new("/"));
        survey
    }

    /// Adds the contents of a snapshot.
    pub fn add_snapshot(&mut self, name: &str, fs: &Filesystem) {
        self.look(fs, Path::new("/"), Path::new(&format!("@{name}")));
    }

    /// Adds a snapshot that can't be opened.
    pub fn add_lost_snapshot(&mut self, name: &str, errno: i32) {
        self.names.insert(PathBuf::from(format!("@{name}")), Err(errno));
    }

    /// Removes a snapshot.
    pub fn forget_snapshot(&mut self, name: &str) {
        let top = PathBuf::from(format!("@{name}"));
        self.names.retain(|path, _| !path.starts_with(&top));
    }

    /// Removes a name of the root directory, as if it had never existed.
    pub fn forget(&mut self, path: &str) {
        if self.names.remove(Path::new(path)).is_some()
            && let Some(Ok(root)) = self.names.get_mut(Path::new("/"))
        {
            root.facts.1 = root.facts.1.saturating_sub(1);
        }
    }

    /// The contents read from a block of a file.
    pub fn block(&self, path: &str, index: usize) -> Option<&Answer<Vec<u8>>> {
        let seen = self.names.get(Path::new(path))?.as_ref().ok()?;
        seen.blocks.get(index)
    }

    /// Replaces a block of a file.
    pub fn put_block(&mut self, path: &str, index: usize, bytes: Vec<u8>) {
        if let Some(Ok(seen)) = self.names.get_mut(Path::new(path))
            && let Some(block) = seen.blocks.get_mut(index)
        {
            *block = Ok(bytes);
        }
    }

    /// Removes counts, which a repair recomputes.
    pub fn forget_counts(&mut self) {
        for seen in self.names.values_mut().flatten() {
            seen.facts.2 = 0;
            if seen.listed != Err(NO_DIRECTORY) {
                seen.facts.1 = 0;
            }
        }
    }

    fn look(&mut self, fs: &Filesystem, path: &Path, as_name: &Path) {
        let seen = fs.symlink_metadata(path).map_err(|error| error.errno());
        let seen = seen.map(|metadata| see(fs, path, &metadata));
        let is_directory = seen.as_ref().is_ok_and(|seen| seen.listed != Err(NO_DIRECTORY));
        self.names.insert(as_name.to_owned(), seen);
        if !is_directory {
            return;
        }
        let mut listed = Ok(());
        match fs.read_dir(path) {
            Err(error) => listed = Err(error.errno()),
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => {
                            let name = entry.file_name();
                            self.look(fs, &path.join(&name), &as_name.join(&name));
                        }
                        Err(error) => listed = Err(error.errno()),
                    }
                }
            }
        }
        if let Some(Ok(seen)) = self.names.get_mut(as_name) {
            seen.listed = listed;
        }
    }

    /// Number of results that were errors.
    pub fn errors(&self) -> usize {
        self.names.values().map(|seen| seen.as_ref().map_or(1, Seen::errors)).sum()
    }

    /// Describes how `self` falls short of `expected`. Where `expected` has an error, any result is
    /// fine.
    pub fn differences(&self, expected: &Self, errors: Errors) -> Vec<String> {
        let mut wrong = Vec::new();
        for (path, was) in &expected.names {
            let Ok(was) = was else { continue };
            match self.names.get(path) {
                Some(Ok(now)) => {
                    Comparison { path: path.display().to_string(), errors, wrong: &mut wrong }.seen(now, was);
                }
                Some(Err(errno)) if errors.tell(*errno) => {}
                Some(Err(errno)) => wrong.push(format!("{}: errno {errno}", path.display())),
                None if errors == Errors::Tell && self.is_told(path) => {}
                // A symlink without its target is useless; a repair reports that it removes it.
                None if errors == Errors::Lose && was.lacks_target() => {}
                None => wrong.push(format!("{} is gone", path.display())),
            }
        }
        // Names may appear where none could be read.
        let more = self.names.keys().filter(|path| !expected.names.contains_key(*path));
        let more = more.filter(|path| errors == Errors::Tell || !path.starts_with(LOST_AND_FOUND));
        let strange = more.filter(|path| !expected.is_told(path));
        wrong.extend(strange.map(|path| format!("{} was not there before", path.display())));
        wrong
    }

    /// Blocks that read as something they never held, compared with `truth`. A file that was moved
    /// does not count.
    pub fn lies(&self, truth: &Self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (path, right) in &truth.names {
            let (Ok(right), Some(Ok(now))) = (right, self.names.get(path)) else { continue };
            let blocks = now.blocks.iter().zip(&right.blocks).enumerate();
            let mut lies = blocks.filter(|(_, (now, right))| now.is_ok() && right.is_ok() && now != right);
            if let Some((index, _)) = lies.next() {
                wrong.push(format!("{}: block {index} reads as what it never held", path.display()));
            }
        }
        wrong
    }

    /// True if a directory above this name can't be read, which reveals that names may be missing.
    fn is_told(&self, path: &Path) -> bool {
        path.ancestors().skip(1).any(|above| match self.names.get(above) {
            Some(Ok(seen)) => seen.listed == Err(EIO),
            Some(Err(_)) => true,
            None => false,
        })
    }
}

/// The meaning of an error where there was a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errors {
    /// Damage is reported.
    Tell,
    /// Readable contents are lost.
    Lose,
}

impl Errors {
    fn tell(self, errno: i32) -> bool {
        self == Self::Tell && errno == EIO
    }
}

impl Seen {
    fn lacks_target(&self) -> bool {
        self.target.as_ref().is_some_and(Result::is_err)
    }

    fn errors(&self) -> usize {
        let values =
            self.xattrs.as_ref().map_or(1, |all| all.values().filter(|value| value.is_err()).count());
        let blocks = self.blocks.iter().filter(|block| block.is_err()).count();
        let target = usize::from(self.lacks_target());
        values + blocks + target + usize::from(self.listed.is_err() && self.listed != Err(NO_DIRECTORY))
    }
}

/// One name, before and after.
struct Comparison<'a> {
    path: String,
    errors: Errors,
    wrong: &'a mut Vec<String>,
}

impl Comparison<'_> {
    fn seen(&mut self, now: &Seen, was: &Seen) {
        if now.facts != was.facts {
            self.tell(format!("mode, size and links {:?} were {:?}", now.facts, was.facts));
        }
        if let Some(was) = &was.target {
            self.answer("the target", now.target.as_ref().unwrap_or(&Err(NO_DIRECTORY)), was);
        }
        self.answer("the list of names", &now.listed, &was.listed);
        if let Some(was) = &was.quota {
            self.answer("the quota", now.quota.as_ref().unwrap_or(&Err(ENOENT)), was);
        }
        self.xattrs(now, was);
        if now.blocks.len() != was.blocks.len() {
            self.tell(format!("{} blocks were {}", now.blocks.len(), was.blocks.len()));
        }
        for (index, (now, was)) in now.blocks.iter().zip(&was.blocks).enumerate() {
            self.answer(&format!("block {index}"), now, was);
        }
    }

    fn xattrs(&mut self, now: &Seen, was: &Seen) {
        let Ok(was) = &was.xattrs else { return };
        let now = match &now.xattrs {
            Ok(now) => now,
            Err(errno) if self.errors.tell(*errno) => return,
            Err(errno) => return self.tell(format!("attributes: errno {errno}")),
        };
        for (name, value) in was {
            match now.get(name) {
                Some(now) => self.answer(&format!("attribute {name}"), now, value),
                None if value.is_ok() => self.tell(format!("attribute {name} is gone")),
                None => {}
            }
        }
        if now.keys().any(|name| !was.contains_key(name)) {
            self.tell("an attribute was not there before".into());
        }
    }

    fn answer<T: PartialEq>(&mut self, what: &str, now: &Answer<T>, was: &Answer<T>) {
        match (now, was) {
            (_, Err(_)) => {}
            (Err(errno), Ok(_)) if self.errors.tell(*errno) => {}
            (Err(errno), Ok(_)) => self.tell(format!("{what}: errno {errno}")),
            (now, was) if now == was => {}
            _ => self.tell(format!("{what} is another")),
        }
    }

    fn tell(&mut self, what: String) {
        self.wrong.push(format!("{}: {what}", self.path));
    }
}

fn see(fs: &Filesystem, path: &Path, metadata: &Metadata) -> Seen {
    let xattrs = match metadata.is_symlink() {
        true => Ok(BTreeMap::new()),
        false => attributes(fs, path),
    };
    Seen {
        facts: (metadata.mode(), metadata.len(), metadata.nlink()),
        target: metadata.is_symlink().then(|| fs.read_link(path).map_err(|error| error.errno())),
        xattrs,
        blocks: if metadata.is_file() { blocks(fs, path, metadata.len()) } else { Vec::new() },
        listed: if metadata.is_dir() { Ok(()) } else { Err(NO_DIRECTORY) },
        quota: if metadata.is_dir() { quota(fs, path) } else { None },
    }
}

fn quota(fs: &Filesystem, path: &Path) -> Option<Answer<QuotaLimits>> {
    match fs.quota(path) {
        Ok(quota) => Some(Ok(quota.limits)),
        Err(error) if error.errno() == ENOENT => None,
        Err(error) => Some(Err(error.errno())),
    }
}

fn attributes(fs: &Filesystem, path: &Path) -> Answer<BTreeMap<String, Answer<Vec<u8>>>> {
    let names = fs.xattrs(path).map_err(|error| error.errno())?;
    let value = |name: std::ffi::OsString| {
        let value = fs.xattr(path, &name).map_err(|error| error.errno());
        // Listed, but gone when read: 61 is ENODATA.
        let value = value.and_then(|value| value.ok_or(61));
        (name.to_string_lossy().into_owned(), value)
    };
    Ok(names.into_iter().map(value).collect())
}

fn blocks(fs: &Filesystem, path: &Path, size: u64) -> Vec<Answer<Vec<u8>>> {
    let file = match fs.open_file(path) {
        Ok(file) => file,
        Err(error) => return vec![Err(error.errno()); size.div_ceil(PIECE_BYTES).min(64) as usize],
    };
    let (front, back) = match size <= WHOLE_BYTES_MAX {
        true => (0..size, 0..0),
        false => (0..1 << 20, size - (1 << 20)..size),
    };
    let starts = [front, back].into_iter().flat_map(|range| range.step_by(PIECE_BYTES as usize));
    starts
        .map(|start| {
            let mut bytes = vec![0; PIECE_BYTES.min(size - start) as usize];
            let mut read = 0;
            while read < bytes.len() {
                match file.read_at(&mut bytes[read..], start + read as u64) {
                    Ok(0) => break,
                    Ok(more) => read += more,
                    Err(error) => return Err(error.errno()),
                }
            }
            bytes.truncate(read);
            Ok(bytes)
        })
        .collect()
}
