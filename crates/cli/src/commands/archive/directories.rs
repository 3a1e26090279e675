//! The directories that entries are unpacked into. They are looked up one by one, so a link leads
//! nowhere, and get their attributes last: whatever is made in one changes its times.

use super::attributes::{Attributes, ROOT};
use crate::failure::Failure;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use syncline::{Error, FileType, Filesystem};
use syncline_device::block_on;
use syncline_fs::FsError;
use syncline_fs::types::{Ino, SetAttributes};

/// The number of the root directory.
const TOP: Ino = 1;
/// Permissions of a directory while it is filled: what the archive has in it is not for all to see.
const MEANWHILE: u16 = 0o700;
/// Permissions of a directory of which the archive says nothing.
const USUAL: u16 = 0o755;
/// Most bytes of paths in memory.
const KNOWN_BYTES_MAX: usize = 16 << 20;
/// Most bytes of access control lists in memory.
const LISTS_BYTES_MAX: usize = 64 << 20;

pub(super) struct Directories<'a> {
    fs: &'a Filesystem,
    /// The directory that is unpacked into.
    to: Ino,
    /// Some paths that are directories.
    known: HashMap<PathBuf, Ino>,
    known_bytes: usize,
    /// Those that were made, and the one that is unpacked into, with what the archive says of them
    /// last. All others were there, and stay as they are.
    later: BTreeMap<Ino, Option<Attributes>>,
    lists_bytes: usize,
}

impl<'a> Directories<'a> {
    /// For unpacking into this directory, which is made if it is not there.
    pub fn below(fs: &'a Filesystem, to: &Path) -> Result<Self, Failure> {
        let mut directories = Self {
            fs,
            to: TOP,
            known: HashMap::new(),
            known_bytes: 0,
            later: BTreeMap::new(),
            lists_bytes: 0,
        };
        directories.to = directories.at(to)?;
        Ok(directories)
    }

    /// The directory of a path. It and those above it are made if they are not there.
    pub fn at(&mut self, path: &Path) -> Result<Ino, Failure> {
        self.walk(path, true)
    }

    /// The directory of a path, which is there.
    pub fn find(&mut self, path: &Path) -> Result<Ino, Failure> {
        self.walk(path, false)
    }

    fn walk(&mut self, path: &Path, makes: bool) -> Result<Ino, Failure> {
        let (mut ino, mut missing) = (TOP, Vec::new());
        for path in path.ancestors() {
            if let Some(known) = self.known.get(path) {
                ino = *known;
                break;
            }
            missing.extend(path.file_name().map(|name| (path, name.as_bytes())));
        }
        for (path, name) in missing.into_iter().rev() {
            ino = self.step(ino, path, name, makes)?;
            if self.known_bytes > KNOWN_BYTES_MAX {
                self.known.clear();
                self.known_bytes = 0;
            }
            self.known_bytes += path.as_os_str().len();
            self.known.insert(path.to_owned(), ino);
        }
        Ok(ino)
    }

    fn step(&mut self, dir: Ino, path: &Path, name: &[u8], makes: bool) -> Result<Ino, Failure> {
        let engine = self.fs.engine();
        let found = match block_on(engine.lookup(dir, name)) {
            Err(FsError::NotFound) if makes => {
                let made = block_on(engine.mkdir(ROOT, dir, name, MEANWHILE));
                let made = made.map_err(|error| Failure::from(Error::from(error)).about(path))?;
                self.later.insert(made.ino, None);
                made
            }
            found => found.map_err(|error| Failure::from(Error::from(error)).about(path))?,
        };
        engine.forget(found.ino, 1);
        match found.file_type {
            FileType::Directory => Ok(found.ino),
            _ => Err(Failure::from(Error::from(FsError::NotDirectory)).about(path)),
        }
    }

    /// Takes an entry of the archive that is a directory.
    pub fn entry(&mut self, path: &Path, mut attributes: Attributes) -> Result<(), Failure> {
        let ino = self.at(path)?;
        if ino != self.to && !self.later.contains_key(&ino) {
            return Ok(());
        }
        attributes.give_what_others_do_not_get(self.fs, ino)?;
        self.lists_bytes += attributes.xattr_bytes();
        let before = self.later.insert(ino, Some(attributes)).flatten();
        self.lists_bytes -= before.map_or(0, |before| before.xattr_bytes());
        match self.lists_bytes > LISTS_BYTES_MAX {
            true => Err(Failure::new("the access control lists of all directories together are too large")),
            false => Ok(()),
        }
    }

    /// Gives all directories their attributes; the first failure is told.
    pub fn finish(self) -> Result<(), Failure> {
        let mut result = Ok(());
        for (ino, attributes) in self.later {
            let given = match attributes {
                Some(attributes) => attributes.give(self.fs, ino),
                None => {
                    let usual = SetAttributes { permissions: Some(USUAL), ..SetAttributes::default() };
                    let set = block_on(self.fs.engine().setattr(ROOT, ino, usual));
                    set.map(drop).map_err(|error| Error::from(error).into())
                }
            };
            result = result.and(given);
        }
        result
    }
}
