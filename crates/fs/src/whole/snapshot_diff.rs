//! The changes between a snapshot and a later one, as files and names.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::types::{FileType, Ino, ROOT};
use std::collections::{BTreeMap, HashMap, HashSet};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::inode::{FLAG_UNPLACED, InodeItem};
use syncline_format::{FormatError, Kind};
use syncline_store::Difference;

/// The kind of a change to a file or a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChangeKind {
    /// The name was not there before.
    Added,
    /// The name is not there any more.
    Removed,
    /// The file had this name before.
    Renamed {
        /// Its former path.
        from: Vec<u8>,
    },
    /// The contents differ, or lie elsewhere.
    Contents,
    /// Owner, permissions, flags or extended attributes differ.
    Attributes,
}

/// A difference between two states of a filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The path from the root; for a removed name, the path that it had.
    pub path: Vec<u8>,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub file_type: FileType,
}

impl Change {
    /// By path; a removed file goes before the file that replaced it.
    fn order(&self) -> (&[u8], bool, &ChangeKind) {
        (&self.path, self.kind != ChangeKind::Removed, &self.kind)
    }
}

/// A directory entry.
struct Entry {
    directory: Ino,
    name: Vec<u8>,
    ino: Ino,
    file_type: FileType,
}

/// The differences, gathered from the items.
#[derive(Default)]
struct Found {
    removed: Vec<Entry>,
    added: Vec<Entry>,
    /// Inodes that exist before and after, and whether contents and attributes differ. An inode
    /// that is new or gone is in here with neither, and stays so.
    touched: BTreeMap<Ino, (bool, bool)>,
    corrupt: Option<(Ino, FormatError)>,
}

impl Filesystem {
    /// The changes since `before`, an earlier state of the same image, in the order of the paths.
    /// Both must be read-only. This needs the parent pointers of the image, and takes time in
    /// proportion to the changes.
    pub async fn changes_since(&self, before: &Filesystem) -> Result<Vec<Change>, FsError> {
        if !self.has_parent_pointers() {
            return Err(FsError::NoParentPointers);
        }
        let mut found = Found::default();
        self.store.differences(&before.store, &mut |difference| found.take(difference)).await?;
        if let Some((ino, detail)) = found.corrupt {
            return Err(FsError::Corrupt { ino, detail });
        }
        let mut changes = Vec::new();
        names(before, self, found.removed, found.added, &mut changes).await?;
        found.touched.retain(|_, touched| touched.0 || touched.1);
        for (ino, (contents, attributes)) in found.touched {
            // An orphan has no name to report.
            let path = match self.paths(ino).await {
                Ok(paths) => paths.into_iter().next().unwrap_or_default(),
                Err(FsError::NoName) => continue,
                Err(error) => return Err(error),
            };
            let file_type = self.inode(ino).await?.file_type;
            let kinds = [(contents, ChangeKind::Contents), (attributes, ChangeKind::Attributes)];
            let kinds = kinds.into_iter().filter(|(differs, _)| *differs);
            changes.extend(kinds.map(|(_, kind)| Change { path: path.clone(), kind, ino, file_type }));
        }
        changes.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        Ok(changes)
    }
}

impl Found {
    fn take(&mut self, difference: Difference) {
        let object = difference.key.object;
        if let Err(detail) = self.try_take(difference) {
            self.corrupt.get_or_insert((object, detail));
        }
    }

    fn try_take(&mut self, Difference { key, before, after }: Difference) -> Result<(), FormatError> {
        let both = before.is_some() && after.is_some();
        match Kind::from_u8(key.kind) {
            Some(Kind::Dirent) => {
                let entry = |value: &[u8]| Entry::decode(key.object, value);
                self.removed.extend(before.map(|value| entry(&value)).transpose()?);
                self.added.extend(after.map(|value| entry(&value)).transpose()?);
            }
            Some(Kind::Inode) if both => {
                let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
                let (contents, attributes) =
                    differ(&InodeItem::decode(&before)?, &InodeItem::decode(&after)?);
                if contents || attributes {
                    self.touch(key.object, contents, attributes);
                }
            }
            // An inode that is new or gone is reported by its names.
            Some(Kind::Inode) => self.touched.insert(key.object, (false, false)).map_or((), drop),
            Some(Kind::Extent | Kind::Unplaced) => self.touch(key.object, true, false),
            Some(Kind::Xattr) => self.touch(key.object, false, true),
            _ => {}
        }
        Ok(())
    }

    /// Notes a change of an inode. Items of an inode come after the inode item: an inode that is
    /// new or gone is in `touched` by then, and stays untouched.
    fn touch(&mut self, ino: Ino, contents: bool, attributes: bool) {
        match self.touched.get_mut(&ino) {
            Some((false, false)) => {}
            Some(touched) => *touched = (touched.0 | contents, touched.1 | attributes),
            None => drop(self.touched.insert(ino, (contents, attributes))),
        }
    }
}

/// Whether contents differ, and whether attributes do.
fn differ(before: &InodeItem<'_>, after: &InodeItem<'_>) -> (bool, bool) {
    let is_directory = FileType::from_number((after.mode >> 12) as u8) == Some(FileType::Directory);
    let contents = |item: &InodeItem<'_>| (item.size, item.mtime, item.data.map(<[u8]>::to_vec));
    let attributes = |item: &InodeItem<'_>| {
        let xattrs: Vec<_> =
            item.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let flags = item.flags & !FLAG_UNPLACED;
        (item.mode, flags, item.uid, item.gid, item.rdev, item.xattr_items, xattrs)
    };
    // Changes in a directory are reported by its entries.
    (!is_directory && contents(before) != contents(after), attributes(before) != attributes(after))
}

impl Entry {
    fn decode(directory: Ino, value: &[u8]) -> Result<Self, FormatError> {
        let entry = Dirent::decode(value)?;
        let file_type = FileType::from_number(entry.file_type);
        let file_type =
            file_type.ok_or(FormatError::Field { structure: "directory entry", field: "type" })?;
        Ok(Self { directory, name: entry.name.to_vec(), ino: entry.ino, file_type })
    }
}

/// A path, with the inode and its type.
type Named = (Vec<u8>, Ino, FileType);

/// Turns names that came and went into additions, removals and renames.
async fn names(
    before: &Filesystem,
    after: &Filesystem,
    removed: Vec<Entry>,
    added: Vec<Entry>,
    changes: &mut Vec<Change>,
) -> Result<(), FsError> {
    let (removed, added) = (paths(before, removed).await?, paths(after, added).await?);
    changes.extend(paired(removed, added));
    Ok(())
}

async fn paths(fs: &Filesystem, entries: Vec<Entry>) -> Result<Vec<Named>, FsError> {
    let (mut known, mut named) = (Paths::of(fs), Vec::with_capacity(entries.len()));
    for entry in entries {
        named.push((known.of_entry(&entry).await?, entry.ino, entry.file_type));
    }
    Ok(named)
}

/// Pairs a name that an inode lost with one that it gained: that is a rename.
fn paired(removed: Vec<Named>, added: Vec<Named>) -> Vec<Change> {
    // A name may move to another slot without changing.
    let lost: HashSet<Named> = removed.into_iter().collect();
    let (stayed, added): (Vec<Named>, Vec<Named>) = added.into_iter().partition(|name| lost.contains(name));
    let stayed: HashSet<Named> = stayed.into_iter().collect();
    let mut gone: BTreeMap<Ino, Vec<Vec<u8>>> = BTreeMap::new();
    let mut types = HashMap::new();
    for (path, ino, file_type) in lost.difference(&stayed) {
        gone.entry(*ino).or_default().push(path.clone());
        types.insert(*ino, *file_type);
    }
    gone.values_mut().for_each(|paths| paths.sort_unstable());
    let mut changes = Vec::new();
    for (path, ino, file_type) in added {
        let kind = match gone.get_mut(&ino).and_then(Vec::pop) {
            Some(from) => ChangeKind::Renamed { from },
            None => ChangeKind::Added,
        };
        changes.push(Change { path, kind, ino, file_type });
    }
    for (ino, paths) in gone {
        let removed = |path| Change { path, kind: ChangeKind::Removed, ino, file_type: types[&ino] };
        changes.extend(paths.into_iter().map(removed));
    }
    changes
}

/// The paths of directories, cached.
struct Paths<'a> {
    fs: &'a Filesystem,
    known: HashMap<Ino, Vec<u8>>,
}

impl<'a> Paths<'a> {
    fn of(fs: &'a Filesystem) -> Self {
        Self { fs, known: HashMap::from([(ROOT, Vec::new())]) }
    }

    async fn of_entry(&mut self, entry: &Entry) -> Result<Vec<u8>, FsError> {
        if !self.known.contains_key(&entry.directory) {
            let path = self.fs.paths(entry.directory).await?.into_iter().next().unwrap_or_default();
            self.known.insert(entry.directory, path);
        }
        Ok([&self.known[&entry.directory], b"/".as_slice(), &entry.name].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stays_is_no_rename_of_another_that_went() {
        let named = |paths: &[(&str, Ino)]| -> Vec<Named> {
            paths.iter().map(|(path, ino)| (path.as_bytes().to_vec(), *ino, FileType::Regular)).collect()
        };
        // One inode loses b, and its a gets another slot; another inode's c becomes d.
        let changes = paired(named(&[("/a", 5), ("/b", 5), ("/c", 6)]), named(&[("/a", 5), ("/d", 6)]));
        let told: Vec<(&[u8], &ChangeKind)> =
            changes.iter().map(|change| (&change.path[..], &change.kind)).collect();
        let renamed = ChangeKind::Renamed { from: b"/c".to_vec() };
        assert_eq!(told, [(&b"/d"[..], &renamed), (&b"/b"[..], &ChangeKind::Removed)]);
    }
}
