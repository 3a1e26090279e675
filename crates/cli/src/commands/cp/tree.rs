//! Copies an entry of an image, and everything below it.
//!
//! A copied link is never followed when later entries are copied: a link in the way is replaced. So
//! nothing that an image contains leads out of the destination.

use super::attributes::{self, Xattrs};
use super::{Told, cannot_read};
use crate::commands::missing;
use crate::failure::{Cause, Failure};
use rustix::fs::{CWD, Mode, OFlags, mknodat};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use syncline::{Error, FileType, Filesystem, Metadata};
use syncline_fs::FsError;

/// The most bytes of a file in memory at a time.
const PIECE: usize = 1 << 20;

/// Copies entries of one image.
pub(super) struct Copier<'a> {
    pub fs: &'a Filesystem,
    pub told: &'a mut Told,
    /// The image or snapshot, as messages show it.
    source: &'a str,
    /// Device and inode number of every open image, which no copy may overwrite.
    images: &'a [(u64, u64)],
    archive: bool,
    /// The copies of inodes with several names. None of them is overwritten.
    names: HashMap<u64, PathBuf>,
    /// The directories of the current tree that were entered. Each has one name, or the way through
    /// them could be endless.
    entered: HashSet<u64>,
    buffer: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub fn new(
        fs: &'a Filesystem,
        source: &'a str,
        images: &'a [(u64, u64)],
        archive: bool,
        told: &'a mut Told,
    ) -> Self {
        let (names, entered, buffer) = (HashMap::new(), HashSet::new(), vec![0; PIECE]);
        Self { fs, told, source, images, archive, names, entered, buffer }
    }

    /// A path in the image, as a message shows it.
    pub fn shown(&self, path: &Path) -> String {
        format!("{}:{}", self.source, path.display())
    }

    /// The failure for something that can't be read in the image.
    pub fn failure(&self, path: &Path, error: Error) -> Failure {
        cannot_read(&self.shown(path), error)
    }

    /// The failure for something that no sound image has.
    fn impossible(&self, path: &Path, what: &str) -> Failure {
        let text = format!("{}: the image is damaged: {what}", self.shown(path));
        Failure::of(Cause::Damaged, text).of_reading_only()
    }

    /// Copies the sources of the command line, with everything below them.
    pub fn tree(&mut self, path: &Path, metadata: &Metadata, target: &Path) {
        self.entered.clear();
        self.entry(path, metadata, target);
    }

    /// Copies an entry with everything below it. Reports failures, and copies the rest.
    fn entry(&mut self, path: &Path, metadata: &Metadata, target: &Path) {
        let copied = match metadata.file_type() {
            FileType::Directory => self.directory(path, metadata, target),
            _ => self.leaf(path, metadata, target),
        };
        self.told.bar.inc(1);
        if let Err(failure) = copied {
            self.told.failure(&failure);
        }
    }

    fn directory(&mut self, path: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        if !self.entered.insert(metadata.ino()) {
            return Err(self.impossible(path, "a directory has several names"));
        }
        let made = match target.symlink_metadata() {
            Ok(there) if there.is_dir() => false,
            Ok(_) => return Err(in_the_way(target, "no directory", "a directory")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // With -a nobody else may look in before it has its own permissions.
                let mode = if self.archive { 0o700 } else { metadata.mode() & 0o777 | 0o700 };
                DirBuilder::new().mode(mode).create(target).map_err(|error| missing(target, error))?;
                true
            }
            Err(error) => return Err(missing(target, error)),
        };
        self.below(path, target)?;
        if self.archive {
            return self.give(path, metadata, target);
        }
        if made && metadata.mode() & 0o700 != 0o700 {
            let made = target.symlink_metadata().map_err(|error| missing(target, error))?;
            let mode = made.mode() & (metadata.mode() | 0o7000) & 0o7777;
            let given = fs::set_permissions(target, Permissions::from_mode(mode));
            given.map_err(|error| missing(target, error))?;
        }
        Ok(())
    }

    fn below(&mut self, path: &Path, target: &Path) -> Result<(), Failure> {
        let fs = self.fs;
        for entry in fs.read_dir(path).map_err(|error| self.failure(path, error))? {
            let entry = entry.map_err(|error| self.failure(path, error))?;
            let name = entry.file_name();
            let inside = path.join(&name);
            if !is_name(&name) {
                let failure = self.impossible(&inside, "an entry has an impossible name");
                self.told.failure(&failure);
                continue;
            }
            match entry.metadata() {
                Ok(metadata) => self.entry(&inside, &metadata, &target.join(&name)),
                Err(error) => {
                    let failure = self.failure(&inside, error);
                    self.told.failure(&failure);
                }
            }
        }
        Ok(())
    }

    /// Copies anything but a directory.
    fn leaf(&mut self, path: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        let first = self.names.get(&metadata.ino()).cloned();
        if let Some(first) = &first
            && is_same(first, target)
        {
            return Ok(());
        }
        let there = self.make_room(metadata, target)?;
        if let Some(first) = first {
            if there {
                fs::remove_file(target).map_err(|error| missing(target, error))?;
            }
            return fs::hard_link(first, target).map_err(|error| missing(target, error));
        }
        self.make(path, metadata, target)?;
        // A file that could not be copied whole gets no other name.
        if self.archive && metadata.nlink() > 1 {
            self.names.insert(metadata.ino(), target.to_owned());
        }
        Ok(())
    }

    /// Makes the copy of anything but a directory.
    fn make(&mut self, path: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        match metadata.file_type() {
            FileType::Regular => self.contents(path, metadata, target)?,
            FileType::Symlink => {
                let to = self.fs.read_link(path).map_err(|error| self.failure(path, error))?;
                symlink(to, target).map_err(|error| missing(target, error))?;
            }
            kind => self.special(kind, metadata, target)?,
        }
        let made = target.symlink_metadata().map_err(|error| missing(target, error))?;
        let one_of_several = (made.nlink() > 1).then(|| target.to_owned());
        self.told.made.insert((made.dev(), made.ino()), one_of_several);
        if self.archive { self.give(path, metadata, target) } else { Ok(()) }
    }

    /// Looks at the present entry under the name of a copy. True for a file, whose contents are to
    /// be replaced.
    fn make_room(&self, metadata: &Metadata, target: &Path) -> Result<bool, Failure> {
        let there = match target.symlink_metadata() {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(missing(target, error)),
        };
        let kind = there.file_type();
        if kind.is_dir() {
            return Err(in_the_way(target, "a directory", "none"));
        }
        if self.images.contains(&(there.dev(), there.ino())) {
            let text = format!("{} is the image that is copied from", target.display());
            return Err(Failure::usage(text).next("choose another place"));
        }
        let copy = self.told.made.get(&(there.dev(), there.ino()));
        if copy.is_some_and(|name| name.as_deref().is_none_or(|name| name == target)) {
            let text =
                format!("{} is a copy that was made just now, and is not overwritten", target.display());
            return Err(Failure::new(text).next("copy the second file to another place"));
        }
        if kind.is_block_device() || kind.is_char_device() || kind.is_fifo() || kind.is_socket() {
            let text = format!("{} is neither a file nor a directory", target.display());
            return Err(Failure::new(text).next("'syncline cat' prints a file"));
        }
        // Of two names that one file had there before, the second gets a file of its own.
        if kind.is_file() && metadata.is_file() && copy.is_none() {
            return Ok(true);
        }
        fs::remove_file(target).map_err(|error| missing(target, error))?;
        Ok(false)
    }

    /// Copies the contents of a file. Holes stay holes.
    fn contents(&mut self, path: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        let source = self.fs.open_file(path).map_err(|error| self.failure(path, error))?;
        // With -a nobody else may read it before it has its own permissions.
        let mode = if self.archive { 0o600 } else { metadata.mode() & 0o777 };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(target, flags, Mode::from_raw_mode(mode));
        let copy: File = opened.map_err(|error| missing(target, error.into()))?.into();
        let size = metadata.len();
        let unfinished = |failure: Failure| {
            let text = format!("{failure}; {} is incomplete", target.display());
            failure.with_text(text).next("delete it, or leave it as it is")
        };
        let mut offset = 0;
        while offset < size {
            let data = match source.seek_data(offset) {
                Err(Error::Filesystem(FsError::NoSuchAddress)) => break,
                data => data.map_err(|error| unfinished(self.failure(path, error)))?,
            };
            let end = source.seek_hole(data).map_err(|error| unfinished(self.failure(path, error)))?;
            offset = data;
            while offset < end.min(size) {
                let len = ((end.min(size) - offset) as usize).min(PIECE);
                let read = source.read_at(&mut self.buffer[..len], offset);
                let read = read.map_err(|error| unfinished(self.failure(path, error)))?;
                if read == 0 {
                    // It ended before its size.
                    return Err(unfinished(self.impossible(path, "a file is too short")));
                }
                let written = copy.write_all_at(&self.buffer[..read], offset);
                written.map_err(|error| unfinished(missing(target, error)))?;
                offset += read as u64;
            }
        }
        copy.set_len(size).map_err(|error| unfinished(missing(target, error)))
    }

    /// Makes a device node, a FIFO or a socket.
    fn special(&self, kind: FileType, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        let kind = match kind {
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::CharDevice => rustix::fs::FileType::CharacterDevice,
            FileType::Fifo => rustix::fs::FileType::Fifo,
            _ => rustix::fs::FileType::Socket,
        };
        let mode = if self.archive { 0o600 } else { metadata.mode() & 0o777 };
        let made = mknodat(CWD, target, kind, Mode::from_raw_mode(mode), metadata.rdev().into());
        made.map_err(|error| missing(target, error.into()))
    }

    /// Gives a copy everything but its contents.
    fn give(&mut self, path: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        let xattrs = self.xattrs(path, metadata).map_err(|error| self.failure(path, error))?;
        attributes::give(metadata, &xattrs, target, self.told).map_err(|error| missing(target, error))
    }

    fn xattrs(&self, path: &Path, metadata: &Metadata) -> Result<Xattrs, Error> {
        // Reading the attributes of a link would read those of its target.
        if metadata.is_symlink() {
            return Ok(Vec::new());
        }
        let mut xattrs = Vec::new();
        for name in self.fs.xattrs(path)? {
            if let Some(value) = self.fs.xattr(path, &name)? {
                xattrs.push((name, value));
            }
        }
        Ok(xattrs)
    }
}

/// True if both names are of the same file already.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.symlink_metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// True for a name that stays in its directory.
fn is_name(name: &OsStr) -> bool {
    !matches!(name.as_bytes(), b"" | b"." | b"..") && !name.as_bytes().contains(&b'/')
}

/// As cp(1): a directory is not replaced by a file, nor the other way round.
fn in_the_way(target: &Path, there: &str, copied: &str) -> Failure {
    let text = format!("{} is {there}, and its original is {copied}", target.display());
    Failure::new(text).next("choose another place, or remove it first")
}
