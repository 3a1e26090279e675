//! Unpacking an archive into a filesystem. Nothing in it leads out of the directory that it is
//! unpacked into, and nothing that is there is replaced.

use super::entries::{Entries, Found};
use super::pax;
use crate::failure::{Cause, Failure};
use bytes::Bytes;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use syncline::{Error, FileType, Filesystem, Timestamp};
use syncline_device::block_on;
use syncline_fs::FsError;
use syncline_fs::types::{Caller, Ino, SetAttributes, SetTime, XattrMode};
use tar::EntryType;

const ROOT: Caller = Caller { uid: 0, gid: 0 };
/// Bytes of a file in memory at a time: a multiple of a block.
const PIECE: usize = 1 << 20;
const BLOCK: usize = 4096;

/// Unpacks below the directory `to`, and returns how many entries there were. Ends at the first
/// that fails; those before it stay.
pub(super) fn unpack(fs: &Filesystem, input: impl Read, to: &Path) -> Result<u64, Failure> {
    let mut unpacker = Unpacker { fs, directories: HashSet::new(), later: Vec::new() };
    let to = Path::new("/").join(inside(to.as_os_str().as_bytes()).ok_or_else(|| leads_out(to))?);
    unpacker.make_directories(&to)?;
    let (mut entries, mut count) = (Entries::new(input), 0);
    while let Some(found) = entries.next().map_err(unread)? {
        let name = PathBuf::from(OsStr::from_bytes(&found.name));
        unpacker.entry(&found, &mut entries, &name, &to).map_err(|failure| {
            let text = format!("{}: {failure}", name.display());
            failure.with_text(text).next("what came before it is unpacked")
        })?;
        count += 1;
    }
    // Whatever is made in a directory changes its times, and its permissions may forbid nothing yet.
    for (ino, attributes) in unpacker.later.into_iter().rev() {
        attributes.give(fs, ino)?;
    }
    Ok(count)
}

struct Unpacker<'a> {
    fs: &'a Filesystem,
    /// Paths that are directories, and no links to such.
    directories: HashSet<PathBuf>,
    /// The attributes of the archive's directories, in its order.
    later: Vec<(Ino, Attributes)>,
}

impl Unpacker<'_> {
    fn entry(
        &mut self,
        found: &Found,
        contents: &mut impl Read,
        name: &Path,
        to: &Path,
    ) -> Result<(), Failure> {
        let path = to.join(inside(name.as_os_str().as_bytes()).ok_or_else(|| leads_out(name))?);
        let attributes = Attributes::of(found)?;
        let kind = found.header.entry_type();
        if kind.is_dir() {
            self.make_directories(&path)?;
            let ino = self.ino(&path)?;
            self.later.push((ino, attributes));
            return Ok(());
        }
        let sparse = |(key, _): &(Vec<u8>, Vec<u8>)| key.starts_with(b"GNU.sparse.");
        if kind == EntryType::GNUSparse || found.records.iter().any(sparse) {
            return Err(Failure::new("files with holes in tar's own forms are not supported")
                .next("pack without --sparse: blocks of zeros become holes"));
        }
        self.make_directories(path.parent().unwrap_or(to))?;
        let target = Path::new(OsStr::from_bytes(&found.target));
        match kind {
            EntryType::Regular | EntryType::Continuous => self.file(contents, &path)?,
            EntryType::Link => {
                let first = to.join(inside(&found.target).ok_or_else(|| leads_out(target))?);
                self.make_directories(first.parent().unwrap_or(to))?;
                return self.fs.hard_link(&first, &path).map_err(Failure::from);
            }
            EntryType::Symlink => self.fs.symlink(target, &path)?,
            EntryType::Fifo => self.special(&path, FileType::Fifo, 0)?,
            EntryType::Char | EntryType::Block => {
                let number = |number: io::Result<Option<u32>>| number.map(Option::unwrap_or_default);
                let major = number(found.header.device_major()).map_err(unread)?;
                let minor = number(found.header.device_minor()).map_err(unread)?;
                let device = u32::try_from(rustix::fs::makedev(major, minor));
                let device = device.map_err(|_| Failure::new("no such device number"))?;
                let block = kind == EntryType::Block;
                let kind = if block { FileType::BlockDevice } else { FileType::CharDevice };
                self.special(&path, kind, device)?;
            }
            _ => {
                let text = format!("entries of type {:?} are not supported", char::from(kind.as_byte()));
                return Err(Failure::new(text));
            }
        }
        attributes.give(self.fs, self.ino(&path)?)
    }

    /// Makes a directory and those above it, where they are not there. A link is no directory.
    fn make_directories(&mut self, path: &Path) -> Result<(), Failure> {
        if self.directories.contains(path) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_directories(parent)?;
        }
        match self.fs.symlink_metadata(path) {
            Ok(there) if there.is_dir() => {}
            Ok(_) => return Err(Failure::from(Error::from(FsError::NotDirectory)).about(path)),
            Err(error) if error.is_not_found() => self.fs.create_dir(path)?,
            Err(error) => return Err(error.into()),
        }
        self.directories.insert(path.to_owned());
        Ok(())
    }

    fn ino(&self, path: &Path) -> Result<Ino, Failure> {
        Ok(self.fs.symlink_metadata(path)?.ino())
    }

    /// Writes a new file. Blocks of zeros become holes.
    fn file(&self, contents: &mut impl Read, path: &Path) -> Result<(), Failure> {
        let mut options = syncline::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(self.fs, path)?;
        let mut offset = 0;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            contents.by_ref().take(PIECE as u64).read_to_end(&mut piece).map_err(unread)?;
            if piece.is_empty() {
                break;
            }
            let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
            let mut blocks = piece.chunks(BLOCK).peekable();
            while blocks.peek().is_some() {
                while blocks.next_if(is_zero).is_some_and(|block| {
                    offset += block.len() as u64;
                    true
                }) {}
                let mut run = Vec::new();
                while let Some(block) = blocks.next_if(|block| !is_zero(block)) {
                    run.extend_from_slice(block);
                }
                if !run.is_empty() {
                    let len = run.len() as u64;
                    block_on(self.fs.engine().write(file.metadata()?.ino(), offset, Bytes::from(run), false))
                        .map_err(Error::from)?;
                    offset += len;
                }
            }
        }
        Ok(file.set_len(offset)?)
    }

    fn special(&self, path: &Path, kind: FileType, device: u32) -> Result<(), Failure> {
        let engine = self.fs.engine();
        let parent = self.ino(path.parent().unwrap_or(Path::new("/")))?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        let made = block_on(engine.mknod(ROOT, parent, name, kind, 0o600, device)).map_err(Error::from)?;
        engine.forget(made.ino, 1);
        Ok(())
    }
}

/// What an entry says of a file besides its contents.
struct Attributes {
    is_symlink: bool,
    permissions: u16,
    uid: u32,
    gid: u32,
    mtime: Timestamp,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    fn of(found: &Found) -> Result<Self, Failure> {
        let header = &found.header;
        // GNU tar writes times before 1970 in two's complement.
        let seconds = header.mtime().map_err(unread)? as i64;
        let mut attributes = Self {
            is_symlink: header.entry_type().is_symlink(),
            permissions: (header.mode().map_err(unread)? & 0o7777) as u16,
            uid: id(header.uid().map_err(unread)?)?,
            gid: id(header.gid().map_err(unread)?)?,
            mtime: Timestamp { seconds, nanoseconds: 0 },
            xattrs: Vec::new(),
        };
        for (key, value) in &found.records {
            let text = std::str::from_utf8(value).ok();
            let number = || text.and_then(|text| text.parse().ok()).map(id).transpose();
            match key.as_slice() {
                b"mtime" => attributes.mtime = text.and_then(pax::time_of).unwrap_or(attributes.mtime),
                b"uid" => attributes.uid = number()?.unwrap_or(attributes.uid),
                b"gid" => attributes.gid = number()?.unwrap_or(attributes.gid),
                key => {
                    if let Some(name) = key.strip_prefix(pax::XATTR.as_bytes()) {
                        attributes.xattrs.push((name.to_vec(), value.clone()));
                    }
                }
            }
        }
        Ok(attributes)
    }

    /// Gives them in an order in which none undoes another: a new owner takes setuid away.
    fn give(&self, fs: &Filesystem, ino: Ino) -> Result<(), Failure> {
        let engine = fs.engine();
        let set = |changes| block_on(engine.setattr(ROOT, ino, changes)).map_err(Error::from);
        set(SetAttributes { uid: Some(self.uid), gid: Some(self.gid), ..SetAttributes::default() })?;
        if !self.is_symlink {
            set(SetAttributes { permissions: Some(self.permissions), ..SetAttributes::default() })?;
            for (name, value) in &self.xattrs {
                let given = block_on(engine.setxattr(ino, name, value, XattrMode::Set));
                given.map_err(|error| {
                    let name = String::from_utf8_lossy(name).into_owned();
                    let failure = Failure::from(Error::from(error));
                    let text = format!("the attribute {name}: {failure}");
                    failure.with_text(text)
                })?;
            }
        }
        let mtime = Some(SetTime::To(self.mtime));
        set(SetAttributes { mtime, ..SetAttributes::default() })?;
        Ok(())
    }
}

/// A path below a directory, without what does not matter; `None` if it leads out.
fn inside(path: &[u8]) -> Option<PathBuf> {
    let parts = Path::new(OsStr::from_bytes(path)).components().filter(|part| match part {
        Component::RootDir | Component::CurDir => false,
        Component::Prefix(_) | Component::ParentDir | Component::Normal(_) => true,
    });
    parts.map(|part| if let Component::Normal(name) = part { Some(name) } else { None }).collect()
}

fn id(number: u64) -> Result<u32, Failure> {
    u32::try_from(number).map_err(|_| Failure::new("an owner's number is too large"))
}

fn leads_out(path: &Path) -> Failure {
    Failure::of(
        Cause::Damaged,
        format!("{} leads out of the directory that is unpacked into", path.display()),
    )
    .next("do not trust this archive")
}

fn unread(error: io::Error) -> Failure {
    Failure::of(Cause::Damaged, format!("the archive: {error}")).next("fetch or make it again")
}
