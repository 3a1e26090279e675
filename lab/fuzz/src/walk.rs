//! A walk over everything that an image shows, with every read-only operation.

use std::collections::BTreeSet;
use std::sync::Arc;
use syncline_format::items::dirent::is_name;
use syncline_fs::types::{Attributes, FileType, Ino, ROOT};
use syncline_fs::{Filesystem, FsError};

/// Operations after which a walk ends: an image can show an unreasonable number of names.
const OPERATIONS_MAX: u32 = 4000;
/// Entries of a directory read at a time.
const ENTRIES: usize = 50;
/// Bytes of a file read at a time.
const READ_BYTES: usize = 64 << 10;
/// Most pieces of a file that are read.
const PIECES_MAX: u32 = 8;

/// The results of a walk.
#[derive(Debug, Default)]
pub struct Walked {
    /// Each object once.
    pub objects: Vec<(Ino, FileType)>,
    /// Each name, with its directory.
    pub names: Vec<(Ino, Vec<u8>)>,
    /// The first error.
    pub error: Option<String>,
    /// The walk covered everything.
    pub whole: bool,
}

struct Walk<'a> {
    fs: &'a Arc<Filesystem>,
    seen: BTreeSet<Ino>,
    operations: u32,
    walked: Walked,
}

/// Reads everything reachable from the root. Errors do not end the walk.
///
/// # Panics
/// If a result is impossible: cookies that do not ascend, invalid names, more bytes than requested.
pub async fn walk(fs: &Arc<Filesystem>) -> Walked {
    let mut walk = Walk { fs, seen: BTreeSet::new(), operations: 0, walked: Walked::default() };
    let statfs = fs.statfs();
    assert!(statfs.free <= statfs.blocks && statfs.available <= statfs.free, "{statfs:?}");
    let mut waiting = vec![ROOT];
    walk.seen.insert(ROOT);
    while let Some(ino) = waiting.pop() {
        if walk.operations >= OPERATIONS_MAX {
            return walk.walked;
        }
        let Some(attributes) = walk.tell(ino, "getattr", fs.getattr(ino).await) else { continue };
        assert_eq!(attributes.ino, ino, "attributes of another inode");
        walk.walked.objects.push((ino, attributes.file_type));
        walk.xattrs(ino).await;
        walk.paths(ino).await;
        match attributes.file_type {
            FileType::Directory => waiting.extend(walk.directory(ino).await),
            FileType::Regular => walk.data(attributes).await,
            FileType::Symlink => walk.link(attributes).await,
            _ => {}
        }
    }
    walk.walked.whole = true;
    walk.walked
}

impl Walk<'_> {
    /// Records the first error.
    fn wrong(&mut self, ino: Ino, what: &str, text: &str) {
        self.walked.error.get_or_insert_with(|| format!("{what} of inode {ino}: {text}"));
    }

    /// The result, if there is one; every error must have an errno.
    fn tell<T>(&mut self, ino: Ino, what: &str, answer: Result<T, FsError>) -> Option<T> {
        self.operations += 1;
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                assert!((1..=133).contains(&error.errno()), "{error:?}");
                self.wrong(ino, what, &error.to_string());
                None
            }
        }
    }

    /// Reads a directory in both ways; returns the objects in it that were not seen before.
    async fn directory(&mut self, ino: Ino) -> Vec<Ino> {
        let mut found = Vec::new();
        let mut after = 0;
        while self.operations < OPERATIONS_MAX {
            let plain = self.fs.readdir(ino, after, ENTRIES).await;
            let Some(entries) = self.tell(ino, "readdir", plain) else { break };
            assert!(entries.len() <= ENTRIES, "more entries than were asked for");
            let with_attributes = self.fs.readdir_plus(ino, after, ENTRIES).await;
            let Some(with_attributes) = self.tell(ino, "readdir_plus", with_attributes) else { break };
            assert!(
                entries.iter().eq(with_attributes.iter().map(|(entry, _)| entry)),
                "one directory, two answers"
            );
            let Some(last) = entries.last() else { break };
            let last = last.cookie;
            for (entry, attributes) in with_attributes {
                assert!(entry.cookie > after && entry.cookie < 1 << 63, "cookies ascend: {entry:?}");
                after = entry.cookie;
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                assert!(is_name(&entry.name), "a name that none can be: {entry:?}");
                found.extend(self.entry(ino, &entry.name, entry.ino, attributes).await);
            }
            assert_eq!(after, last);
        }
        found
    }

    /// Looks up a name that a directory listed.
    async fn entry(&mut self, directory: Ino, name: &[u8], ino: Ino, listed: Attributes) -> Option<Ino> {
        self.walked.names.push((directory, name.to_vec()));
        if listed.ino == 0 {
            self.wrong(ino, "readdir_plus", "an inode that can't be read");
        } else {
            assert_eq!(listed.ino, ino, "attributes of another inode");
            self.fs.forget(ino, 1);
        }
        let answer = self.fs.lookup(directory, name).await;
        let found = self.tell(directory, "lookup", answer)?;
        self.fs.forget(found.ino, 1);
        if found.ino != ino {
            self.wrong(directory, "lookup", "a name that leads elsewhere than its directory lists");
        }
        self.seen.insert(found.ino).then_some(found.ino)
    }

    async fn xattrs(&mut self, ino: Ino) {
        let listing = self.fs.listxattr(ino).await;
        let Some(listing) = self.tell(ino, "listxattr", listing) else { return };
        assert!(listing.last().is_none_or(|&last| last == 0), "each name of a listing ends with a NUL");
        for name in listing.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            if self.operations >= OPERATIONS_MAX {
                return;
            }
            let value = self.fs.getxattr(ino, name).await;
            if let Some(value) = self.tell(ino, "getxattr", value) {
                assert!(value.len() <= 65536, "a value longer than any");
            }
        }
    }

    /// Asks for the paths of an inode.
    async fn paths(&mut self, ino: Ino) {
        if !self.fs.has_parent_pointers() {
            return;
        }
        let paths = self.fs.paths(ino).await;
        if let Some(paths) = self.tell(ino, "paths", paths) {
            assert!(!paths.is_empty(), "an inode without names is an error");
            for path in paths {
                let names: Vec<_> = path.split(|&byte| byte == b'/').collect();
                assert!(names[0].is_empty(), "a path begins at the root");
                assert!(ino == ROOT || names[1..].iter().all(|name| is_name(name)), "names that none can be");
            }
        }
    }

    async fn link(&mut self, attributes: Attributes) {
        let target = self.fs.readlink(attributes.ino).await;
        if let Some(target) = self.tell(attributes.ino, "readlink", target) {
            assert!(target.len() <= 65536, "a target longer than any");
            if target.len() as u64 != attributes.size {
                self.wrong(attributes.ino, "readlink", "a target that is not as long as the inode says");
            }
        }
    }

    /// Reads the pieces of a file that have data, and its end.
    async fn data(&mut self, attributes: Attributes) {
        let (ino, size) = (attributes.ino, attributes.size);
        let usage = self.fs.usage(ino).await;
        if let Some(usage) = self.tell(ino, "usage", usage) {
            assert!(usage.shared_bytes <= usage.total_bytes, "{usage:?}");
        }
        let fragments = self.fs.fragments(ino).await;
        self.tell(ino, "fragments", fragments);
        self.read(ino, size.saturating_sub(100), size).await;
        let mut at = 0;
        for _ in 0..PIECES_MAX {
            let data = match self.fs.seek_data(ino, at).await {
                // No data from here to the end.
                Err(FsError::NoSuchAddress) => break,
                answer => self.tell(ino, "seek_data", answer),
            };
            let Some(data) = data else { break };
            assert!(data >= at && data < size, "data at {data}, looked for from {at} in {size} bytes");
            let hole = self.fs.seek_hole(ino, data).await;
            let Some(hole) = self.tell(ino, "seek_hole", hole) else { break };
            assert!(hole > data && hole <= size, "a hole at {hole} after data at {data} in {size} bytes");
            self.read(ino, data, size).await;
            at = hole.min(data.saturating_add(READ_BYTES as u64));
        }
    }

    async fn read(&mut self, ino: Ino, offset: u64, size: u64) {
        let pieces = self.fs.read(ino, offset, READ_BYTES).await;
        if let Some(pieces) = self.tell(ino, "read", pieces) {
            let len: usize = pieces.iter().map(|piece| piece.len()).sum();
            let expected = (size - offset).min(READ_BYTES as u64);
            assert_eq!(len as u64, expected, "bytes from {offset} in a file of {size}");
        }
    }
}
