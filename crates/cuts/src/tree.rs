//! The visible tree of a filesystem as a hash: names, types, permissions, owners, link counts,
//! sizes, xattrs and contents, without times and inode numbers.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use syncline_device::block_on;
use syncline_fs::types::{DirectoryEntry, FileType, Ino, ROOT};
use syncline_fs::{Filesystem, FsError};

/// Entries read at a time.
const ENTRIES_EACH: usize = 1024;
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// The hash of the visible tree; an error has the path of the unreadable object, and the reason.
pub(crate) fn digest(fs: &Filesystem) -> Result<u128, String> {
    let mut walk = Walk { fs, hasher: SipHasher13::new(), met: HashMap::new() };
    let mut todo = vec![(ROOT, String::new())];
    while let Some((ino, path)) = todo.pop() {
        let below = block_on(walk.object(ino)).map_err(|error| format!("{path}/ can't be read: {error}"))?;
        let named =
            |entry: DirectoryEntry| (entry.ino, format!("{path}/{}", String::from_utf8_lossy(&entry.name)));
        todo.extend(below.into_iter().rev().map(named));
    }
    Ok(walk.hasher.finish128().as_u128())
}

/// The entries of a directory except `.` and `..`, sorted by name.
pub(crate) async fn entries(fs: &Filesystem, ino: Ino) -> Result<Vec<DirectoryEntry>, FsError> {
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let some = fs.readdir(ino, cookie, ENTRIES_EACH).await?;
        let Some(last) = some.last() else { break };
        cookie = last.cookie;
        all.extend(some.into_iter().filter(|entry| entry.name != b"." && entry.name != b".."));
    }
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

struct Walk<'a> {
    fs: &'a Filesystem,
    hasher: SipHasher13,
    /// Objects met, numbered by inode: this distinguishes one object with two names from two equal
    /// objects.
    met: HashMap<Ino, usize>,
}

impl Walk<'_> {
    /// Adds an object to the hash; returns its entries.
    async fn object(&mut self, ino: Ino) -> Result<Vec<DirectoryEntry>, FsError> {
        let next = self.met.len();
        let number = *self.met.entry(ino).or_insert(next);
        number.hash(&mut self.hasher);
        if number != next {
            return Ok(Vec::new());
        }
        let attributes = self.fs.getattr(ino).await?;
        let file_type = attributes.file_type;
        (file_type, attributes.permissions, attributes.nlink, attributes.size).hash(&mut self.hasher);
        (attributes.uid, attributes.gid, attributes.rdev).hash(&mut self.hasher);
        let names = self.fs.listxattr(ino).await?;
        let mut names: Vec<&[u8]> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        for name in names {
            name.hash(&mut self.hasher);
            self.fs.getxattr(ino, name).await?.hash(&mut self.hasher);
        }
        match file_type {
            FileType::Directory => {
                let entries = entries(self.fs, ino).await?;
                entries.iter().for_each(|entry| entry.name.hash(&mut self.hasher));
                return Ok(entries);
            }
            FileType::Regular => self.contents(ino, attributes.size).await?,
            FileType::Symlink => self.fs.readlink(ino).await?.hash(&mut self.hasher),
            _ => {}
        }
        Ok(Vec::new())
    }

    /// Adds the data of a file; holes are skipped, so that a sparse file costs only its data.
    async fn contents(&mut self, ino: Ino, size: u64) -> Result<(), FsError> {
        let mut at = 0;
        while at < size {
            let start = match self.fs.seek_data(ino, at).await {
                Ok(start) => start,
                Err(FsError::NoSuchAddress) => return Ok(()),
                Err(error) => return Err(error),
            };
            let end = self.fs.seek_hole(ino, start).await?.min(size);
            (start, end).hash(&mut self.hasher);
            at = start;
            while at < end {
                let len = READ_BYTES.min((end - at) as usize);
                for piece in self.fs.read(ino, at, len).await? {
                    self.hasher.write(&piece);
                }
                at += len as u64;
            }
        }
        Ok(())
    }
}
