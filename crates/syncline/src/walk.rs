//! Resolving paths to inodes.

use crate::error::{Error, Result};
use crate::filesystem::Shared;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use syncline_fs::FsError;
use syncline_fs::types::{Attributes, FileType, Ino, ROOT};

/// Most symbolic links followed in one path, as in Linux.
const LINKS_MAX: u32 = 40;
/// Longest path, as in Linux.
const PATH_BYTES_MAX: usize = 4096;

/// Keeps an inode alive, with or without a name.
pub(crate) struct Reference {
    shared: Arc<Shared>,
    ino: Ino,
}

impl Reference {
    /// Takes over a reference that a call to the engine counted.
    pub(crate) fn counted(shared: &Arc<Shared>, ino: Ino) -> Self {
        Self { shared: shared.clone(), ino }
    }

    /// The root, which is never removed and needs no reference.
    fn root(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), ino: ROOT }
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if self.ino != ROOT {
            self.shared.engine.forget(self.ino, 1);
        }
    }
}

/// The result of resolving a path.
pub(crate) enum Place {
    /// The path leads to an existing inode.
    There(Reference, Attributes),
    /// The path leads to a name that its directory does not have.
    Nowhere(Reference, Vec<u8>),
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

impl Shared {
    /// Resolves a path.
    pub(crate) async fn walk(self: &Arc<Self>, path: &Path, last: Last) -> Result<Place> {
        self.walk_naming(path, last, &mut Vec::new()).await
    }

    /// Resolves a path, and collects in `names` the names from the root to the inode, without
    /// links.
    pub(crate) async fn walk_naming(
        self: &Arc<Self>,
        path: &Path,
        last: Last,
        names: &mut Vec<Vec<u8>>,
    ) -> Result<Place> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(FsError::NotFound.into());
        }
        if bytes.len() >= PATH_BYTES_MAX {
            return Err(FsError::NameTooLong.into());
        }
        let mut todo: VecDeque<Vec<u8>> = components(bytes).collect();
        // "a/" means the directory that "a" leads to.
        let must_be_directory = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
        let mut links = 0;
        let mut current = Reference::root(self);
        let mut attributes = self.engine.getattr(ROOT).await?;
        while let Some(name) = todo.pop_front() {
            let found = match self.engine.lookup(current.ino(), &name).await {
                Ok(found) => found,
                Err(FsError::NotFound) if todo.is_empty() => return Ok(Place::Nowhere(current, name)),
                Err(error) => return Err(error.into()),
            };
            let child =
                if found.ino == ROOT { self.uncounted_root() } else { Reference::counted(self, found.ino) };
            let follow = !todo.is_empty() || must_be_directory || last == Last::Follow;
            if found.file_type != FileType::Symlink || !follow {
                (current, attributes) = (child, found);
                match &name[..] {
                    b".." => drop(names.pop()),
                    _ => names.push(name),
                }
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::TooManySymlinks);
            }
            let target = self.engine.readlink(child.ino()).await?;
            if target.starts_with(b"/") {
                current = Reference::root(self);
                attributes = self.engine.getattr(ROOT).await?;
                names.clear();
            }
            for component in components(&target).rev().collect::<Vec<_>>() {
                todo.push_front(component);
            }
        }
        if must_be_directory && attributes.file_type != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        Ok(Place::There(current, attributes))
    }

    /// The root, found through `..` of the root: gives back the unneeded reference that this
    /// look-up counted.
    fn uncounted_root(self: &Arc<Self>) -> Reference {
        self.engine.forget(ROOT, 1);
        Reference::root(self)
    }

    /// The inode that a path leads to.
    pub(crate) async fn find(self: &Arc<Self>, path: &Path, last: Last) -> Result<(Reference, Attributes)> {
        match self.walk(path, last).await? {
            Place::There(reference, attributes) => Ok((reference, attributes)),
            Place::Nowhere(..) => Err(FsError::NotFound.into()),
        }
    }

    /// The directory that has, or would have, the last name of a path; and that name.
    pub(crate) async fn parent(self: &Arc<Self>, path: &Path) -> Result<(Reference, Vec<u8>)> {
        let bytes = path.as_os_str().as_bytes();
        let trimmed = &bytes[..bytes.len() - bytes.iter().rev().take_while(|&&byte| byte == b'/').count()];
        let start = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let name = trimmed[start..].to_vec();
        match &name[..] {
            b"" if bytes.is_empty() => return Err(FsError::NotFound.into()),
            b"" => return Err(Error::Invalid("the root directory has no name")),
            b"." | b".." => return Err(Error::Invalid("'.' and '..' are no names to change")),
            _ => {}
        }
        let above = if start == 0 { b"/" } else { &bytes[..start] };
        let (parent, attributes) =
            self.find(Path::new(std::ffi::OsStr::from_bytes(above)), Last::Follow).await?;
        if attributes.file_type != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        Ok((parent, name))
    }
}

/// The names of a path.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && name != b".").map(<[u8]>::to_vec)
}
