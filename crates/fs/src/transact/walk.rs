//! Resolving the paths of a transaction, through what its steps so far have changed.

use super::known::{Node, World};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::names::directory::check_name;
use crate::types::{FileType, ROOT};
use std::collections::VecDeque;

/// Most symbolic links followed in one path, as in Linux.
const LINKS_MAX: u32 = 40;
/// Longest path, as in Linux.
const PATH_BYTES_MAX: usize = 4096;

/// The result of resolving a path.
pub(super) enum Place {
    There(Node),
    /// A name that its directory does not have.
    Nowhere(Node, Vec<u8>),
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Follow,
    Keep,
}

impl World {
    /// Resolves a path.
    pub(super) async fn walk(&mut self, fs: &Filesystem, path: &[u8], last: Last) -> Result<Place, FsError> {
        if path.is_empty() {
            return Err(FsError::NotFound);
        }
        if path.len() >= PATH_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let mut todo: VecDeque<Vec<u8>> = components(path).collect();
        // "a/" means the directory that "a" leads to.
        let must_be_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let (mut links, mut current) = (0, Node::Old(ROOT));
        while let Some(name) = todo.pop_front() {
            let dir = self.look(fs, current).await?;
            if !dir.is_directory() {
                return Err(FsError::NotDirectory);
            }
            if name == b".." {
                current = dir.parent.ok_or(FsError::NotDirectory)?;
                continue;
            }
            check_name(&name)?;
            let child = match self.find(fs, current, &name).await? {
                Some(child) => child,
                None if todo.is_empty() => return Ok(Place::Nowhere(current, name)),
                None => return Err(FsError::NotFound),
            };
            let known = self.look(fs, child).await?;
            let follow = !todo.is_empty() || must_be_directory || last == Last::Follow;
            if known.file_type != FileType::Symlink || !follow {
                current = child;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(FsError::TooManySymlinks);
            }
            let target = known.read_target(fs).await?;
            if target.starts_with(b"/") {
                current = Node::Old(ROOT);
            }
            components(&target).rev().for_each(|component| todo.push_front(component));
        }
        if must_be_directory && !self.look(fs, current).await?.is_directory() {
            return Err(FsError::NotDirectory);
        }
        self.look(fs, current).await?;
        Ok(Place::There(current))
    }

    /// The inode that a path leads to.
    pub(super) async fn reach(&mut self, fs: &Filesystem, path: &[u8]) -> Result<Node, FsError> {
        match self.walk(fs, path, Last::Follow).await? {
            Place::There(node) => Ok(node),
            Place::Nowhere(..) => Err(FsError::NotFound),
        }
    }

    /// The directory that has, or would have, the last name of a path; and that name.
    pub(super) async fn parent_of(
        &mut self,
        fs: &Filesystem,
        path: &[u8],
    ) -> Result<(Node, Vec<u8>), FsError> {
        let trimmed = &path[..path.len() - path.iter().rev().take_while(|&&byte| byte == b'/').count()];
        let start = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let name = &trimmed[start..];
        match name {
            b"" if path.is_empty() => return Err(FsError::NotFound),
            b"" => return Err(FsError::Invalid("the root directory has no name")),
            b"." | b".." => return Err(FsError::Invalid("'.' and '..' are no names to change")),
            _ => check_name(name)?,
        }
        let above = if start == 0 { b"/" } else { &path[..start] };
        let dir = self.reach(fs, above).await?;
        if !self.known(dir).is_directory() {
            return Err(FsError::NotDirectory);
        }
        Ok((dir, name.to_vec()))
    }
}

/// The names of a path.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && name != b".").map(<[u8]>::to_vec)
}
