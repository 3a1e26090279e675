//! Writes a tree into a folder, and reads a folder into a recording.

use crate::Error;
use crate::action::{Action, Ino, ROOT, Stored, What};
use crate::recording::Recorder;
use crate::tree::{Kind, Node, Tree};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// Bytes of a write that stands for a part of a file in the folder.
const PIECE_BYTES: usize = 1 << 20;

/// Writes the tree into `directory`, which must be empty. Extended attributes and owners that this
/// process may not set are left out, and so are devices.
pub fn export(tree: &Tree, directory: &Path) -> Result<(), Error> {
    let mut first_names: HashMap<Ino, PathBuf> = HashMap::new();
    let mut directories = vec![(directory.to_owned(), ROOT)];
    for (path, ino) in tree.walk() {
        let path = directory.join(OsStr::from_bytes(&path));
        let failed = |error| Error::file(&path, error);
        let Some(node) = tree.node(ino) else { continue };
        if let Some(first) = first_names.get(&ino) {
            fs::hard_link(first, &path).map_err(failed)?;
            continue;
        }
        match &node.kind {
            Kind::File(contents) => {
                let file = File::create_new(&path).map_err(failed)?;
                file.set_len(contents.len()).map_err(failed)?;
                for piece in contents.pieces() {
                    let (offset, bytes) = piece?;
                    file.write_all_at(&bytes, offset).map_err(failed)?;
                }
                finish(&path, node).map_err(failed)?;
            }
            Kind::Directory(_) => {
                fs::create_dir(&path).map_err(failed)?;
                directories.push((path.clone(), ino));
                continue;
            }
            Kind::Symlink(target) => {
                std::os::unix::fs::symlink(OsStr::from_bytes(target), &path).map_err(failed)?
            }
            Kind::Special(libc::S_IFIFO, _) => {
                let mode = rustix::fs::Mode::from_raw_mode(node.mode);
                let made = rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0);
                made.map_err(|error| failed(error.into()))?;
            }
            Kind::Special(..) => {}
        }
        if !matches!(node.kind, Kind::Special(kind, _) if kind != libc::S_IFIFO) {
            // As far as it may.
            let _ = std::os::unix::fs::lchown(&path, Some(node.uid), Some(node.gid));
            first_names.insert(ino, path);
        }
    }
    // Their permissions may forbid what had to be done in them.
    for (path, ino) in directories.into_iter().rev() {
        let Some(node) = tree.node(ino) else { continue };
        let _ = std::os::unix::fs::lchown(&path, Some(node.uid), Some(node.gid));
        finish(&path, node).map_err(|error| Error::file(&path, error))?;
    }
    Ok(())
}

/// Sets permissions, times, and as far as allowed owner and attributes.
fn finish(path: &Path, node: &Node) -> io::Result<()> {
    for (name, value) in &node.xattrs {
        let _ = rustix::fs::setxattr(path, OsStr::from_bytes(name), value, rustix::fs::XattrFlags::empty());
    }
    let time = UNIX_EPOCH + Duration::from_nanos(u64::try_from(node.mtime_ns).unwrap_or(0));
    File::open(path)?.set_times(FileTimes::new().set_accessed(time).set_modified(time))?;
    // Recordings may come from strangers: nobody gets a program that runs as another user.
    fs::set_permissions(path, Permissions::from_mode(node.mode & 0o1777))
}

/// The extended attributes that users set; none where they can't be read.
fn user_xattrs(path: &Path, metadata: &fs::Metadata) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 64 << 10];
    if metadata.is_symlink() {
        return Vec::new();
    }
    let len = rustix::fs::listxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(path, OsStr::from_bytes(name), &mut value[..]).ok()?;
        value.truncate(len);
        Some((name.to_vec(), value))
    };
    names.filter_map(value).collect()
}

/// Reads the folder, records each inode in it if there is a recorder, and returns the tree and the next
/// free inode. `skip` says which entries stay out. Setting `stop` ends it.
pub fn import(
    folder: &Path,
    recorder: Option<&Recorder>,
    skip: impl Fn(&fs::DirEntry) -> bool,
    stop: &AtomicBool,
) -> Result<(Tree, Ino), Error> {
    let mut import =
        Import { recorder, tree: Tree::default(), next_ino: ROOT + 1, known: HashMap::new(), stop };
    let mut directories = vec![(folder.to_owned(), ROOT)];
    let mut todo = vec![(folder.to_owned(), ROOT)];
    while let Some((path, parent)) = todo.pop() {
        let entries = fs::read_dir(&path).map_err(|error| Error::file(&path, error))?;
        let mut entries =
            entries.collect::<io::Result<Vec<_>>>().map_err(|error| Error::file(&path, error))?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            if skip(&entry) {
                continue;
            }
            let ino = import.entry(parent, &entry)?;
            todo.extend(ino.map(|ino| (entry.path(), ino)));
            directories.extend(ino.map(|ino| (entry.path(), ino)));
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
        }
    }
    // Their times are those after the last change in them.
    for (path, ino) in directories {
        let metadata = fs::metadata(&path).map_err(|error| Error::file(&path, error))?;
        import.attributes(ino, &path, &metadata)?;
    }
    Ok((import.tree, import.next_ino))
}

struct Import<'a> {
    recorder: Option<&'a Recorder>,
    tree: Tree,
    next_ino: Ino,
    /// Files with several names, by device and inode.
    known: HashMap<(u64, u64), Ino>,
    stop: &'a AtomicBool,
}

impl Import<'_> {
    fn act(&mut self, action: Action, bytes: &[u8]) -> Result<(), Error> {
        let time_ns = self.recorder.map_or(0, |recorder| recorder.record(0, action.clone(), bytes));
        self.tree.apply(&action, time_ns.into(), bytes)
    }

    /// Returns the inode of a directory, which is to be read.
    fn entry(&mut self, parent: Ino, entry: &fs::DirEntry) -> Result<Option<Ino>, Error> {
        let (path, name) = (entry.path(), entry.file_name().as_bytes().to_vec());
        let failed = |error| Error::file(&path, error);
        let metadata = entry.metadata().map_err(failed)?;
        let kind = metadata.file_type();
        let id = (metadata.dev(), metadata.ino());
        if let Some(ino) = self.known.get(&id).copied() {
            self.act(Action::Link { ino, parent, name }, &[])?;
            return Ok(None);
        }
        let what = match kind {
            _ if kind.is_file() => What::File,
            _ if kind.is_dir() => What::Directory,
            _ if kind.is_symlink() => {
                let target = fs::read_link(&path).map_err(failed)?;
                What::Symlink(target.as_os_str().as_bytes().to_vec())
            }
            _ if kind.is_fifo() => What::Special(libc::S_IFIFO, 0),
            // A socket has no use without the program that listens, and devices belong to the machine.
            _ => return Ok(None),
        };
        let ino = self.next_ino;
        self.next_ino += 1;
        let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
        self.act(Action::Create { parent, name, ino, what: what.clone(), mode, uid, gid }, &[])?;
        if metadata.nlink() > 1 && what == What::File {
            self.known.insert(id, ino);
        }
        if what == What::File {
            self.contents(ino, &path, metadata.len())?;
        }
        if what != What::Directory {
            self.attributes(ino, &path, &metadata)?;
        }
        Ok((what == What::Directory).then_some(ino))
    }

    fn contents(&mut self, ino: Ino, path: &Path, len: u64) -> Result<(), Error> {
        let failed = |error| Error::file(path, error);
        // No more than there was: it may be growing.
        let mut file = File::open(path).map_err(failed)?.take(len);
        let mut bytes = vec![0; PIECE_BYTES];
        let mut offset = 0;
        loop {
            let count = file.read(&mut bytes).map_err(failed)?;
            if count == 0 || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let piece = &bytes[..count];
            if piece.iter().any(|byte| *byte != 0) {
                let (len, size, stored) = (count as u32, offset, Stored::default());
                self.act(Action::Write { ino, offset, len, size, mapped: false, stored }, piece)?;
            }
            offset += count as u64;
        }
        if self.tree.contents(ino).is_some_and(|contents| contents.len() < len) {
            self.act(Action::Truncate { ino, from: 0, to: len }, &[])?;
        }
        Ok(())
    }

    fn attributes(&mut self, ino: Ino, path: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
        for (name, value) in user_xattrs(path, metadata) {
            self.act(Action::Xattr { ino, name, value: Some(value) }, &[])?;
        }
        let mtime_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        let (mode, uid, gid) = (Some(metadata.mode() & 0o7777), Some(metadata.uid()), Some(metadata.gid()));
        self.act(Action::Attributes { ino, mode, uid, gid, mtime_ns: Some(mtime_ns) }, &[])
    }
}
